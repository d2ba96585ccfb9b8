"""Recovering one factor from one noisy output mean, with everything else known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fiberscope.numbers.balls import ball_precision, load_flint


@dataclass(frozen=True)
class NoisyRecovery:
    """Errors of the final factor at one noise level.

    Attributes
    ----------
    ratio
        Noise deviation over ``b w^2``, the leading change of the mean at the true factor.
    mean_square_error, bias
        Of the estimate, over the draws.
    """

    ratio: float
    mean_square_error: float
    bias: float


@dataclass(frozen=True)
class ScalarPrefix:
    """Mean, half difference of the two tokens, and ``b = mean * contrast^2`` after layer one."""

    mean: float
    contrast: float
    sensitivity: float


def scalar_prefix(inputs: tuple[float, float], score: float) -> ScalarPrefix:
    """One scalar softmax layer on two tokens, in ball arithmetic at 200 bits."""
    with ball_precision(200):
        pair = _prefix(inputs, score)
        mean, contrast = (pair[0] + pair[1]) / 2, (pair[0] - pair[1]) / 2
        return ScalarPrefix(float(mean), float(contrast), float(mean * contrast**2))


def _prefix(inputs: tuple[float, float], score: float) -> list[Any]:
    """Output tokens as balls, at the current precision."""
    arb = load_flint().arb
    x = [arb(value) for value in inputs]
    outputs = []
    for query in x:
        weights = [(arb(score) * query * key).exp() for key in x]
        outputs.append(sum((w * v for w, v in zip(weights, x, strict=True)), arb(0)) / sum(weights))
    return outputs


def noisy_recovery(
    ratios: Sequence[float],
    *,
    inputs: tuple[float, float] = (1.5, 0.5),
    first_score: float = 0.01,
    true_factor: float = 0.1,
    largest_factor: float = 0.3,
    draws: int = 400,
    seed: int = 20261001,
    bits: int = 333,
) -> list[NoisyRecovery]:
    """Estimate ``w`` in ``q_2 = k_2 = w`` from ``f(w^2) + noise``, for several noise levels.

    With prefix mean ``m`` and contrast ``z`` the observed mean is
    ``f(c) = m + z/2 (tanh(c z (m + z)) + tanh(c z (m - z)))``, increasing in ``c``. Observations
    are clipped to ``[f(0), f(w_max^2)]`` and inverted by bisection; the same standard normal draws
    serve every level.

    Parameters
    ----------
    ratios
        Noise deviations over ``b w^2`` with ``b = m z^2``.
    inputs, first_score, true_factor, largest_factor
        The network.
    draws, seed
        Number of draws and NumPy seed.
    bits
        Working precision.
    """
    arb = load_flint().arb
    normal = np.random.default_rng(seed).standard_normal(draws)
    with ball_precision(bits):
        pair = _prefix(inputs, first_score)
        m, z = (pair[0] + pair[1]) / 2, (pair[0] - pair[1]) / 2

        def response(c: Any) -> Any:
            return m + z / 2 * ((c * z * (m + z)).tanh() + (c * z * (m - z)).tanh())

        truth, top = arb(true_factor) ** 2, arb(largest_factor) ** 2
        low, high, at_truth = response(arb(0)), response(top), response(truth)
        results = []
        for ratio in ratios:
            noise = arb(ratio) * m * z**2 * truth
            errors = []
            for draw in normal.tolist():
                observed = at_truth + noise * arb(draw)
                if observed.mid() <= low.mid():
                    estimate = arb(0)
                elif observed.mid() >= high.mid():
                    estimate = top
                else:
                    left, right = arb(0), top
                    for _ in range(75):
                        middle = ((left + right) / 2).mid()
                        if response(middle).mid() < observed.mid():
                            left = middle
                        else:
                            right = middle
                    estimate = (left + right) / 2
                errors.append(float(estimate.sqrt()) - true_factor)
            array = np.array(errors)
            results.append(NoisyRecovery(ratio, float(np.mean(array**2)), float(array.mean())))
        return results
