"""The native Jacobian along a contact path as an exact matrix of power series in ``t``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.families.deep_attention.architecture import Architecture
from fiberscope.families.deep_attention.forward import forward
from fiberscope.families.deep_attention.paths import ContactPath
from fiberscope.families.deep_attention.tangents import kernel_tangents
from fiberscope.numbers import Dual, DualNumbers, UnsupportedError
from fiberscope.numbers.fields import Field, RationalField, ResidueField
from fiberscope.numbers.power_series import JET_PRIME, PowerSeries

LENGTHS = (4, 8, 20, 58, 120)
"""Numbers of coefficients tried, until every order is seen."""


@dataclass(frozen=True)
class ResiduePath:
    """A contact path and a bank with entries in a prime field or in the rational numbers.

    Attributes
    ----------
    architecture
        The network.
    directions
        Residues (or fractions) of ``U_i``, ``W_i`` (names ``Qi``, ``Ki``) and the values.
    inputs
        Residues (or fractions), shape ``(inputs, tokens, d_0)``.
    modulus
        The prime; None for the rational numbers.
    """

    architecture: Architecture
    directions: dict[str, NDArray[Any]]
    inputs: NDArray[Any]
    modulus: int | None = JET_PRIME

    def restricted(self, size: int) -> ResiduePath:
        """The same path on the first ``size`` inputs."""
        return ResiduePath(self.architecture, self.directions, self.inputs[:size], self.modulus)


def residue_path(
    path: ContactPath, inputs: NDArray[Any], modulus: int | None = JET_PRIME
) -> ResiduePath:
    """Reduce exact (rational or float64) data modulo a prime, or keep it as fractions (None)."""
    system = PowerSeries(1, modulus)
    directions = {name: system.scalars(value) for name, value in path.directions.items()}
    return ResiduePath(path.architecture, directions, system.scalars(inputs), modulus)


def random_residue_path(
    architecture: Architecture,
    inputs: int,
    rng: np.random.Generator,
    values: str = "identity",
    modulus: int = JET_PRIME,
) -> ResiduePath:
    """Uniformly random ``U_i, W_i`` and inputs; values at the identity over heads, or random.

    Under a LayerNorm an input is redrawn until the variances met along the path have square roots
    in the field.

    Raises
    ------
    InputError
        If identity values are asked for unequal widths.
    """
    if values not in ("identity", "generic"):
        raise InputError(f"values are identity or generic, not {values!r}")
    directions = {
        name: rng.integers(0, modulus, shape) for name, shape in architecture.space.shapes.items()
    }
    if values == "identity" and architecture.trainable_values:
        if len(set(architecture.widths)) > 1:
            listed = ",".join(map(str, architecture.widths))
            raise InputError(f"identity values need equal widths, got {listed}: use generic ones")
        width = architecture.widths[0]
        for layer, heads in enumerate(architecture.heads, start=1):
            share = pow(heads, -1, modulus)
            one = np.eye(width, dtype=np.int64) * share
            directions[f"V{layer}"] = np.broadcast_to(one, (heads, width, width)).copy()
    shape = (architecture.tokens, architecture.widths[0])
    bank = np.stack(
        [_good_input(architecture, directions, shape, rng, modulus) for _ in range(inputs)]
    )
    return ResiduePath(architecture, directions, bank, modulus)


def _good_input(
    architecture: Architecture,
    directions: dict[str, NDArray[np.int64]],
    shape: tuple[int, int],
    rng: np.random.Generator,
    modulus: int,
) -> NDArray[np.int64]:
    for _ in range(1000):
        x: NDArray[np.int64] = rng.integers(0, modulus, shape)
        if not architecture.layer_norm:
            return x
        path = ResiduePath(architecture, directions, x[None], modulus)
        system = PowerSeries(1, modulus)
        try:
            forward(architecture, _point(path, system), system.array(path.inputs), system)
        except UnsupportedError:
            continue
        return x
    raise InputError("no input with square roots in the prime field was found in 1000 draws")


def _point(path: ResiduePath, system: PowerSeries) -> dict[str, Any]:
    point = {}
    for name, value in path.directions.items():
        if name.startswith("V"):
            point[name] = system.from_coefficients([value])
        else:
            point[name] = system.from_coefficients([np.zeros_like(value), value])
    return point


def series_jacobian(path: ResiduePath, length: int) -> NDArray[Any]:
    """Jacobian in all native entries along ``Q = t U, K = t W``, as power series in ``t``.

    Returns
    -------
    ndarray
        Residues, or fractions, of shape ``(length, outputs, parameters)``.
    """
    architecture, system = path.architecture, PowerSeries(length, path.modulus)
    space = architecture.space
    identity = np.eye(space.size, dtype=np.int64)
    windows = dict(space.slices())
    named: dict[str, Any] = {}
    for name, value in _point(path, system).items():
        rows = identity[:, windows[name]].reshape(space.size, *space.shapes[name])
        named[name] = Dual(value, system.from_coefficients([rows]))
    inputs = system.array(path.inputs)
    outputs = forward(architecture, named, inputs, DualNumbers(system))
    tangent = outputs.tangent.coefficients
    return np.moveaxis(tangent.reshape(length, space.size, -1), 1, 2)


def path_kernel_rank(path: ResiduePath, rng: np.random.Generator) -> int:
    """Rank of the exact kernel directions at a random point of the path, in its field."""
    t = int(rng.integers(2, path.modulus or 100))
    point = {
        name: value if name.startswith("V") else value * t
        for name, value in path.directions.items()
    }
    field: Field = RationalField()
    if path.modulus is not None:
        field = ResidueField(path.modulus)
        point = {name: value % path.modulus for name, value in point.items()}
    return field.rank(kernel_tangents(path.architecture, point, field).union)


def growing_lengths(least: int = 0) -> Iterator[int]:
    """Truncation lengths to try: ``least`` if given, then the longer ones of :data:`LENGTHS`."""
    if least:
        yield least
    for length in LENGTHS:
        if length > least:
            yield length
