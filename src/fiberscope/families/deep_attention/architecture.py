"""What a deep attention network looks like: widths, ranks, heads, normalizers, wiring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fiberscope.errors import InputError
from fiberscope.families.deep_attention.normalizers import Normalizer, normalizer
from fiberscope.parameters import ParameterSpace


@dataclass(frozen=True)
class Architecture:
    """A serial stack of attention layers.

    Layer ``i`` maps tokens ``x_a`` of width ``d_{i-1}`` to
    ``sum_h V_{i,h} sum_b A^h_ab x_b`` of width ``d_i``, with scores
    ``s^h_ab = x_a^T Q_{i,h} K_{i,h}^T x_b`` and weights ``A_ab = phi_i(s_ab) / sum_c phi_i(s_ac)``,
    or ``A_ab = s_ab`` in an unnormalized (lightning) network.

    Attributes
    ----------
    widths
        ``d_0, ..., d_D``: token widths.
    ranks
        ``r_1, ..., r_D``: query/key widths.
    heads
        Heads of every layer.
    tokens
        Number of tokens ``n``.
    normalizers
        One a layer; None in an unnormalized network.
    causal
        Whether token ``a`` attends to tokens ``b <= a`` only.
    residual
        Whether every layer adds its input.
    layer_norm
        Whether tokens are centred and scaled to unit variance between layers (without epsilon).
    trainable_values
        False fixes every value matrix at the identity divided by the number of heads.
    mean_only
        True observes the mean of the output tokens instead of all of them.
    """

    widths: tuple[int, ...]
    ranks: tuple[int, ...]
    heads: tuple[int, ...]
    tokens: int
    normalizers: tuple[Normalizer, ...] | None
    causal: bool = False
    residual: bool = False
    layer_norm: bool = False
    trainable_values: bool = True
    mean_only: bool = False

    @property
    def depth(self) -> int:
        """Number of layers ``D``."""
        return len(self.ranks)

    @property
    def normalized(self) -> bool:
        """Whether weights are normalised over the keys."""
        return self.normalizers is not None

    @property
    def plain(self) -> bool:
        """Whether this is the network of the theorems: serial, one head, no mask, no residual."""
        return (
            self.normalized
            and not (self.causal or self.residual or self.layer_norm)
            and all(h == 1 for h in self.heads)
        )

    @property
    def space(self) -> ParameterSpace:
        """Named arrays ``Q1, K1, V1, Q2, ...``.

        ``Qi``, ``Ki`` have shape ``(heads, d_{i-1}, r_i)``, ``Vi`` has ``(heads, d_i, d_{i-1})``.
        """
        shapes: dict[str, tuple[int, ...]] = {}
        for i in range(1, self.depth + 1):
            heads, rank = self.heads[i - 1], self.ranks[i - 1]
            shapes[f"Q{i}"] = shapes[f"K{i}"] = (heads, self.widths[i - 1], rank)
            if self.trainable_values:
                shapes[f"V{i}"] = (heads, self.widths[i], self.widths[i - 1])
        return ParameterSpace(shapes)

    def describe(self) -> str:
        """One line in words."""
        parts = [
            f"widths {','.join(map(str, self.widths))}",
            f"ranks {','.join(map(str, self.ranks))}",
        ]
        if max(self.heads) > 1:
            parts.append(f"heads {','.join(map(str, self.heads))}")
        parts.append(f"{self.tokens} tokens")
        if self.normalizers is None:
            parts.append("unnormalized")
        else:
            parts.append(", ".join(dict.fromkeys(phi.name for phi in self.normalizers)))
        flags = {
            "causal": self.causal,
            "residual": self.residual,
            "layer norm": self.layer_norm,
            "fixed values": not self.trainable_values,
            "mean observed": self.mean_only,
        }
        return "; ".join(parts + [name for name, on in flags.items() if on])


def _per_layer(values: int | Sequence[int], depth: int, what: str) -> tuple[int, ...]:
    listed = (values,) * depth if isinstance(values, int) else tuple(values)
    if len(listed) == 1:
        listed *= depth
    if len(listed) != depth:
        raise InputError(
            f"{len(listed)} {what} are given for {depth} layers: give one, or one a layer"
        )
    if min(listed) < 1:
        raise InputError(f"{what} must be positive, got {', '.join(map(str, listed))}")
    return listed


def deep_attention_architecture(
    *,
    widths: Sequence[int],
    ranks: int | Sequence[int],
    tokens: int,
    normalizers: str | Normalizer | Sequence[str | Normalizer] | None = "softmax",
    heads: int | Sequence[int] = 1,
    causal: bool = False,
    residual: bool = False,
    layer_norm: bool = False,
    trainable_values: bool = True,
    mean_only: bool = False,
) -> Architecture:
    """Build an :class:`Architecture` from its description, and check it.

    Parameters
    ----------
    widths
        ``d_0, ..., d_D``.
    ranks, heads
        One number, or one a layer.
    tokens
        Number of tokens.
    normalizers
        A name or :class:`Normalizer`, one for all layers or one a layer; None for the
        unnormalized (lightning) network.
    causal, residual, layer_norm, trainable_values, mean_only
        See :class:`Architecture`.

    Raises
    ------
    InputError
        For a rank above the width it reads, one token under normalised weights, unequal widths
        with a residual connection or fixed values, or lists of the wrong length.
    """
    widths = tuple(widths)
    depth = len(widths) - 1
    if depth < 1:
        raise InputError("at least two widths are needed, the input's and the output's")
    if min(widths) < 1:
        raise InputError(f"widths must be positive, got {', '.join(map(str, widths))}")
    rank_list = _per_layer(ranks, depth, "ranks")
    head_list = _per_layer(heads, depth, "heads")
    for i, (rank, width) in enumerate(zip(rank_list, widths, strict=False), start=1):
        if rank > width:
            raise InputError(
                f"layer {i} has rank {rank} above its input width {width}: a score matrix of "
                f"width {width} has rank at most {width}, so give a rank up to {width}"
            )
    if tokens < 1:
        raise InputError(f"the number of tokens must be positive, got {tokens}")
    if normalizers is not None and tokens == 1:
        raise InputError(
            "one token attends to itself with weight 1 whatever its score, so no query or key can "
            "be observed: give at least two tokens"
        )
    if (residual or not trainable_values) and len(set(widths)) > 1:
        reason = "a residual connection" if residual else "identity values"
        raise InputError(f"{reason} need equal widths, got {', '.join(map(str, widths))}")
    if layer_norm and min(widths[1:]) < 2:
        raise InputError("a LayerNorm of width 1 is always zero: give widths of at least 2")
    chosen: tuple[Normalizer, ...] | None = None
    if normalizers is not None:
        names = [normalizers] if isinstance(normalizers, str | Normalizer) else list(normalizers)
        if len(names) == 1:
            names *= depth
        if len(names) != depth:
            raise InputError(
                f"{len(names)} normalizers are given for {depth} layers: give one, or one a layer"
            )
        chosen = tuple(normalizer(name) for name in names)
    return Architecture(
        widths,
        rank_list,
        head_list,
        tokens,
        chosen,
        causal,
        residual,
        layer_norm,
        trainable_values,
        mean_only,
    )
