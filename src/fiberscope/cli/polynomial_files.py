"""`canonicalize` and `compare` for weight files of polynomial networks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fiberscope.analysis.canonical import canonical
from fiberscope.analysis.compare import compare
from fiberscope.errors import InputError
from fiberscope.families.polynomial.canonical import canonical_form
from fiberscope.families.polynomial.comparison import PolynomialComparison, compare_networks
from fiberscope.families.polynomial.rationals import RATIONALS
from fiberscope.families.polynomial.weights import (
    WeightedNetwork,
    read_weights,
    weights_to_json,
)
from fiberscope.numbers import FLOAT64
from fiberscope.verdict import to_plain

WORST_DEVIATION = 1e-6
"""A canonical form that changes the function by more than this is not handed out."""


def is_polynomial_file(path: Path) -> bool:
    """Tell whether a path is meant as a weight file of this family, by its suffix."""
    return path.suffix in {".json", ".npz"}


def canonicalize_file(path: Path, exact: bool, seed: int) -> tuple[dict[str, Any], str]:
    """Report of the canonical form of a weight file, and the form as JSON text.

    Raises
    ------
    InputError
        If the file is bad, or in float64 the form would change the function.
    """
    network = read_weights(path, exact=exact)
    family = network.family
    system = RATIONALS if network.exact else FLOAT64
    design = family.design(8, np.random.default_rng(seed))
    with np.errstate(all="ignore"):
        result = canonical(family, network.parameters, design, system)
    if result.deviation > WORST_DEVIATION:
        raise InputError(
            f"{path}: the canonical form changes the function by {result.deviation:.1e}, so "
            "rounding is too strong here; give rational weights"
        )
    form = canonical_form(family, network.parameters)
    weights = weights_to_json(family.architecture, result.parameters)
    report = {
        "architecture": str(family.architecture),
        "exact": network.exact,
        "deviation": result.deviation,
        "moved": result.moved,
        "widths": list(form.widths),
        "inactive": form.inactive,
        "redundant": form.redundant,
        "collinear": form.collinear,
        "last_layer_decomposed": form.rotated,
        "ties": list(form.ties),
        "complete": False,
        "complete_means": "points of one orbit have one form; points of one fiber need not",
        "weights": weights,
    }
    return report, json.dumps(weights, indent=1) + "\n"


def compare_files(
    first: Path, second: Path, exact: bool, seed: int
) -> tuple[PolynomialComparison, dict[str, Any]]:
    """Compare two weight files; the report holds the witness as plain data."""
    networks: list[WeightedNetwork] = [read_weights(path, exact=exact) for path in (first, second)]
    one, two = networks
    if one.architecture == two.architecture:
        design = replace(one.family.design(1, np.random.default_rng(seed)), seed=seed)
        found = compare(one.family, one.parameters, two.parameters, design)
        assert isinstance(found, PolynomialComparison)
    else:
        found = compare_networks(one, two, seed)
    report = {
        "architectures": [str(network.architecture) for network in networks],
        "exact": all(network.exact for network in networks),
        "outcome": found.outcome.name,
        "reason": found.reason,
        "relation": found.relation.name,
        "certainty": found.certainty,
        "witness": [
            {"symmetry": symmetry.name, "element": to_plain(element)}
            for symmetry, element in found.witness
        ],
        "point": to_plain(found.point),
        "first_value": to_plain(found.first_value),
        "second_value": to_plain(found.second_value),
    }
    return found, report
