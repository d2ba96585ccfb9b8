"""Sizes and flags of multi-head attention, and the shapes that follow from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from math import isfinite, pi

from fiberscope.errors import InputError
from fiberscope.parameters import ParameterSpace, View

BIASES = ("query", "key", "value", "output")


class QueryKeyNorm(Enum):
    """Root-mean-square normalisation of queries and keys, head by head."""

    NONE = "none"
    PLAIN = "normalised, no gains"
    HEAD_GAINS = "normalised, a gain for every head and key/value group"
    SHARED_GAINS = "normalised, one gain shared by all heads"

    @property
    def has_gains(self) -> bool:
        """True when gains follow the normalisation."""
        return self in (QueryKeyNorm.HEAD_GAINS, QueryKeyNorm.SHARED_GAINS)


@dataclass(frozen=True, kw_only=True)
class AttentionConfiguration:
    """Sizes and flags; every layer of a stack has the same.

    Attributes
    ----------
    input_width, output_width
        d and p (default: d). They must agree for a stack or a residual connection.
    heads, groups
        Query heads H, and key/value groups G (default: H) of H/G heads each.
    query_width, value_width
        Width r of queries and keys, and s of values, per head.
    biases
        Which of ``query``, ``key``, ``value``, ``output`` have a bias.
    rotated
        Number of leading query/key rows that rotate with the position, in half-split planes
        ``(j, j + rotated/2)``; 0 without rotary encoding.
    frequencies
        One angle a position for every plane, in (0, pi); equal numbers allowed. Default
        ``10^(-2j / rotated)``.
    norm
        Normalisation of queries and keys (before the rotation).
    causal
        Tokens attend only to themselves and earlier ones.
    residual
        The layer's input is added to its output.
    depth
        Number of layers in series.
    tokens
        Length n of the observed sequences, at least 2.
    """

    input_width: int
    heads: int
    query_width: int
    value_width: int
    output_width: int | None = None
    groups: int | None = None
    biases: frozenset[str] = frozenset()
    rotated: int = 0
    frequencies: tuple[float, ...] | None = None
    norm: QueryKeyNorm = QueryKeyNorm.NONE
    causal: bool = False
    residual: bool = False
    depth: int = 1
    tokens: int = 3
    d: int = field(init=False, repr=False, compare=False)
    p: int = field(init=False, repr=False, compare=False)
    G: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        set_(self, "biases", frozenset(self.biases))
        set_(self, "d", self.input_width)
        set_(self, "p", self.input_width if self.output_width is None else self.output_width)
        set_(self, "G", self.heads if self.groups is None else self.groups)
        self._check_sizes()
        self._check_rotary()
        if self.frequencies is not None:
            set_(self, "frequencies", tuple(float(f) for f in self.frequencies))

    def _check_sizes(self) -> None:
        sizes = {
            "input_width": self.d,
            "output_width": self.p,
            "heads": self.heads,
            "groups": self.G,
            "query_width": self.query_width,
            "value_width": self.value_width,
            "depth": self.depth,
        }
        for name, size in sizes.items():
            if size < 1:
                raise InputError(f"Attention {name} is {size}; it must be at least 1.")
        if self.heads % self.G:
            raise InputError(
                f"{self.heads} heads cannot be shared evenly by {self.G} key/value groups; choose "
                "a number of groups that divides the number of heads."
            )
        if unknown := self.biases - set(BIASES):
            raise InputError(
                f"Unknown attention biases {sorted(unknown)}; choose among {', '.join(BIASES)}."
            )
        if self.tokens < 2:
            raise InputError(
                f"Sequences of {self.tokens} token(s) say nothing about attention scores; use at "
                "least 2 tokens."
            )
        if (self.depth > 1 or self.residual) and self.d != self.p:
            raise InputError(
                f"A stack or a residual connection needs equal widths, but the input width is "
                f"{self.d} and the output width {self.p}; set both to the same number."
            )
        if self.norm is not QueryKeyNorm.NONE and self.query_width < 2:
            raise InputError(
                "Normalised queries of width 1 keep only their sign, so no derivative tells "
                "anything about them; use query_width 2 or more."
            )

    def _check_rotary(self) -> None:
        if self.rotated % 2 or not 0 <= self.rotated <= self.query_width:
            raise InputError(
                f"Cannot rotate {self.rotated} of {self.query_width} query/key rows; rotated must "
                "be even and at most query_width."
            )
        if self.frequencies is None:
            return
        if len(self.frequencies) != self.rotated // 2:
            raise InputError(
                f"{len(self.frequencies)} rotary frequencies were given for "
                f"{self.rotated // 2} rotated planes; give one for each plane."
            )
        for frequency in self.frequencies:
            if not (isfinite(frequency) and 0 < frequency < pi):
                raise InputError(
                    f"Rotary frequency {frequency} is not between 0 and pi; at whole positions "
                    "others repeat one of these or do not rotate."
                )

    @property
    def heads_per_group(self) -> int:
        """Query heads that share one key/value group."""
        return self.heads // self.G

    @property
    def planes(self) -> tuple[tuple[int, int], ...]:
        """Rows of every rotated plane."""
        half = self.rotated // 2
        return tuple((j, j + half) for j in range(half))

    @property
    def angles(self) -> tuple[float, ...]:
        """Frequency of every rotated plane."""
        if self.frequencies is not None:
            return self.frequencies
        return tuple(10.0 ** (-2.0 * j / self.rotated) for j in range(self.rotated // 2))

    def shape(self, role: str) -> tuple[int, ...]:
        """Shape of one role's array in any layer."""
        H, G, r, s = self.heads, self.G, self.query_width, self.value_width
        shared = self.norm is QueryKeyNorm.SHARED_GAINS
        return {
            "query": (H, r, self.d),
            "key": (G, r, self.d),
            "value": (G, s, self.d),
            "output": (H, self.p, s),
            "query_bias": (H, r),
            "key_bias": (G, r),
            "value_bias": (G, s),
            "output_bias": (self.p,),
            "query_gain": (r,) if shared else (H, r),
            "key_gain": (r,) if shared else (G, r),
        }[role]

    @property
    def roles(self) -> tuple[str, ...]:
        """Roles present in every layer, in order."""
        gains = ("query_gain", "key_gain") if self.norm.has_gains else ()
        return (
            "query",
            "key",
            "value",
            "output",
            *(f"{bias}_bias" for bias in BIASES if bias in self.biases),
            *gains,
        )

    def name(self, layer: int, role: str) -> str:
        """Parameter name: the role, with the layer in front when there are several."""
        return role if self.depth == 1 else f"layers.{layer}.{role}"

    def view(self, layer: int, role: str) -> View | None:
        """The role's array in one layer, None where the configuration has none."""
        if role not in self.roles:
            return None
        return View.whole(self.name(layer, role), self.shape(role))

    @property
    def space(self) -> ParameterSpace:
        """All parameters in order."""
        return ParameterSpace(
            {
                self.name(layer, role): self.shape(role)
                for layer in range(self.depth)
                for role in self.roles
            }
        )

    @property
    def complete(self) -> bool:
        """True where the symmetries are known to be the whole fiber at generic points.

        No head width lies strictly between the widths of the two maps it joins (a product of an
        ``a x r`` and an ``r x b`` factor with ``a < r < b`` has freedom beyond GL(r)), and
        rotated or normalised queries are no wider than the input. Of a rotary causal layer two
        tokens show only part: a token's score with itself is a quadratic form. In a stack, the
        biases absorb a shift of the stream or write none; without a residual connection, the
        heads span the interface, and there are two layers at most (the tokens grow alike so fast
        that float64 cannot tell what a third one determines).
        """
        reach = self.heads_per_group * (self.d + ("query" in self.biases))
        plain = not self.key_bias_matters
        if self.query_width > self.d and not (plain and self.query_width >= reach):
            return False
        narrow, wide = sorted((self.d, self.heads_per_group * self.p))
        if narrow < self.value_width < wide:
            return False
        if self.causal and self.rotated and self.tokens < 3:
            return False
        if self.depth == 1:
            return True
        spanned = self.heads * self.value_width >= self.d and self.depth == 2
        if not (self.residual or spanned):
            return False
        return self.shifts_absorbed or not self.biases & {"value", "output"}

    @property
    def key_bias_matters(self) -> bool:
        """True where a key bias changes the scores: it is rotated or normalised."""
        return self.rotated > 0 or self.norm is not QueryKeyNorm.NONE

    @property
    def shifts_absorbed(self) -> bool:
        """True where biases absorb a constant added to the stream between two layers."""
        needed = {"query", "output"} | ({"key"} if self.key_bias_matters else set())
        return needed <= self.biases
