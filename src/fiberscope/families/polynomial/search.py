"""Recover deep polynomial networks by search, with exact verification or no answer.

The theorems are uniqueness proofs without an algorithm. Levenberg-Marquardt runs from random
starts until the values fit; the normalised first layers are then rounded to fractions with small
denominators, the last layer follows from exact linear equations, and the result counts only if it
reproduces fresh inputs exactly (in float64: to a stated number of bits).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.families.polynomial.architecture import ActivationKind, Architecture
from fiberscope.families.polynomial.canonical import canonical_form
from fiberscope.families.polynomial.moves import solve
from fiberscope.families.polynomial.network import PointDesign, PolynomialNetwork, evaluate
from fiberscope.families.polynomial.oracle import Oracle
from fiberscope.families.polynomial.rationals import RATIONALS
from fiberscope.families.polynomial.recover import Recovery, recover_shallow, verify

METHOD = "Levenberg-Marquardt from random starts"
_ITERATIONS = 400
_PATIENCE = 25
_FIT = 1e-11
_DENOMINATORS = (12, 120, 1000, 10_000)


def recover(
    oracle: Oracle,
    architecture: Architecture,
    *,
    seconds: float = 30.0,
    seed: int = 0,
    progress: Callable[[int], None] = lambda starts: None,
) -> Recovery:
    """Recover a network: algebraically where that works, else by search for ``seconds``."""
    if (
        architecture.layers == 2
        and architecture.kind is ActivationKind.MONOMIAL
        and not architecture.bias
    ):
        found = recover_shallow(oracle, architecture, seed)
        if found.recovered:
            return found
    return search(oracle, architecture, seconds=seconds, seed=seed, progress=progress)


def search(
    oracle: Oracle,
    architecture: Architecture,
    *,
    seconds: float,
    seed: int = 0,
    progress: Callable[[int], None] = lambda starts: None,
) -> Recovery:
    """Fit values at random inputs, then round and verify; UNDECIDED when time is up."""
    family, rng = PolynomialNetwork(architecture), np.random.default_rng(seed)
    count = 2 * family.space.size // oracle.outputs + 8
    points = RATIONALS.array(rng.integers(-8, 9, (count, oracle.inputs))) / 8
    answers = oracle(points if oracle.exact else points.astype(np.float64))
    design = PointDesign(count, points.astype(np.float64))
    values = answers.astype(np.float64).reshape(-1)
    deadline, starts, fits = time.monotonic() + seconds, 0, 0
    reason = ""
    while time.monotonic() < deadline:
        starts += 1
        progress(starts)
        found = _fit(family, design, values, family.generic(rng), deadline)
        if found is None:
            continue
        fits += 1
        for point in _candidates(family, found, points, answers, oracle.exact):
            checked = verify(oracle, family, point, rng, f"{METHOD} (start {starts})")
            if checked.recovered:
                return checked
            reason = checked.reason
    what = f"{fits} of {starts} starts fitted the values" if starts else "no time for a start"
    if reason:
        what += f", but {reason}"
    elif fits:
        what += ", but no fraction with a small denominator was near the fitted weights"
    return Recovery(
        False,
        METHOD,
        None,
        0.0,
        oracle.queries,
        reason=f"{what} within {seconds:g} s; identifiable does not mean recoverable",
    )


def _balance(architecture: Architecture, points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Weight of every value: its size is the total degree of that of the input.

    Without it the few largest inputs hide all others, and hardly a start succeeds.
    """
    sizes = np.linalg.norm(points, axis=1)
    if not architecture.homogeneous:
        sizes = np.hypot(1.0, sizes)
    weights = np.where(sizes > 0, sizes, 1.0) ** -float(architecture.total_degree)
    return np.repeat(weights, architecture.widths[-1])


def _fit(
    family: PolynomialNetwork,
    design: PointDesign,
    values: NDArray[np.float64],
    start: dict[str, NDArray[np.float64]],
    deadline: float,
) -> dict[str, NDArray[np.float64]] | None:
    """Levenberg-Marquardt; None when it does not reach the values."""
    weights = _balance(family.architecture, design.inputs)
    weights = weights / (float(np.abs(values * weights).max()) or 1.0)
    vector = family.space.vector(start)
    damping, slow = 1e-2, 0

    def residual(at: NDArray[np.float64]) -> NDArray[np.float64]:
        return (family.observe(family.space.parameters(at), design) - values) * weights

    current = residual(vector)
    size = float(current @ current)
    for _ in range(_ITERATIONS):
        if time.monotonic() > deadline:
            return None
        jacobian = family.jacobian(family.space.parameters(vector), design) * weights[:, None]
        normal, slope = jacobian.T @ jacobian, jacobian.T @ current
        for _ in range(12):
            damped = normal + damping * (np.diag(np.diagonal(normal)) + 1e-12 * np.eye(len(vector)))
            try:
                step = np.linalg.solve(damped, slope)
            except np.linalg.LinAlgError:
                damping *= 4
                continue
            trial = residual(vector - step)
            if np.isfinite(trial).all() and trial @ trial < size:
                damping = max(damping / 5, 1e-15)
                break
            damping *= 4
        else:
            break
        gain = size - float(trial @ trial)
        vector, current, size = vector - step, trial, float(trial @ trial)
        slow = slow + 1 if gain < 1e-2 * size else 0
        if size < 1e-30 or slow == _PATIENCE:
            break
    close = np.abs(current).max() < _FIT
    return family.space.parameters(vector) if close else None


def _candidates(
    family: PolynomialNetwork,
    found: dict[str, NDArray[np.float64]],
    points: NDArray[Any],
    answers: NDArray[Any],
    exact: bool,
) -> list[dict[str, NDArray[Any]]]:
    """Weights to verify: the fit itself in float64, rounded to fractions when exact."""
    if not exact:
        return [found]
    form = canonical_form(family, found, decompose=False).parameters
    last = f"W{family.architecture.layers}"
    candidates = []
    for limit in _DENOMINATORS:
        rounded: dict[str, NDArray[Any]] = {}
        near = True
        for name, array in form.items():
            if name == last or name == f"b{family.architecture.layers}":
                continue
            to_fraction = np.vectorize(
                lambda x, limit=limit: Fraction(x).limit_denominator(limit), otypes=[object]
            )
            rounded[name] = to_fraction(array)
            near &= bool(np.abs(rounded[name].astype(np.float64) - array).max() < 1e-6)
        solved = _last_layer(family, rounded, points, answers) if near else None
        if solved is not None:
            candidates.append({**rounded, **solved})
            break
    return candidates


def _last_layer(
    family: PolynomialNetwork,
    rounded: dict[str, NDArray[Any]],
    points: NDArray[Any],
    answers: NDArray[Any],
) -> dict[str, NDArray[Any]] | None:
    """Last layer by exact linear equations on the features of the rounded ones."""
    stream = points
    layers, bias = family.architecture.layers, family.architecture.bias
    for layer in range(1, layers):
        stream = stream @ rounded[f"W{layer}"].T
        if bias:
            stream = stream + rounded[f"b{layer}"]
        stream = evaluate(family.activations[layer - 1], stream, RATIONALS)
    if bias:
        stream = np.concatenate([stream, RATIONALS.array(np.ones((len(stream), 1), int))], axis=1)
    try:
        solved = solve(stream.T @ stream, stream.T @ answers)
    except ZeroDivisionError:
        return None
    if (stream @ solved != answers).any():
        return None
    width = family.architecture.widths[-2]
    found = {f"W{layers}": solved[:width].T.copy()}
    if bias:
        found[f"b{layers}"] = solved[width]
    return found
