"""Rows along a stream whose own order is fixed: what a frame is found from."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.canonical.readers import REFERENCE_SEED
from fiberscope.checkpoints.canonical.workspace import Workspace
from fiberscope.checkpoints.ledger.wiring import Point, Reader, Role, StreamGroup, Wiring
from fiberscope.parameters import View

Array = NDArray[np.float64]

CHUNK_ROWS = 1 << 13
SIGN_ROWS = 1 << 12
"""Rows of a tied table that decide the sign of a stream."""


class FixedRows:
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
