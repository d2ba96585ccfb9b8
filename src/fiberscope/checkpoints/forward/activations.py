"""Activation functions by the names that configurations give them.

The names and constants are those of the published classes, rounded constants included: `gelu_fast`
and `gelu_new` are different functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Function = Callable[[Array], Array]


def _gelu(x: Array) -> Array:
    from scipy.special import erf

    return np.asarray(0.5 * x * (1.0 + erf(x / math.sqrt(2.0))))


def _gelu_tanh(x: Array) -> Array:
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * (x * x * x))))


def _gelu_fast(x: Array) -> Array:
    return 0.5 * x * (1.0 + np.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x)))


def _sigmoid(x: Array) -> Array:
    from scipy.special import expit

    return np.asarray(expit(x))


def _laplace(x: Array) -> Array:
    from scipy.special import erf

    return np.asarray(0.5 * (1.0 + erf((x - 0.707107) / (0.282095 * math.sqrt(2.0)))))


def _silu(x: Array) -> Array:
    return x * _sigmoid(x)


ACTIVATIONS: Mapping[str, Function] = {
    "gelu": _gelu,
    "gelu_10": lambda x: np.clip(_gelu(x), -10.0, 10.0),
    "gelu_accurate": _gelu_tanh,
    "gelu_fast": _gelu_fast,
    "gelu_new": _gelu_tanh,
    "gelu_python": _gelu,
    "gelu_python_tanh": _gelu_tanh,
    "gelu_pytorch_tanh": _gelu_tanh,
    "hardswish": lambda x: x * np.clip(x + 3.0, 0.0, 6.0) / 6.0,
    "laplace": _laplace,
    "leaky_relu": lambda x: np.where(x > 0, x, 0.01 * x),
    "mish": lambda x: x * np.tanh(np.logaddexp(0.0, x)),
    "quick_gelu": lambda x: x * _sigmoid(1.702 * x),
    "relu": lambda x: np.maximum(x, 0.0),
    "relu2": lambda x: np.square(np.maximum(x, 0.0)),
    "relu6": lambda x: np.clip(x, 0.0, 6.0),
    "sigmoid": _sigmoid,
    "silu": _silu,
    "swish": _silu,
    "tanh": np.tanh,
}
"""Every activation that the tables accept, elementwise in float64."""
