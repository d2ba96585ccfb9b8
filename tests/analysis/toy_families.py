"""Small families whose fibers are known by hand, and broken versions of them."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from fiberscope.family import Comparison, Design, Family, HasCanonicalForm, HasComparison
from fiberscope.numbers import FLOAT64, NumberSystem, UnsupportedError
from fiberscope.parameters import ParameterSpace, View
from fiberscope.symmetry import ScaledSlot, Scaling
from fiberscope.verdict import Outcome

WIDTH = 3
LEFT = View.whole("left", (WIDTH,))
RIGHT = View.whole("right", (WIDTH,))


@dataclass(frozen=True)
class Rows(Design):
    inputs: np.ndarray


class Products(Family):
    """``y = X (left * right)``: dimension 3 of 6, fiber the torus ``(c left, right / c)``."""

    name = "products"
    space = ParameterSpace({"left": (WIDTH,), "right": (WIDTH,)})
    complete = True
    sufficient_size = WIDTH

    def generic(self, rng):
        return {"left": rng.standard_normal(WIDTH), "right": rng.standard_normal(WIDTH)}

    def exceptional(self, rng):
        point = self.generic(rng)
        point["left"][0] = 0.0
        return {"one product is zero": point}

    def design(self, size, rng):
        return Rows(size, rng.standard_normal((size, WIDTH)))

    def observe(self, parameters, design, system=FLOAT64):
        return system.array(design.inputs) @ (parameters["left"] * parameters["right"])

    def symmetries(self, design):
        return [Scaling("torus", WIDTH, (ScaledSlot(LEFT, 0), ScaledSlot(RIGHT, 0, -1)))]


class CanonicalProducts(Products, HasCanonicalForm, HasComparison):
    """The form ``(left * right, 1)``; comparison by it, with the torus element as witness."""

    def canonical(self, parameters, design):
        return {"left": parameters["left"] * parameters["right"], "right": np.ones(WIDTH)}

    def compare(self, first, second, design):
        one, two = (p["left"] * p["right"] for p in (first, second))
        if not np.allclose(one, two):
            return Comparison(Outcome.DIFFERENT, reason="the products differ")
        torus = self.symmetries(design)[0]
        return Comparison(Outcome.SAME, ((torus, second["left"] / first["left"]),))


class Rationals(NumberSystem):
    """Python fractions: exact, without square roots and exponentials."""

    name = "rationals"
    exact = rigorous = True

    def array(self, values):
        return np.vectorize(Fraction, otypes=[object])(values)

    def zeros(self, shape):
        return self.array(np.zeros(shape))

    def exp(self, x):
        raise UnsupportedError("rationals have no exponential")

    def sqrt(self, x):
        raise UnsupportedError("rationals have no square root")

    def to_float64(self, x):
        return np.asarray(x, dtype=np.float64)
