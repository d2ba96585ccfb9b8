"""The invisible part of a direction: its orthogonal projection onto the span of exact tangents.

With ``T`` the tangents of all exact symmetries at the current weights (one column a generator) and
``v`` a direction, the invisible part is ``T x`` for any solution of ``T^T T x = T^T v``, and its
share of ``v`` is ``x . T^T v / |v|^2``. The equations are solved by conjugate gradients,
preconditioned by the inverse Gram matrix of every symmetry alone: what is left to iterate are the
overlaps between mechanisms, and the rotation of the residual stream where gains differ.

Source of the conjugate-gradient error bound: the error in energy is at most the preconditioned
residual over the smallest eigenvalue, estimated by the smallest Ritz value (Golub and Van Loan,
Matrix Computations, section 11.3).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.parameters import Parameters
from fiberscope.symmetry import Symmetry
from fiberscope.symmetry.tangent_map import Directions, TangentMap, Vector

SHARE_ERROR = 1e-6
"""Default largest error of a share."""

RITZ_MARGIN = 0.5
"""Ritz values approach the smallest eigenvalue from above; this factor allows for the rest."""

ITERATIONS = 2000
"""Iterations after which the equations are given up."""


@dataclass(frozen=True)
class Projection:
    """What is invisible of a direction.

    Attributes
    ----------
    squared_norm
        Squared norm of the whole direction.
    invisible
        Squared norm of its invisible part.
    coordinates
        Generator coordinates ``x`` of the invisible part, all symmetries one after the other.
    error
        Estimate of the error of ``share``.
    iterations
        Conjugate-gradient iterations.
    """

    squared_norm: float
    invisible: float
    coordinates: Vector
    error: float
    iterations: int

    @property
    def share(self) -> float | None:
        """``invisible / squared_norm``, None for the zero direction."""
        return self.invisible / self.squared_norm if self.squared_norm > 0 else None


class TangentSpan:
    """The span of the columns of several tangent maps.

    Parameters
    ----------
    maps
        Tangent maps; :meth:`at` takes those of symmetries at given parameters.
    buffer
        Arrays of the touched tensors' shapes, to work in.
    """

    def __init__(self, maps: Sequence[TangentMap], buffer: Directions) -> None:
        self.maps = tuple(maps)
        self._buffer = buffer
        stops = [0, *accumulate(part.generators for part in self.maps)]
        self.slices = [slice(a, b) for a, b in pairwise(stops)]
        self.generators = stops[-1]

    @classmethod
    def at(cls, symmetries: Sequence[Symmetry], parameters: Parameters) -> TangentSpan:
        """Span of the tangents of exact symmetries at named float64 arrays, kept unchanged.

        Raises
        ------
        InputError
            If a tensor is not finite.
        """
        touched = dict.fromkeys(name for symmetry in symmetries for name in symmetry.touches)
        for name in touched:
            if not np.isfinite(parameters[name]).all():
                raise InputError(
                    f"the tensor {name!r} holds infinite or undefined numbers, where no share is "
                    "defined; measure before the training diverges"
                )
        buffer = {name: np.zeros(np.shape(parameters[name])) for name in touched}
        # A gain of zero has no inverse; the projection says so.
        with np.errstate(divide="ignore", invalid="ignore"):
            return cls([symmetry.tangent_map(parameters) for symmetry in symmetries], buffer)

    def pull(self, directions: Directions) -> Vector:
        """``T^T v``, shape ``(generators,)``."""
        if not self.maps:
            return np.zeros(0)
        with np.errstate(invalid="ignore"):
            return np.concatenate([part.pull(directions) for part in self.maps])

    def push(self, coordinates: Vector) -> Directions:
        """``T x`` as named arrays over the touched tensors; overwritten by the next call."""
        for array in self._buffer.values():
            array.fill(0.0)
        for part, window in zip(self.maps, self.slices, strict=True):
            part.add(coordinates[window], self._buffer)
        return self._buffer

    def precondition(self, vector: Vector) -> Vector:
        """Apply the inverse Gram matrix of every symmetry alone."""
        if not self.maps:
            return np.zeros(0)
        pairs = zip(self.maps, self.slices, strict=True)
        return np.concatenate([part.solve(vector[window]) for part, window in pairs])

    def alone(self, pulled: Vector, squared: float, error: float = SHARE_ERROR) -> list[float]:
        """Share of a direction along each symmetry alone.

        Parameters
        ----------
        pulled, squared
            ``T^T v`` and ``|v|^2``.
        error
            Largest error of a share whose Gram matrix has no inverse in closed form.
        """
        if squared == 0.0:
            return [0.0] * len(self.maps)
        shares = []
        for part, window in zip(self.maps, self.slices, strict=True):
            right = pulled[window]
            x = part.solve(right)
            if not part.exact:
                x, _, _ = TangentSpan([part], self._buffer)._solve(right, squared * error, None)
            shares.append(min(max(float(x @ right) / squared, 0.0), 1.0))
        return shares

    def project(
        self,
        directions: Directions,
        *,
        error: float = SHARE_ERROR,
        start: Vector | None = None,
        pulled: Vector | None = None,
    ) -> Projection:
        """Project a direction.

        Parameters
        ----------
        directions
            Named float64 arrays.
        error
            Largest error of the share.
        start
            A guess of the coordinates, such as those of a similar direction.
        pulled
            ``T^T directions``, where it is known already.

        Raises
        ------
        InputError
            If the direction is not finite, or the iterations do not settle.
        """
        squared = squared_norm(directions)
        if not np.isfinite(squared):
            raise InputError(
                "a direction holds infinite or undefined numbers, so it has no invisible share; "
                "measure before the training diverges"
            )
        right = self.pull(directions) if pulled is None else pulled
        if not np.isfinite(right).all():
            raise InputError(
                "the symmetries have no finite directions at these weights, as behind a norm whose "
                "gain is exactly zero; move the gain off zero to measure"
            )
        if squared == 0.0:
            return Projection(0.0, 0.0, np.zeros(self.generators), 0.0, 0)
        x, remaining, iterations = self._solve(right, squared * error, start)
        # |T x|^2 of a solution is x . T^T v; the residual enters this form of it only squared.
        invisible = 2.0 * float(x @ right) - squared_norm(self.push(x))
        invisible = min(max(invisible, 0.0), squared)
        return Projection(squared, invisible, x, remaining / squared, iterations)

    def _solve(
        self, right: Vector, target: float, start: Vector | None
    ) -> tuple[Vector, float, int]:
        """Solution, remaining energy error and iterations."""
        x = np.zeros(self.generators) if start is None else start.copy()
        residual = right if start is None else right - self.pull(self.push(x))
        residual = residual.copy()
        z = self.precondition(residual)
        search = z.copy()
        energy = float(residual @ z)
        steps: list[float] = []
        ratios: list[float] = []
        smallest = 1.0
        for iteration in range(ITERATIONS):
            remaining = max(energy, 0.0) / (RITZ_MARGIN * smallest)
            # Before a few steps the Ritz value knows nothing of the smallest eigenvalue.
            known = iteration > 2 or (iteration > 0 and energy < target / 100)
            if energy <= 0.0 or (remaining <= target and known):
                return x, remaining, iteration
            image = self.push(search)
            curvature = squared_norm(image)
            if curvature == 0.0:
                return x, remaining, iteration
            step = energy / curvature
            x += step * search
            residual -= step * self.pull(image)
            z = self.precondition(residual)
            following = float(residual @ z)
            steps.append(step)
            ratios.append(following / energy)
            search = z + (following / energy) * search
            energy = following
            smallest = min(smallest, _smallest_ritz_value(steps, ratios))
        raise InputError(
            f"the projection onto the symmetries has not settled after {ITERATIONS} iterations; "
            "allow a larger error, or look for weights that are zero or not finite"
        )


def _smallest_ritz_value(steps: list[float], ratios: list[float]) -> float:
    """Smallest eigenvalue of the tridiagonal matrix that conjugate gradients build on the way."""
    from scipy.linalg import eigvalsh_tridiagonal

    inverse = 1.0 / np.asarray(steps)
    ratio = np.asarray(ratios[:-1])
    diagonal = inverse.copy()
    diagonal[1:] += ratio * inverse[:-1]
    beside = np.sqrt(np.maximum(ratio, 0.0)) * inverse[:-1]
    values: NDArray[np.float64] = eigvalsh_tridiagonal(
        diagonal, beside, select="i", select_range=(0, 0)
    )
    return max(float(values[0]), np.finfo(np.float64).tiny)


def squared_norm(directions: Directions) -> float:
    """Sum of the squares of all entries."""
    return float(sum(np.vdot(array, array) for array in directions.values()))
