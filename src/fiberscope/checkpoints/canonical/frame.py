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
from fiberscope.checkpoints.canonical.places import Places, descending
from fiberscope.checkpoints.canonical.readers import REFERENCE_SEED
from fiberscope.checkpoints.canonical.workspace import ARITHMETIC, ROUNDINGS, Workspace
from fiberscope.checkpoints.ledger.item import Item
from fiberscope.checkpoints.ledger.rules.discrete import COORDINATE_PERMUTATION
from fiberscope.checkpoints.ledger.rules.norms import gain_is_free
from fiberscope.checkpoints.ledger.rules.stream import ROTATION
from fiberscope.checkpoints.ledger.wiring import Point, Reader, Role, StreamGroup, Wiring
from fiberscope.parameters import View
from fiberscope.symmetry import ones_complement

Array = NDArray[np.float64]

FRAME = "frame of the residual stream"
CHUNK_ROWS = 1 << 13
COARSE = 2.0**-10
"""Spacing of float16: with it or a coarser one rotations run in float32."""
SIGN_ROWS = 1 << 12
"""Rows of a tied table that decide the sign of a stream."""


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
    rows = _Rows(wiring, group, points, work, order)
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


class _Rows:
    """Rows along the stream whose own order is fixed, free of what shifts can move.

    Of every sum of tables: the rows less their table's mean, and the sum of the means. Of an
    untied unembedding: the rows, gain folded in, less their mean. Rows that nothing reads are left
    out.
    """

    def __init__(
        self,
        wiring: Wiring,
        group: StreamGroup,
        points: list[Point],
        work: Workspace,
        order: NDArray[np.int64],
    ) -> None:
        self.wiring, self.work, self.order, self.points = wiring, work, order, points
        tied = [w.view for segment in group.segments for w in segment.writers if w.tied]
        self.tied = bool(tied)
        self.tables: list[View] = []
        self.sums_of: list[tuple[View, ...]] = []
        for segment in group.segments:
            if segment.embedding is None:
                continue
            for tables in segment.embedding.sums:
                if tables not in self.sums_of:
                    self.sums_of.append(tables)
            for table in segment.embedding.tables:
                if table.rows not in self.tables:
                    self.tables.append(table.rows)
        summed = {view.tensor for tables in self.sums_of for view in tables}
        self.alone = [view for view in self.tables if view.tensor not in summed]
        self.readers: list[tuple[Reader, Point]] = [
            (reader, point)
            for point in points
            for reader in point.readers
            if reader.role is Role.OUTPUT and not reader.tied
        ]

    def spacing(self) -> float:
        """Spacing of the coarsest table."""
        return self.work.spacing(*self.tables, *(reader.weight for reader, _ in self.readers))

    def sums(self, buckets: int, stream: int, columns: NDArray[np.int64] | None = None) -> Array:
        """Signed sums of rows over residue classes: shape ``(buckets, width)``, reordered."""
        chosen = self.order if columns is None else self.order[columns]
        total = np.zeros((buckets, len(chosen)))
        number, first = stream, 0
        for tables in self.sums_of:
            means = np.zeros(len(chosen))
            for view in tables:
                number += 16
                part, mean = self._bucket(view, buckets, number, chosen)
                # Few rows leave most classes empty: the next ones go to others.
                total += np.roll(part, first, axis=0)
                first += len(looked_up(self.wiring, view))
                means += mean
            total[first % buckets] += means
            first += 1
        for view in self.alone:
            number += 16
            part, _ = self._bucket(view, buckets, number, chosen)
            total += np.roll(part, first, axis=0)
            first += view.shape[0]
        for reader, point in self.readers:
            number += 16
            part, _ = self._bucket(reader.weight, buckets, number, chosen)
            if point.norm.gain is not None:
                part *= self.work.read(point.norm.gain)[chosen]
            total += np.roll(part, first, axis=0)
            first += reader.weight.shape[0]
        return total

    def count(self) -> int:
        """How many of the rows can be independent, whatever their values."""
        found = len(self.sums_of) + sum(view.shape[0] - 1 for view in self.alone)
        for view in (view for tables in self.sums_of for view in tables):
            found += int(np.count_nonzero(looked_up(self.wiring, view))) - 1
        return found + sum(reader.weight.shape[0] - 1 for reader, _ in self.readers)

    def second_moment(self, columns: NDArray[np.int64]) -> Array:
        """Mean outer product of the unit rows that neurons read, less its trace part.

        Shape ``(columns, columns)``. No other symmetry changes it, and a rotation of the stream
        turns it: it carries the frame of the rows that are known to directions none of them spans.
        """
        chosen = self.order[columns]
        total = np.zeros((len(chosen), len(chosen)))
        for mlp in self.wiring.mlps:
            view = mlp.up if mlp.gate is None else mlp.gate
            point = self.wiring.point_reading(view)
            if point not in self.points:
                continue
            rows = self.work.read(view)
            if point.norm.gain is not None:
                rows *= self.work.read(point.norm.gain)
            if point.blind:
                rows -= rows.mean(axis=1, keepdims=True)
            length = np.linalg.norm(rows, axis=1)
            rows = rows[length > 0][:, chosen] / length[length > 0, None]
            total += rows.T @ rows
            self.work.forget(view.tensor)
        total -= np.trace(total) / len(total) * np.eye(len(total))
        return total / max(float(np.linalg.norm(total, 2)), 1e-300)

    def column_lengths(self) -> Array:
        """Length of every column of the tied (or largest) table, less its mean, as stored."""
        head = self.wiring.head
        view = head.output if self.tied and head is not None else self.tables[0]
        stored = view.window(self.work.stored(view.tensor))
        rows = stored[looked_up(self.wiring, view)].astype(np.float64)
        return np.asarray(rows.std(axis=0))

    def tied_sum(self) -> Array:
        """Signed sum of the rows of the tied table less their mean, reordered."""
        assert self.wiring.head is not None
        view = self.wiring.head.output
        stored = view.window(self.work.stored(view.tensor))[:SIGN_ROWS]
        rows = stored[looked_up(self.wiring, view)[:SIGN_ROWS]].astype(np.float64)
        seed = np.random.SeedSequence([REFERENCE_SEED, 17, len(rows)])
        weights = np.random.Generator(np.random.PCG64(seed)).standard_normal(len(rows))
        found: Array = (weights - weights.mean()) @ rows
        return found[self.order]

    def _bucket(
        self, view: View, buckets: int, stream: int, chosen: NDArray[np.int64]
    ) -> tuple[Array, Array]:
        """Signed sums of the rows less their mean, and the mean, for chosen columns."""
        stored = view.window(self.work.stored(view.tensor))
        keep = looked_up(self.wiring, view).astype(np.float64)
        seed = np.random.SeedSequence([REFERENCE_SEED, 11, stream, len(stored)])
        signs = np.random.Generator(np.random.PCG64(seed)).choice(
            np.array([-1.0, 1.0]), len(stored)
        )
        signs *= keep
        whole = np.array_equal(chosen, np.arange(stored.shape[1]))
        total = np.zeros((buckets, len(chosen)))
        mean = np.zeros(len(chosen))
        weight = np.zeros(buckets)
        step = max(1, CHUNK_ROWS // buckets) * buckets
        for start in range(0, len(stored), step):
            some = stored[start : start + step]
            rows = (some if whole else some[:, chosen]).astype(np.float64)
            part = signs[start : start + step]
            mean += keep[start : start + step] @ rows
            rows *= part[:, None]
            if spare := -len(rows) % buckets:
                rows = np.pad(rows, ((0, spare), (0, 0)))
                part = np.pad(part, (0, spare))
            total += rows.reshape(-1, buckets, len(chosen)).sum(axis=0)
            weight += part.reshape(-1, buckets).sum(axis=0)
        mean /= max(1.0, keep.sum())
        total -= weight[:, None] * mean
        if view not in self.tables:
            self.work.forget(view.tensor)
        return total, mean

    def first_signs(self, places: NDArray[np.int64]) -> Array:
        """Sign of the first entry of every column that is not zero, exactly."""
        signs = np.zeros(len(places))
        for view in self.tables:
            stored = view.window(self.work.stored(view.tensor))
            for start in range(0, len(stored), 64):
                part = stored[start : start + 64][:, self.order[places]].astype(np.float64)
                for row in part[(part != 0).any(axis=1)]:
                    signs = np.where(signs == 0, np.sign(row), signs)
                if (signs != 0).all():
                    return signs
        return np.where(signs == 0, 1.0, signs)


def looked_up(wiring: Wiring, view: View) -> NDArray[np.bool_]:
    """Rows of a table that inputs reach."""
    marks = np.ones((view.stored_shape[0], 1), dtype=np.int8)
    if len(view.stored_shape) != 2 or view.stored_shape[1] != view.shape[1]:
        return np.ones(view.shape[0], dtype=bool)
    for unread in [*(item.view for item in wiring.unread), *wiring.output_only]:
        if unread.tensor == view.tensor and len(unread.shape) == 2:
            _narrow(unread).window(marks)[...] = 0
    return np.asarray(_narrow(view).window(marks).reshape(-1) != 0)


def _narrow(view: View) -> View:
    """The same rows of a table one column wide."""
    narrow = View.whole(view.tensor, (view.stored_shape[0], 1))
    for step in view._steps:
        if step[0] == "slice" and step[1] == 0:
            narrow = narrow.slice(0, step[2], step[3])
    return narrow


def _by_columns(
    order: NDArray[np.int64],
    runs: list[tuple[int, int]],
    rows: _Rows,
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


def _global_sign(rows: _Rows, runs: list[tuple[int, int]], places: Places, where: str) -> float:
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
    runs: list[tuple[int, int]], rows: _Rows, signs: Array, centred: bool, width: int
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
    sums: Array, rows: _Rows, signs: Array, columns: NDArray[np.int64], basis: Array
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
