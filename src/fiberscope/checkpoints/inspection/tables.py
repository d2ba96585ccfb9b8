"""Identical and zero rows of embedding tables, read in chunks."""

from __future__ import annotations

import numpy as np

from fiberscope.checkpoints.inspection.finding import Exceptional
from fiberscope.checkpoints.inspection.neurons import close_runs
from fiberscope.checkpoints.inspection.roles import RoleReader
from fiberscope.checkpoints.ledger.wiring import Wiring


def inspect_tables(wiring: Wiring, reader: RoleReader) -> list[Exceptional]:
    """Rows that are zero or equal to another row of the same table (no extra dimension)."""
    found = []
    views = {
        w.view: w for s in wiring.segments if s.embedding for w in s.writers if w.layer is None
    }
    if wiring.head is not None and not wiring.tied:
        names = [(wiring.head.label, wiring.head.output.tensor)]
    else:
        names = []
    names += [(writer.label, view.tensor) for view, writer in views.items()]
    for label, name in dict.fromkeys(names):
        if len(reader.architecture.tensors[name]) == 2:
            found += _rows(label, name, reader)
    return found


def _rows(label: str, name: str, reader: RoleReader) -> list[Exceptional]:
    rows, width = reader.architecture.tensors[name]
    probe = np.random.default_rng(0).standard_normal(width)
    sketch, size, zero = np.empty(rows), np.empty(rows), np.zeros(rows, dtype=bool)
    for start, chunk in reader.rows(name):
        part = slice(start, start + len(chunk))
        sketch[part] = chunk @ probe
        size[part] = np.sqrt(np.einsum("ij,ij->i", chunk, chunk))
        zero[part] = ~np.any(chunk, axis=1)
    found = []
    if zero.any():
        found.append(_finding("zero rows", label, np.flatnonzero(zero), rows, "are zero"))
    live = np.flatnonzero(~zero)
    tolerance = 4 * np.sqrt(width) * np.finfo(float).eps * np.linalg.norm(probe) * size[live]
    runs = close_runs(sketch[live], tolerance)
    if runs:
        stored = reader.source.read(reader.stored[name]).reshape(rows, width)
        equal: list[int] = []
        for run in runs:
            members = np.sort(live[run])
            first = np.unique(stored[members].astype(np.float64), axis=0, return_index=True)[1]
            equal += np.delete(members, first).tolist()
        if equal:
            found.append(
                _finding(
                    "identical rows", label, np.array(sorted(equal)), rows, "repeat another row"
                )
            )
    return found


def _finding(kind: str, label: str, which: np.ndarray, rows: int, what: str) -> Exceptional:
    count = len(which)
    shown = ", ".join(map(str, which[:8].tolist())) + (", ..." if count > 8 else "")
    return Exceptional(
        kind,
        f"{label}, rows {shown}",
        0,
        f"{count:,} of {rows:,} rows {what}",
        {"count": count, "rows": which[:64].tolist()},
    )
