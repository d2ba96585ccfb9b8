"""Rank of the Jacobian of a polynomial network modulo a prime, without forming the Jacobian.

At random points the matrix ``J D J^T`` is a sum over layers of entrywise products of two Gram
matrices, one of back-propagated and one of forward features, so its size is (points x outputs)
whatever the number of parameters. ``D`` is a random diagonal of product form. The rank of
``J D J^T`` modulo a prime never exceeds the rank of ``J`` modulo the prime, which never exceeds
the generic rank in characteristic zero: every value found is a certified lower bound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, lcm, log2
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.families.polynomial.architecture import ActivationKind, Architecture
from fiberscope.numbers.prime_field import (
    PRIME_RANGE,
    PRIMES_IN_RANGE,
    is_prime,
    random_prime,
)
from fiberscope.numbers.prime_kernels import PrimeKernel, kernel_of

MOST_ROWS = 5000
"""Largest matrix whose rank is attempted."""


@dataclass(frozen=True)
class RankTrial:
    """One rank modulo one prime.

    Attributes
    ----------
    prime, points, rank
        The prime, the number of random inputs and the rank found.
    saturated
        True when the last point added nothing (increments never grow at generic points), or when
        the proved upper bound was met.
    """

    prime: int
    points: int
    rank: int
    saturated: bool


def check_prime(architecture: Architecture, prime: int) -> None:
    """Raise ``InputError`` unless ``prime`` is a usable prime above the total degree."""
    if prime >= PRIME_RANGE[1]:
        raise InputError(f"the prime {prime} is not below 2^31: give a smaller one, or none")
    if not is_prime(prime):
        raise InputError(f"{prime} is not a prime number: give one, or none")
    if prime <= architecture.total_degree:
        raise InputError(
            f"the prime {prime} is not above the total degree {architecture.total_degree}: "
            "ranks modulo it are wrong; give a larger one, or none"
        )
    if not has_residues(architecture, prime):
        raise InputError(
            f"the prime {prime} divides a denominator of the activation {architecture.named}: give "
            "another one, or none"
        )


def has_residues(
    architecture: Architecture, prime: int, given: Mapping[str, NDArray[Any]] | None = None
) -> bool:
    """Tell whether no denominator of the activation (and of given weights) is zero."""
    entries: list[Any] = list(architecture.named.coefficients) if architecture.named else []
    for array in (given or {}).values():
        entries += array.reshape(-1).tolist()
    return all(Fraction(entry).denominator % prime for entry in entries)


def usable_prime(
    architecture: Architecture,
    rng: np.random.Generator,
    given: Mapping[str, NDArray[Any]] | None = None,
    draw: Callable[[np.random.Generator], int] = random_prime,
) -> int:
    """Draw a random prime that divides no denominator."""
    while not has_residues(architecture, prime := draw(rng), given):
        pass
    return prime


def rank_modulo(
    architecture: Architecture,
    bound: int,
    rng: np.random.Generator,
    prime: int | None = None,
    given: Mapping[str, NDArray[Any]] | None = None,
) -> RankTrial:
    """Rank of the Jacobian at random points modulo a prime (random when none is given).

    Parameters
    ----------
    bound
        A proved upper bound: reaching it ends the search, and this number of points suffices.
    given
        Rational weights ``W1``, ``b1``, ... to stand at, instead of random ones.
    """
    if prime is None:
        prime = usable_prime(architecture, rng, given)
    kernel = kernel_of(prime)
    outputs = architecture.widths[-1]
    points = min(ceil(bound / outputs), bound) + 2
    while True:
        gram = jacobian_gram(architecture, points, kernel, rng, given)
        found = kernel.rank(gram)
        # `bound` points always suffice: each new one raises the rank until it stays for good.
        if found == bound or points > bound:
            return RankTrial(prime, points, found, True)
        if kernel.rank(gram[:-outputs, :-outputs]) == found:
            return RankTrial(prime, points, found, True)
        points = min(2 * points, bound + 1)


def repeated_rank(
    architecture: Architecture, first: RankTrial, bound: int, rng: np.random.Generator
) -> RankTrial:
    """Rank modulo another random prime, at as many points as a saturated trial had.

    Without its last point that trial had rank ``r`` already, a certified lower bound: if the rank
    at all points is ``r``, one point added nothing. Only a larger rank needs a check of its own.
    """
    prime = usable_prime(architecture, rng)
    found = undersampled_rank(architecture, first.points, prime, rng)
    if found > first.rank and found < bound:
        return rank_modulo(architecture, bound, rng, prime)
    return RankTrial(prime, first.points, found, True)


def undersampled_rank(
    architecture: Architecture, points: int, prime: int, rng: np.random.Generator
) -> int:
    """Rank from a stated number of points, without the saturation check (a lower bound only)."""
    kernel = kernel_of(prime)
    return kernel.rank(jacobian_gram(architecture, points, kernel, rng))


def jacobian_gram(
    architecture: Architecture,
    points: int,
    kernel: PrimeKernel,
    rng: np.random.Generator,
    given: Mapping[str, NDArray[Any]] | None = None,
) -> NDArray[Any]:
    """``J D J^T`` at random inputs, and random weights unless some are given.

    Shape ``(points * outputs,) * 2``.

    Raises
    ------
    InputError
        If the matrix would be larger than :data:`MOST_ROWS`.
    """
    widths, outputs = architecture.widths, architecture.widths[-1]
    if points * outputs > MOST_ROWS:
        raise InputError(
            f"{architecture} needs the rank of a matrix with {points * outputs} rows, beyond the "
            f"{MOST_ROWS} that fit into memory: use smaller widths"
        )

    def draw(name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        return kernel.random(rng, shape) if given is None else kernel.convert(given[name])

    weights, slopes = [], []
    features = [kernel.random(rng, (points, widths[0]))]
    for layer in range(1, architecture.layers + 1):
        weight = draw(f"W{layer}", (widths[layer], widths[layer - 1]))
        weights.append(weight)
        if layer < architecture.layers:
            before = kernel.matmul(features[-1], np.ascontiguousarray(weight.T))
            if architecture.bias:
                before = kernel.reduce(before + draw(f"b{layer}", (widths[layer],)))
            value, slope = _activate(architecture, layer, before, kernel, rng)
            features.append(value)
            slopes.append(slope)

    # The last layer: the Jacobian of output i only meets row i of the last weight matrix.
    seen = _feature_gram(features[-1], architecture.bias, kernel, rng)
    gram = np.zeros((points, outputs, points, outputs), dtype=seen.dtype)
    scale = kernel.random(rng, outputs, 1)
    for output in range(outputs):
        gram[:, output, :, output] = kernel.reduce(seen * scale[output])
    back: NDArray[Any] = np.empty(0)
    for layer in range(architecture.layers - 1, 0, -1):
        if layer == architecture.layers - 1:
            pulled = np.broadcast_to(weights[layer], (points, *weights[layer].shape))
        else:
            pulled = kernel.matmul(back, weights[layer]).reshape(points, outputs, widths[layer])
        back = kernel.reduce(pulled * slopes[layer - 1][:, None, :])
        back = back.reshape(points * outputs, widths[layer])
        weighted = kernel.reduce(back * kernel.random(rng, widths[layer], 1))
        pulled_gram = kernel.matmul(weighted, np.ascontiguousarray(back.T))
        seen = _feature_gram(features[layer - 1], architecture.bias, kernel, rng)
        product = pulled_gram.reshape(gram.shape) * seen[:, None, :, None]
        gram = kernel.reduce(np.add(gram, product, out=product))
    return gram.reshape(points * outputs, points * outputs)


def _feature_gram(
    features: NDArray[Any], bias: bool, kernel: PrimeKernel, rng: np.random.Generator
) -> NDArray[Any]:
    """Weighted Gram matrix of the inputs of a layer (with a constant one for its bias)."""
    weighted = kernel.reduce(features * kernel.random(rng, features.shape[1], 1))
    gram = kernel.matmul(weighted, np.ascontiguousarray(features.T))
    return kernel.reduce(gram + kernel.random(rng, 1, 1)) if bias else gram


def _activate(
    architecture: Architecture,
    layer: int,
    before: NDArray[Any],
    kernel: PrimeKernel,
    rng: np.random.Generator,
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Values and slopes of the activation of a hidden layer."""
    degree = architecture.degrees[layer - 1]
    if architecture.kind is ActivationKind.MONOMIAL:
        lower = kernel.power(before, degree - 1)
        factor = kernel.convert([degree])
        return kernel.reduce(lower * before), kernel.reduce(lower * factor)
    if architecture.named is not None:
        coefficients = kernel.convert(np.array(architecture.named.coefficients, dtype=object))
    else:
        coefficients = kernel.random(rng, degree + 1, 1)
        if architecture.kind is ActivationKind.GENERIC_THROUGH_ORIGIN:
            coefficients[0] = 0
    value = np.full_like(before, coefficients[-1])
    slope = np.zeros_like(before)
    for coefficient in coefficients[-2::-1]:
        slope = kernel.reduce(slope * before + value)
        value = kernel.reduce(value * before + coefficient)
    return value, slope


def error_probability(
    architecture: Architecture, rank_found: int, random_primes: Sequence[int]
) -> float:
    """Bound on the probability that the generic rank is larger than the largest rank found.

    For each trial, Schwartz-Zippel bounds the chance that a non-zero minor of ``J D J^T`` of
    size ``rank + 1`` vanishes at a random point, ``degree / prime``; the chance that the prime
    divides all coefficients of the minor is at most (bits of its height / 30) / (number of primes
    in the range). Trials are independent. Saturation needs no share of its own: the rank without
    the last point is a certified lower bound.

    Parameters
    ----------
    random_primes
        The primes of the trials that were drawn from ``PRIME_RANGE``. A prime that somebody chose
        gives no bound, because it may divide every minor: leave it out, and without any the
        bound is 1.
    """
    size = rank_found + 1
    point_degree, height_bits = _degree_and_height(architecture)
    entry_degree = 2 * (point_degree - 1 + architecture.total_degree) + 2
    entry_bits = log2(architecture.parameters) + 2 * (height_bits + log2(point_degree))
    minor_bits = size * (log2(size) + entry_bits)
    at_primes = minor_bits / 30 / PRIMES_IN_RANGE
    probability = 1.0
    for prime in random_primes:
        probability *= min(1.0, size * entry_degree / prime + at_primes)
    return probability


def _degree_and_height(architecture: Architecture) -> tuple[int, float]:
    """Degree of an output in weights, biases and free coefficients, and log2 of its 1-norm."""
    degree, bits = 0, 0.0
    for layer in range(1, architecture.layers + 1):
        degree += 1
        bits += log2(architecture.widths[layer - 1] + architecture.bias)
        if layer == architecture.layers:
            break
        exponent = architecture.degrees[layer - 1]
        degree *= exponent
        bits *= exponent
        if architecture.named is not None:
            coefficients = architecture.named.coefficients
            common = lcm(*(c.denominator for c in coefficients))
            total = int(sum(abs(c) * common for c in coefficients))
            bits += log2(max(total, common))
        elif architecture.kind is not ActivationKind.MONOMIAL:
            degree += 1
            bits += log2(exponent + 1)
    return degree, bits
