"""Many architectures at once: a table in, a table out, on all cores."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import TextIO

from fiberscope.errors import InputError
from fiberscope.families.polynomial.architecture import Architecture
from fiberscope.families.polynomial.dimension import DEFAULT_TRIALS, PolynomialDimension, dimension
from fiberscope.families.polynomial.theorems import Notion

COLUMNS = (
    "widths",
    "degrees",
    "activation",
    "bias",
    "parameters",
    "effective",
    "ambient",
    "expected",
    "dimension",
    "status",
    "upper_bound",
    "upper_bound_by",
    "error_probability",
    "defect",
    "filling",
    "finite",
    "finite_by",
    "one_orbit",
    "one_orbit_by",
    "every",
    "every_by",
)
"""Columns of the table that comes out."""

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Row:
    """One architecture of a table, as written there."""

    architecture: Architecture
    activation: str


def parse_widths(text: str, what: str) -> list[int]:
    """Whole numbers separated by commas or spaces."""
    parts = text.replace(",", " ").split()
    try:
        return [int(part) for part in parts]
    except ValueError:
        raise InputError(f"{what} takes whole numbers separated by commas, got {text!r}") from None


def read_table(path: Path) -> list[Row]:
    """Read architectures from a CSV file.

    Columns: ``widths`` (separated by spaces, or quoted with commas) and ``degree`` or ``degrees``;
    optionally ``activation`` and ``bias`` (0 or 1). Other columns are ignored.

    Raises
    ------
    InputError
        With file and line, if a column or a value is missing or wrong.
    """
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            reader = csv.DictReader(stream)
            names = set(reader.fieldnames or ())
            if "widths" not in names:
                raise InputError(
                    f"{path} has no column 'widths': the first line must name the columns, "
                    "for instance widths,degree"
                )
            return [_row(line, f"{path}, line {reader.line_num}") for line in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read as a CSV file: {error}") from None


def _row(line: dict[str, str | None], where: str) -> Row:
    try:
        widths = parse_widths(line["widths"] or "", "widths")
        given = line.get("degrees") or line.get("degree") or ""
        degrees = parse_widths(given, "degrees")
        activation = line.get("activation") or "monomial"
        bias = (line.get("bias") or "0").strip().lower()
        if bias not in {"0", "1", "true", "false"}:
            raise InputError(f"bias must be 0 or 1, got {bias!r}")
        architecture = Architecture.build(
            widths,
            degrees[0] if len(degrees) == 1 else degrees or None,
            activation=activation,
            bias=bias in {"1", "true"},
        )
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    return Row(architecture, activation)


def dimensions(
    architectures: Sequence[Architecture],
    seed: int = 0,
    *,
    trials: int = DEFAULT_TRIALS,
    jobs: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Iterator[PolynomialDimension]:
    """Dimensions of many architectures in order; row ``i`` uses the seed ``(seed, i)``.

    Parameters
    ----------
    jobs
        Number of processes (default: all cores). The results do not depend on it.
    progress
        Called with the number of finished rows.
    """
    jobs = jobs or os.cpu_count() or 1
    tasks = [(architecture, seed, row, trials) for row, architecture in enumerate(architectures)]
    if jobs == 1 or len(tasks) < 2:
        for done, task in enumerate(tasks, start=1):
            yield _dimension_of_row(task)
            progress(done)
        return
    # One thread a process, or the linear algebra of all processes fights for the same cores.
    before = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, "1"))
    try:
        with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
            chunk = max(1, min(32, len(tasks) // (4 * jobs)))
            found = pool.map(_dimension_of_row, tasks, chunksize=chunk)
            for done, result in enumerate(found, start=1):
                yield result
                progress(done)
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _dimension_of_row(task: tuple[Architecture, int, int, int]) -> PolynomialDimension:
    architecture, seed, row, trials = task
    return dimension(architecture, (seed, row), trials=trials)


def write_table(rows: Sequence[Row], found: Iterator[PolynomialDimension], stream: TextIO) -> int:
    """Write one line for each architecture; the number of proved dimensions comes back."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    proved = 0
    for row, result in zip(rows, found, strict=True):
        proved += result.status.name == "PROVED"
        notions: list[object] = []
        for notion in Notion:
            answer = result.notions[notion]
            word = {True: "yes", False: "no", None: "not covered"}[answer.answer]
            notions += [word, answer.by if answer.answer is not None else ""]
        writer.writerow(
            [
                " ".join(map(str, result.widths)),
                " ".join(map(str, result.degrees)),
                row.activation,
                int(row.architecture.bias),
                result.parameters,
                result.effective,
                result.ambient,
                result.expected,
                result.dimension,
                result.status.name,
                result.upper.value,
                result.upper.reason,
                f"{result.error_probability:.3g}",
                "" if result.defect is None else result.defect,
                "" if result.filling is None else int(result.filling),
                *notions,
            ]
        )
    return proved
