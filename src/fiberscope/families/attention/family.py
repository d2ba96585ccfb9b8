"""Multi-head attention as a family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.families.attention.configuration import AttentionConfiguration
from fiberscope.families.attention.exceptional import exceptional_points
from fiberscope.families.attention.observation import TokenBank, observe
from fiberscope.families.attention.symmetries import attention_symmetries
from fiberscope.family import Design, Family
from fiberscope.numbers import FLOAT64, Array, NumberSystem
from fiberscope.symmetry import Symmetry


class MultiHeadAttention(Family):
    """Softmax attention with heads, key/value groups, rotary encoding, biases, norms and depth.

    The observation is the output at every token of random sequences. Parameters are named
    ``query`` (H, r, d), ``key`` (G, r, d), ``value`` (G, s, d), ``output`` (H, p, s),
    ``query_bias`` and so on, with ``layers.<number>.`` in front in a stack.

    At generic points the fiber is the orbit of changes of query/key and value/output basis and
    permutations of heads, for one layer without position encoding: N. W. Henry, "Generic Fibers
    and Functional Dimension of Multi-Head Attention" (OpenReview 7vPmnHdAPl). The other variants
    rest on the rank of the Jacobian.

    Parameters
    ----------
    configuration
        Keyword arguments of
        :class:`~fiberscope.families.attention.configuration.AttentionConfiguration`.

    Examples
    --------
    >>> from fiberscope.analysis import dimension
    >>> family = MultiHeadAttention(input_width=4, heads=2, query_width=2, value_width=2)
    >>> result = dimension(family)
    >>> result.value, result.parameters
    (48, 64)
    """

    number_systems = frozenset({"float64", "balls"})

    def __init__(self, **configuration: Any) -> None:
        self.configuration = AttentionConfiguration(**configuration)
        c = self.configuration
        self.name = f"multi-head attention, {c.heads} heads, width {c.d}, depth {c.depth}"
        self.space = c.space
        self.complete = c.complete

    def generic(self, rng: np.random.Generator) -> dict[str, NDArray[np.float64]]:
        """Normal weights of variance 1/d and biases of size 0.7; gains around 1."""
        c = self.configuration
        drawn = {}
        for name, shape in self.space.shapes.items():
            values = rng.standard_normal(shape)
            if name.endswith("_gain"):
                drawn[name] = 1.0 + 0.3 * values
            elif name.endswith("_bias"):
                drawn[name] = 0.7 * values
            else:
                drawn[name] = values / np.sqrt(c.value_width if name.endswith("output") else c.d)
        return drawn

    def exceptional(self, rng: np.random.Generator) -> Mapping[str, dict[str, NDArray[np.float64]]]:
        """Silent, rank-deficient and equal heads."""
        return exceptional_points(self.configuration, self.generic(rng))

    def design(self, size: int, rng: np.random.Generator) -> TokenBank:
        """Standard normal tokens; a larger design from the same seed extends a smaller one."""
        if size < 1:
            raise InputError(f"A token bank of {size} sequences observes nothing; use at least 1.")
        c = self.configuration
        return TokenBank(size, rng.standard_normal((size, c.tokens, c.d)))

    @property
    def sufficient_size(self) -> int:
        """Twice as many observed numbers as parameters, and two sequences more."""
        c = self.configuration
        return 2 + -(-2 * self.space.size // (c.tokens * c.p))

    def observe(
        self, parameters: Mapping[str, Array], design: Design, system: NumberSystem = FLOAT64
    ) -> Array:
        """Outputs at all tokens, flattened: shape ``(size * tokens * p,)``."""
        c = self.configuration
        if not isinstance(design, TokenBank) or design.inputs.shape[1:] != (c.tokens, c.d):
            raise InputError(
                f"The design is not a bank of sequences of {c.tokens} tokens of width {c.d}; make "
                "one with the family's own design()."
            )
        return observe(c, parameters, design.inputs, system)

    def symmetries(self, design: Design) -> Sequence[Symmetry]:
        """Changes of basis, cancelling biases, scales, interface freedom, permutations."""
        return attention_symmetries(self.configuration)
