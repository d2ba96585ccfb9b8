"""Designed input banks: inputs of a fixed norm that make the last band as strong as they can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.families.deep_attention.architecture import Architecture
from fiberscope.families.deep_attention.banks import (
    counting_bound,
    has_leading_frame,
    leading_frame,
)
from fiberscope.families.deep_attention.family import InputBank
from fiberscope.families.deep_attention.paths import ContactPath
from fiberscope.numbers import Dual

Directions = Mapping[str, NDArray[np.float64]]


@dataclass(frozen=True)
class DesignedBank:
    """A bank found by ascent, beside random banks of the same size and norm.

    Attributes
    ----------
    bank
        Inputs, each of Frobenius norm ``norm``.
    norm
        The fixed norm: without one, larger inputs always win.
    constant
        ``c`` in ``sigma_min(t) ~ c t^beta`` as ``t -> 0`` (the median over the given paths).
    random_constants
        The same for random banks, in increasing order.
    """

    bank: InputBank
    norm: float
    constant: float
    random_constants: tuple[float, ...]

    @property
    def gain(self) -> float:
        """``constant`` over the median of the random banks."""
        return self.constant / float(np.median(self.random_constants))


def float64_directions(path: ContactPath) -> dict[str, NDArray[np.float64]]:
    """Directions of a path, rounded to float64."""
    return {name: np.asarray(value).astype(np.float64) for name, value in path.directions.items()}


def _complements(architecture: Architecture, directions: Directions) -> list[NDArray[np.float64]]:
    """Orthonormal complements of the factor kernels ``(U B, -W B^T)``, one a layer."""
    bases = []
    width = architecture.widths[0]
    for layer, rank in enumerate(architecture.ranks, start=1):
        u, w = directions[f"Q{layer}"][0], directions[f"K{layer}"][0]
        kernel = []
        for i in range(rank):
            for j in range(rank):
                dq, dk = np.zeros((width, rank)), np.zeros((width, rank))
                dq[:, j], dk[:, i] = u[:, i], -w[:, j]
                kernel.append(np.concatenate([dq.reshape(-1), dk.reshape(-1)]))
        left, _, _ = np.linalg.svd(np.array(kernel).T)
        bases.append(left[:, rank * rank :])
    return bases


class _LastBand:
    """``c`` of the last band and its gradient in the inputs, along one path."""

    def __init__(self, architecture: Architecture, directions: Directions) -> None:
        self.architecture, self.directions = architecture, directions
        self.complements = _complements(architecture, directions)

    def _columns(self, blocks: Sequence[Any]) -> list[Any]:
        columns = [blocks[0]]
        for layer, basis in enumerate(self.complements):
            by_query, by_key = blocks[1 + 2 * layer], blocks[2 + 2 * layer]
            half = by_query.shape[-1]
            columns.append(by_query @ basis[:half] + by_key @ basis[half:])
        return columns

    def evaluate(self, inputs: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        """Return the constant, and the gradient of its logarithm (same shape as the inputs)."""
        blocks = leading_frame(self.architecture, self.directions, inputs)
        columns = [part.reshape(-1, part.shape[-1]) for part in self._columns(blocks)]
        earlier, last = np.concatenate(columns[:-1], axis=1), columns[-1]
        q, r = np.linalg.qr(earlier)
        left, sigma, right = np.linalg.svd(last - q @ (q.T @ last), full_matrices=False)
        residual, y = left[:, -1], right[-1]
        # At the minimum over the earlier directions only the frame itself varies.
        x = -np.linalg.solve(r, q.T @ (last @ y))
        z = np.concatenate([x, y])
        weights = residual.reshape(inputs.shape[0], 1, -1)
        size, tokens, width = inputs.shape
        unit = np.eye(tokens * width).reshape(tokens * width, 1, tokens, width)
        moved = Dual(inputs, np.broadcast_to(unit, (tokens * width, size, tokens, width)))
        start, total = 0, None
        for part in self._columns(leading_frame(self.architecture, self.directions, moved)):
            stop = start + part.shape[-1]
            term = part @ z[start:stop].reshape(-1, 1)
            total = term if total is None else total + term
            start = stop
        assert total is not None
        slopes = (weights @ total.tangent)[..., 0, 0]
        gradient = slopes.T.reshape(inputs.shape) / sigma[-1]
        # All output tokens agree at leading order, so every row counts once per token.
        return float(sigma[-1] * np.sqrt(tokens)), gradient


def last_band_constant(path: ContactPath, bank: InputBank) -> float:
    """``c`` such that the smallest singular value is about ``c t^beta_D`` for small ``t``.

    Raises
    ------
    InputError
        Where the closed form of the leading frame does not apply.
    """
    _require(path.architecture)
    band = _LastBand(path.architecture, float64_directions(path))
    slopes = [float((phi.log_taylor(1)[1])[0]) for phi in path.architecture.normalizers or ()]
    scale = 1.0
    for i, slope in enumerate(slopes):
        # A slope enters its own layer once, and through the contrast every later layer.
        scale *= slope if i == len(slopes) - 1 else slope ** (2 * 3 ** (len(slopes) - 2 - i))
    return band.evaluate(bank.inputs)[0] * scale


def _require(architecture: Architecture) -> None:
    if not has_leading_frame(architecture):
        raise InputError(
            "banks are designed for serial single-head attention of one width with trainable "
            "values and normalizers of nonzero slope"
        )


def _on_sphere(inputs: NDArray[np.float64], norm: float) -> NDArray[np.float64]:
    lengths = np.sqrt((inputs**2).sum(axis=(1, 2), keepdims=True))
    return norm * inputs / lengths


def designed_bank(
    paths: Sequence[ContactPath],
    size: int,
    rng: np.random.Generator,
    *,
    norm: float = 2.4,
    steps: int = 500,
    starts: int = 3,
    random_banks: int = 100,
) -> DesignedBank:
    """Ascend the logarithm of the last band's constant over banks of fixed norm (Adam).

    With one path the bank is for known parameters; with several drawn paths the mean logarithm
    over them is ascended, for parameters that are known only in distribution.

    Parameters
    ----------
    paths
        Contact paths of one architecture.
    size
        Number of inputs; at least the smallest separating size.
    rng
        Source of starting points and random banks.
    norm
        Frobenius norm of every input.
    steps, starts
        Ascent steps, and independent starts of which the best is kept.
    random_banks
        Random banks for comparison.

    Raises
    ------
    InputError
        If the norm is not positive, or fewer inputs are asked for than any separating bank has.
    """
    architecture = paths[0].architecture
    _require(architecture)
    if not (np.isfinite(norm) and norm > 0):
        raise InputError(f"the norm of designed inputs must be positive, got {norm}")
    least = counting_bound(architecture)
    if size < least:
        raise InputError(f"no bank of {size} inputs can separate: design at least {least} inputs")
    bands = [_LastBand(architecture, float64_directions(path)) for path in paths]
    shape = (size, architecture.tokens, architecture.widths[0])

    def draw() -> NDArray[np.float64]:
        return _on_sphere(rng.standard_normal(shape), norm)

    def score(inputs: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        found = [band.evaluate(inputs) for band in bands]
        logs = [np.log(max(constant, 1e-300)) for constant, _ in found]
        return float(np.mean(logs)), np.mean([gradient for _, gradient in found], axis=0)

    # One smooth objective takes long steps; a mean over draws has kinks of every draw.
    largest = (0.2 if len(paths) == 1 else 0.05) * norm / np.sqrt(shape[1] * shape[2])
    best_inputs, best = draw(), -np.inf
    for _ in range(starts):
        inputs = draw()
        first, second = np.zeros(shape), np.zeros(shape)
        for step in range(1, steps + 1):
            value, gradient = score(inputs)
            if value > best:
                best, best_inputs = value, inputs
            radial = (gradient * inputs).sum(axis=(1, 2), keepdims=True) / norm**2
            gradient = gradient - radial * inputs
            first = 0.9 * first + 0.1 * gradient
            second = 0.999 * second + 0.001 * gradient**2
            rate = largest * (1 - (step - 1) / steps)
            update = (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-12)
            inputs = _on_sphere(inputs + rate * update, norm)
        value, _ = score(inputs)
        if value > best:
            best, best_inputs = value, inputs
    compared = sorted(
        float(np.median([band.evaluate(inputs)[0] for band in bands]))
        for inputs in (draw() for _ in range(random_banks))
    )
    constant = float(np.median([band.evaluate(best_inputs)[0] for band in bands]))
    return DesignedBank(InputBank.of(best_inputs), norm, constant, tuple(compared))
