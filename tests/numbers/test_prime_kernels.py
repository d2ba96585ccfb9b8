"""Both kernels against Python's integers."""

from fractions import Fraction

import numpy as np
import pytest

from fiberscope.numbers.prime_field import is_prime
from fiberscope.numbers.prime_kernels import (
    NARROW_RANGE,
    NarrowKernel,
    WideKernel,
    kernel_of,
    random_narrow_prime,
)


@pytest.mark.parametrize("prime", [101, 8_388_593, 1_000_003, 2_147_483_629])
def test_kernels_are_exact(prime):
    kernel = kernel_of(prime)
    assert isinstance(kernel, NarrowKernel if prime < 2**23 else WideKernel)
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, prime, (9, 700)), rng.integers(0, prime, (700, 8))
    # The extreme residues: sums of the largest products must stay exact.
    a[0], b[:, 0] = prime // 2, prime // 2
    a[1], b[:, 1] = prime // 2 + 1, prime // 2
    x, y = kernel.convert(a), kernel.convert(b)
    exact = (a.astype(object) @ b.astype(object)) % prime
    assert kernel.integers(kernel.matmul(x, y)).tolist() == exact.tolist()
    assert (
        kernel.integers(kernel.matmul(x[:, :200], y[:200])).tolist()
        == ((a[:, :200].astype(object) @ b[:200].astype(object)) % prime).tolist()
    )
    c = a[:, :50].astype(object)
    assert kernel.integers(kernel.power(x[:, :50], 7)).tolist() == (c**7 % prime).tolist()
    assert (
        kernel.integers(kernel.reduce(x * x + x)).tolist()
        == ((a.astype(object) ** 2 + a) % prime).tolist()
    )
    half = kernel.integers(kernel.convert([Fraction(1, 2)]))
    assert 2 * int(half[0]) % prime == 1


def test_random_residues_and_primes():
    rng = np.random.default_rng(1)
    primes = [random_narrow_prime(rng) for _ in range(20)]
    assert all(is_prime(p) and NARROW_RANGE[0] <= p < NARROW_RANGE[1] for p in primes)
    kernel = NarrowKernel(101)
    drawn = kernel.integers(kernel.random(rng, 5000, 1))
    assert sorted(set(drawn.tolist())) == list(range(1, 101))


@pytest.mark.parametrize("shape", [(230, 230), (240, 300), (300, 210)])
def test_blocked_elimination_agrees_with_flint(shape):
    flint = pytest.importorskip("flint")
    rng = np.random.default_rng(2)
    rows, columns = shape
    for wanted in (1, 64, 150, min(shape)):
        kernel = NarrowKernel(8_388_593)
        left = kernel.random(rng, (rows, wanted))
        right = kernel.random(rng, (wanted, columns))
        # Zero rows and columns, repeated ones: pivots have to be searched for.
        left[::7] = 0
        right[:, 3:40] = right[:, [3]]
        matrix = kernel.matmul(left, right)
        exact = flint.nmod_mat(
            rows, columns, kernel.integers(matrix).reshape(-1).tolist(), kernel.prime
        )
        assert kernel.rank(matrix) == exact.rank()
