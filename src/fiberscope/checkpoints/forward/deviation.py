"""How far the outputs of two checkpoints are apart."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Architecture, Observable
from fiberscope.checkpoints.forward.evaluate import output_width, outputs
from fiberscope.checkpoints.forward.probe import Probe
from fiberscope.checkpoints.forward.reading import Read
from fiberscope.checkpoints.threads import limited, workers
from fiberscope.errors import InputError


@dataclass(frozen=True)
class Deviation:
    """The largest difference of two checkpoints' outputs, and the size of what is compared.

    Attributes
    ----------
    largest
        ``max |found - expected|``; infinite where an output is not finite.
    scale
        Root mean square of the expected outputs, centred at each position (over everything where
        a position has one output): a shift common to all logits says nothing of the model.
    outputs
        How many numbers were compared.
    """

    largest: float
    scale: float
    outputs: int

    @property
    def relative(self) -> float:
        """``largest / scale``; 0 for equal outputs, infinite where the scale is 0."""
        if self.largest == 0.0:
            return 0.0
        return self.largest / self.scale if self.scale > 0.0 else float("inf")


def deviation(
    found: NDArray[np.float64], expected: NDArray[np.float64], outputs_per_position: int
) -> Deviation:
    """Compare two results of `outputs`.

    Parameters
    ----------
    found, expected
        Of equal shape (sequences * positions * outputs,).
    outputs_per_position
        As `output_width` gives it.

    Raises
    ------
    InputError
        If the shapes differ.
    """
    if found.shape != expected.shape:
        raise InputError(
            f"outputs of shapes {found.shape} and {expected.shape} cannot be compared; evaluate "
            "both checkpoints on the same probe"
        )
    if not (np.isfinite(found).all() and np.isfinite(expected).all()):
        return Deviation(float("inf"), float("nan"), expected.size)
    if not expected.size:
        return Deviation(0.0, 0.0, 0)
    centred = expected.reshape(-1, outputs_per_position if outputs_per_position > 1 else found.size)
    centred = centred - centred.mean(-1, keepdims=True)
    return Deviation(
        float(np.abs(found - expected).max()),
        float(np.sqrt(np.square(centred).mean())),
        expected.size,
    )


def deviation_of(
    architecture: Architecture, first: Read, second: Read, probe: Probe, observable: Observable
) -> Deviation:
    """Evaluate two checkpoints of one architecture and compare the second with the first.

    Both are evaluated at the same time, each in one thread.
    """
    with limited(1), ThreadPoolExecutor(min(2, workers())) as pool:
        expected, found = pool.map(
            lambda read: outputs(architecture, read, probe, observable), (first, second)
        )
    return deviation(found, expected, output_width(architecture, probe, observable))
