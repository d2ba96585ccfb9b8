"""Functional dimension with a certificate: exact lower bound, exact symmetries as upper bound."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.families.deep_attention.architecture import Architecture
from fiberscope.families.deep_attention.ball_rank import certified_rank
from fiberscope.families.deep_attention.family import DeepAttention, InputBank
from fiberscope.families.deep_attention.forward import forward
from fiberscope.families.deep_attention.orders import taylor_orders
from fiberscope.families.deep_attention.tangents import KernelTangents, kernel_tangents
from fiberscope.numbers import Dual, DualNumbers
from fiberscope.numbers.fields import ResidueField
from fiberscope.numbers.power_series import JET_PRIME, PowerSeries, Series
from fiberscope.verdict import Evidence, Status, to_plain

LARGEST_JET_ORDER = 60
"""Jets beyond this order are left to the ball minor."""

LARGEST_SECOND_MINOR = 400
"""Up to this many parameters a gap that jets leave is tried by the ball minor too."""


LARGEST_SHRINKAGE = 6
"""Inputs of the ball minor are halved up to so many times where a normalizer is not positive."""


@dataclass(frozen=True)
class CertifiedDimension:
    """Functional dimension of an architecture: the generic rank of its observation.

    Attributes
    ----------
    parameters
        Number of native parameters.
    dimension
        The functional dimension where ``status`` is certified; else only the lower bound of it.
    kernel
        Rank of the exact kernel directions at a generic point, by kind, and of their union. Kinds
        can overlap, so the union is not their sum.
    status
        ``CERTIFIED`` where both bounds meet, else ``BOUNDED``.
    lower_bound, upper_bound
        Proved bounds.
    route
        ``jets``, ``polynomial`` or ``minor``: how the lower bound was proved.
    evidence
        The reasons, in words, with primes, orders, banks and seeds.
    """

    parameters: int
    dimension: int
    kernel: Mapping[str, int]
    status: Status
    lower_bound: int
    upper_bound: int
    route: str
    evidence: tuple[Evidence, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return to_plain(self)


@dataclass(frozen=True)
class _Point:
    """A random point modulo the prime, with its exact kernel directions."""

    parameters: dict[str, NDArray[np.int64]]
    tangents: KernelTangents
    ranks: dict[str, int]
    # Coordinate directions that span a complement of the kernel directions.
    complement: list[int]


def kernel_ranks(architecture: Architecture, seed: int = 0) -> dict[str, int]:
    """Generic rank of the exact kernel directions, by kind and of their union.

    Computed modulo a prime at a random point, so each is at most the rank over the real numbers;
    ``parameters - union`` is a proved upper bound of the functional dimension.
    """
    return dict(_random_point(architecture, np.random.default_rng(seed)).ranks)


def certified_dimension(
    architecture: Architecture, *, seed: int = 0, route: str = "auto", inputs: int | None = None
) -> CertifiedDimension:
    """Prove the functional dimension, or bounds of it.

    The upper bound is the number of parameters minus the rank of the union of exact symmetries.
    The lower bound is a rank that is exact for one point, and so at most the generic rank:

    - *polynomial*: rank modulo a prime of the Jacobian of an unnormalized network at random
      inputs;
    - *jets*: rank modulo a prime of the Jacobian of Taylor coefficients at the zero input, through
      the degree at which one head shows (asked for by name, a higher one too). They
      are rational in the parameters (for softplus over Q(log 2)) and linear in the function, so
      their rank is at most that of the function;
    - *minor*: a minor of the Jacobian in ball arithmetic, at a random float64 point and random
      inputs, whose determinant excludes zero.

    Parameters
    ----------
    architecture
        Any wiring. LayerNorm has no Taylor series at the zero input, so it needs the minor.
    seed
        Seeds the point, the inputs and the directions.
    route
        ``auto`` (polynomial where unnormalized, jets where the order is small and then the minor
        where they leave a gap, else the minor), ``jets`` or ``minor``.
    inputs
        Number of inputs; by default enough, and doubled while that raises the bound.

    Raises
    ------
    InputError
        For an unknown route, or jets where there are none.
    """
    if route not in ("auto", "jets", "minor"):
        raise InputError(f"the route is auto, jets or minor, not {route!r}")
    rng = np.random.default_rng(seed)
    point = _random_point(architecture, rng)
    upper = architecture.space.size - point.ranks["union"]
    automatic = route == "auto"
    if automatic:
        route = "jets" if _jets_apply(architecture) else "minor"
    if route == "jets" and architecture.layer_norm:
        raise InputError(
            "a LayerNorm has no Taylor series at the zero input: use the route minor instead"
        )
    if route == "minor":
        lower, evidence = _minor_bound(architecture, point, upper, seed, inputs)
    elif architecture.normalized:
        lower, evidence = _jet_bound(architecture, point, upper, rng, inputs, grow=not automatic)
        if automatic and lower < upper and architecture.space.size <= LARGEST_SECOND_MINOR:
            # Several heads can show at a higher degree than one; the minor knows no degrees.
            other, reason = _minor_bound(architecture, point, upper, seed, inputs)
            if other > lower:
                lower, evidence, route = other, reason, "minor"
    else:
        route = "polynomial"
        lower, evidence = _polynomial_bound(architecture, point, upper, rng, inputs)
    symmetric = Evidence(
        f"{architecture.space.size} parameters minus {point.ranks['union']} exact kernel "
        f"directions leave at most {upper}.",
        Status.CERTIFIED,
        source="rank modulo a prime of the union of the symmetries' tangents at a random point",
        statistics={"prime": JET_PRIME, "seed": seed},
    )
    return CertifiedDimension(
        parameters=architecture.space.size,
        dimension=lower,
        kernel=point.ranks,
        status=Status.CERTIFIED if lower == upper else Status.BOUNDED,
        lower_bound=lower,
        upper_bound=upper,
        route=route,
        evidence=(evidence, symmetric),
    )


def _random_point(architecture: Architecture, rng: np.random.Generator) -> _Point:
    field = ResidueField(JET_PRIME)
    for _ in range(10):
        parameters = {
            name: rng.integers(1, JET_PRIME, shape)
            for name, shape in architecture.space.shapes.items()
        }
        tangents = kernel_tangents(architecture, parameters, field)
        if not tangents.generic:
            continue
        ranks = {kind: field.rank(rows) for kind, rows in tangents.kinds.items()}
        _, pivots = field.echelon(tangents.union)
        ranks["union"] = len(pivots)
        taken = set(pivots)
        complement = [c for c in range(architecture.space.size) if c not in taken]
        return _Point(parameters, tangents, ranks, complement)
    raise InputError("no generic point was found in ten random draws: try another seed")


def _jets_apply(architecture: Architecture) -> bool:
    if architecture.normalizers is None:
        return not architecture.layer_norm
    if architecture.layer_norm:
        return False
    degrees = [phi.contact_degree for phi in architecture.normalizers]
    # Beyond a few hundred parameters long jets cost more than the ball minor.
    order = 3 if architecture.residual else taylor_orders(degrees)[-1]
    return order <= LARGEST_JET_ORDER and order * architecture.space.size <= 4000


def _bank_sizes(architecture: Architecture, upper: int, inputs: int | None) -> Iterator[int]:
    if inputs is not None:
        yield inputs
        return
    outputs = 1 if architecture.mean_only else architecture.tokens
    size = 1 + -(-upper // (architecture.widths[-1] * min(outputs, 2)))
    for _ in range(5):
        yield size
        size *= 2


def _directions(architecture: Architecture, complement: list[int]) -> NDArray[np.int64]:
    rows = np.zeros((len(complement), architecture.space.size), dtype=np.int64)
    rows[np.arange(len(complement)), complement] = 1
    return rows


def _series_jacobian(
    architecture: Architecture, point: _Point, inputs: Series, system: PowerSeries
) -> NDArray[np.int64]:
    """Coefficients of the derivatives, shape ``(directions, length * outputs)``."""
    duals = DualNumbers(system)
    space = architecture.space
    rows = _directions(architecture, point.complement)
    named: dict[str, Any] = {}
    for name, window in space.slices():
        shape = space.shapes[name]
        value = system.array(point.parameters[name])
        tangent = system.array(rows[:, window].reshape(len(rows), *shape))
        named[name] = Dual(value, tangent)
    outputs = forward(architecture, named, inputs, duals)
    tangent = outputs.tangent.coefficients
    return np.moveaxis(tangent, 1, 0).reshape(len(rows), -1)


def _polynomial_bound(
    architecture: Architecture,
    point: _Point,
    upper: int,
    rng: np.random.Generator,
    inputs: int | None,
) -> tuple[int, Evidence]:
    system = PowerSeries(1)
    best, used = -1, 0
    for size in _bank_sizes(architecture, upper, inputs):
        shape = (size, architecture.tokens, architecture.widths[0])
        bank = system.array(rng.integers(0, JET_PRIME, shape))
        rank = ResidueField().rank(_series_jacobian(architecture, point, bank, system))
        best, used = max(best, rank), size
        if best == upper:
            break
    return best, Evidence(
        f"The outputs are polynomials in the parameters; at a random point modulo {JET_PRIME} "
        f"and {used} random inputs their Jacobian has rank {best}, a lower bound of the generic "
        "rank.",
        Status.CERTIFIED,
        source="exact rank modulo a prime",
        statistics={"prime": JET_PRIME, "inputs": used},
    )


def _jet_bound(
    architecture: Architecture,
    point: _Point,
    upper: int,
    rng: np.random.Generator,
    inputs: int | None,
    *,
    grow: bool,
) -> tuple[int, Evidence]:
    assert architecture.normalizers is not None
    orders = taylor_orders([phi.contact_degree for phi in architecture.normalizers])
    if orders[-1] > 4 * LARGEST_JET_ORDER:
        raise InputError(f"jets through order {orders[-1]} are too long: use the route minor")
    if architecture.residual:
        # Contrast passes the skip connection at order one, so short jets see every layer.
        orders = sorted({3, 5, 7, *(n for n in orders if n <= 19)})
    best, used, order_used = -1, 0, 0
    sizes = list(_bank_sizes(architecture, upper, inputs))
    trials = [
        (size, order)
        for size in sizes
        for order in (orders if architecture.residual else orders[-1:])
    ]
    # Several heads can show at a higher degree than one.
    higher = min(2 * orders[-1] + 3, LARGEST_JET_ORDER)
    if grow and max(architecture.heads) > 1 and higher > orders[-1]:
        trials.append((sizes[min(2, len(sizes) - 1)], higher))
    for size, order in trials:
        y = rng.integers(0, JET_PRIME, (size, architecture.tokens, architecture.widths[0]))
        system = PowerSeries(order + 1)
        bank = system.from_coefficients([np.zeros_like(y), y])
        rank = ResidueField().rank(_series_jacobian(architecture, point, bank, system))
        if rank > best:
            best, used, order_used = rank, size, order
        if best == upper:
            break
    return best, Evidence(
        f"The Taylor coefficients through degree {order_used} at the zero input, along {used} "
        f"random inputs, are rational in the parameters; at a random point modulo {JET_PRIME} "
        f"their Jacobian has rank {best}, a lower bound of the generic rank.",
        Status.CERTIFIED,
        source="exact rank modulo a prime of jets",
        statistics={"prime": JET_PRIME, "inputs": used, "order": order_used},
    )


def _positive_bank(
    family: DeepAttention, parameters: Mapping[str, NDArray[np.float64]], size: int, seed: int
) -> InputBank:
    """Random inputs, made smaller while a normalizer is not positive on a score they meet."""
    bank = family.design(size, np.random.default_rng([seed, 1]))
    for _ in range(LARGEST_SHRINKAGE):
        try:
            family.observe(parameters, bank)
        except InputError:
            bank = InputBank.of(bank.inputs / 2)
        else:
            break
    return bank


def _minor_bound(
    architecture: Architecture, point: _Point, upper: int, seed: int, inputs: int | None
) -> tuple[int, Evidence]:
    family = DeepAttention(architecture)
    parameters = family.generic(np.random.default_rng([seed, 0]))
    # Deep outputs tell little beyond their mean: one number per coordinate is what counts.
    least = 1 + -(-upper // architecture.widths[-1]) if inputs is None else inputs
    rank = bits = used = 0
    for used in (least, 2 * least) if inputs is None else (least,):
        bank = _positive_bank(family, parameters, used, seed)
        rank, bits = certified_rank(family, parameters, bank, columns=point.complement, seed=seed)
        if rank == upper:
            break
    if rank < upper:
        rank, bits = certified_rank(family, parameters, bank, seed=seed)
    return rank, Evidence(
        f"{rank} combinations of rows of the Jacobian at a random point and {used} random inputs "
        f"are independent: ball arithmetic at {bits} bits keeps a determinant of that size away "
        f"from zero, so the generic rank is at least {rank}.",
        Status.CERTIFIED,
        source="ball arithmetic (Arb)",
        statistics={"bits": bits, "inputs": used, "seed": seed},
    )
