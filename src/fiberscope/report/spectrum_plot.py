"""Plot of singular values along a path, on logarithmic axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10
from pathlib import Path

from fiberscope.errors import InputError


def plot_spectrum(
    target: Path,
    values: Mapping[float, Sequence[str]],
    bands: Sequence[tuple[int | None, int]],
    title: str,
    cutoff: float = 1e-10,
) -> None:
    """Write a figure of every singular value against ``t``, coloured by band.

    Dashed lines have the band's predicted slope, through its strongest value at the smallest
    ``t``; a dotted line is ``cutoff`` times the largest value.

    Parameters
    ----------
    target
        File to write; its suffix gives the format. It must not exist.
    values
        ``t`` -> decimal strings in decreasing order (they may be far below float64's range).
    bands
        ``(order, multiplicity)``, strongest first.
    title
        Figure title.

    Raises
    ------
    InputError
        If the file exists, its format is unknown, or matplotlib is not installed.
    """
    if target.exists():
        raise InputError(f"{target} exists: give another name, or move it away")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("plots need matplotlib: pip install 'fiberscope[plots]'") from None
    suffix = target.suffix.lstrip(".").lower()
    if suffix not in FigureCanvasAgg(Figure()).get_supported_filetypes():
        raise InputError(f"{target}: give a file name with a figure's suffix, such as .png or .svg")
    points = sorted(abs(t) for t in values)
    logs = {abs(t): [_log10(value) for value in column] for t, column in values.items()}
    figure = Figure(figsize=(7, 5), layout="constrained")
    axes = figure.add_subplot()
    start = 0
    for number, (order, size) in enumerate(bands):
        colour = f"C{number % 10}"
        for index in range(start, start + size):
            axes.plot(points, [logs[t][index] for t in points], "o-", ms=3, lw=0.7, color=colour)
        label = f"{size} of order {'?' if order is None else order}"
        axes.plot([], [], "o-", ms=3, color=colour, label=label)
        if order is not None and len(points) > 1:
            guide = [logs[points[0]][start] + order * (log10(t) - log10(points[0])) for t in points]
            axes.plot(points, guide, "--", lw=0.8, color=colour, alpha=0.5)
        start += size
    axes.plot(points, [logs[t][0] + log10(cutoff) for t in points], "k:", lw=1,
              label=f"{cutoff:g} of the largest")  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlabel("t")
    axes.set_ylabel("log10 of the singular value")
    axes.set_title(title, fontsize=9)
    axes.legend(fontsize=8)
    beside = target.with_name(f".{target.name}.partial")
    try:
        figure.savefig(beside, format=suffix, dpi=150)
        beside.replace(target)
    except OSError as error:
        raise InputError(f"{target} cannot be written: {error.strerror or error}") from None
    finally:
        beside.unlink(missing_ok=True)


def _log10(text: str) -> float:
    """Logarithm of a decimal string, without float64's range."""
    mantissa, _, exponent = text.partition("e")
    return log10(float(mantissa)) + int(exponent or 0)
