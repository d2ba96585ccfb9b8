"""Rank of the Jacobian of a polynomial network modulo a prime, without forming the Jacobian.

At random points the matrix ``J D J^T`` is a sum over layers of entrywise products of two Gram
matrices, one of back-propagated and one of forward features, so its size is (points x outputs)
whatever the number of parameters. ``D`` is a random diagonal of product form. The rank of
``J D J^T`` modulo a prime never exceeds the rank of ``J`` modulo the prime, which never exceeds
the generic rank in characteristic zero: every value found is a certified lower bound.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, log2

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.families.polynomial.architecture import ActivationKind, Architecture
from fiberscope.numbers.prime_field import (
    PRIME_RANGE,
    PRIMES_IN_RANGE,
    is_prime,
    matmul,
    power,
    random_prime,
    rank,
    residues,
)

Residues = NDArray[np.int64]


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
    if not 2 <= prime < PRIME_RANGE[1] or not is_prime(prime):
        raise InputError(f"{prime} is not a prime number below 2^31: give one, or none")
    if prime <= architecture.total_degree:
        raise InputError(
            f"the prime {prime} is not above the total degree {architecture.total_degree}: "
            "ranks modulo it are wrong; give a larger one, or none"
        )


def rank_modulo(
    architecture: Architecture,
    bound: int,
    rng: np.random.Generator,
    prime: int | None = None,
) -> RankTrial:
    """Rank of the Jacobian at random points modulo a prime (random when none is given).

    Parameters
    ----------
    bound
        A proved upper bound: reaching it ends the search, and this number of points suffices.
    """
    if prime is None:
        prime = random_prime(rng)
    outputs = architecture.widths[-1]
    points = min(ceil(bound / outputs), bound) + 2
    while True:
        gram = jacobian_gram(architecture, points, prime, rng)
        found = rank(gram, prime)
        # `bound` points always suffice: each new one raises the rank until it stays for good.
        if found == bound or points > bound:
            return RankTrial(prime, points, found, True)
        if rank(gram[:-outputs, :-outputs], prime) == found:
            return RankTrial(prime, points, found, True)
        points = min(2 * points, bound + 1)


def undersampled_rank(
    architecture: Architecture, points: int, prime: int, rng: np.random.Generator
) -> int:
    """Rank from a stated number of points, without the saturation check (a lower bound only)."""
    return rank(jacobian_gram(architecture, points, prime, rng), prime)


def jacobian_gram(
    architecture: Architecture, points: int, prime: int, rng: np.random.Generator
) -> Residues:
    """``J D J^T`` at a random network and random inputs, shape ``(points * outputs,) * 2``."""
    widths, outputs = architecture.widths, architecture.widths[-1]
    bias = architecture.bias
    weights, slopes = [], []
    features: list[Residues] = [rng.integers(0, prime, (points, widths[0]))]
    for layer in range(1, architecture.layers + 1):
        weight = rng.integers(0, prime, (widths[layer], widths[layer - 1]))
        weights.append(weight)
        if layer < architecture.layers:
            before = matmul(features[-1], np.ascontiguousarray(weight.T), prime)
            if bias:
                before = (before + rng.integers(0, prime, widths[layer])) % prime
            value, slope = _activate(architecture, layer, before, prime, rng)
            features.append(value)
            slopes.append(slope)

    # The last layer: the Jacobian of output i only meets row i of the last weight matrix.
    seen = _feature_gram(features[-1], bias, prime, rng)
    own = np.zeros((points, outputs, points, outputs), dtype=np.int64)
    scale = rng.integers(1, prime, outputs)
    for output in range(outputs):
        own[:, output, :, output] = seen * scale[output] % prime
    gram: Residues = own.reshape(points * outputs, points * outputs)
    back = np.broadcast_to(np.eye(outputs, dtype=np.int64), (points, outputs, outputs))
    for layer in range(architecture.layers - 1, 0, -1):
        if layer == architecture.layers - 1:
            pulled = np.broadcast_to(weights[layer], (points, *weights[layer].shape))
        else:
            flat = back.reshape(points * outputs, widths[layer + 1])
            pulled = matmul(flat, weights[layer], prime).reshape(points, outputs, widths[layer])
        back = pulled * slopes[layer - 1][:, None, :] % prime
        flat = back.reshape(points * outputs, widths[layer])
        weighted = flat * rng.integers(1, prime, widths[layer]) % prime
        pulled_gram = matmul(weighted, np.ascontiguousarray(flat.T), prime)
        seen = _feature_gram(features[layer - 1], bias, prime, rng)
        if outputs > 1:
            seen = np.repeat(np.repeat(seen, outputs, axis=0), outputs, axis=1)
        gram = (gram + pulled_gram * seen) % prime
    return gram


def _feature_gram(features: Residues, bias: bool, prime: int, rng: np.random.Generator) -> Residues:
    """Weighted Gram matrix of the inputs of a layer (with a constant one for its bias)."""
    weighted = features * rng.integers(1, prime, features.shape[1]) % prime
    gram = matmul(weighted, np.ascontiguousarray(features.T), prime)
    return (gram + int(rng.integers(1, prime))) % prime if bias else gram


def _activate(
    architecture: Architecture,
    layer: int,
    before: Residues,
    prime: int,
    rng: np.random.Generator,
) -> tuple[Residues, Residues]:
    """Values and slopes of the activation of a hidden layer."""
    degree = architecture.degrees[layer - 1]
    if architecture.kind is ActivationKind.MONOMIAL:
        lower = power(before, degree - 1, prime)
        return lower * before % prime, lower * (degree % prime) % prime
    if architecture.named is not None:
        coefficients = residues(np.array(architecture.named.coefficients, dtype=object), prime)
    else:
        coefficients = rng.integers(1, prime, degree + 1)
        if architecture.kind is ActivationKind.GENERIC_THROUGH_ORIGIN:
            coefficients[0] = 0
    value = np.full_like(before, coefficients[-1])
    slope = np.zeros_like(before)
    for coefficient in coefficients[-2::-1]:
        slope = (slope * before + value) % prime
        value = (value * before + coefficient) % prime
    return value, slope


def error_probability(
    architecture: Architecture, rank_found: int, random_primes: Sequence[bool]
) -> float:
    """Bound on the probability that the generic rank is larger than the largest rank found.

    For each trial, Schwartz-Zippel bounds the chance that a non-zero minor of ``J D J^T`` of
    size ``rank + 1`` vanishes at a random point, ``degree / 2^30``; with a random prime, the
    chance that the prime divides all coefficients of the minor is at most (bits of its height /
    30) / (number of primes in the range). Trials are independent, and saturation is one more
    rank statement of the same kind, hence the factor two.

    A prime that was not drawn at random is covered for the random point only.
    """
    size = rank_found + 1
    point_degree, height_bits = _degree_and_height(architecture)
    entry_degree = 2 * (point_degree - 1 + architecture.total_degree) + 2
    at_points = size * entry_degree / PRIME_RANGE[0]
    entry_bits = log2(architecture.parameters) + 2 * (height_bits + log2(point_degree))
    minor_bits = size * (log2(size) + entry_bits)
    at_primes = minor_bits / 30 / PRIMES_IN_RANGE
    probability = 2.0
    for drawn in random_primes:
        probability *= min(1.0, at_points + (at_primes if drawn else 0.0))
    return min(1.0, probability)


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
            common = 1
            for c in coefficients:
                common = common * c.denominator // Fraction(common, c.denominator).denominator
            total = sum(abs(c) * common for c in coefficients)
            bits += log2(max(total, common))
        elif architecture.kind is not ActivationKind.MONOMIAL:
            degree += 1
            bits += log2(exponent + 1)
    return degree, bits
