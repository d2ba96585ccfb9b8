"""Prime fields against Python's integers."""

from fractions import Fraction

import numpy as np
import pytest

from fiberscope.errors import InputError
from fiberscope.numbers import DualNumbers, PrimeField, UnsupportedError
from fiberscope.numbers.prime_field import PRIME_RANGE, is_prime, matmul, random_prime

PRIMES = [2, 3, 101, 65537, 1_000_003, 2_147_483_629, 2_147_483_647]


@pytest.mark.parametrize("prime", PRIMES)
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 4, 5), (40, 30, 20), (7, 300, 6), (3, 9000, 2)])
def test_products_are_exact(prime, shape):
    rng = np.random.default_rng(1)
    rows, inner, columns = shape
    left = rng.integers(0, prime, (rows, inner))
    right = rng.integers(0, prime, (inner, columns))
    left[0], right[:, 0] = prime - 1, prime - 1
    exact = (left.astype(object) @ right.astype(object)) % prime
    assert matmul(left, right, prime).tolist() == exact.tolist()
    stacked = matmul(np.stack([left, left[::-1]]), right, prime)
    assert stacked[1].tolist() == exact[::-1].tolist()
    assert matmul(left, right[:, 0], prime).tolist() == exact[:, 0].tolist()


def test_arithmetic_matches_integers():
    field = PrimeField(2_147_483_647)
    p = field.prime
    rng = np.random.default_rng(2)
    a, b = rng.integers(1, p, (2, 3, 4))
    x, y = field.array(a), field.array(b)
    big_a, big_b = a.astype(object), b.astype(object)
    assert (x + y).values.tolist() == ((big_a + big_b) % p).tolist()
    assert (x - y).values.tolist() == ((big_a - big_b) % p).tolist()
    assert (x * y).values.tolist() == ((big_a * big_b) % p).tolist()
    assert (x / y * y).values.tolist() == a.tolist()
    assert (x**5).values.tolist() == (big_a**5 % p).tolist()
    assert (x**-1 * x).values.tolist() == np.ones((3, 4), dtype=int).tolist()
    assert (1 - x).values.tolist() == ((1 - big_a) % p).tolist()
    assert (2 / x * x).values.tolist() == np.full((3, 4), 2).tolist()
    assert (-x + x).values.tolist() == np.zeros((3, 4), dtype=int).tolist()
    assert x.sum(axis=0).values.tolist() == (big_a.sum(axis=0) % p).tolist()
    assert (np.eye(3, dtype=int) @ x).values.tolist() == a.tolist()
    assert x.transpose(1, 0).reshape(12)[4].values == a.T.reshape(12)[4]


def test_conversion_is_exact():
    field = PrimeField(101)
    found = field.array([Fraction(3, 7), 0.5, -1, 2.0])
    assert (found * field.array([7, 2, 1, 1])).values.tolist() == [3, 1, 100, 2]
    with pytest.raises(ZeroDivisionError, match="modulo 101"):
        field.array([Fraction(1, 202)])
    with pytest.raises(ZeroDivisionError, match="modulo 101"):
        field.array([1]) / field.array([0])


def test_derivatives_by_dual_numbers():
    field = PrimeField(1_000_003)
    x = DualNumbers(field).variables(field.array([2, 5]))
    cube = x * x * x / 3
    assert (cube.tangent * field.array(1)).values.tolist() == [[4, 0], [0, 25]]


def test_ranks_are_exact():
    pytest.importorskip("flint")
    field = PrimeField(10_007)
    rng = np.random.default_rng(3)
    for rows, columns, wanted in [(5, 8, 3), (40, 40, 17), (6, 6, 6), (4, 4, 0)]:
        left = np.triu(rng.integers(1, 10, (rows, wanted)))
        left = np.concatenate([np.eye(wanted, dtype=int), left[wanted:]])[:rows]
        right = np.concatenate(
            [np.eye(wanted, dtype=int), rng.integers(0, 99, (wanted, columns - wanted))], axis=1
        )
        assert field.rank(field.array(left @ right)) == wanted
    # A rank modulo a prime can be smaller than over the rationals, never larger.
    assert field.rank(field.array([[10_007, 0], [0, 1]])) == 1


def test_primes():
    sieve = [n for n in range(2, 500) if all(n % d for d in range(2, int(n**0.5) + 1))]
    assert [n for n in range(500) if is_prime(n)] == sieve
    # Strong pseudoprimes to the bases 2, to 2 and 3, and to 2, 3 and 5.
    assert not any(is_prime(n) for n in (2047, 1_373_653, 25_326_001))
    rng = np.random.default_rng(4)
    drawn = [random_prime(rng) for _ in range(20)]
    assert all(PRIME_RANGE[0] <= p < PRIME_RANGE[1] and is_prime(p) for p in drawn)
    assert len(set(drawn)) == 20
    again = np.random.default_rng(4)
    assert drawn == [random_prime(again) for _ in range(20)]


def test_bad_input_is_a_sentence():
    with pytest.raises(InputError, match="91 is not a prime"):
        PrimeField(91)
    with pytest.raises(InputError, match="not below 2"):
        PrimeField(2**61 - 1)
    with pytest.raises(UnsupportedError, match="no exponential"):
        PrimeField(7).exp(PrimeField(7).array([1]))
    with pytest.raises(UnsupportedError, match="do not mix"):
        PrimeField(7).array([1]) + PrimeField(5).array([1])
