"""What HTML reports share: the page, its style, sections and tables; nothing is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.resources import files

from fiberscope.report.svg import escape


def whole_page(title: str, fragment: str) -> str:
    """A complete page around a fragment."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n</head>\n<body>\n{fragment}\n</body>\n</html>\n"
    )


def styled(sections: Iterable[str]) -> str:
    """Sections as one element with its own style, as notebooks show it; empty ones are left out."""
    style = files("fiberscope.report").joinpath("page.css").read_text(encoding="utf-8")
    body = "\n".join(section for section in sections if section)
    return f'<div class="fiberscope">\n<style>\n{style}</style>\n{body}\n</div>'


def section(title: str, below: str, content: str) -> str:
    """A heading, a quiet sentence below it, and content."""
    under = f'<p class="quiet">{escape(below)}</p>\n' if below else ""
    return f"<h2>{escape(title)}</h2>\n{under}{content}"


def table(
    columns: Sequence[tuple[str, bool]], rows: Iterable[Sequence[str]], total: Sequence[str] = ()
) -> str:
    """A table of ready cells; columns are (heading, whether numbers stand in it)."""
    kinds = [' class="number"' if numeric else "" for _, numeric in columns]
    head = "".join(
        f"<th{kind}>{escape(heading)}</th>"
        for (heading, _), kind in zip(columns, kinds, strict=True)
    )
    lines = [
        "<tr>"
        + "".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(row, kinds, strict=True))
        + "</tr>"
        for row in rows
    ]
    if total:
        cells = "".join(f"<td{kind}>{cell}</td>" for cell, kind in zip(total, kinds, strict=True))
        lines.append(f'<tr class="total">{cells}</tr>')
    return (
        f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{chr(10).join(lines)}\n</tbody></table>"
    )


def explained(first: str, second: str) -> str:
    """A cell of two lines."""
    return f"{escape(first)}<small>{escape(second)}</small>"
