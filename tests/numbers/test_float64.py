import numpy as np
import pytest

from fiberscope.numbers import FLOAT64, DualNumbers, UnsupportedError


def test_everything_becomes_double_precision():
    assert FLOAT64.array([1, 2]).dtype == np.float64
    assert FLOAT64.array(np.float32([0.1])).dtype == np.float64
    assert FLOAT64.array(np.complex64([1j])).dtype == np.complex128
    assert FLOAT64.zeros((2, 3)).shape == (2, 3)


def test_arrays_are_copies():
    source = np.ones(2)
    FLOAT64.array(source)[0] = 5.0
    assert source[0] == 1.0


def test_functions_and_complex_steps():
    x = np.array([0.3, 2.0])
    np.testing.assert_allclose(FLOAT64.exp(x + 1e-30j).imag / 1e-30, np.exp(x))
    np.testing.assert_allclose(FLOAT64.sqrt(x + 1e-30j).imag / 1e-30, 0.5 / np.sqrt(x))
    assert FLOAT64.to_float64(np.float32([0.5])).dtype == np.float64


def test_dual_numbers_have_no_float_value():
    duals = DualNumbers(FLOAT64)
    variables = duals.variables(np.ones(2))
    with pytest.raises(UnsupportedError, match=r"dual\(float64\)"):
        duals.to_float64(variables)
    np.testing.assert_array_equal(duals.to_float64(np.ones(2)), np.ones(2))
