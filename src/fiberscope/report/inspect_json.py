"""The report as plain data: keys that stay stable, documented in docs/json-inspect.md."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import fiberscope
from fiberscope.checkpoints.inspection import Breaking, Inspection, WeightFindings
from fiberscope.checkpoints.ledger import Mechanism
from fiberscope.report import evidence
from fiberscope.report.inspection_report import InspectionReport
from fiberscope.report.places import layers_in_words, order_of, place_of
from fiberscope.symmetry import Kind
from fiberscope.verdict import Evidence, to_plain

SCHEMA = "fiberscope/inspect/1"


def to_dict(report: InspectionReport) -> dict[str, Any]:
    """All keys of ``fiberscope inspect --json``; numbers without a JSON form become strings."""
    inspection, found = report.inspection, report.ledger
    laid_out, weights = found.architecture, inspection.weights
    data: dict[str, Any] = {
        "schema": SCHEMA,
        "version": fiberscope.__version__,
        "path": shown_path(inspection.path),
        "config_sha256": config_digest(inspection.config),
        "architecture": {
            "name": laid_out.name,
            "family": laid_out.family,
            "tied": laid_out.head is not None and laid_out.tied,
            "sizes": dict(laid_out.sizes),
        },
        "observable": found.observable.value,
        "parameters": found.parameters,
        "identified": found.identified,
        "identified_is": "exact" if report.is_exact else "upper bound",
        "undetermined": found.undetermined,
        "share": found.undetermined / found.parameters,
        "mechanisms": [_exact(m) for m in found.mechanisms(Kind.EXACT)],
        "overlaps": [
            {"between": list(o.between), "dimension": o.dimension, "why": o.why}
            for o in found.overlaps
        ],
        "approximate": [_approximate(m, weights) for m in found.mechanisms(Kind.APPROXIMATE)],
        "discrete": [_discrete(m) for m in found.mechanisms(Kind.DISCRETE)],
        "conditions": [{"statement": c.statement, "holds": c.holds} for c in inspection.conditions],
        "weights": None if weights is None else _files(inspection),
        "exceptional": [] if weights is None else list(weights.exceptional),
        "slow_rotary_planes": inspection.slow_planes,
        "conditioning": [] if weights is None else list(weights.conditioning),
        "leftovers": [] if weights is None else [*weights.leftovers, *weights.gains],
        "evidence": _evidence(report),
        "notes": list(inspection.notes),
    }
    plain: dict[str, Any] = to_plain(data)
    return plain


def shown_path(path: Path) -> str:
    """A path as text that every encoding of a terminal or file can hold."""
    return os.fsencode(path).decode("utf-8", "replace")


def config_digest(config: Mapping[str, Any]) -> str:
    """SHA-256 of the configuration as JSON with sorted keys and no spaces."""
    text = json.dumps(config, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def by_size(mechanisms: Iterable[Mechanism]) -> list[Mechanism]:
    """Largest first, as people want to read them; JSON keeps the order of the rules."""
    return sorted(mechanisms, key=lambda mechanism: -mechanism.dimension)


def where(mechanism: Mechanism) -> str:
    """All places of a mechanism in words."""
    return layers_in_words(item.where for item in mechanism.items)


def per_place(mechanism: Mechanism) -> dict[str, int]:
    """Dimension of a mechanism by place: embedding, every layer, residual stream, head."""
    places: dict[str, int] = {}
    for item in mechanism.items:
        place = place_of(item)
        places[place] = places.get(place, 0) + item.dimension
    return dict(sorted(places.items(), key=lambda entry: order_of(entry[0])))


def _exact(mechanism: Mechanism) -> dict[str, Any]:
    return {
        "name": mechanism.name,
        "where": where(mechanism),
        "kind": "exact",
        "dimension": mechanism.dimension,
        "per_layer": [
            {"place": place, "dimension": dimension}
            for place, dimension in per_place(mechanism).items()
        ],
    }


def breaking(mechanism: Mechanism, weights: WeightFindings | None) -> Breaking | None:
    """The place at which an approximate mechanism is broken most; None without weights."""
    places = [b for b in (weights.breaking if weights else ()) if b.mechanism == mechanism.name]
    return max(places, key=lambda place: place.size, default=None)


def _approximate(mechanism: Mechanism, weights: WeightFindings | None) -> dict[str, Any]:
    most = breaking(mechanism, weights)
    return {
        "name": mechanism.name,
        "where": where(mechanism),
        "kind": "approximate",
        "dimension": mechanism.dimension,
        "epsilon": max(mechanism.epsilons),
        "breaking": None
        if most is None
        else {"size": most.size, "where": most.where, "mean_square": most.mean_square},
    }


def _discrete(mechanism: Mechanism) -> dict[str, Any]:
    return {
        "name": mechanism.name,
        "where": where(mechanism),
        "kind": "discrete",
        "log10_order": mechanism.log10_order,
    }


def _files(inspection: Inspection) -> dict[str, Any]:
    weights = inspection.weights
    assert weights is not None
    return {"path": shown_path(Path(weights.files)), "formats": list(weights.dtypes)}


def _evidence(report: InspectionReport) -> list[dict[str, Any]]:
    entries = [_entry(name, rule) for name, rule in evidence.rules(report.ledger)]
    return entries + [
        _entry(name, check) for name, check in evidence.checks(report.ledger, report.twin)
    ]


def _entry(line: str, found: Evidence) -> dict[str, Any]:
    return {"line": line, **found.to_dict()}
