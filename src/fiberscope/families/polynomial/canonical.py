"""Canonical form of the weights of a polynomial network.

Layer by layer from the input: neurons that nobody reads or that are constant go, rows are scaled
so that one entry is 1 (monomials), equal rows are merged, rows are sorted; and again until nothing
changes. A last quadratic layer with one output is replaced by a decomposition that depends on its
quadratic form only. The scaling of a layer looks at entries in the order of the sorted layer
before, so it must come after it. Exact over the rationals: projective normalisation needs no roots.

The form is the same for all points of an orbit. It is not always the same for all points of a
fiber: features of a layer can be dependent, and deep networks can have other representations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.families.polynomial.activation import Polynomial
from fiberscope.families.polynomial.network import PolynomialNetwork, shifted_constant
from fiberscope.parameters import Parameters
from fiberscope.symmetry import Element, Symmetry

TOLERANCE = 1e-12
"""float64: rows count as equal or proportional up to this share of their own largest entry."""

DISTINCT = 1e-6
"""float64: rows that differ by less than this share, and more than the tolerance, are too close to
tell; so is a neuron that contributes less than the tolerance of what its layer contributes."""

_KEY_DIGITS = 9

_FORM_SHARE = 1e-2
"""float64: a quadratic form stands for its squares only if each has this share of the largest."""

Moves = tuple[tuple[Symmetry, Element], ...]


@dataclass(frozen=True)
class CanonicalForm:
    """A canonical representative and how it was reached.

    Attributes
    ----------
    parameters
        Same shapes as before; removed neurons are zero and come last in their layer.
    widths
        Widths without the removed neurons.
    inactive, redundant, collinear
        Number of removed neurons by reason.
    rotated
        True when the last quadratic layer was decomposed anew.
    moves
        Group elements that carry the given parameters to the form; None when neurons were
        removed or the last layer was decomposed, which no group element does.
    ties
        float64 only: places where the choice of an entry or an order is within rounding.
    lossy
        float64 only: outgoing weights of merged neurons cancelled, or a quadratic form was added up
        from neurons of very different size, so rounding may hide what a neuron does.
    """

    parameters: dict[str, NDArray[Any]]
    widths: tuple[int, ...]
    inactive: int
    redundant: int
    collinear: int
    rotated: bool
    moves: Moves | None
    ties: tuple[str, ...]
    lossy: bool = False


def canonical_form(
    family: PolynomialNetwork, parameters: Parameters, *, decompose: bool = True
) -> CanonicalForm:
    """Canonical form of exact (object arrays of fractions) or float64 weights.

    Parameters
    ----------
    decompose
        With False the last quadratic layer is treated like any other.

    Raises
    ------
    InputError
        If scaling overflows in float64.
    """
    with np.errstate(all="ignore"):
        form = _Reduction(family, parameters, decompose).run()
    for array in form.parameters.values():
        if array.dtype != object and not np.isfinite(array).all():
            raise InputError(
                "the weights are too far apart in size for a canonical form in float64 (it "
                "overflows): make them rational"
            )
    return form


@dataclass
class _Reduction:
    """The weights while they are reduced: one matrix (and bias) for each layer."""

    family: PolynomialNetwork
    parameters: Parameters
    decompose: bool
    removed: dict[str, int] = field(
        default_factory=lambda: {"inactive": 0, "redundant": 0, "collinear": 0}
    )
    moves: list[tuple[Symmetry, Element]] = field(default_factory=list)
    ties: list[str] = field(default_factory=list)
    lossy: bool = False
    rotated: bool = False

    def __post_init__(self) -> None:
        layers = range(1, self.family.architecture.layers + 1)
        self.weights = [np.array(self.parameters[f"W{layer}"]) for layer in layers]
        self.biases: list[NDArray[Any]] | None = None
        if self.family.architecture.bias:
            self.biases = [np.array(self.parameters[f"b{layer}"]) for layer in layers]
        self.exact = self.weights[0].dtype == object
        self.acting = {symmetry.name: symmetry for symmetry in self.family.symmetries()}

    def run(self) -> CanonicalForm:
        hidden = len(self.weights) - 1
        changed = True
        while changed:
            self.ties.clear()
            changed = False
            for layer in range(hidden):
                changed |= self.drop(layer)
                if self.decompose and layer == hidden - 1 and self.family.rotates:
                    changed |= self.decompose_quadric(layer)
                    # With biases a square can come out constant.
                    changed |= self.drop(layer)
                changed |= self.merge(layer, self.scale(layer))
                self.sort(layer)
        kept = sum(self.removed.values()) == 0 and not self.rotated
        return CanonicalForm(
            self.padded(),
            (
                self.weights[0].shape[1],
                *(len(weight) for weight in self.weights),
            ),
            **self.removed,
            rotated=self.rotated,
            moves=tuple(self.moves) if kept else None,
            ties=tuple(dict.fromkeys(self.ties)),
            lossy=self.lossy,
        )

    def keep(self, layer: int, kept: Sequence[int], reason: str) -> bool:
        """Keep some neurons of a layer; True when one goes."""
        gone = len(self.weights[layer]) - len(kept)
        if not gone:
            return False
        self.removed[reason] += gone
        self.weights[layer] = self.weights[layer][list(kept)]
        self.weights[layer + 1] = self.weights[layer + 1][:, list(kept)]
        if self.biases is not None:
            self.biases[layer] = self.biases[layer][list(kept)]
        return True

    def drop(self, layer: int) -> bool:
        """Remove neurons that nobody reads, and fold constant ones into the next bias."""
        sigma = self.family.activations[layer]
        rows, columns = self.weights[layer], self.weights[layer + 1]
        kept = []
        for neuron in range(len(rows)):
            # Only exact zeros: smallness is not invariant under rescalings of the neuron.
            if not columns[:, neuron].any():
                continue
            if not rows[neuron].any():
                if self.biases is not None:
                    constant = _value(sigma, self.biases[layer][neuron], self.exact)
                    self.biases[layer + 1] = self.biases[layer + 1] + columns[:, neuron] * constant
                    continue
                if sigma.through_origin:
                    continue
            kept.append(neuron)
        if not self.exact:
            for neuron in negligible(sigma, rows, columns):
                self.ties.append(
                    f"layer {layer + 1}, neuron {neuron}: contributes less than rounding"
                )
        return self.keep(layer, kept, "inactive")

    def scale(self, layer: int) -> NDArray[Any]:
        """Scale every row of a layer, as far as its activation allows; the factors come back."""
        sigma = self.family.activations[layer]
        rows = self.weights[layer]
        factors = [Fraction(1) if self.exact else 1.0 for _ in rows]
        shifted = self.biases is not None and sigma.is_shifted_monomial
        free = sigma.is_monomial or shifted
        if free or sigma.parity:
            for neuron, row in enumerate(rows):
                pivot = self.pivot(row, f"layer {layer + 1}, neuron {neuron}")
                if pivot is not None and (free or pivot < 0):
                    factors[neuron] = 1 / pivot if free else -1 * factors[neuron]
                    # Dividing makes the pivot exactly 1, which multiplying need not.
                    rows[neuron] = row / pivot if free else -row
        found = np.array(factors, dtype=object if self.exact else np.float64)
        if not free:
            if sigma.parity:
                if self.biases is not None:
                    self.biases[layer] = self.biases[layer] * found
                if sigma.parity < 0:
                    self.weights[layer + 1] = self.weights[layer + 1] * found
                self.record(f"neuron signs of layer {layer + 1}", found)
            return found
        columns = self.weights[layer + 1]
        self.weights[layer + 1] = columns / found**sigma.degree
        if self.biases is not None:
            centre, constant = self.number(sigma.centre), self.number(shifted_constant(sigma))
            freed = columns - self.weights[layer + 1]
            self.biases[layer] = found * (self.biases[layer] - centre) + centre
            self.biases[layer + 1] = self.biases[layer + 1] + constant * freed.sum(axis=1)
        self.record(f"neuron rescalings of layer {layer + 1}", found)
        return found

    def number(self, value: Fraction) -> Any:
        return value if self.exact else float(value)

    def pivot(self, row: NDArray[Any], where: str) -> Any:
        """Entry that becomes 1: the first that is not zero, in float64 the largest."""
        if self.exact:
            return next((entry for entry in row if entry != 0), None)
        if not len(row) or not row.any():
            return None
        sizes = np.abs(row)
        chosen = int(np.argmax(sizes))
        close = sizes > (1 - 1e-7) * sizes[chosen]
        if close.sum() > 1:
            # The first of equally large entries: stable when they differ by rounding only.
            chosen = int(np.argmax(close))
            self.ties.append(f"{where}: {close.sum()} entries of the same size")
        return row[chosen]

    def merge(self, layer: int, factors: NDArray[Any]) -> bool:
        """Merge neurons with equal rows (and biases): their outgoing columns add up."""
        rows = self.rows_with_bias(layer)
        columns = self.weights[layer + 1]
        first: list[int] = []
        seen: dict[tuple[Any, ...], int] = {}
        collinear = 0
        for neuron, row in enumerate(rows):
            if self.exact:
                twin = seen.setdefault(tuple(row), neuron)
            else:
                gaps = {i: distance(rows[i], row) for i in first}
                near = [i for i, gap in gaps.items() if gap <= TOLERANCE]
                twin = near[0] if near else neuron
                if any(TOLERANCE < gap < DISTINCT for gap in gaps.values()):
                    self.ties.append(f"layer {layer + 1}, neuron {neuron}: almost equal rows")
            if twin == neuron:
                first.append(neuron)
                continue
            columns[:, twin] = self.sum(columns[:, twin], columns[:, neuron])
            collinear += bool(factors[twin] != factors[neuron])
        gone = self.keep(layer, first, "redundant")
        self.removed["redundant"] -= collinear
        self.removed["collinear"] += collinear
        return gone

    def sum(self, first: NDArray[Any], second: NDArray[Any]) -> NDArray[Any]:
        """Sum of two columns; in float64, what is left by rounding of a cancellation is zero."""
        total: NDArray[Any] = first + second
        if not self.exact:
            sizes = np.abs(first) + np.abs(second)
            self.lossy |= bool((np.abs(total) < DISTINCT * sizes).any())
            total[np.abs(total) <= TOLERANCE * sizes] = 0.0
        return total

    def rows_with_bias(self, layer: int) -> NDArray[Any]:
        if self.biases is None:
            return self.weights[layer]
        return np.concatenate([self.weights[layer], self.biases[layer][:, None]], axis=1)

    def sort(self, layer: int) -> None:
        """Sort the rows of a layer (with their biases)."""
        rows = self.rows_with_bias(layer)
        if self.exact:
            order = sorted(range(len(rows)), key=lambda i: tuple(rows[i]))
        else:
            # Rounded keys: entries that are equal up to rounding must not decide the order.
            # Each row at its own scale, which comes last.
            sizes = np.abs(rows).max(axis=1, initial=0.0)
            keys = np.round(rows / np.where(sizes > 0, sizes, 1.0)[:, None], _KEY_DIGITS) + 0.0
            scales = [float(f"{size:.{_KEY_DIGITS}e}") for size in sizes]
            order = sorted(range(len(rows)), key=lambda i: (*keys[i], scales[i]))
        self.weights[layer] = self.weights[layer][order]
        self.weights[layer + 1] = self.weights[layer + 1][:, order]
        if self.biases is not None:
            self.biases[layer] = self.biases[layer][order]
        self.record(f"neuron permutations of layer {layer + 1}", np.array([order], dtype=np.int64))

    def record(self, name: str, element: Element) -> None:
        if name in self.acting:
            self.moves.append((self.acting[name], element))

    def decompose_quadric(self, layer: int) -> bool:
        """Replace the last quadratic layer by a decomposition of its quadratic form."""
        rows, outgoing = self.rows_with_bias(layer), self.weights[layer + 1][0]
        if len(rows) < 2:
            return False
        self.rotated = True
        if not self.exact:
            sigma = self.family.activations[layer]
            self.lossy |= bool(negligible(sigma, rows, outgoing[None, :], _FORM_SHARE))
        form = (rows.T * outgoing) @ rows
        found, weights = quadratic_decomposition(form, len(rows), self.exact)
        gone = len(rows) - len(found)
        self.removed["redundant"] += gone
        if self.biases is not None:
            self.weights[layer], self.biases[layer] = found[:, :-1], found[:, -1]
        else:
            self.weights[layer] = found
        self.weights[layer + 1] = weights[None, :]
        return gone > 0

    def padded(self) -> dict[str, NDArray[Any]]:
        """Put zeros where neurons were removed."""
        zero: Any = Fraction(0) if self.exact else 0.0
        padded: dict[str, NDArray[Any]] = {}
        for name, shape in self.family.space.shapes.items():
            layer = int(name[1:]) - 1
            assert name[0] == "W" or self.biases is not None
            part = self.weights[layer] if name[0] == "W" else (self.biases or [])[layer]
            padded[name] = np.full(shape, zero, dtype=object if self.exact else np.float64)
            padded[name][tuple(slice(size) for size in part.shape)] = part
        return padded


def distance(first: NDArray[Any], second: NDArray[Any]) -> float:
    """Largest difference of two rows as a share of their largest entry."""
    scale = max(float(np.abs(row).max(initial=0.0)) for row in (first, second))
    return float(np.abs(first - second).max(initial=0.0)) / scale if scale else 0.0


def negligible(
    sigma: Polynomial, rows: NDArray[Any], columns: NDArray[Any], share: float = TOLERANCE
) -> list[int]:
    """Neurons, not zero, that contribute less than a share of what their layer contributes.

    At inputs of size one, by absolute values: ``sum_i |a_i| |row|^i |outgoing|`` over ``i >= 1``.
    Each neuron's rescalings leave this number alone.
    """
    with np.errstate(all="ignore"):
        sizes = np.abs(rows).astype(np.float64).max(axis=1, initial=0.0)
        out = np.abs(columns).astype(np.float64).max(axis=0, initial=0.0)
        logs = np.full(len(rows), -np.inf)
        for exponent in sigma.exponents - {0}:
            size = abs(float(sigma.coefficients[exponent]))
            logs = np.logaddexp(logs, np.log(size) + exponent * np.log(sizes) + np.log(out))
        small = np.isfinite(logs) & (logs < logs.max(initial=-np.inf) + np.log(share))
    return [int(neuron) for neuron in np.flatnonzero(small)]


def quadratic_decomposition(
    form: NDArray[Any], most: int, exact: bool
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Rows ``l_j`` and weights ``w_j`` with ``form = sum_j w_j l_j l_j^T``, by Lagrange's method.

    It depends on the form only. A diagonal entry splits off one square, and where the diagonal is
    zero an off-diagonal one two (the sum and the difference of two rows), so the number of
    squares is the rank. In float64 the largest entry is taken and at most ``most`` squares are.
    """
    rest = form.copy()
    size = len(rest)
    rows: list[NDArray[Any]] = []
    weights: list[Any] = []
    start = 1.0 if exact else float(np.abs(rest).max(initial=0.0))
    while len(rows) < most:
        if exact:
            if not rest.any():
                break
            diagonal = next((i for i in range(size) if rest[i, i] != 0), None)
        else:
            peak = float(np.abs(rest).max(initial=0.0))
            if peak <= TOLERANCE * start:
                break
            i = int(np.argmax(np.abs(np.diagonal(rest))))
            diagonal = i if abs(rest[i, i]) > 0.5 * peak else None
        if diagonal is not None:
            weight = rest[diagonal, diagonal]
            row = rest[diagonal] / weight
            rows.append(row)
            weights.append(weight)
            rest = rest - weight * np.multiply.outer(row, row)
            continue
        if exact:
            i, j = next((i, j) for i in range(size) for j in range(size) if rest[i, j] != 0)
        else:
            off = np.abs(rest - np.diag(np.diagonal(rest)))
            i, j = (int(k) for k in np.unravel_index(np.argmax(off), off.shape))
        # Away from zero diagonal entries the two rows are still those of the block (i, j).
        block = rest[np.ix_([i, j], [i, j])]
        determinant = block[0, 0] * block[1, 1] - block[0, 1] * block[1, 0]
        pair = rest[[i, j]]
        dual = np.array([[block[1, 1], -block[0, 1]], [-block[1, 0], block[0, 0]]]) / determinant
        rest = rest - pair.T @ dual @ pair
        a, b, c = dual[0, 0], dual[0, 1], dual[1, 1]
        total, difference = pair[0] + pair[1], pair[0] - pair[1]
        if exact or (a == 0 and c == 0):
            squares = [(total, b / 2), (difference, -b / 2)]
        else:
            values, vectors = np.linalg.eigh(np.array([[a, b], [b, c]], dtype=np.float64))
            squares = [(vectors[:, k] @ pair, values[k]) for k in range(2)]
        for row, weight in squares:
            rows.append(row)
            weights.append(weight)
    dtype = object if exact else np.float64
    found = np.empty((len(rows), size), dtype=dtype)
    for index, row in enumerate(rows):
        found[index] = row
    return found, np.array(weights, dtype=dtype)


def _value(sigma: Polynomial, at: Any, exact: bool) -> Any:
    total: Any = Fraction(0) if exact else 0.0
    for coefficient in reversed(sigma.coefficients):
        total = total * at + (coefficient if exact else float(coefficient))
    return total
