"""Toy checkpoints, and copies of them moved by every exact symmetry of the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Architecture, Observable
from fiberscope.checkpoints.architecture.registry import architecture
from fiberscope.checkpoints.equality.comparison import CheckpointComparison, compare_models
from fiberscope.checkpoints.equality.stored import StoredModel
from fiberscope.checkpoints.forward import outputs, probe_inputs
from fiberscope.checkpoints.ledger import ledger
from fiberscope.symmetry import Kind, Translation

Parameters = dict[str, NDArray[Any]]

FORMATS: Mapping[str, Any] = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}


def drawn(model: Architecture, seed: int) -> Parameters:
    """Random weights of ordinary size."""
    rng = np.random.default_rng(seed)
    parameters = {}
    for name, shape in model.tensors.items():
        if len(shape) == 1:
            parameters[name] = 1 + 0.3 * rng.standard_normal(shape)
        else:
            parameters[name] = rng.standard_normal(shape) / np.sqrt(shape[-1])
    return parameters


def moved(
    model: Architecture, parameters: Parameters, seed: int, observable: Observable | None = None
) -> Parameters:
    """A copy moved by a random element of every exact symmetry, one after the other."""
    rng = np.random.default_rng(seed)
    copy: Any = dict(parameters)
    for item in ledger(model, observable).items:
        if item.build is None or item.kind is Kind.APPROXIMATE:
            continue
        symmetry = item.build()
        element = symmetry.random(rng)
        if isinstance(symmetry, Translation):
            element = 0.3 * element
        copy = symmetry.act(element, copy)
    return dict(copy)


def stored(parameters: Mapping[str, NDArray[Any]], name: str) -> Parameters:
    """Numbers as a file of this format holds them."""
    return {key: np.asarray(value).astype(FORMATS[name]) for key, value in parameters.items()}


def compared(
    model: Architecture,
    first: Parameters,
    second: Parameters,
    observable: Observable | str | None = None,
) -> CheckpointComparison:
    """Compare two sets of parameters of one architecture."""
    return compare_models(
        StoredModel.of(model, first, observable, "first"),
        StoredModel.of(model, second, observable, "second"),
    )


def laid_out(config: Mapping[str, Any]) -> Architecture:
    """The architecture of a toy configuration."""
    return architecture(dict(config))


def output_change(model: Architecture, first: Parameters, second: Parameters) -> float:
    """Largest difference of outputs, relative to their size."""
    probe = probe_inputs(model, 0, 6, 4)
    observable = model.default_observable
    one, other = (
        outputs(model, lambda view, p=p: view.read(p), probe, observable) for p in (first, second)
    )
    return float(np.abs(one - other).max() / np.abs(one).max())
