"""Number systems with one surface, and dual numbers on top of any of them."""

from fiberscope.numbers.dual import Dual, DualNumbers
from fiberscope.numbers.float64 import FLOAT64, Float64
from fiberscope.numbers.prime_field import PrimeArray, PrimeField
from fiberscope.numbers.system import Array, NumberSystem, UnsupportedError

__all__ = [
    "FLOAT64",
    "Array",
    "Dual",
    "DualNumbers",
    "Float64",
    "NumberSystem",
    "PrimeArray",
    "PrimeField",
    "UnsupportedError",
]
