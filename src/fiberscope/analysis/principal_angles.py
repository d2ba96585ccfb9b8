"""How close two subspaces are, at any precision: sines of principal angles."""

from __future__ import annotations

from typing import Any

import numpy as np

from fiberscope.analysis.spectrum import cholesky
from fiberscope.numbers.balls import Balls

Matrix = Any
"""A ``flint.arb_mat``; its midpoints are used."""


def orthonormal_columns(columns: Matrix, system: Balls) -> Matrix:
    """Orthonormal basis of the span of independent columns (Cholesky, twice), midpoints only."""
    basis = columns.mid()
    for _ in range(2):
        factor = cholesky((basis.transpose() * basis).mid(), system.flint)
        basis = (basis * factor.inv().transpose()).mid()
    return basis


def largest_principal_angle_sine(first: Matrix, second: Matrix, system: Balls) -> float:
    """Sine of the largest principal angle between two spaces of one dimension.

    The norm of ``(1 - A A^T) B`` for orthonormal bases ``A``, ``B``: no cancellation hides small
    angles, since the difference is formed at the system's precision.

    Parameters
    ----------
    first, second
        Independent columns, shape ``(n, k)`` each.
    system
        Its precision must exceed twice the digits of the angle.
    """
    with system.precision():
        a, b = orthonormal_columns(first, system), orthonormal_columns(second, system)
        difference = b - a * (a.transpose() * b)
        return float(np.linalg.norm(system.to_float64(system.from_matrix(difference)), 2))


def remove_component(columns: Matrix, space: Matrix, system: Balls) -> Matrix:
    """Columns minus their orthogonal projection onto the span of ``space``."""
    with system.precision():
        basis = orthonormal_columns(space, system)
        return (columns - basis * (basis.transpose() * columns)).mid()
