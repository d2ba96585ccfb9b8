"""Families of parameter maps, one folder each."""

from fiberscope.families.attention import (
    AttentionConfiguration,
    MultiHeadAttention,
    QueryKeyNorm,
    TokenBank,
)

__all__ = ["AttentionConfiguration", "MultiHeadAttention", "QueryKeyNorm", "TokenBank"]
