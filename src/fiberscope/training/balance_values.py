"""Balancing values against outputs where a constant value also folds into the output bias."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, null_space

from fiberscope.checkpoints.architecture.program import Attention
from fiberscope.checkpoints.ledger.rules.constants import output_map
from fiberscope.parameters import View
from fiberscope.symmetry import GeneralLinear
from fiberscope.training.balance_factors import FactorMove, Matrix, balancing, polar, reduced
from fiberscope.training.balance_heads import Arrays, HeadMove, head_move

_ROUNDS = 200
_SETTLED = 1e-14


@dataclass(frozen=True)
class ValueBalance:
    """The joint minimum: a shift of the value bias, then a change of basis.

    Attributes
    ----------
    shift : ndarray of float64, shape (G s,)
        What the value bias gains in the present basis; its effect leaves the output bias.
    head
        The change of basis that follows.
    rounds
        Newton steps taken.
    settled
        Whether they settled to rounding.
    """

    shift: NDArray[np.float64]
    head: HeadMove
    rounds: int
    settled: bool


def ridge_shift(
    attention: Attention, biases: tuple[View, ...], parameters: Arrays
) -> NDArray[np.float64]:
    """The shift of the value bias that gives it and the output biases the smallest norm.

    Minimises ``|v + x|^2 + |s - W x|^2 / k`` over x, where W is what constant values add to the
    stream, s the sum of the k output biases of the step (equal parts are the smallest).
    """
    assert attention.value_bias is not None
    value = attention.value_bias.read(parameters).reshape(-1)
    linear = output_map(attention, parameters)
    total = sum(bias.read(parameters) for bias in biases)
    count = len(biases)
    normal = np.eye(len(value)) + linear.T @ linear / count
    return np.asarray(np.linalg.solve(normal, linear.T @ total / count - value))


def balance_values(
    symmetry: GeneralLinear,
    attention: Attention,
    biases: tuple[View, ...],
    parameters: Arrays,
    *,
    blind: bool = False,
) -> ValueBalance:
    """Minimise the norm of values, outputs, value bias and output biases together.

    For a given value bias v the best basis balances the factors, with v as one more column, and
    the norm is ``2 sum_g |[V_g v_g]^T O_g|_* + |c - W v|^2 / k``: nuclear norms of matrices that
    are linear in v, so the problem is convex in v, and Newton's method with a line search finds its
    minimum. Without output biases v is confined to what leaves ``W v`` (its part orthogonal to the
    ones vector, where ``blind``) as it is, and the last term is constant.

    Where values alone have a lower rank than their width, the bias can fill one more row; the
    minimum with and without that row are both sought, and the smaller is taken.
    """
    assert attention.value_bias is not None
    bias = attention.value_bias.read(parameters).astype(np.float64)
    groups, width = bias.shape
    value = attention.value.read(parameters).astype(np.float64)
    output = attention.output.read(parameters).astype(np.float64)
    rights = [np.moveaxis(output[g], 1, 0).reshape(width, -1) for g in range(groups)]
    constant = output_map(attention, parameters).astype(np.float64) @ bias.reshape(-1)
    for view in biases:
        constant = constant + view.read(parameters)
    start = _Point(
        [reduced(factor) for factor in value],
        [reduced(factor) for factor in rights],
        [factor.sum(axis=0) for factor in output],
        list(bias.copy()),
        list(symmetry.identity()),
        [width] * groups,
    )
    problem = _Problem(constant, len(biases), blind)
    best, rounds, settled = problem.minimise(start.copy())
    confined = start.copy()
    confined.balance(with_bias=False)
    if confined.live != best.live:
        other, more, also = problem.minimise(confined)
        if problem.norm(other) <= problem.norm(best) * (1 + 1e-12):
            best, settled = other, also
        rounds += more
    present = np.zeros_like(bias)
    moves = []
    for g in range(groups):
        matrix, live = best.matrices[g], best.live[g]
        present[g] = np.linalg.solve(matrix, best.bias[g])
        moved = matrix @ value[g], np.linalg.inv(matrix).T @ rights[g]
        for part in moved:
            part[live:] = 0.0
        # The nearest of the balanced points, all of which differ by a rotation.
        product = value[g] @ moved[0].T + rights[g] @ moved[1].T + np.outer(bias[g], best.bias[g])
        moves.append([FactorMove(matrix, live, polar(product))])
    shift = np.asarray((present - bias).reshape(-1), dtype=np.float64)
    return ValueBalance(shift, head_move(symmetry, moves), rounds, settled)


@dataclass
class _Point:
    """Values, outputs and value bias of every group in a changing basis."""

    weights: list[Matrix]
    outputs: list[Matrix]
    lands: list[Matrix]
    """Sum of the outputs of a group's heads, ``(s, d)``: where constants land."""
    bias: list[Matrix]
    matrices: list[Matrix]
    live: list[int]

    def copy(self) -> _Point:
        fields = (self.weights, self.outputs, self.lands, self.bias, self.matrices)
        copies = [[part.copy() for part in parts] for parts in fields]
        return _Point(copies[0], copies[1], copies[2], copies[3], copies[4], list(self.live))

    def factor(self, g: int, bias: Matrix) -> Matrix:
        """The values of a group with a bias as one more column."""
        return np.concatenate([self.weights[g], bias[:, None]], axis=1)

    def balance(self, *, with_bias: bool = True) -> None:
        """Balance every group; the Gram matrices of values and outputs are then diagonal."""
        for g, output in enumerate(self.outputs):
            left = self.factor(g, self.bias[g]) if with_bias else self.weights[g]
            matrix, live = balancing(left, output)
            dual = np.linalg.inv(matrix).T
            self.weights[g], self.outputs[g] = matrix @ self.weights[g], dual @ output
            self.lands[g], self.bias[g] = dual @ self.lands[g], matrix @ self.bias[g]
            for part in (self.weights[g], self.outputs[g], self.lands[g], self.bias[g]):
                part[live:] = 0.0
            self.matrices[g], self.live[g] = matrix @ self.matrices[g], live


@dataclass(frozen=True)
class _Problem:
    """The norm as a function of the value bias, the basis being the best for it."""

    constant: Matrix
    biases: int
    blind: bool

    def landing(self, point: _Point) -> Matrix:
        """What constant values add to the stream, ``(d, G s)``."""
        return np.concatenate(point.lands).T

    def norm(self, point: _Point, bias: list[Matrix] | None = None) -> float:
        """The squared norm at a value bias (by default the point's)."""
        bias = point.bias if bias is None else bias
        total = 0.0
        for g, output in enumerate(point.outputs):
            product = point.factor(g, bias[g]).T @ output
            total += 2 * float(np.linalg.svd(product, compute_uv=False).sum())
        if self.biases:
            rest = self.constant - self.landing(point) @ np.concatenate(bias)
            total += float(rest @ rest) / self.biases
        return total

    def minimise(self, point: _Point) -> tuple[_Point, int, bool]:
        """Newton's method; the point is changed. Returns it, the rounds, and whether it settled."""
        for number in range(1, _ROUNDS + 1):
            point.balance()
            slope, step = self._newton(point)
            here, fraction = self.norm(point), 1.0
            while fraction > 1e-10:
                bias = [v + fraction * d for v, d in zip(point.bias, step, strict=True)]
                # Rounding of the norm must not refuse the last steps.
                if self.norm(point, bias) <= here * (1 + 1e-15) + 0.1 * fraction * slope:
                    break
                fraction /= 2
            point.bias = bias
            size = max(float(np.abs(part).max()) for part in step)
            largest = max(float(np.abs(part).max()) for part in point.bias)
            if fraction * size <= _SETTLED * max(largest, 1e-300):
                point.balance()
                return point, number, True
        point.balance()
        return point, _ROUNDS, False

    def _newton(self, point: _Point) -> tuple[float, list[Matrix]]:
        """Slope along the Newton step, and the step, at a balanced point.

        There half the gradient of the nuclear norms is v itself, and with the Gram matrices
        ``diag(s)`` half their second derivative is
        ``delta_ij (1 - sum_k v_k^2 / (s_i + s_k)) - v_i v_j / (s_i + s_j)``.
        """
        alive = np.concatenate(
            [np.arange(len(v)) < k for v, k in zip(point.bias, point.live, strict=True)]
        )
        second = np.zeros((len(alive), len(alive)))
        start = 0
        for output, v in zip(point.outputs, point.bias, strict=True):
            sizes = np.sum(output**2, axis=1)
            sums = sizes[:, None] + sizes
            sums[sums == 0] = 1.0
            block = np.diag(1 - (v**2 / sums).sum(axis=1)) - np.outer(v, v) / sums
            second[start : start + len(v), start : start + len(v)] = block
            start += len(v)
        bias, landing = np.concatenate(point.bias), self.landing(point)
        if self.biases:
            gradient = bias - landing.T @ (self.constant - landing @ bias) / self.biases
            second = second + landing.T @ landing / self.biases
            basis = np.eye(len(alive))[:, alive]
        else:
            seen = landing - landing.mean(axis=0) if self.blind else landing
            gradient, basis = bias, np.zeros((len(alive), 0))
            kernel = null_space(seen[:, alive])
            basis = np.zeros((len(alive), kernel.shape[1]))
            basis[alive] = kernel
        pull = basis.T @ gradient
        curved = basis.T @ second @ basis
        step = -basis @ _solved((curved + curved.T) / 2, pull)
        sizes = np.cumsum([len(v) for v in point.bias])[:-1]
        return 2 * float(gradient @ step), np.split(step, sizes)


def _solved(curvature: Matrix, gradient: Matrix) -> Matrix:
    """Solve with the second derivative; a flat direction takes a moderate step."""
    try:
        return np.asarray(cho_solve(cho_factor(curvature), gradient))
    except np.linalg.LinAlgError:  # convex, so anything below zero is rounding
        values, vectors = np.linalg.eigh(curvature)
        return np.asarray(vectors @ ((vectors.T @ gradient) / np.maximum(values, 1e-3)))


def values_moments(
    attention: Attention, biases: tuple[View, ...], parameters: Arrays
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Both sides of the value bias's balance: itself, and what the output biases pull it to."""
    assert attention.value_bias is not None
    value = attention.value_bias.read(parameters).reshape(-1)
    total = sum(bias.read(parameters) for bias in biases)
    pulled = output_map(attention, parameters).T @ total / len(biases)
    return np.asarray(value), np.asarray(pulled)
