"""How strongly? Enclosed singular values of a Jacobian whose exact kernel is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr

from fiberscope.analysis.contact import Band, bands_from_orders, bands_from_slopes
from fiberscope.errors import InputError
from fiberscope.family import Design
from fiberscope.numbers.balls import Balls
from fiberscope.numbers.fields import ResidueField

Matrix = Any
"""A ``flint.arb_mat``."""

MOST_BITS = 12800
"""Precision at which an unresolved spectrum is given up."""

FLOAT64_CUTOFF = 1e-10
"""The usual relative cutoff of a numerical rank."""


class HasExactKernel(Protocol):
    """A family whose Jacobian runs in balls and whose kernel is known exactly."""

    def jacobian(self, parameters: Any, design: Design, system: Any = ...) -> Any:
        """Jacobian in a number system, shape ``(observations, parameters)``."""

    def exact_kernel(self, parameters: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
        """Rows of exact kernel directions at a rational point, as fractions."""


@dataclass(frozen=True)
class EnclosedSpectrum:
    """All singular values at one point, each in a ball.

    Attributes
    ----------
    values
        Positive singular values as balls (``flint.arb``) that contain them, in decreasing order.
    kernel_dimension
        Number of zeros: exact, by algebra, because every other value is enclosed away from zero.
    relative_error
        Largest relative half-width of a ball: also of the smallest value's.
    bits
        Working precision that resolved them.
    right_vectors
        Approximate right singular vectors, shape ``(parameters, values)``, as balls of radius 0.
    """

    values: tuple[Any, ...]
    kernel_dimension: int
    relative_error: float
    bits: int
    right_vectors: Matrix

    def decimals(self, digits: int) -> list[str]:
        """Decimal strings of at most ``digits`` digits, no more than the enclosure proves."""
        proved = digits
        if self.relative_error > 0:
            proved = max(1, min(digits, int(-np.log10(self.relative_error)) - 1))
        with Balls(self.bits).precision():
            return [value.mid().str(proved, radius=False) for value in self.values]


def enclosed_spectrum(
    family: HasExactKernel,
    parameters: Mapping[str, NDArray[Any]],
    design: Design,
    *,
    digits: int = 20,
    start_bits: int = 256,
) -> EnclosedSpectrum:
    """Enclose every singular value of the Jacobian to ``digits`` relative digits.

    The exact kernel is removed by algebra; approximate eigenvectors of the Gram matrix on its
    complement are computed in balls and then judged: with ``Z`` their columns, ``M = Z^T J^T J Z``
    and ``D^2`` its diagonal, ``|Z^T Z - 1| <= f`` and ``|D^-1 M D^-1 - 1| <= e`` give

    ``D_i sqrt((1 - e) / (1 + f)) <= sigma_i <= D_i sqrt((1 + e) / (1 - f))``

    (Ostrowski's theorem, twice), a *relative* bound for every value, whatever the clusters. The
    precision is doubled until the bound is small enough.

    Parameters
    ----------
    family
        See :class:`HasExactKernel`.
    parameters
        Exact (integer, fraction) or float64 arrays.
    design
        What is observed.
    digits
        Relative accuracy asked for, in decimal digits.
    start_bits
        First precision to try.

    Raises
    ------
    InputError
        If the values are not resolved at :data:`MOST_BITS`: the rank at this point is then below
        the number of parameters minus the known kernel, or the point is too close to collapse.
    """
    kernel = family.exact_kernel(parameters)
    target = 10.0 ** (-digits)
    bits = start_bits
    while True:
        system = Balls(bits)
        with system.precision():
            point = {name: system.array(value) for name, value in parameters.items()}
            jacobian = system.matrix(family.jacobian(point, design, system))
            found = spectrum_off_kernel(jacobian, kernel, system)
        if found is not None and found.relative_error <= target:
            return found
        if bits * 2 > MOST_BITS:
            raise InputError(
                f"the singular values are not resolved to {digits} digits at {bits} bits: either "
                "the Jacobian has more zeros than the known symmetries explain at this point and "
                "design, or it is too close to collapse; use more inputs or a larger t"
            )
        bits *= 2


def spectrum_off_kernel(
    jacobian: Matrix, kernel: NDArray[Any], system: Balls
) -> EnclosedSpectrum | None:
    """Enclose the singular values of ``jacobian`` off ``kernel``, at the current precision.

    Returns None where the precision does not even give a bound.
    """
    flint = system.flint
    complement = _orthonormal_complement(kernel, jacobian.ncols(), system)
    kernel_dimension = jacobian.ncols() - complement.ncols()
    if complement.ncols() == 0:
        return EnclosedSpectrum((), kernel_dimension, 0.0, system.bits, complement)
    image = jacobian * complement
    gram = image.transpose() * image
    vectors = _approximate_eigenvectors(gram, flint)
    z = complement * vectors
    m = vectors.transpose() * (gram * vectors)
    size = complement.ncols()
    squares = [m[i, i] for i in range(size)]
    if not all(square > 0 for square in squares):
        return None
    roots = [square.sqrt() for square in squares]
    inverses = [1 / root for root in roots]
    entries = m.entries()
    scaled = flint.arb_mat(
        size,
        size,
        [
            entries[i * size + j] * inverses[i] * inverses[j]
            for i in range(size)
            for j in range(size)
        ],
    )
    e = _distance_from_identity(scaled, flint)
    f = _distance_from_identity(z.transpose() * z, flint)
    if not (e < 1 and f < 1):
        return None
    low, high = ((1 - e) / (1 + f)).sqrt(), ((1 + e) / (1 - f)).sqrt()
    spread = low.union(high)
    order = sorted(range(size), key=lambda i: roots[i].mid(), reverse=True)
    values = tuple(roots[i] * spread for i in order)
    worst = max(float((value.rad() / value.mid()).upper()) for value in values)
    columns = z.mid().transpose().tolist()
    right = flint.arb_mat([columns[i] for i in order]).transpose()
    return EnclosedSpectrum(values, kernel_dimension, worst, system.bits, right)


def _distance_from_identity(matrix: Matrix, flint: Any) -> Any:
    """Upper bound of the infinity norm of ``matrix - 1``, an exact ball."""
    largest = flint.arb(0)
    for i, row in enumerate(matrix.tolist()):
        total = sum(((x - 1 if j == i else x).abs_upper() for j, x in enumerate(row)), flint.arb(0))
        largest = largest.max(total)
    return largest.upper()


def _orthonormal_complement(kernel: NDArray[Any], columns: int, system: Balls) -> Matrix:
    """Nearly orthonormal columns that enclose vectors exactly orthogonal to the kernel's rows.

    Rows are rational. With ``N = [N1 N2]`` on pivot and other columns, ``[-N1^-1 N2; 1]`` spans
    the complement; a Cholesky factor of its Gram matrix makes it orthonormal.
    """
    flint = system.flint
    rows, pivots = _independent(kernel)
    if not rows:
        identity = flint.arb_mat(columns, columns)
        for i in range(columns):
            identity[i, i] = 1
        return identity
    taken = set(pivots)
    others = [c for c in range(columns) if c not in taken]
    block = kernel[rows]
    n1, n2 = (system.matrix(system.array(block[:, part])) for part in (pivots, others))
    solved = n1.solve(n2).tolist()
    position = {column: k for k, column in enumerate(pivots)}
    free = {column: k for k, column in enumerate(others)}
    zero, one = flint.arb(0), flint.arb(1)
    basis = flint.arb_mat(
        [
            [-x for x in solved[position[c]]]
            if c in position
            else [one if k == free[c] else zero for k in range(len(others))]
            for c in range(columns)
        ]
    )
    triangle = cholesky((basis.transpose() * basis).mid(), flint)
    return basis * triangle.inv().mid().transpose()


def _independent(kernel: NDArray[Any]) -> tuple[list[int], list[int]]:
    """Rows and columns of an invertible block of full rank, chosen in float64, proved modulo p."""
    if kernel.shape[0] == 0:
        return [], []
    field = ResidueField()
    residues = np.array(
        [
            value.numerator * pow(value.denominator, -1, field.modulus) % field.modulus
            for value in map(Fraction, kernel.reshape(-1).tolist())
        ],
        dtype=np.int64,
    ).reshape(kernel.shape)
    rank = field.rank(residues)
    floats = kernel.astype(np.float64)
    scale = np.abs(floats).max(axis=1, keepdims=True)
    floats = floats / np.where(scale > 0, scale, 1.0)
    rows = qr(floats.T, mode="r", pivoting=True)[1][:rank]
    columns = qr(floats[rows], mode="r", pivoting=True)[1][:rank]
    return [int(r) for r in rows], sorted(int(c) for c in columns)


def cholesky(matrix: Matrix, flint: Any) -> Matrix:
    """Lower triangular factor of the midpoints of a positive definite matrix."""
    table = matrix.tolist()
    size = len(table)
    lower = [[flint.arb(0)] * size for _ in range(size)]
    for i in range(size):
        for j in range(i + 1):
            total = table[i][j]
            row_i, row_j = lower[i], lower[j]
            for k in range(j):
                total = total - row_i[k] * row_j[k]
            lower[i][j] = (total.sqrt() if i == j else total / row_j[j]).mid()
    return flint.arb_mat(lower)


def _approximate_eigenvectors(gram: Matrix, flint: Any) -> Matrix:
    """Normalised approximate eigenvectors of the midpoint of a symmetric matrix, as columns."""
    if gram.nrows() == 1:
        return flint.arb_mat([[1]])
    _, right = flint.acb_mat(gram.mid()).eig(right=True, algorithm="approx")
    columns = right.real.mid().transpose().tolist()
    normal = []
    for column in columns:
        length = sum((x * x for x in column), flint.arb(0)).sqrt()
        normal.append([(x / length).mid() for x in column])
    return flint.arb_mat(normal).transpose()


def float64_rank(jacobian: NDArray[np.float64], cutoff: float = FLOAT64_CUTOFF) -> int:
    """What a numerical rank reports: float64 singular values above ``cutoff`` times the largest."""
    sigma = np.linalg.svd(jacobian, compute_uv=False)
    return int(np.sum(sigma > cutoff * sigma[0])) if sigma.size and sigma[0] > 0 else 0


def fitted_slopes(
    first: Sequence[Any], second: Sequence[Any], t_first: Fraction, t_second: Fraction, bits: int
) -> list[Any]:
    """``log(sigma(t1) / sigma(t2)) / log(t1 / t2)`` of paired singular values, as balls."""
    system = Balls(bits)
    with system.precision():
        ratio = system.number(abs(t_first / t_second)).log()
        return [(a / b).log() / ratio for a, b in zip(first, second, strict=True)]


@dataclass(frozen=True)
class PathSpectrum:
    """Spectra at several points of a path that ends in collapse.

    Attributes
    ----------
    spectra
        ``t`` -> enclosed spectrum, in decreasing ``|t|``.
    bands
        Groups of singular values with their orders and fitted slopes.
    orders_from
        Where the orders come from: ``theorem``, ``exact orders`` or ``slopes``.
    kernel_dimension
        Exact zeros.
    float64_ranks
        ``t`` -> singular values above ``1e-10`` times the largest, in float64.
    """

    spectra: Mapping[Fraction, EnclosedSpectrum]
    bands: tuple[Band, ...]
    orders_from: str
    kernel_dimension: int
    float64_ranks: Mapping[Fraction, int]


def spectrum_along(
    family: HasExactKernel,
    points: Mapping[Fraction, Mapping[str, NDArray[Any]]],
    design: Design,
    *,
    orders: Mapping[int, int] | None = None,
    orders_from: str = "slopes",
    digits: int = 20,
    progress: Callable[[str], None] = lambda message: None,
) -> PathSpectrum:
    """Enclose the spectrum at every ``t`` and fit one slope per singular value.

    Values are paired by size. The slope is that of the two smallest ``|t|``:
    ``log(sigma(t1) / sigma(t2)) / log(t1 / t2)``.

    Parameters
    ----------
    family, design
        See :func:`enclosed_spectrum`.
    points
        ``t`` -> exact parameters.
    orders
        Known orders and multiplicities, used for bands and for the first precision; without them
        bands are groups of equal rounded slopes.
    orders_from
        Said in the result.
    digits
        Relative digits of every value.
    progress
        Called with a line before each point.

    Raises
    ------
    InputError
        For ``t = 0``, where the network has collapsed, or an unresolved spectrum.
    """
    if any(t == 0 for t in points):
        raise InputError(
            "at t = 0 every score is zero and the network has collapsed: give nonzero t"
        )
    spectra, ranks = {}, {}
    for t in sorted(points, key=abs, reverse=True):
        progress(f"spectrum at t = {float(t):g}")
        depth = max(orders or {0: 0}) * max(0.0, -np.log2(abs(float(t))))
        start = max(128, int(32 + 3.33 * digits + 2 * (depth + 28)))
        spectra[t] = enclosed_spectrum(
            family, points[t], design, digits=digits, start_bits=start if orders else 256
        )
        rounded = {name: value.astype(np.float64) for name, value in points[t].items()}
        ranks[t] = float64_rank(np.asarray(family.jacobian(rounded, design)))
    ordered = list(spectra)
    slopes: list[float] = []
    if len(ordered) > 1:
        first, second = ordered[-2:]
        fits = fitted_slopes(
            spectra[first].values, spectra[second].values, first, second, spectra[second].bits
        )
        slopes = [float(fit.mid()) for fit in fits]
    last = spectra[ordered[-1]]
    if orders is not None and sum(orders.values()) == len(last.values):
        bands = bands_from_orders(orders, slopes)
    else:
        orders_from = "slopes"
        bands = bands_from_slopes(slopes) if slopes else [Band(None, len(last.values), ())]
    return PathSpectrum(spectra, tuple(bands), orders_from, last.kernel_dimension, ranks)


def fisher_eigenvalues(spectrum: EnclosedSpectrum, noise: Fraction, digits: int) -> list[str]:
    """Positive eigenvalues ``sigma^2 / noise^2`` of the Fisher information, decimal strings.

    For independent Gaussian noise of standard deviation ``noise`` on every output. A direction
    with eigenvalue ``lambda`` cannot be estimated from one observation of the bank with a standard
    deviation below ``lambda^(-1/2)``.
    """
    system = Balls(spectrum.bits)
    with system.precision():
        scale = system.number(noise)
        squares = tuple((value / scale) ** 2 for value in spectrum.values)
    scaled = EnclosedSpectrum(
        squares,
        spectrum.kernel_dimension,
        2.5 * spectrum.relative_error,
        spectrum.bits,
        spectrum.right_vectors,
    )
    return scaled.decimals(digits)
