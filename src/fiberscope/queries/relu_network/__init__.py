"""Attention followed by a bias-free ReLU network: recovered as a function."""

from fiberscope.queries.relu_network.recover import recover_attention_with_relu
from fiberscope.queries.relu_network.result import ReluRecovery

__all__ = ["ReluRecovery", "recover_attention_with_relu"]
