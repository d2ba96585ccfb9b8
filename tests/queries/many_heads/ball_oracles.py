"""Ball oracles with known heads, written apart from the package's own evaluation."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import flint
import numpy as np
from numpy.typing import NDArray

from fiberscope.queries.oracle import FunctionOracle, ball_oracle
from fiberscope.queries.session import QuerySession


def ball(value: Any) -> flint.arb:
    if isinstance(value, Fraction):
        return flint.arb(flint.fmpq(value.numerator, value.denominator))
    return flint.arb(value)


def ball_session(
    weights: NDArray[np.float64], values: NDArray[np.float64], **options: Any
) -> QuerySession:
    """A session with the oracle sum_h softmax(x^T W_h x_N) x^T v_h, W on float64's grid."""
    matrices = [flint.arb_mat(W.tolist()) for W in weights]
    columns = [flint.arb_mat([[x] for x in v.tolist()]) for v in values]

    @ball_oracle
    def function(tokens: NDArray[Any], bits: int) -> flint.arb:
        flint.ctx.prec, before = bits, flint.ctx.prec
        try:
            rows = flint.arb_mat([[ball(x) for x in row] for row in tokens])
            last = flint.arb_mat([[ball(x)] for x in tokens[-1]])
            total = flint.arb(0)
            for W, v in zip(matrices, columns, strict=True):
                weight = [s.exp() for s in (rows * (W * last)).entries()]
                value = (rows * v).entries()
                total += sum((a * b for a, b in zip(weight, value, strict=True)), flint.arb(0)) / (
                    sum(weight, flint.arb(0))
                )
            return total
        finally:
            flint.ctx.prec = before

    width = weights.shape[-1]
    return QuerySession(FunctionOracle(function, width, identity="known heads"), **options)


def random_heads(
    heads: int, width: int, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    weights = rng.normal(size=(heads, width, width)) / np.sqrt(width)
    return weights, rng.normal(size=(heads, width))


def encloses(
    found: tuple[NDArray[Any], NDArray[Any]],
    truth: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> bool:
    """Whether every true head lies in exactly one enclosure, and none is left over."""
    if len(found[0]) != len(truth[0]):
        return False

    def inside(h: int, k: int) -> bool:
        pairs = [*zip(found[0][h].flat, truth[0][k].flat, strict=True)]
        pairs += [*zip(found[1][h].flat, truth[1][k].flat, strict=True)]
        return all(enclosure.contains(ball(float(exact))) for enclosure, exact in pairs)

    hits = [[k for k in range(len(truth[0])) if inside(h, k)] for h in range(len(found[0]))]
    return all(len(hit) == 1 for hit in hits) and len({hit[0] for hit in hits}) == len(hits)
