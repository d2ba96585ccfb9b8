"""float64, vectorised by NumPy (complex128 passes through, for complex steps)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.numbers.system import Array, NumberSystem


class Float64(NumberSystem):
    """IEEE double precision. Never a silent down-cast: other floating types are widened."""

    name = "float64"

    def array(self, values: Any) -> NDArray[Any]:
        """float64 array (complex128 stays complex)."""
        array = np.asarray(values)
        return array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)

    def zeros(self, shape: tuple[int, ...]) -> NDArray[np.float64]:
        """Array of zeros."""
        return np.zeros(shape)

    def exp(self, x: Array) -> NDArray[Any]:
        """Exponential, entry by entry."""
        return np.asarray(np.exp(x))

    def sqrt(self, x: Array) -> NDArray[Any]:
        """Square root, entry by entry."""
        return np.asarray(np.sqrt(x))

    def to_float64(self, x: Array) -> NDArray[np.float64]:
        """The array itself."""
        return np.asarray(x, dtype=np.float64)


FLOAT64 = Float64()
