"""LoRA adapters: pairs (A, B) whose product ``scale B A`` is all that a model sees.

Per adapted module, GL(r) acts: ``A -> M A``, ``B -> B M^-1``. Adapters of different ranks can agree
too; then the products are compared through their factors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.equality.circuits import VACUOUS, uncertainty
from fiberscope.checkpoints.equality.comparison import CheckpointComparison
from fiberscope.checkpoints.equality.factors import fit_basis
from fiberscope.checkpoints.equality.noisy import Noisy, rounding_variance
from fiberscope.checkpoints.equality.statistic import Statistic, statistic, together
from fiberscope.checkpoints.equality.stored import coarsest
from fiberscope.checkpoints.equality.tiles import Factor
from fiberscope.checkpoints.formats.safetensors_source import open_file
from fiberscope.checkpoints.formats.strict_json import read_object
from fiberscope.errors import InputError
from fiberscope.verdict import Outcome

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"


@dataclass(frozen=True)
class Adapter:
    """Factors of every adapted module: ``down`` (A) of shape ``(r, in)``, ``up`` (B) ``(out, r)``.

    ``scales`` multiplies the product: ``alpha / r``, or ``alpha / sqrt(r)`` for rank-stabilised
    adapters.
    """

    path: Path
    down: Mapping[str, NDArray[Any]]
    up: Mapping[str, NDArray[Any]]
    scales: Mapping[str, float]
    base: str


def is_adapter(path: Path) -> bool:
    """Whether a path is a LoRA adapter's directory, as the PEFT library writes it."""
    return (path / CONFIG).is_file()


def open_adapter(path: Path) -> Adapter:
    """Read an adapter's directory.

    Raises
    ------
    InputError
        If it is no plain LoRA adapter in safetensors, or a pair is incomplete.
    """
    if not is_adapter(path):
        raise InputError(f"{path} is no LoRA adapter; give two adapters or two whole checkpoints")
    config = read_object(path / CONFIG, "write the adapter again")
    kind = config.get("peft_type")
    if kind != "LORA":
        raise InputError(f"{path / CONFIG}: 'peft_type' is {kind!r}; only LORA adapters are read")
    for key in ("use_dora", "fan_in_fan_out", "modules_to_save", "layer_replication"):
        if config.get(key):
            raise InputError(f"{path / CONFIG}: {key!r} is set, which is not understood here")
    if config.get("bias", "none") != "none":
        raise InputError(f"{path / CONFIG}: 'bias' is set: adapters that train biases are not read")
    down: dict[str, NDArray[Any]] = {}
    up: dict[str, NDArray[Any]] = {}
    source = open_file(path / WEIGHTS)
    for name in source.tensors:
        for ending, kept in (("lora_A.weight", down), ("lora_B.weight", up)):
            if name.endswith(ending):
                kept[name.removesuffix("." + ending)] = source.read(name)
                break
        else:
            raise InputError(f"{path / WEIGHTS}: tensor {name!r} is no lora_A or lora_B weight")
    if down.keys() != up.keys() or not down:
        lonely = sorted(down.keys() ^ up.keys())[:1]
        raise InputError(f"{path / WEIGHTS}: the pair of {lonely} is incomplete; save it again")
    scales = {}
    for module, factor in down.items():
        if factor.ndim != 2 or up[module].ndim != 2 or factor.shape[0] != up[module].shape[1]:
            raise InputError(
                f"{path / WEIGHTS}: {module} has factors of shapes {factor.shape} and "
                f"{up[module].shape}, which do not multiply"
            )
        if not (np.isfinite(factor).all() and np.isfinite(up[module]).all()):
            raise InputError(f"{path / WEIGHTS}: {module} has NaN or infinite values")
        if config.get("r") not in (None, factor.shape[0]) and not config.get("rank_pattern"):
            raise InputError(
                f"{path / CONFIG}: 'r' is {config.get('r')!r}, but {module} has rank "
                f"{factor.shape[0]}; correct one of them"
            )
        scales[module] = _scale(config, module, factor.shape[0], path)
    return Adapter(path, down, up, scales, str(config.get("base_model_name_or_path", "")))


def _scale(config: Mapping[str, Any], module: str, rank: int, path: Path) -> float:
    alpha: Any = config.get("lora_alpha", 8)
    patterns = config.get("alpha_pattern") or {}
    for pattern, value in patterns.items() if isinstance(patterns, dict) else ():
        if module.endswith(pattern):
            alpha = value
    if isinstance(alpha, bool) or not isinstance(alpha, int | float):
        raise InputError(f"{path / CONFIG}: 'lora_alpha' is {alpha!r}, but a number is needed")
    return float(alpha) / (np.sqrt(rank) if config.get("use_rslora") else rank)


def compare_adapters(first: Path, second: Path) -> CheckpointComparison:
    """Compare two LoRA adapters module by module, each up to GL(r).

    Raises
    ------
    InputError
        If one of them cannot be read.
    """
    a, b = open_adapter(first), open_adapter(second)
    formats = tuple(
        coarsest({x.dtype.name for x in (*f.down.values(), *f.up.values())}) for f in (a, b)
    )
    notes = (f"base models: {a.base or 'not named'} and {b.base or 'not named'}",)
    shared: dict[str, Any] = {"formats": formats, "notes": notes}
    statistics: list[Statistic] = []
    worst = (0.0, "")
    for module in sorted(a.down.keys() | b.down.keys()):
        pairs = [_factors(adapter, module) for adapter in (a, b)]
        one, other = pairs
        if one is None or other is None:
            given = one or other
            assert given is not None
            if np.any(given[0].value) and np.any(given[1].value):
                reason = f"{module} is adapted in one of the two only"
                return CheckpointComparison(
                    Outcome.DIFFERENT, reason, tuple(statistics), module, **shared
                )
            continue
        part = _compare(module, one, other)
        statistics.append(part)
        factors = [[Factor.of(_batch(x)) for x in pair] for pair in zip(one, other, strict=True)]
        share = float(uncertainty(*factors)[0])
        worst = max(worst, (share, module))
    shared |= {"statistics": tuple(statistics), "uncertainty": worst}
    for part in statistics:
        if part.is_different:
            reason = f"the product of {part.name} differs by {part.rms:.3g} roundings (rms)"
            return CheckpointComparison(
                Outcome.DIFFERENT, reason, first_difference=part.name, **shared
            )
    for part in statistics:
        if not part.is_same:
            reason = f"{part.name} is off by {part.rms:.2f} roundings, between the two thresholds"
            return CheckpointComparison(Outcome.UNDECIDED, reason, **shared)
    if worst[0] > VACUOUS:
        reason = f"rounding leaves the product of {worst[1]} uncertain by {worst[0]:.0%}"
        return CheckpointComparison(Outcome.UNDECIDED, reason, **shared)
    reason = "every pair of factors is an exact change of basis of the other, within rounding"
    return CheckpointComparison(Outcome.SAME, reason, **shared)


def _factors(adapter: Adapter, module: str) -> tuple[Noisy, Noisy] | None:
    """A and the scaled transpose of B: ``(r, in)`` and ``(r, out)``."""
    if module not in adapter.down:
        return None
    down, up = adapter.down[module], adapter.up[module]
    first = Noisy(down.astype(np.float64), rounding_variance(down))
    second = Noisy(up.T.astype(np.float64), np.ascontiguousarray(rounding_variance(up).T))
    return first, second.scaled(adapter.scales[module])


def _batch(noisy: Noisy) -> Noisy:
    return noisy.reshaped(1, *noisy.shape)


def _compare(name: str, one: tuple[Noisy, Noisy], other: tuple[Noisy, Noisy]) -> Statistic:
    shapes = one[0].shape[1], one[1].shape[1]
    if shapes != (other[0].shape[1], other[1].shape[1]):
        return Statistic(name, float("inf"), float("inf"), 1, 1.0)
    if one[0].shape[0] != other[0].shape[0] or not all(p.value.any() for p in (*one, *other)):
        return _compare_products(name, one, other)
    change = fit_basis(
        one[0].value[None],
        other[0].value[None],
        one[1].value[None],
        other[1].value[None],
        *(x.variance.mean(axis=-1)[None] for x in (*other, *one)),
    )
    matrix, back = change.matrix[0], change.dual[0]
    leverage = 2 * len(matrix) / sum(shapes)
    condition = float(change.condition[0])
    parts = [
        statistic(name, target, source.turned(by, 0), condition=condition, leverage=leverage)
        for source, target, by in ((one[0], other[0], matrix), (one[1], other[1], back))
    ]
    found = together(name, parts)
    # A rank-deficient pair has more freedom than GL(r): only the product counts.
    return (
        found
        if found.is_same
        else min((found, _compare_products(name, one, other)), key=lambda part: part.rms)
    )


def _compare_products(name: str, one: tuple[Noisy, Noisy], other: tuple[Noisy, Noisy]) -> Statistic:
    products = []
    for down, up in (one, other):
        value = up.value.T @ down.value
        variance = up.variance.T @ down.value**2 + up.value.T**2 @ down.variance
        # Products of float64 factors round by themselves.
        size = np.abs(up.value).T @ np.abs(down.value)
        products.append(Noisy(value, variance + (4e-16 * size) ** 2))
    return statistic(name, products[1], products[0], rotated=True)
