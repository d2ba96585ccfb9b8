"""Heads that attend alike: only sums of what they add are seen, so sets of them are compared whole.

* Query heads of one group with one query share keys and values: only the sum of outputs counts.
* Groups whose heads attend alike, head by head, are one wide head: its values and outputs may be
  mixed by any invertible matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.equality.folded_parts import FoldedAttention
from fiberscope.checkpoints.equality.noisy import Array, Noisy
from fiberscope.checkpoints.equality.silence import reordered
from fiberscope.checkpoints.equality.stack import Stack
from fiberscope.checkpoints.equality.statistic import Statistic

Alike = Callable[[FoldedAttention, FoldedAttention], Array | None]
"""Change of basis between the queries of two single heads; None unless they attend alike."""
Fit = Callable[[FoldedAttention, FoldedAttention], tuple[Array, list[Statistic]]]
"""Changes of basis of the values of all groups, and what is left over, group by group."""
ROUGHLY = 0.3
"""Relative difference of a few random readings beyond which two heads do not attend alike."""
READINGS = 4


@dataclass(frozen=True)
class MixedHeads:
    """Groups that are seen as a whole, in the second model's numbering.

    Attributes
    ----------
    groups
        One group (whose heads share queries), or several that attend alike.
    heads
        Head of each group that attends like head h of the first one, shape ``(k, m)``.
    scores
        Changes of basis that carry the queries of each group to those of the first, ``(k, r, r)``.
    shared
        For every group, sets of its heads with one query.
    matrix
        Change of basis of the stacked values, shape ``(k s, k s)``.
    """

    groups: tuple[int, ...]
    heads: NDArray[np.int64]
    scores: Array
    shared: tuple[tuple[tuple[int, ...], ...], ...]
    matrix: Array


def compare_wholes(
    a: FoldedAttention,
    b: FoldedAttention,
    statistics: Sequence[Statistic],
    alike: Alike,
    fit: Fit,
) -> tuple[list[MixedHeads], list[Statistic]]:
    """Compare groups that differ one by one as wholes, where they attend alike.

    Parameters
    ----------
    a, b
        Heads of one layer of both models, matched.
    statistics
        Of the value/output circuits, one a group.

    Returns
    -------
    list of MixedHeads
        The sets that agree as wholes.
    list of Statistic
        The given ones, replaced for the groups of those sets.
    """
    found, result = [], list(statistics)
    poor = [g for g, part in enumerate(statistics) if not part.is_same]
    readings = readings_of(b)
    inside = b.query.shape[1]
    shared: dict[int, tuple[tuple[int, ...], ...]] = {}
    for group in poor:
        classes = _classes(b, group, inside, readings, alike)
        shared[group] = tuple(members for members in classes if len(members) > 1)
    if any(shared.values()):
        a, b = _summed(a, shared), _summed(b, shared)
    for group in [g for g in poor if shared[g]]:
        matrix, parts = fit(*(_groups(f, [group]) for f in (a, b)))
        if parts[0].is_same:
            result[group] = replace(parts[0], name=f"{statistics[group].name}, equal heads added")
            width = b.query.shape[2]
            order = np.arange(inside)[None]
            found.append(
                MixedHeads((group,), order, np.eye(width)[None], (shared[group],), matrix[0])
            )
    left = [g for g in poor if not result[g].is_same]
    for members, heads, scores in _sets(b, left, readings, alike):
        matrix, parts = fit(*(_wide(f, members, heads) for f in (a, b)))
        if not parts[0].is_same:
            continue
        named = f"{_circuit(statistics[members[0]].name)}, groups {', '.join(map(str, members))}"
        for group in members:
            result[group] = replace(parts[0], name=f"{named} together")
        sums = tuple(shared[group] for group in members)
        found.append(MixedHeads(tuple(members), heads, scores, sums, matrix[0]))
    return found, result


def added_up(
    f: FoldedAttention, alike: Alike
) -> tuple[FoldedAttention, dict[int, tuple[tuple[int, ...], ...]]]:
    """Heads of one group with one query as one head, and the sets of them by group.

    For models with different numbers of heads that add something: equal ones may have been merged.
    """
    readings = readings_of(f)
    inside = f.query.shape[1]
    shared = {}
    for group in range(f.query.shape[0]):
        classes = _classes(f, group, inside, readings, alike)
        shared[group] = tuple(members for members in classes if len(members) > 1)
    return _summed(f, shared), shared


def speaking(f: FoldedAttention) -> NDArray[np.int64]:
    """How many heads add something, and how many groups."""
    if isinstance(f.output, Stack) and f.output.speaks.all():
        count, inside = f.output.lead[:2]
        return np.array([count * inside, count])
    heads = np.asarray(f.output.value.any(axis=(2, 3)))
    return np.array([heads.sum(), heads.any(axis=1).sum()])


def _circuit(name: str) -> str:
    return name.split(", group")[0]


def _single(f: FoldedAttention, group: int, head: int) -> FoldedAttention:
    return reordered(f, np.array([group]), np.array([[head]]))


def _groups(f: FoldedAttention, groups: Sequence[int]) -> FoldedAttention:
    heads = np.broadcast_to(np.arange(f.query.shape[1]), (len(groups), f.query.shape[1]))
    return reordered(f, np.array(groups), heads)


def _classes(
    b: FoldedAttention, group: int, inside: int, readings: NDArray[Any], alike: Alike
) -> list[tuple[int, ...]]:
    """Heads of one group gathered by their queries."""
    classes: list[list[int]] = []
    for head in range(inside):
        for members in classes:
            if _near(readings[group, members[0]], readings[group, head]) and _same_query(
                _single(b, group, members[0]), _single(b, group, head), alike
            ):
                members.append(head)
                break
        else:
            classes.append([head])
    return [tuple(members) for members in classes]


def _same_query(one: FoldedAttention, other: FoldedAttention, alike: Alike) -> bool:
    """Whether two heads of one group, with one key, attend alike."""
    return alike(one, other) is not None


def _sets(
    b: FoldedAttention, groups: Sequence[int], readings: NDArray[Any], alike: Alike
) -> list[tuple[list[int], NDArray[np.int64], Array]]:
    """Groups gathered by how their heads attend: members, their heads, changes of basis."""
    inside, width = b.query.shape[1:3]
    sets: list[tuple[list[int], list[NDArray[np.int64]], list[Array]]] = []
    for group in groups:
        for members, heads, scores in sets:
            matched = _matched(b, members[0], group, readings, alike)
            if matched is not None:
                members.append(group)
                heads.append(matched[0])
                scores.append(matched[1])
                break
        else:
            sets.append(([group], [np.arange(inside)], [np.eye(width)]))
    return [
        (members, np.array(heads), np.array(scores))
        for members, heads, scores in sets
        if len(members) > 1
    ]


def _matched(
    b: FoldedAttention, first: int, group: int, readings: NDArray[Any], alike: Alike
) -> tuple[NDArray[np.int64], Array] | None:
    """Head of ``group`` for every head of ``first``, and the change of basis to its queries."""
    free = list(range(b.query.shape[1]))
    order, basis = [], None
    for head in range(b.query.shape[1]):
        for other in free:
            if not _near(readings[first, head], readings[group, other]):
                continue
            change = alike(_single(b, group, other), _single(b, first, head))
            if change is not None:
                basis = change if basis is None else basis
                order.append(other)
                free.remove(other)
                break
        else:
            return None
    assert basis is not None
    return np.array(order), basis


def has_near_readings(readings: NDArray[Any]) -> bool:
    """Whether two rows of readings are near enough for their heads to attend alike."""
    return any(_near(one, other) for at, one in enumerate(readings) for other in readings[at + 1 :])


def _near(one: NDArray[Any], other: NDArray[Any]) -> bool:
    size = max(float(np.linalg.norm(one)), float(np.linalg.norm(other)))
    return bool(np.linalg.norm(one - other) <= ROUGHLY * size)


def readings_of(f: FoldedAttention) -> NDArray[np.complex128]:
    """A few numbers of every head that its scores determine, shape ``(G, m, readings)``."""
    rng = np.random.default_rng(20261201)
    left, right = rng.standard_normal((2, f.query.shape[-1], READINGS))
    query, key = f.query.value @ left, f.key.value @ right
    if f.query_gain is not None:
        return np.linalg.norm(query, axis=2) + 1j * np.linalg.norm(key, axis=1)[:, None]
    rotary = f.attention.rotary
    turned = {row for plane in rotary.planes for row in plane} if rotary else set()
    rest = [row for row in range(query.shape[2]) if row not in turned]
    total = np.einsum("gmrk,grk->gmk", query[:, :, rest], key[:, rest]).astype(np.complex128)
    if rotary:
        first, second = np.array(rotary.planes).T
        sign = np.where(np.array(rotary.frequencies) < 0, -1j, 1j)[:, None]
        q = query[:, :, first] + sign * query[:, :, second]
        k = key[:, first] + sign * key[:, second]
        total += np.einsum("gmrk,grk->gmk", q.conj(), k)
    return np.asarray(total)


def _summed(f: FoldedAttention, shared: dict[int, tuple[tuple[int, ...], ...]]) -> FoldedAttention:
    """Outputs of heads with one query added up at the first of them."""
    value, variance = f.output.value.copy(), f.output.variance.copy()
    for group, sets in shared.items():
        for members in sets:
            for array in (value, variance):
                array[group, members[0]] = array[group, list(members)].sum(axis=0)
                array[group, list(members[1:])] = 0.0
    return replace(f, output=Noisy(value, variance))


def _wide(f: FoldedAttention, groups: Sequence[int], heads: NDArray[np.int64]) -> FoldedAttention:
    """Groups that attend alike as one group of wide heads."""
    part = reordered(f, np.array(groups), heads)
    count, inside, width, features = part.output.shape

    def stacked(noisy: Noisy) -> Noisy:
        arrays = [
            array.transpose(1, 0, 2, 3).reshape(1, inside, count * width, features)
            for array in (noisy.value, noisy.variance)
        ]
        return Noisy(*arrays)

    return replace(
        _groups(part, [0]),
        value=part.value.reshaped(1, count * width, -1),
        output=stacked(part.output),
    )
