"""The derivatives of the rules' shifts in closed form: terms of a tangent map and its Gram matrix.

Each function answers for one kind of shift what ``increments`` does to first order, applied to all
coordinates at once. The rules pass these to :class:`~fiberscope.symmetry.Translation`; a test
compares them with the listed directions for every architecture.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.parameters import View
from fiberscope.symmetry import Term

Terms = tuple[list[Term], NDArray[Any] | float]
Array = NDArray[Any]


def own_entries(view: View) -> Terms:
    """Every entry of the view moves by itself."""
    return [Term(view, lambda x: x.reshape(view.shape), lambda v: v)], 1.0


def some_columns(view: View, columns: NDArray[np.int64]) -> Terms:
    """Some columns of a view of shape ``(copies, size)`` move, entry by entry."""

    def forward(x: Array) -> Array:
        whole = np.zeros(view.shape)
        whole[:, columns] = x.reshape(view.shape[0], -1)
        return whole

    return [Term(view, forward, lambda v: v[:, columns])], 1.0


def within(view: View, basis: Array) -> Terms:
    """The view moves within a subspace with orthonormal ``basis``, shape ``(size, dimension)``."""
    terms = [Term(view, lambda x: (basis @ x).reshape(view.shape), lambda v: basis.T @ v.ravel())]
    return terms, 1.0


def folded(view: View, into: View, matrix: Array) -> Terms:
    """The view moves by ``x``, and ``into`` takes back ``matrix @ x``."""
    terms = [
        Term(view, lambda x: x.reshape(view.shape), lambda v: v),
        Term(into, lambda x: -(matrix @ x), lambda v: -(matrix.T @ v)),
    ]
    return terms, np.eye(matrix.shape[1]) + matrix.T @ matrix


def first_takes_back(views: Sequence[View], width: int) -> Terms:
    """All rows of each view but the first move together; the first view's take the sum back.

    Views of shape ``(width,)`` or ``(rows, width)``; coordinates ``(views - 1, width)``.
    """
    extra = len(views) - 1
    rows = [view.size // width for view in views]

    def moved(number: int) -> Term:
        def transpose(v: Array) -> Array:
            total = np.zeros((extra, width))
            total[number] = v.reshape(-1, width).sum(axis=0)
            return total

        return Term(views[number + 1], lambda x: x.reshape(extra, width)[number], transpose)

    def first_transpose(v: Array) -> Array:
        return np.tile(-v.reshape(-1, width).sum(axis=0), extra)

    first = Term(views[0], lambda x: -x.reshape(extra, width).sum(axis=0), first_transpose)
    terms = [first, *(moved(number) for number in range(extra))]
    if extra == 1:
        return terms, float(rows[0] + rows[1])
    between = np.diag(rows[1:]) + rows[0]
    return terms, np.kron(between, np.eye(width))


def along_ones(writers: Sequence[tuple[View, int]]) -> Terms:
    """Each vector of each writer (a view, and its axis along the stream) moves along ones."""
    terms, start = [], 0
    gram = []
    for view, axis in writers:
        width = view.shape[axis]
        count = view.size // width
        terms.append(_ones(view, axis % len(view.shape), slice(start, start + count)))
        gram.append(np.full(count, float(width)))
        start += count
    return terms, np.concatenate(gram)


def _ones(view: View, axis: int, part: slice) -> Term:
    shape = tuple(1 if k == axis else size for k, size in enumerate(view.shape))
    return Term(view, lambda x: x.reshape(shape), lambda v: v.sum(axis=axis), part)


def rows_along(
    weight: View,
    u: Array,
    *,
    bias: tuple[View, Any] | None = None,
    columns: NDArray[np.int64] | None = None,
    into: tuple[View, Array] | None = None,
    basis: Array | None = None,
) -> Terms:
    """Every row of ``weight`` (input axis last) moves along ``u`` by a coordinate of its own.

    Parameters
    ----------
    weight, u
        The weight, and a direction of its input axis.
    bias
        A bias and the constant: it takes back constant times the coordinate.
    columns
        Only these rows of each copy move, for a weight of shape ``(copies, rows, width)``.
    into
        A bias and a matrix: it takes back the matrix times the coordinates.
    basis
        The coordinates of the rows are ``basis @ x``, with orthonormal columns.
    """
    units = weight.shape[:-1]
    size = float(u @ u)

    def rows(x: Array) -> Array:
        if basis is not None:
            x = basis @ x
        if columns is None:
            return x.reshape(units)
        whole = np.zeros(units)
        whole[:, columns] = x.reshape(units[0], -1)
        return whole

    def transpose(v: Array) -> Array:
        along = v @ u
        if columns is not None:
            along = along[:, columns]
        return along if basis is None else basis.T @ along.reshape(-1)

    terms = [Term(weight, lambda x: rows(x)[..., None] * u, transpose)]
    gram: NDArray[Any] | float = size
    if bias is not None:
        view, constant = bias
        terms.append(Term(view, lambda x: -constant * rows(x), lambda v: -constant * v))
        gram = size + float(constant) ** 2
    if into is not None:
        view, matrix = into
        terms.append(Term(view, lambda x: -(matrix @ x), lambda v: -(matrix.T @ v)))
        gram = size * np.eye(matrix.shape[1]) + matrix.T @ matrix
    return terms, gram


def norm_bias(
    bias: View,
    carried: View | None,
    biased: Sequence[tuple[View, Array]],
    unbiased: Sequence[tuple[View, Array]],
    u: Array,
    constant: float,
) -> Terms:
    """A norm's bias moves; its readers take their image back, in a bias or along ``u``.

    A reader without a bias moves along ``u`` by its image over ``constant = u . bias``. Where that
    constant is zero, as in a fresh model, only the limit of these directions is left: such readers
    move along ``u`` by their image, and nothing else moves.

    Parameters
    ----------
    bias, carried
        The norm's bias, and the bias that takes back the carried value.
    biased
        Readers' biases, each with its reader's weight as an array (input axis last).
    unbiased
        Readers' weights, each with its values.
    """
    width = bias.shape[0]
    gram = np.zeros((width, width))
    terms = []
    whole = 0.0 if unbiased and constant == 0.0 else 1.0
    if whole:
        terms.append(Term(bias, lambda x: x, lambda v: v))
        gram += np.eye(width)
        if carried is not None:
            terms.append(Term(carried, lambda x: -x, lambda v: -v))
            gram += np.eye(width)
        for view, weight in biased:
            matrix = np.ascontiguousarray(weight).reshape(-1, width)
            terms.append(_image(view, matrix))
            gram += matrix.T @ matrix
    scale = 1.0 / constant if whole and unbiased else 1.0
    for view, weight in unbiased:
        matrix = scale * np.ascontiguousarray(weight).reshape(-1, width)
        terms.append(_image_along(view, matrix, u))
        gram += float(u @ u) * (matrix.T @ matrix)
    return terms, gram


def _image(view: View, matrix: Array) -> Term:
    return Term(
        view,
        lambda x: -(matrix @ x).reshape(view.shape),
        lambda v: -(matrix.T @ v.reshape(-1)),
    )


def _image_along(view: View, matrix: Array, u: Array) -> Term:
    units = view.shape[:-1]
    return Term(
        view,
        lambda x: -(matrix @ x).reshape(units)[..., None] * u,
        lambda v: -(matrix.T @ (v @ u).reshape(-1)),
    )


def all_rows(
    moves: Sequence[tuple[View, Array, float]], bias: tuple[View, slice, float] | None
) -> Terms:
    """One coordinate moves all rows of each view along a vector, and a part of a bias.

    Parameters
    ----------
    moves
        Views of shape ``(rows, width)``, the vector, and a sign.
    bias
        The bias, which entries of it move, and by how much.
    """
    terms, gram = [], 0.0
    for view, u, sign in moves:
        terms.append(_all_rows(view, sign * u))
        gram += view.size // len(u) * float(u @ u)
    if bias is not None:
        view, entries, amount = bias
        moved = np.zeros(view.shape)
        moved[entries] = amount
        terms.append(Term(view, lambda x: x[0] * moved, lambda v: np.vdot(moved, v)))
        gram += float(np.vdot(moved, moved))
    return terms, gram


def _all_rows(view: View, u: Array) -> Term:
    return Term(view, lambda x: x[0] * u, lambda v: v.reshape(-1, len(u)).sum(axis=0) @ u)


def common_rows(output: View, into: View | None, bias: View | None, coordinates: int) -> Terms:
    """All rows of ``output`` move together, ``into`` moves back; then all entries of the bias.

    With ``coordinates`` 1 (and a wider output) the rows move along ones only; with 0 they rest.
    """
    width = output.shape[1]
    single = coordinates != width
    part = slice(0, coordinates)
    terms, gram = [], []

    def rows(view: View, sign: float) -> Term:
        def transpose(v: Array) -> Array:
            total = sign * v.sum(axis=0)
            return total.sum(keepdims=True) if single else total

        return Term(view, lambda x: sign * x, transpose, part)

    if coordinates:
        moved = [(output, 1.0)] + ([(into, -1.0)] if into is not None else [])
        terms += [rows(view, sign) for view, sign in moved]
        count = sum(view.shape[0] for view, _ in moved)
        gram.append(np.full(coordinates, float(count * (width if single else 1))))
    if bias is not None:
        last = slice(coordinates, coordinates + 1)
        terms.append(Term(bias, lambda x: x, lambda v: v.sum(keepdims=True), last))
        gram.append(np.full(1, float(bias.size)))
    return terms, np.concatenate(gram)


def common_entries(table: View) -> Terms:
    """All rows of a table move together, each column by a coordinate of its own."""
    shape = table.shape[1:]
    terms = [Term(table, lambda x: x.reshape(shape), lambda v: v.sum(axis=0))]
    return terms, float(table.shape[0])
