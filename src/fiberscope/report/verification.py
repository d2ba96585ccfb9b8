"""The twin check on the spot: a toy of the same class and flags, measured against its ledger."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fiberscope.checkpoints.architecture.program import Architecture
from fiberscope.checkpoints.architecture.registry import architecture
from fiberscope.checkpoints.inspection import Inspection
from fiberscope.checkpoints.ledger import Ledger, ledger
from fiberscope.errors import InputError
from fiberscope.symmetry import Kind


@dataclass(frozen=True)
class TwinCheck:
    """A twin's measured null directions beside the prediction for its own configuration.

    Attributes
    ----------
    name
        The class of the twin.
    observable
        What was observed: ``logits``, ``probabilities`` or ``hidden``.
    sizes
        The twin's sizes by configuration key.
    parameters
        Parameters of the twin and of its ledger's architecture (the same, or the check fails).
    predicted_exact, predicted_approximate
        Dimensions of the exact and of the approximate symmetries in the twin's ledger.
    measured_exact, measured_approximate
        Null directions of its Jacobian with a large epsilon, and further ones at epsilon zero.
    gap
        Ratio of singular values across the cut that decides the exact nullity.
    saturated
        Whether more and longer inputs left both nullities as they were.
    failing
        Conditions that the twin does not meet, so that the prediction is only a lower bound.
    seed, seconds
        Seed of parameters and inputs, and the time the measurement took.
    """

    name: str
    observable: str
    sizes: Mapping[str, object]
    parameters: int
    predicted_parameters: int
    predicted_exact: int
    predicted_approximate: int
    measured_exact: int
    measured_approximate: int
    gap: float
    saturated: bool
    failing: tuple[str, ...]
    seed: int
    seconds: float

    @property
    def agrees(self) -> bool:
        """Whether prediction and measurement are the same, and the measurement had saturated."""
        return (
            self.saturated
            and self.parameters == self.predicted_parameters
            and self.predicted_exact == self.measured_exact
            and self.predicted_approximate == self.measured_approximate
        )


def require_twins() -> None:
    """Raise :class:`InputError` unless the packages that twins need are installed."""
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"the twin check needs {' and '.join(missing)}; "
            "install with: pip install 'fiberscope[twins]'"
        )


def verify(inspection: Inspection, seed: int = 0, layers: int = 1) -> TwinCheck:
    """Build a toy of the inspected class and flags, measure it, and set it beside its ledger.

    Parameters
    ----------
    inspection
        What was inspected; its configuration and observable are used, not its weights.
    seed
        Seed of the toy's parameters and inputs.
    layers
        Layers of the toy (of each stack, for encoder-decoders).

    Raises
    ------
    InputError
        If torch or transformers are missing, or the class has no twins.
    """
    require_twins()
    from fiberscope.checkpoints.twins import measure, toy_config

    whole = inspection.ledger.architecture
    config: dict[str, Any] = {**inspection.config, "architectures": [whole.name]}
    if whole.head is not None:
        # The weights may have shown that the embeddings are not what the configuration says.
        config["tie_word_embeddings"] = whole.tied
    toy = toy_config(config, layers=layers)
    observable = inspection.ledger.observable
    with _one_thread():
        found = measure(toy, observable.value, seed)
    predicted = ledger(_laid_out(toy, whole, found.parameters), observable)
    return TwinCheck(
        name=whole.name,
        observable=observable.value,
        sizes=predicted.architecture.sizes,
        parameters=found.parameters,
        predicted_parameters=predicted.parameters,
        predicted_exact=predicted.undetermined,
        predicted_approximate=_approximate(predicted),
        measured_exact=found.exact,
        measured_approximate=found.approximate,
        gap=found.gap,
        saturated=found.saturation.saturated and found.saturation_without_epsilon.saturated,
        failing=tuple(c.statement for c in predicted.conditions if not c.holds),
        seed=seed,
        seconds=found.seconds,
    )


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Matrices of a toy are small: on a busy machine more threads only wait for each other."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _laid_out(toy: dict[str, Any], whole: Architecture, parameters: int) -> Architecture:
    """The toy's architecture, tied as the class itself ties it."""
    laid_out = architecture(toy, "the toy configuration")
    if laid_out.parameters == parameters or whole.head is None:
        return laid_out
    # Some releases of the class tie whatever the configuration says.
    other = architecture(toy, "the toy configuration", tied=not laid_out.tied)
    return other if other.parameters == parameters else laid_out


def _approximate(found: Ledger) -> int:
    return sum(item.dimension for item in found.items if item.kind is Kind.APPROXIMATE)
