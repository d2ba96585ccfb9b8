"""Distance modulo symmetry: balanced frames, and only the compact part of the group.

The full group can squeeze a difference into nothing or blow it up, so the distance is taken where
factors are balanced (of minimal norm) in both models, and minimised over the orthogonal maps that
are left. Heads and neurons are matched as in the comparison; another matching could be nearer, so
this is an upper bound.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Activation, Attention
from fiberscope.checkpoints.canonical.balancing import balance
from fiberscope.checkpoints.equality.alignment import Alignment, blocks_of
from fiberscope.checkpoints.equality.circuits import blocks
from fiberscope.checkpoints.equality.folded import FoldedModel
from fiberscope.checkpoints.equality.folded_parts import FoldedAttention, FoldedMlp
from fiberscope.checkpoints.equality.heads import carried
from fiberscope.checkpoints.equality.neurons import carried_mlp
from fiberscope.checkpoints.equality.normalised_heads import turned_to, with_positive_gains
from fiberscope.checkpoints.equality.silence import reordered, silenced, with_constant

Array = NDArray[np.float64]
SEED = 20260930


@dataclass(frozen=True)
class Distance:
    """Distance of two models modulo symmetry, relative to the norm of the first.

    Attributes
    ----------
    relative
        ``|B - g A| / |A|`` with both balanced, least over the compact group for the matching found:
        an upper bound.
    shuffled
        The same for the second model with the entries of every array shuffled: what weights of
        these sizes that have nothing in common would show.
    """

    relative: float
    shuffled: float


@dataclass
class _Term:
    """Arrays of both models on whose second-last axis one orthogonal map acts (None: none)."""

    first: list[NDArray[np.complex128] | Array]
    second: list[NDArray[np.complex128] | Array]
    turning: str | None


def distance(first: FoldedModel, second: FoldedModel, found: Alignment) -> Distance:
    """Distance modulo symmetry of two aligned models."""
    rng = np.random.default_rng(SEED)
    size = apart = shuffled = 0.0
    for term in _terms(first, second, found):
        size += sum(float((np.abs(a) ** 2).sum()) for a in term.first)
        apart += _apart(term.first, term.second, term.turning)
        mixed = [rng.permutation(b.reshape(-1)).reshape(b.shape) for b in term.second]
        shuffled += _apart(term.first, mixed, term.turning)
    if size == 0:
        return Distance(0.0 if apart == 0 else float("inf"), float("nan"))
    return Distance(float(np.sqrt(apart / size)), float(np.sqrt(shuffled / size)))


def _apart(
    first: Sequence[NDArray[Any]], second: Sequence[NDArray[Any]], turning: str | None
) -> float:
    """Squared distance after the best orthogonal (unitary) map, summed over the batch."""
    if turning is None:
        return sum(float((np.abs(b - a) ** 2).sum()) for a, b in zip(first, second, strict=True))
    cross = sum(b @ np.conj(a).swapaxes(-1, -2) for a, b in zip(first, second, strict=True))
    values = np.linalg.svd(np.asarray(cross), compute_uv=False).sum()
    if turning == "positive":
        values = np.asarray(cross).real.sum()
    squares = sum(
        float((np.abs(a) ** 2).sum() + (np.abs(b) ** 2).sum())
        for a, b in zip(first, second, strict=True)
    )
    return max(0.0, squares - 2 * float(values))


def _terms(first: FoldedModel, second: FoldedModel, found: Alignment) -> Iterator[_Term]:
    frame = replace(found.frame, reading=None, turns=None)
    vectors = [(first.tables, second.tables), (first.kept, second.kept)]
    vectors.append((first.constants, second.constants))
    for ones, others in vectors:
        for one, other in zip(ones, others, strict=True):
            if one.shape == other.shape:
                for x, y in zip(one.parts(), other.parts(), strict=True):
                    carried_rows = x if one.kind == "gain" else frame.carry(x)
                    yield _Term([carried_rows.value], [y.value], None)
    for a, b in blocks_of(first, second):
        if isinstance(a, Attention):
            assert isinstance(b, Attention)
            heads = found.heads[b.label]
            if heads.mismatch or not heads.groups.size:
                continue
            moved_heads = reordered(
                silenced(carried(first.attention(a), frame)), heads.groups, heads.heads
            )
            yield from _attention(moved_heads, silenced(second.attention(b)))
            continue
        assert not isinstance(b, Attention)
        neurons = found.neurons[b.label]
        alive = np.flatnonzero(neurons.order >= 0)
        if neurons.mismatch or not alive.size:
            continue
        moved = carried_mlp(first.mlp(a), frame).chosen(neurons.order[alive])
        homogeneous = b.activation is Activation.HOMOGENEOUS
        yield from _neurons(moved, second.mlp(b).chosen(alive), homogeneous)
    rows_a, rows_b = first.unembedding[0], second.unembedding[0]
    if rows_a is not None and rows_b is not None and first.dense is None:
        for x, y in zip(rows_a.parts(), rows_b.parts(), strict=True):
            yield _Term([frame.carry(x).value], [y.value], None)


def _attention(a: FoldedAttention, b: FoldedAttention) -> Iterator[_Term]:
    for one, other in ((a.query_constant, b.query_constant), (a.key_constant, b.key_constant)):
        if (one is None) != (other is None):
            return
    if b.query_gain is not None:
        yield from _normalised(a, b)
    else:
        pairs = [
            (_grouped(f.query, f.query_constant), _rows(f.key, f.key_constant)) for f in (a, b)
        ]
        for first, second in blocks(b.attention):
            if second is None:
                parts = [_balanced(p[:, first], d[:, first]) for p, d in pairs]
                yield _Term(parts[0], parts[1], "orthogonal")
                continue
            if first.shape[1] != 1:
                sides = [_of_one_frequency(*pair, first, second) for pair in pairs]
                yield _Term(sides[0], sides[1], "orthogonal")
                continue
            rows = first[:, 0], second[:, 0]
            sides = []
            for pair in pairs:
                q, k = (part[:, rows[0]] + 1j * part[:, rows[1]] for part in pair)
                sides.append(_even(q[:, :, None, :], k[:, :, None, :]))
            yield _Term(sides[0], sides[1], "orthogonal")
    parts = [
        _balanced(
            f.value.value, f.output.value.transpose(0, 2, 1, 3).reshape(*f.value.shape[:2], -1)
        )
        for f in (a, b)
    ]
    yield _Term(parts[0], parts[1], "orthogonal")


def _normalised(a: FoldedAttention, b: FoldedAttention) -> Iterator[_Term]:
    """Queries and keys behind norms of their own: rows after signs and turns, gains even."""
    a, b = with_positive_gains(a), with_positive_gains(b)
    a, _ = turned_to(a, b)
    yield _Term([a.query.value, a.key.value], [b.query.value, b.key.value], None)
    gains = []
    for f in (a, b):
        assert f.query_gain is not None and f.key_gain is not None
        gains.append(np.sqrt(f.query_gain.value * f.key_gain.value))
    yield _Term([gains[0]], [gains[1]], None)


def _of_one_frequency(
    query: Array, key: Array, first: NDArray[np.int64], second: NDArray[np.int64]
) -> list[NDArray[Any]]:
    """Balanced complex rows of planes that share a frequency, one batch entry a group and block."""
    size = first.shape[1]
    q, k = (part[:, first] + 1j * part[:, second] for part in (query, key))
    return _balanced_complex(q.reshape(-1, size, q.shape[-1]), k.reshape(-1, size, k.shape[-1]))


def _balanced_complex(first: NDArray[Any], second: NDArray[Any]) -> list[NDArray[Any]]:
    """Factors of minimal norm with the product ``first^H second``; a unitary map is left free."""
    left, upper_left = np.linalg.qr(np.conj(first).swapaxes(-1, -2))
    right, upper_right = np.linalg.qr(np.conj(second).swapaxes(-1, -2))
    x, s, y = np.linalg.svd(upper_left @ np.conj(upper_right).swapaxes(-1, -2), full_matrices=False)
    half = np.sqrt(s)[..., None]
    return [
        half * np.conj(left @ x).swapaxes(-1, -2),
        half * (y @ np.conj(right).swapaxes(-1, -2)),
    ]


def _grouped(query: object, constant: object) -> Array:
    whole: Array = with_constant(query, constant).value  # type: ignore[arg-type]
    return whole.transpose(0, 2, 1, 3).reshape(whole.shape[0], whole.shape[2], -1)


def _rows(key: object, constant: object) -> Array:
    whole: Array = with_constant(key, constant).value  # type: ignore[arg-type]
    return whole


def _balanced(first: Array, second: Array) -> list[NDArray[Any]]:
    """Both factors of minimal norm."""
    result = balance(first, second, 1e-12)
    return [result.first, result.second]


def _even(first: NDArray[Any], second: NDArray[Any]) -> list[NDArray[Any]]:
    """Pairs of vectors scaled to one norm: the balanced form of width one."""
    sizes = [np.sqrt((np.abs(x) ** 2).sum(axis=(-1, -2), keepdims=True)) for x in (first, second)]
    live = (sizes[0] > 0) & (sizes[1] > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(live, np.sqrt(sizes[1] / np.where(live, sizes[0], 1.0)), 0.0)
        inverse = np.where(factor > 0, 1.0 / np.where(factor > 0, factor, 1.0), 0.0)
    return [first * factor, second * inverse]


def _neurons(a: FoldedMlp, b: FoldedMlp, homogeneous: bool) -> Iterator[_Term]:
    up = [with_constant(f.up, f.up_constant).value[:, None] for f in (a, b)]
    down = [f.down.value[:, None] for f in (a, b)]
    if up[0].shape != up[1].shape:
        return
    if a.gate is not None and b.gate is not None:
        gates = [with_constant(f.gate, f.gate_constant).value for f in (a, b) if f.gate is not None]
        if gates[0].shape == gates[1].shape:
            yield _Term([gates[0]], [gates[1]], None)
        yield _Term(_even(up[0], down[0]), _even(up[1], down[1]), "orthogonal")
    elif homogeneous:
        yield _Term(_even(up[0], down[0]), _even(up[1], down[1]), "positive")
    else:
        yield _Term([up[0], down[0]], [up[1], down[1]], None)
