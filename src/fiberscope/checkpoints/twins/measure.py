"""One call that measures a twin: exact and approximate directions, gaps, saturation."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

from fiberscope.checkpoints.twins.architectures import ARCHITECTURES, model_type_of
from fiberscope.checkpoints.twins.spectrum import TwinSpectrum, spectrum
from fiberscope.checkpoints.twins.twin import build_twin

# Large enough that a direction broken by epsilon stands far above rounding noise.
BREAKING_EPSILON = 1e-2


@dataclass(frozen=True)
class Saturation:
    """Nullities of one twin as its bank of inputs grows.

    Attributes
    ----------
    inputs, lengths, nullities : tuple of int
        Sequences in the bank, tokens per sequence, and the nullity seen; the first entry is the
        default bank.
    """

    inputs: tuple[int, ...]
    lengths: tuple[int, ...]
    nullities: tuple[int, ...]

    @property
    def saturated(self) -> bool:
        """Whether no enlargement changed the nullity."""
        return len(set(self.nullities)) == 1


@dataclass(frozen=True)
class TwinMeasurement:
    """What a twin's Jacobian says about its architecture.

    Attributes
    ----------
    observable : str
    seed : int
    parameters : int
        Stored parameters, tied ones once.
    exact : int
        Nullity with epsilon 1e-2: dimension of the exact continuous symmetries.
    approximate : int
        Further null directions with epsilon 0: those that only a norm's epsilon breaks.
    gap, gap_without_epsilon : float
        Ratios of singular values across the two cuts.
    saturation, saturation_without_epsilon : Saturation
    seconds : float
        Time taken.
    """

    observable: str
    seed: int
    parameters: int
    exact: int
    approximate: int
    gap: float
    gap_without_epsilon: float
    saturation: Saturation
    saturation_without_epsilon: Saturation
    seconds: float


def saturation(
    config: Mapping[str, object],
    observable: str,
    seed: int,
    *,
    epsilon: float = BREAKING_EPSILON,
    first: TwinSpectrum | None = None,
) -> Saturation:
    """Nullity with the default bank, with half as many sequences again, and with longer ones.

    Sequences are lengthened by two tokens where that leaves the parameters as they are (no learned
    position table, no images). Parameters, but not inputs, are the same in all measurements.

    Parameters
    ----------
    config, observable, seed, epsilon
        As for `build_twin`.
    first : TwinSpectrum, optional
        The spectrum with the default bank, if it is known.

    Raises
    ------
    InputError
        As `build_twin`.
    """
    twin = build_twin(config, observable, seed, epsilon=epsilon)
    inputs, lengths = [twin.sequences], [twin.length]
    nullities = [(first or spectrum(twin)).nullity]
    steps = [(math.ceil(1.5 * twin.sequences), twin.length)]
    model_type = model_type_of(config)
    if ARCHITECTURES[model_type].positions is None and model_type != "vit":
        steps.append((twin.sequences, twin.length + 2))
    for count, length in steps:
        larger = build_twin(config, observable, seed, epsilon=epsilon, inputs=count, length=length)
        inputs.append(count)
        lengths.append(length)
        nullities.append(spectrum(larger).nullity)
    return Saturation(tuple(inputs), tuple(lengths), tuple(nullities))


def measure(config: Mapping[str, object], observable: str, seed: int) -> TwinMeasurement:
    """Measure a twin at epsilon 1e-2 and at epsilon 0, and show that its rank is saturated.

    An approximate direction is one that only the epsilon of a norm breaks: with epsilon 0 it joins
    the kernel, so two integers tell the kinds apart where one spectrum cannot.

    Raises
    ------
    InputError
        As `build_twin`.
    """
    start = time.perf_counter()
    exact = spectrum(build_twin(config, observable, seed, epsilon=BREAKING_EPSILON))
    limit = spectrum(build_twin(config, observable, seed, epsilon=0.0))
    return TwinMeasurement(
        observable=observable,
        seed=seed,
        parameters=exact.parameters,
        exact=exact.nullity,
        approximate=limit.nullity - exact.nullity,
        gap=exact.gap,
        gap_without_epsilon=limit.gap,
        saturation=saturation(config, observable, seed, first=exact),
        saturation_without_epsilon=saturation(config, observable, seed, epsilon=0.0, first=limit),
        seconds=time.perf_counter() - start,
    )
