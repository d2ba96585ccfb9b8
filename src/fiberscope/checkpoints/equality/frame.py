"""The frame of the residual stream: which orthogonal map carries one model's features to another's.

What may move the frame is read off the ledger: any rotation where nothing pins a coordinate
(untied, pre-norm), else renamed coordinates with signs, and rotations among coordinates whose kept
gains are exactly equal. The tables are compared row by row, because rows are token ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import overload

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from fiberscope.checkpoints.architecture.program import NormKind
from fiberscope.checkpoints.equality.folded import FoldedModel
from fiberscope.checkpoints.equality.folded_parts import Vectors
from fiberscope.checkpoints.equality.noisy import Array, Noisy, along_axis
from fiberscope.checkpoints.equality.once import once
from fiberscope.checkpoints.equality.rotations import Block, Pairs, Rotation, Tables
from fiberscope.checkpoints.equality.rows import Rows
from fiberscope.checkpoints.equality.stack import Stack
from fiberscope.checkpoints.ledger import Ledger
from fiberscope.checkpoints.ledger.rules.discrete import COORDINATE_PERMUTATION, COORDINATE_SIGNS
from fiberscope.checkpoints.ledger.rules.stream import ROTATION
from fiberscope.checkpoints.ledger.wiring import Wiring

FEW_ROWS, ROWS = 1024, 4096
"""Rows of the tables that the search for a permutation looks at, and where it finds none."""


class Freedom(Enum):
    """What the architecture allows the frame to do."""

    NONE = "nothing"
    COORDINATES = "permutations and signs of coordinates"
    ROTATION = "rotations"


@dataclass(frozen=True)
class Frame:
    """``y = matrix @ x`` carries features of the first model to the second.

    Attributes
    ----------
    matrix
        Orthogonal, shape ``(d, d)``.
    rotated
        Whether elements are mixed, rather than renamed and given signs.
    how
        In words.
    blocks
        For rotations inside blocks of equal gains: coordinates of the second model and of the
        first, block by block.
    undetermined
        Directions of the stream on which the tables say nothing about the frame.
    spread
        For fitted rotations, a root of the covariance that the tables' rounding leaves in every
        row of the matrix, shape ``(d, d)``; it is passed on to whatever is carried.
    reading, turns
        Instead, where some directions are known far less well than others: an orthogonal matrix
        that both models are looked at through, and the variance of the turn that the fit may be
        off by between any two of its rows.
    """

    matrix: Array
    rotated: bool
    how: str
    blocks: tuple[tuple[NDArray[np.int64], NDArray[np.int64]], ...] = ()
    undetermined: int = 0
    spread: Array | None = None
    reading: Array | None = None
    turns: Array | None = None

    @once
    def arrival(self) -> Frame | None:
        """What carries the second model to where both are looked at, unless they are there."""
        return None if self.reading is None else Frame(self.reading, True, self.how)

    @once
    def _applied(self) -> Array:
        return self.matrix if self.reading is None else np.asarray(self.reading @ self.matrix)

    @once
    def _squares(self) -> tuple[NDArray[np.float32], float]:
        return _in_units(np.square(self._applied))

    @once
    def _turned(self) -> tuple[NDArray[np.float32], float] | None:
        return None if self.turns is None else _in_units(self.turns)

    @once
    def _passed(self) -> tuple[NDArray[np.float32], float] | None:
        return None if self.spread is None else _in_units(self.spread.T)

    @once
    def renaming(self) -> tuple[NDArray[np.int64], Array]:
        """For frames that rename: the coordinate of the first model at every place, and signs."""
        order = np.abs(self.matrix).argmax(axis=1)
        return order, self.matrix[np.arange(len(order)), order]

    @overload
    def carry(self, array: Noisy, axis: int = -1) -> Noisy: ...

    @overload
    def carry(self, array: Rows, axis: int = -1) -> Noisy | Rows: ...

    def carry(self, array: Noisy | Rows, axis: int = -1) -> Noisy | Rows:
        """An array of the first model with its stream axis where both are looked at.

        That is the second's frame, unless there is a :attr:`reading`. Coordinates of rows that are
        not in memory yet are renamed when they are read.
        """
        if isinstance(array, Rows):
            if not self.rotated:
                return array.renamed(*self.renaming)
            array = array.whole()
        elif isinstance(array, Stack):
            if not self.rotated and axis == -1:
                return Stack(array.rows.renamed(*self.renaming), array.lead)
            array = array.held()
        if self.rotated:
            moved = Noisy(
                along_axis(self._applied, array.value, axis),
                _roughly(self._squares, array.variance, axis),
            )
            if self._passed is not None:
                passed = _roughly(self._passed, array.value, axis)
                moved.variance += np.square(passed).sum(axis=axis, keepdims=True)
            if self._turned is not None:
                moved.variance += _roughly(self._turned, np.square(moved.value), axis)
            return moved
        order, sign = self.renaming
        shape = [1] * len(array.shape)
        shape[axis] = len(order)
        plain = bool((order == np.arange(len(order))).all())
        moved = array if plain else array.take(order, axis)
        return (
            moved if (sign == 1).all() else Noisy(moved.value * sign.reshape(shape), moved.variance)
        )


def _in_units(matrix: Array) -> tuple[NDArray[np.float32], float]:
    """A matrix in float32, and its largest entry, which it is divided by."""
    unit = float(np.abs(matrix).max(initial=0.0)) or 1.0
    return (matrix / unit).astype(np.float32), unit


def _roughly(matrix: tuple[NDArray[np.float32], float], array: Array, axis: int) -> Array:
    """A product for variances: seven digits are enough, whatever the size of the numbers."""
    largest = np.abs(array).max(axis=axis, keepdims=True)
    scale = np.where(largest > 0, largest, 1.0)
    product = along_axis(matrix[0], (array / scale).astype(np.float32), axis)
    return np.asarray(product * (scale * matrix[1]))


def freedom(ledger: Ledger) -> tuple[Freedom, bool]:
    """What the frame can do, and whether every coordinate has a sign of its own."""
    names = {item.mechanism for item in ledger.items}
    if ROTATION in names:
        return Freedom.ROTATION, True
    if COORDINATE_PERMUTATION in names:
        return Freedom.COORDINATES, COORDINATE_SIGNS in names
    return Freedom.NONE, False


def is_centred_wiring(wiring: Wiring) -> bool:
    """Whether the ones vector stays where it is: a LayerNorm reads the stream."""
    kinds = {norm.kind for segment in wiring.segments for norm in segment.readers}
    return NormKind.LAYER in kinds


def candidates(first: FoldedModel, second: FoldedModel, ledger: Ledger) -> Iterator[Frame]:
    """Frames to try, best first; the caller keeps the first under which the tables agree."""
    allowed, signed = freedom(ledger)
    width = first.wiring.segments[0].width
    if allowed is Freedom.NONE:
        yield Frame(np.eye(width), False, "the coordinates are observed")
        return
    pairs = _stacks(first, second)
    if allowed is Freedom.ROTATION:
        if (exact := _renamed_exactly(pairs, signed=True)) is not None:
            yield Frame(exact, False, "coordinates renamed and given signs")
        yield _rotation(pairs, width, is_centred_wiring(first.wiring))
        return
    if (exact := _renamed_exactly(pairs, signed)) is not None:
        yield Frame(exact, False, "coordinates renamed and given signs")
    few = sum(a.shape[0] for a, _ in pairs) <= FEW_ROWS
    for rows in (ROWS,) if few else (FEW_ROWS, ROWS):
        for matrix in _renamed(pairs, signed, rows):
            yield Frame(matrix, False, "coordinates renamed and given signs")
    yield from _blocks(first, second, pairs, signed)


def _stacks(first: FoldedModel, second: FoldedModel) -> Pairs:
    """Pairs of tables whose rows correspond: the tables, and the unembedding on the stream."""
    pairs: list[tuple[Vectors, Vectors]] = [
        (a, b) for a, b in zip(first.tables, second.tables, strict=True) if a.shape == b.shape
    ]
    a, b = first.unembedding[0], second.unembedding[0]
    head = first.wiring.head
    on_stream = head is None or head.dense is None
    if a is not None and b is not None and on_stream and a.shape == b.shape:
        pairs.append((a, b))
    return pairs


def _some_rows(pairs: Pairs, limit: int) -> tuple[Array, Array]:
    """The rows with the largest entries, spread over all tables, scaled table by table."""
    left, right = [], []
    for a, b in pairs:
        step = max(1, a.shape[0] * len(pairs) // limit)
        x, y = (v.rows.part(np.s_[::step]).value for v in (a, b))
        scale = np.sqrt((x**2).mean() + (y**2).mean()) or 1.0
        left.append(x / scale)
        right.append(y / scale)
    return np.concatenate(left), np.concatenate(right)


def _renamed_exactly(pairs: Pairs, signed: bool) -> Array | None:
    """Columns that agree exactly up to order and sign: cheap, and free of rounding."""
    x, y = _some_rows([pairs[0]], 64)
    if not y.any(axis=0).all():
        return None  # a column that is zero here shows neither its place nor its sign
    if np.array_equal(x, y):
        return np.eye(x.shape[1])
    a, b = (v.rows.part(np.s_[:64]).value for v in pairs[0])
    if not signed:
        return None
    found: dict[bytes, int] = {}
    for column in range(a.shape[1]):
        found[np.abs(a[:, column]).tobytes()] = column
    order = [found.get(np.abs(b[:, column]).tobytes(), -1) for column in range(b.shape[1])]
    if len(found) < a.shape[1] or sorted(order) != list(range(a.shape[1])):
        return None
    matrix = np.zeros((len(order), len(order)))
    # The signs must be one per column; a column that is zero here has none to show.
    sign = np.sign((a[:, order] * b).sum(axis=0))
    sign[sign == 0] = 1.0
    matrix[np.arange(len(order)), order] = sign
    return matrix


def _renamed(pairs: Pairs, signed: bool, rows: int) -> Iterator[Array]:
    """Columns matched by correlation: all, with a sign each or one sign for all."""
    x, y = _some_rows(pairs, rows)
    width = x.shape[1]
    norms = np.sqrt((y**2).sum(axis=0))[:, None], np.sqrt((x**2).sum(axis=0))[None]
    cross = y.T @ x
    # Squared distance of columns rather than their angle: columns can differ in size alone.
    square = norms[0] ** 2 + norms[1] ** 2
    for sign in (None,) if signed else (1.0, -1.0):
        gain = np.abs(cross) if sign is None else sign * cross
        rows, columns = linear_sum_assignment(square - 2 * gain)
        matrix = np.zeros((width, width))
        signs = np.sign(cross[rows, columns]) if sign is None else np.full(width, sign)
        matrix[rows, columns] = np.where(signs == 0, 1.0, signs)
        yield matrix


def _rotation(pairs: Pairs, width: int, centred: bool) -> Frame:
    """Orthogonal Procrustes; behind LayerNorms the ones vector stays."""
    whole = np.arange(width)
    fitted = Tables(pairs, width).fitted([(whole, whole)], centred=centred)
    return _turning(fitted, "a rotation")


def _turning(fitted: Rotation, how: str, blocks: tuple[Block, ...] = ()) -> Frame:
    """The frame of a fitted rotation; where some directions are faint, these are looked at."""
    even = fitted.is_even
    return Frame(
        fitted.matrix,
        True,
        how,
        blocks,
        0 if blocks else fitted.undetermined,
        spread=fitted.spread if even else None,
        reading=None if even else fitted.directions.T,
        turns=None if even else fitted.turns,
    )


def _blocks(first: FoldedModel, second: FoldedModel, pairs: Pairs, signed: bool) -> Iterator[Frame]:
    """Rotations inside blocks of exactly equal kept gains, where nothing else pins a coordinate."""
    head = first.wiring.head
    if head is not None and head.dense is not None and head.norm is not None:
        return  # a nonlinearity stands between the stream and the tied table
    if not any(v.kind == "gain" for v in first.kept) or any(
        point.observed for point in first.wiring.points
    ):
        return
    centred = is_centred_wiring(first.wiring)
    gains = _kept_gains(first.kept), _kept_gains(second.kept)
    found = []
    for own in (0, 1):
        blocks = _equal_blocks(gains, own)
        if blocks is not None and any(len(columns) > 1 for _, columns in blocks):
            found.append(blocks)
    if not found:
        return
    tables = Tables(pairs, gains[0].shape[1])
    for blocks in found:
        for sign in (1.0,) if signed else (1.0, -1.0):
            mixed = sum(len(columns) > 1 for _, columns in blocks)
            how = f"rotations inside {mixed} blocks of equal gains"
            fitted = tables.fitted(blocks, centred=centred, sign=sign)
            yield _turning(fitted, how, tuple(blocks))


def _kept_gains(kept: Sequence[Vectors]) -> Array:
    return np.concatenate([v.array.value for v in kept if v.kind == "gain"])


def _equal_blocks(gains: tuple[Array, Array], own: int) -> list[Block] | None:
    """Blocks (rows of the second, columns of the first) of equal gains in model ``own``."""
    order = [np.lexsort(g[::-1]) for g in gains]
    arranged = gains[own][:, order[own]]
    if not arranged.size:
        return None
    cuts = np.flatnonzero((np.diff(arranged, axis=1) != 0).any(axis=0)) + 1
    return list(zip(np.split(order[1], cuts), np.split(order[0], cuts), strict=True))
