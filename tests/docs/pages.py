"""The pages of the documentation and how each is checked."""

from __future__ import annotations

from scripts.doc_blocks import ROOT

PAGES = tuple(
    sorted(
        str(path.relative_to(ROOT)) for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    )
)
"""Every page of the repository."""

RUN_ELSEWHERE = {
    "docs/families.md": "tests/analysis/test_documentation.py",
    **{
        page: "tests/cli/test_polynomial_docs.py"
        for page in PAGES
        if page.startswith("docs/polynomial-")
    },
}
"""Pages with a test of their own."""

FRAGMENTS = {
    "docs/adding-an-architecture.md": "lines of a table, which need the table around them",
}
"""Pages whose blocks cannot run by themselves, and why."""

RUN_HERE = tuple(page for page in PAGES if page not in {*RUN_ELSEWHERE, *FRAGMENTS})
"""Pages whose blocks are all run by test_commands.py."""
