"""The frame of a residual stream: which signed permutation or rotation its coordinates undergo.

Coordinates whose gains all agree can be rotated among each other, the others only permuted (with
signs under RMSNorm, with one sign for all under LayerNorm). Only gains that cannot be folded into
readers count: none in an untied pre-norm model, whose whole stream can be rotated, the final one
under a tied unembedding, the carried ones of a post-norm stream. Coordinates are sorted by these
gains, compared exactly as stored; inside a block of equal gains the frame is the one in which the
embedding's product with a fixed reference is symmetric and positive (polar alignment). Behind a
LayerNorm rotations keep the ones vector.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import NormKind
from fiberscope.checkpoints.canonical.fixed_rows import FixedRows
from fiberscope.checkpoints.canonical.places import Places, descending
from fiberscope.checkpoints.canonical.readers import REFERENCE_SEED
from fiberscope.checkpoints.canonical.workspace import ARITHMETIC, ROUNDINGS, Workspace
from fiberscope.checkpoints.ledger.item import Item
from fiberscope.checkpoints.ledger.rules.discrete import COORDINATE_PERMUTATION
from fiberscope.checkpoints.ledger.rules.norms import gain_is_free
from fiberscope.checkpoints.ledger.rules.stream import ROTATION
from fiberscope.checkpoints.ledger.wiring import StreamGroup, Wiring
from fiberscope.parameters import View
from fiberscope.symmetry import ones_complement

Array = NDArray[np.float64]

FRAME = "frame of the residual stream"
COARSE = 2.0**-10
"""Spacing of float16: with it or a coarser one rotations run in float32."""


@dataclass(frozen=True, eq=False)
class Frame:
    """A change of coordinates of a stream: ``x -> S x`` for what is written and read.

    Attributes
    ----------
    order
        Former position of every coordinate, None for the identity.
    signs
        Sign of every coordinate after reordering, None for all positive.
    blocks
        ``(start, stop, matrix)``: orthogonal matrices on runs of reordered coordinates.
    """

    order: NDArray[np.int64] | None = None
    signs: Array | None = None
    blocks: tuple[tuple[int, int, Array], ...] = ()

    @property
    def identity(self) -> bool:
        """Whether nothing moves."""
        return self.order is None and self.signs is None and not self.blocks

    @property
    def exact(self) -> bool:
        """Whether numbers are only moved and negated, in any format."""
        return not self.blocks

    def turned(self, array: NDArray[Any], spacing: float) -> Array:
        """Vectors in the new coordinates, in float64; in less where their storage is coarse.

        Rotating the large tensors of a 16-bit file in float32 takes half the time and adds no more
        than a thousandth of their rounding.
        """
        if self.exact or spacing < COARSE:
            return np.asarray(self.apply(array), dtype=np.float64)
        return np.asarray(self.apply(array.astype(np.float32)), dtype=np.float64)

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        """Vectors in the new coordinates, along the last axis."""
        moved = array if self.order is None else np.take(array, self.order, axis=-1)
        if self.signs is not None:
            moved = array.copy() if moved is array else moved
            self.negate(moved)
        for start, stop, matrix in self.blocks:
            if moved is array:
                moved = array.copy()
            turn = matrix.T.astype(np.float32) if moved.dtype == np.float32 else matrix.T
            if stop - start == moved.shape[-1]:
                moved = moved @ turn
            else:
                moved[..., start:stop] = moved[..., start:stop] @ turn
        return moved

    def negate(self, moved: NDArray[Any]) -> None:
        """Multiply reordered vectors by the signs, in place."""
        if self.signs is None:
            return
        if (self.signs < 0).all():
            np.negative(moved, out=moved)
        else:
            moved *= self.signs.astype(moved.dtype)

    def reorder(self, gains: Array) -> Array:
        """Gains in the new coordinates: they have no sign and are equal inside blocks."""
        return gains if self.order is None else gains[self.order]


IDENTITY = Frame()


def find_frame(
    wiring: Wiring, group: StreamGroup, items: list[Item], work: Workspace, places: Places
) -> Frame:
    """The canonical frame of a group of streams."""
    where = " and ".join(stream.label for stream in group.streams)
    free = {
        item.mechanism
        for item in items
        if item.mechanism in (ROTATION, COORDINATE_PERMUTATION) and item.where == where
    }
    if not free:
        return IDENTITY
    norms = {id(norm) for segment in group.segments for norm in segment.readers}
    points = [point for point in wiring.points if id(point.norm) in norms]
    kinds = {point.norm.kind for point in points}
    width = group.segments[0].width
    gains = [
        point.norm.gain
        for point in points
        if point.norm.gain is not None and not gain_is_free(point)
    ]
    order, runs = _blocks(width, dict.fromkeys(gains), work)
    centred = kinds == {NormKind.LAYER}
    rotatable = len(kinds) == 1 and not coupled(wiring, group)
    rows = FixedRows(wiring, group, points, work, order)
    signs = np.ones(width)
    blocks: list[tuple[int, int, Array]] = []
    deficient = 0
    if not rotatable:
        order = _by_columns(order, runs, rows, places, where)
        rows.order = order
    if centred:
        signs *= _global_sign(rows, runs if rotatable else [], places, where)
    elif kinds == {NormKind.RMS}:
        single = np.array([start for start, stop in runs if stop == start + 1 or not rotatable])
        if len(single):
            signs[single] = rows.first_signs(single)
    if rotatable:
        large = [(start, stop) for start, stop in runs if stop - start > 1]
        matrices, deficient = _align(large, rows, signs, centred, width)
        blocks = [
            (start, stop, matrix)
            for (start, stop), matrix in zip(large, matrices, strict=True)
            if matrix is not None
        ]
    places.add(FRAME, None, where, (), deficient)
    return Frame(
        None if np.array_equal(order, np.arange(width)) else order,
        None if (signs > 0).all() else signs,
        tuple(blocks),
    )


def coupled(wiring: Wiring, group: StreamGroup) -> bool:
    """Whether the stream's coordinates also name the units of a dense layer in a tied head."""
    head = wiring.head
    if not wiring.tied or head is None or head.dense is None or head.norm is None:
        return False
    return any(writer.tied for segment in group.segments for writer in segment.writers)


def _blocks(
    width: int, gains: dict[View, None], work: Workspace
) -> tuple[NDArray[np.int64], list[tuple[int, int]]]:
    """Order by the gains, and the runs of coordinates whose gains all agree."""
    if not gains:
        return np.arange(width), [(0, width)]
    # Gains that agree once they are rounded are equal in the model that is written.
    keys = np.stack([work.as_written(view) for view in gains])
    order = np.lexsort(-keys[::-1])
    ordered = keys[:, order]
    edges = np.flatnonzero((ordered[:, 1:] != ordered[:, :-1]).any(axis=0)) + 1
    bounds = [0, *edges.tolist(), width]
    return order, list(pairwise(bounds))


def _by_columns(
    order: NDArray[np.int64],
    runs: list[tuple[int, int]],
    rows: FixedRows,
    places: Places,
    where: str,
) -> NDArray[np.int64]:
    """Inside runs of equal gains, sort coordinates by the length of their column of the table."""
    order = order.copy()
    ties: list[int] = []
    for start, stop in runs:
        if stop - start == 1:
            continue
        keys = rows.column_lengths()[order[start:stop]]
        spacing = rows.spacing()
        falling, near, settled = descending(keys, 16.0 * spacing, spacing)
        if not settled:
            order[start:stop] = order[start:stop][falling]
        ties += [start + place for place in near]
    places.add(FRAME, None, where, ties)
    return order


def _global_sign(rows: FixedRows, runs: list[tuple[int, int]], places: Places, where: str) -> float:
    """Sign of a functional of the embedding that no other freedom of the frame changes.

    Only a tied table is read along the ones vector, too. Where none is, that component is left out,
    and in a stream that can be rotated as a whole the sign is a part of the rotation.
    """
    sums = rows.tied_sum() if rows.tied else rows.sums(1, 3)[0]
    bounds = runs or [(place, place + 1) for place in range(len(sums))]
    if not rows.tied and len(bounds) == 1:
        return 1.0
    parts = np.array([sums[start:stop].sum() for start, stop in bounds])
    seed = np.random.SeedSequence([REFERENCE_SEED, 13, len(parts)])
    weights = np.random.Generator(np.random.PCG64(seed)).standard_normal(len(parts))
    if not rows.tied:
        counts = np.array([stop - start for start, stop in bounds])
        weights -= weights @ counts / counts.sum()
    value = float(weights @ parts)
    if abs(value) <= 1e3 * rows.spacing() * float(np.linalg.norm(sums)) / max(1, len(sums)):
        places.add("sign of the whole residual stream", None, where, (), 1)
    return -1.0 if value < 0 else 1.0


def _align(
    runs: list[tuple[int, int]], rows: FixedRows, signs: Array, centred: bool, width: int
) -> tuple[list[Array | None], int]:
    """Orthogonal matrices of the blocks (None where they are settled), and undetermined directions.

    Behind a LayerNorm a block's rotations keep its part of the ones vector.
    """
    found: list[Array | None] = []
    deficient = 0
    spacing = rows.spacing()
    for start, stop in runs:
        size = stop - start
        basis = ones_complement(size) if centred else np.eye(size)
        turning = basis.shape[1]
        columns = np.arange(start, stop)
        sums = rows.sums(turning, 5, columns) * signs[columns]
        sums = sums @ basis if centred else sums
        if rows.count() < turning:
            sums = _extended(sums, rows, signs, columns, basis)
        noise = spacing * np.sqrt(np.mean(sums**2))
        skew = np.abs(sums - sums.T).max() if turning else 0.0
        if skew <= ROUNDINGS * noise * np.sqrt(2.0):
            lowest = np.linalg.eigvalsh((sums + sums.T) / 2)[0] if turning else 0.0
            if lowest >= -ROUNDINGS * noise * np.sqrt(turning):
                found.append(None)
                continue
        left, sizes, right = np.linalg.svd(sums)
        deficient += _missing(sizes, spacing)
        # sums @ S^T is symmetric and positive for S^T = right^T left^T.
        turn = left @ right
        matrix = basis @ turn @ basis.T
        if centred:
            matrix = matrix + 1.0 / size
        found.append(matrix)
    return found, deficient


def _extended(
    sums: Array, rows: FixedRows, signs: Array, columns: NDArray[np.int64], basis: Array
) -> Array:
    """Add images of the known rows under the neurons' second moment until they span the block."""
    moment = rows.second_moment(columns) * np.outer(signs[columns], signs[columns])
    moment = basis.T @ moment @ basis
    known = max(1, rows.count())
    total = sums.copy()
    power = np.eye(len(sums))
    for image in range(1, -(-len(sums) // known) + 1):
        power = power @ moment
        more = rows.sums(len(sums), 5 + 1024 * image, columns) * signs[columns]
        more = np.roll(more @ basis, image * known, axis=0) @ power
        total += more * (np.linalg.norm(sums) / max(float(np.linalg.norm(more)), 1e-300))
    return total


def _missing(sizes: Array, spacing: float) -> int:
    if not len(sizes):
        return 0
    return int(np.count_nonzero(sizes <= max(1e3 * ARITHMETIC, 4 * spacing) * sizes[0]))
