"""Links, paths and lists in the documentation point at things that exist."""

import re
import tomllib

import pytest
from scripts.doc_blocks import ROOT

from fiberscope.checkpoints.architecture.registry import MODEL_TYPES
from fiberscope.report.mechanisms import CATALOGUE
from tests.docs.pages import PAGES

INSPECTION = ROOT / "src/fiberscope/checkpoints/inspection"


def text_of(page):
    return (ROOT / page).read_text(encoding="utf-8")


def anchors(page):
    """Anchors of a page's headings, as they are made from ASCII headings."""
    titles = re.findall(r"^#+ (.*)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_links(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        found = (ROOT / page).parent / path if path else ROOT / page
        assert found.exists(), f"{page}: {target}"
        if anchor:
            assert anchor in anchors(found.relative_to(ROOT)), f"{page}: {target}"


@pytest.mark.parametrize("page", PAGES)
def test_paths_of_the_repository(page):
    for path in re.findall(r"`((?:tests|scripts|docs|benchmarks|src)/[\w./-]+)`", text_of(page)):
        assert (ROOT / path).exists(), f"{page}: {path}"


def test_every_page_can_be_reached_from_the_index():
    reached, waiting = set(), ["docs/index.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            names = re.findall(r"\]\(([\w-]+\.md)[)#]", text_of(page))
            waiting += [f"docs/{name}" for name in names if (ROOT / "docs" / name).is_file()]
    assert {page for page in PAGES if page.startswith("docs/")} <= reached


def test_every_mechanism_is_explained():
    page = text_of("docs/mechanisms.md")
    headings = set(re.findall(r"^### (.*)$", page, re.MULTILINE))
    items = set(re.findall(r"\*\*([^*]+)\*\*", page.replace("\n  ", " ")))
    assert set(CATALOGUE) <= headings | items
    assert headings <= set(CATALOGUE)


def test_every_exceptional_finding_is_explained():
    page = text_of("docs/mechanisms.md")
    kinds = set()
    for path in INSPECTION.glob("*.py"):
        source = path.read_text(encoding="utf-8")
        kinds |= set(re.findall(r"Exceptional\(\s*\"([^\"]+)\"", source))
        kinds |= set(re.findall(r"_finding\(\s*\"([^\"]+)\"", source))
    assert {"equal final gains", "silent heads", "duplicate neurons", "zero rows"} <= kinds
    for kind in kinds:
        assert f"| {kind} |" in page or f"{kind}," in page or f", {kind} |" in page, kind


def test_supported_architectures_are_named():
    readme = text_of("README.md").lower().replace("-", "").replace("_", "")
    for name in MODEL_TYPES:
        assert name.replace("_", "") in readme, name


def test_extras_named_in_the_pages_exist():
    extras = tomllib.loads(text_of("pyproject.toml"))["project"]["optional-dependencies"]
    for page in PAGES:
        for names in re.findall(r"(?:fiberscope|'?\.)\[([\w,]+)\]", text_of(page)):
            assert set(names.split(",")) <= set(extras), page


def test_versions_agree():
    version = tomllib.loads(text_of("pyproject.toml"))["project"]["version"]
    assert f"\nversion: {version}\n" in text_of("CITATION.cff")
    assert f"## {version}" in text_of("CHANGELOG.md")
