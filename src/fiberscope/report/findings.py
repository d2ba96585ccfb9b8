"""Findings about weights gathered for reading: similar ones in one line, sizes over all layers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fiberscope.checkpoints.inspection import Exceptional, WeightFindings
from fiberscope.report.numerals import count, plural, real
from fiberscope.report.places import layers_in_words

_UNITS = (
    ("product", "head"),
    ("silent heads", "head"),
    ("heads that attend alike", "head"),
    ("neurons", "neuron"),
    ("rotary planes", "plane"),
    ("gains", "gain"),
    ("rows", "row"),
)


@dataclass(frozen=True)
class FindingGroup:
    """All findings of one kind.

    Attributes
    ----------
    kind
        What it is.
    where
        One finding: its place in full; several: how many units, in which layers.
    extra_dimension
        Sum of the known ones; None when none is known.
    partly_unknown
        Whether some of several findings state no dimension.
    detail
        The sentence of a single finding; for several the range of their singular values, if any.
    """

    kind: str
    where: str
    extra_dimension: int | None
    partly_unknown: bool
    detail: str

    def adds(self) -> str:
        """The extra dimension in words."""
        if self.extra_dimension is None:
            return "not known"
        return count(self.extra_dimension) + (" or more" if self.partly_unknown else "")


def grouped(findings: Iterable[Exceptional]) -> list[FindingGroup]:
    """One line a kind; up to two findings of a kind stay on their own."""
    kinds: dict[str, list[Exceptional]] = {}
    for finding in findings:
        kinds.setdefault(finding.kind, []).append(finding)
    lines = []
    for kind, same in kinds.items():
        if len(same) > 2:
            lines.append(_together(kind, same))
        else:
            lines += [FindingGroup(kind, f.where, f.extra_dimension, False, f.detail) for f in same]
    return lines


def _together(kind: str, same: Sequence[Exceptional]) -> FindingGroup:
    known = [f.extra_dimension for f in same if f.extra_dimension is not None]
    total = sum(_units(finding) for finding in same)
    noun = next((unit for ending, unit in _UNITS if kind.endswith(ending)), "place")
    if "dead neurons" in kind:
        noun = "neuron"
    if noun == "head" and any("key/value group" in finding.where for finding in same):
        noun = "key/value group"
    # The place is the label up to the first comma: the layer, without heads and neurons.
    labels = [finding.where.split(",")[0] for finding in same]
    where = f"{plural(total, noun)} in {layers_in_words(labels)}"
    return FindingGroup(
        kind, where, sum(known) if known else None, 0 < len(known) < len(same), _detail(same)
    )


def _units(finding: Exceptional) -> int:
    found = finding.statistics
    if "count" in found:
        return int(found["count"])
    for name in ("heads", "planes", "features"):
        if name in found:
            return len(found[name])
    if "sets" in found:
        return sum(len(members) for members in found["sets"])
    return 1


def _detail(same: Sequence[Exceptional]) -> str:
    spectra = [
        row for finding in same for row in finding.statistics.get("singular_values", []) if row
    ]
    if not spectra:
        return "each of them with its numbers in --json"
    ratios = [row[-1] / row[0] for row in spectra if row[0] > 0]
    if not ratios:
        return "all products are zero; each of them in --json"
    low, high = real(min(ratios)), real(max(ratios))
    between = low if low == high else f"{low} to {high}"
    return f"smallest over largest singular value {between}; each of them in --json"


@dataclass(frozen=True)
class Spread:
    """A size over all layers: ``median (smallest to largest)``."""

    values: tuple[float, ...]

    def __str__(self) -> str:
        low, high = min(self.values), max(self.values)
        if low == high:
            return real(low)
        return f"{real(statistics.median(self.values))} ({real(low)} to {real(high)})"


def leftover_lines(weights: WeightFindings) -> list[tuple[str, str, str]]:
    """What training left where nothing is determined: (what, its size, how to read it)."""
    sizes: dict[str, list[float]] = {}
    ratios = []
    for leftover in weights.leftovers:
        for name, value in leftover.statistics.items():
            sizes.setdefault(name, []).append(value)
        key, query = (leftover.statistics.get(f"{n}_bias_rms") for n in ("key", "query"))
        if key is not None and query:
            ratios.append(key / query)
    lines = []
    if "key_bias_rms" in sizes:
        lines.append(("key bias, rms", str(Spread(tuple(sizes["key_bias_rms"]))), "has no effect"))
        if ratios:
            reading = "rms of the one without effect over rms of the one with"
            lines.append(("key bias over query bias", str(Spread(tuple(ratios))), reading))
    for name, label in (
        ("query_key_imbalance", "queries against keys, imbalance"),
        ("value_output_imbalance", "values against outputs, imbalance"),
        ("up_down_imbalance", "up against down rows, imbalance"),
    ):
        if name in sizes:
            reading = "0 balanced factors, 1 one factor only"
            lines.append((label, str(Spread(tuple(sizes[name]))), reading))
    if weights.gains:
        spreads = tuple(gain.statistics["relative_spread"] for gain in weights.gains)
        reading = "standard deviation over mean size, over norms"
        lines.append(("norm gains, spread", str(Spread(spreads)), reading))
        low = min(weights.gains, key=lambda gain: gain.statistics["smallest"])
        high = max(weights.gains, key=lambda gain: gain.statistics["largest"])
        smallest, largest = real(low.statistics["smallest"]), real(high.statistics["largest"])
        places = f"smallest in {low.label}, largest in {high.label}"
        lines.append(("norm gains, range of sizes", f"{smallest} to {largest}", places))
    return lines


def conditioning_lines(weights: WeightFindings) -> list[tuple[str, str, str]]:
    """Condition numbers over all heads: (product, spread, worst head or number of infinite)."""
    lines = []
    for product, values in (
        ("query/key", [(h.label, h.query_key) for h in weights.conditioning]),
        ("value/output", [(h.label, h.value_output) for h in weights.conditioning]),
    ):
        heads = [
            (value, f"{label}, head {number}")
            for label, row in values
            for number, value in enumerate(row or ())
        ]
        finite = [head for head in heads if math.isfinite(head[0])]
        if not heads:
            continue
        deficient = len(heads) - len(finite)
        spread = str(Spread(tuple(value for value, _ in finite))) if finite else "infinite"
        note = f"largest in {max(finite)[1]}" if finite else ""
        if deficient:
            note = f"{plural(deficient, 'head')} of {len(heads):,} infinite; {note}".rstrip("; ")
        lines.append((product, spread, note))
    return lines
