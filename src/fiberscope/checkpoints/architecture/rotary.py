"""Rotary settings of a configuration, as older and newer releases write them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fiberscope.checkpoints.architecture.config import ConfigReader
from fiberscope.checkpoints.architecture.program import Rotary

KNOWN_TYPES = ("default", "linear", "dynamic", "yarn", "llama3", "longrope", "su")
SCALING_KEYS = frozenset(
    """rope_type type rope_theta factor original_max_position_embeddings attention_factor beta_fast
    beta_slow short_factor long_factor low_freq_factor high_freq_factor partial_rotary_factor
    mscale mscale_all_dim truncate finetuned""".split()
)

WIDEST_HEAD = 2**16
"""Bound on the head width: a larger one is a damaged file, not a model."""


def read_rotary(
    config: ConfigReader,
    width: int,
    *,
    theta_key: str = "rope_theta",
    fraction_key: str | None = None,
    default_fraction: float = 1.0,
    round_up: bool = False,
) -> Rotary | None:
    """The rotated row pairs of one head (half-split layout) and their frequencies.

    Frequencies are ``theta^(-2j/rot)``, changed by the named scaling. Only whether they coincide
    matters for the symmetries; schemes that change them with the length of the input (dynamic,
    longrope) keep them distinct and commute with the same matrices, so the unscaled ones stand in.
    On inputs as short as those trained on, dynamic leaves them as they are, and longrope divides
    them by its short factors.

    Parameters
    ----------
    config
        The configuration; newer files hold everything in ``rope_parameters``.
    width
        Head width r.
    theta_key
        Key of the base in older files.
    fraction_key
        Key of the rotated fraction in older files; None for classes that rotate whole heads.
    default_fraction
        The fraction when no key gives one.
    round_up
        GPT-NeoX rounds the planes up, ``ceil(int(r * fraction) / 2)``; others need an even count.

    Returns
    -------
    Rotary or None
        None when no row is rotated.

    Raises
    ------
    InputError
        If a key is malformed, a scaling unknown, or the rows cannot be paired.
    """
    parameters = _parameters(config)
    older_theta = config.number(theta_key, 10000.0)
    theta = _number(config, parameters, "rope_theta") or older_theta
    if theta < 1.0:
        raise config.fail(f"{theta_key!r} is {theta:g}, but a rotary base of at least 1 is needed")
    fraction = _fraction(config, parameters, fraction_key, default_fraction)
    if width > WIDEST_HEAD:
        raise config.fail(f"heads {width} wide are not believable (at most {WIDEST_HEAD})")
    rotated = int(width * fraction)
    pairs = math.ceil(rotated / 2) if round_up else rotated // 2
    if 2 * pairs > width or (rotated % 2 and not round_up):
        raise config.fail(
            f"{fraction_key or 'head_dim'!r} would rotate {rotated} of the {width} rows of a head, "
            "but rows are rotated in pairs"
        )
    if pairs == 0:
        return None
    exponents = np.arange(pairs) * 2.0 / rotated
    frequencies = _scaled(config, parameters, theta**-exponents, theta, 2 * pairs)
    return Rotary(
        tuple((j, j + pairs) for j in range(pairs)),
        tuple(float(f) for f in frequencies),
        factor=_factor(config, parameters),
        short_frequencies=_short_frequencies(config, parameters, theta**-exponents),
    )


def _fraction(
    config: ConfigReader, parameters: Mapping[str, Any], key: str | None, default: float
) -> float:
    """Which fraction of a head's rows is rotated."""
    newer = _number(config, parameters, "partial_rotary_factor")
    if key is None:
        if newer not in (None, 1.0):
            raise config.fail(
                f"'partial_rotary_factor' is {newer:g}, but this class rotates whole heads"
            )
        return 1.0
    older = config.number(key, default)
    fraction = older if newer is None else newer
    if fraction > 1.0:
        raise config.fail(f"{key!r} is {fraction:g}, but a fraction of at most 1 is needed")
    return fraction


def _parameters(config: ConfigReader) -> Mapping[str, Any]:
    """rope_parameters (newer) or rope_scaling (older), checked key by key."""
    newer, older = config.raw("rope_parameters"), config.raw("rope_scaling")
    merged: dict[str, Any] = {}
    for name, given in (("rope_scaling", older), ("rope_parameters", newer)):
        if given is None:
            continue
        if not isinstance(given, Mapping):
            raise config.fail(f"{name!r} is {given!r}, but an object is needed")
        if any(isinstance(value, Mapping) for value in given.values()):
            raise config.fail(f"{name!r} differs between layers, which is not supported")
        if unknown := set(given) - SCALING_KEYS:
            raise config.fail(f"{name!r} has the key {sorted(unknown)[0]!r}, which is not known")
        merged.update(given)
    kind = merged.get("rope_type", merged.get("type", "default"))
    if kind not in KNOWN_TYPES:
        raise config.fail(
            f"'rope_type' is {kind!r}, which is not known (known: {', '.join(KNOWN_TYPES)})"
        )
    merged["rope_type"] = kind
    return merged


def _number(config: ConfigReader, parameters: Mapping[str, Any], key: str) -> float | None:
    value = parameters.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e300:
        raise config.fail(f"{key!r} is {value!r}, but a positive number is needed")
    return float(value)


def _scaled(
    config: ConfigReader,
    parameters: Mapping[str, Any],
    frequencies: Any,
    theta: float,
    rotated: int,
) -> Any:
    """Apply the scalings that act on frequencies at every length."""
    kind = parameters["rope_type"]
    factor = _number(config, parameters, "factor") or 1.0
    limit = config.number("max_position_embeddings", 2048.0)
    length = _number(config, parameters, "original_max_position_embeddings") or limit
    if kind == "linear":
        return frequencies / factor
    if kind == "llama3":
        low = _number(config, parameters, "low_freq_factor") or 1.0
        high = _number(config, parameters, "high_freq_factor") or 4.0
        if high <= low:
            raise config.fail("'high_freq_factor' must exceed 'low_freq_factor'")
        turns = length * frequencies / (2 * math.pi)
        smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
        return (1 - smooth) * frequencies / factor + smooth * frequencies
    if kind == "yarn":
        fast = _number(config, parameters, "beta_fast") or 32.0
        slow = _number(config, parameters, "beta_slow") or 1.0
        if theta == 1.0 or length == 0.0:
            raise config.fail("yarn needs a rotary base above 1 and a positive original length")

        def correction(turns: float) -> float:
            return rotated * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))

        low, high = correction(fast), correction(slow)
        if parameters.get("truncate") is not False:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, rotated - 1)
        # As the class has it: equal ends become a step, ends in the wrong order a falling ramp.
        width = high - low if high != low else 1e-3
        ramp = np.clip((np.arange(rotated // 2) - low) / width, 0.0, 1.0)
        return frequencies / factor * ramp + frequencies * (1 - ramp)
    return frequencies


LONG_KINDS = ("longrope", "su")
"""Names of the scheme whose frequencies are divided one by one; su is the earlier one."""


def _factor(config: ConfigReader, parameters: Mapping[str, Any]) -> float:
    """What a scaling multiplies turned queries and keys by.

    Sources: Peng et al., 2023 (YaRN), section 3.4; Ding et al., 2024 (LongRoPE), section 3.
    """
    kind = parameters["rope_type"]
    if kind not in ("yarn", *LONG_KINDS):
        return 1.0
    given = _number(config, parameters, "attention_factor")
    if given is not None:
        return given
    limit = config.number("max_position_embeddings", 2048.0)
    length = _number(config, parameters, "original_max_position_embeddings") or limit
    factor = _number(config, parameters, "factor")
    if kind in LONG_KINDS:
        factor = factor or limit / max(length, 1.0)
        if factor <= 1.0:
            return 1.0
        return math.sqrt(1.0 + math.log(factor) / math.log(max(length, 2.0)))

    def stretch(weight: float) -> float:
        return 1.0 if factor is None or factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0

    over, under = (_number(config, parameters, key) for key in ("mscale", "mscale_all_dim"))
    return stretch(over) / stretch(under) if over and under else stretch(1.0)


def _short_frequencies(
    config: ConfigReader, parameters: Mapping[str, Any], frequencies: Any
) -> tuple[float, ...] | None:
    """Frequencies on inputs no longer than those trained on, where a scheme says them one by one.

    Raises
    ------
    InputError
        If there are not as many factors as frequencies, or one is not positive.
    """
    factors = parameters.get("short_factor")
    if parameters["rope_type"] not in LONG_KINDS or factors is None:
        return None
    if (
        not isinstance(factors, list)
        or len(factors) != len(frequencies)
        or any(isinstance(f, bool) or not isinstance(f, int | float) for f in factors)
        or not all(0 < f < 1e300 for f in factors)
    ):
        raise config.fail(
            f"'short_factor' must list one positive number for each of the {len(frequencies)} "
            "rotary planes"
        )
    return tuple(float(frequency / f) for frequency, f in zip(frequencies, factors, strict=True))
