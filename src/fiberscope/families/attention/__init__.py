"""Multi-head attention: heads, key/value groups, rotary, biases, norms, serial stacks."""

from fiberscope.families.attention.configuration import AttentionConfiguration, QueryKeyNorm
from fiberscope.families.attention.family import MultiHeadAttention
from fiberscope.families.attention.observation import TokenBank

__all__ = ["AttentionConfiguration", "MultiHeadAttention", "QueryKeyNorm", "TokenBank"]
