"""Run the commands of the documentation and write what they print back into its pages.

    python scripts/refresh_docs.py [PAGE ...]

Output that the page shows in full is replaced. Output with lines left out is only compared, since
which lines matter is an author's choice: what no longer matches is listed for editing by hand.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from scripts.doc_blocks import LEFT_OUT, ROOT, blocks, commands, furnish, matches, run
from tests.checkpoints.real_weights import minilm_directory, smollm2_gguf

PAGES = ("README.md", "docs/inspect.md")


def refresh(path: Path) -> list[str]:
    """Rewrite one page; the commands whose shortened output no longer matches."""
    page = path.read_text()
    stale: list[str] = []
    lines = page.split("\n")
    models = {
        "all-MiniLM-L6-v2": minilm_directory(),
        "SmolLM2-135M-Instruct.Q4_1.gguf": smollm2_gguf(),
    }
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        furnish(folder, page, models)
        replaced: list[tuple[int, int, list[str]]] = []
        for block in blocks(page):
            if block.language != "console":
                continue
            written: list[str] = []
            for command in commands(block):
                printed = run(command.line, folder).stdout.splitlines()
                fresh = list(command.shown)
                if "varies" not in block.options and not matches(command.shown, printed):
                    if LEFT_OUT in command.shown:
                        stale.append(command.line)
                    else:
                        fresh = printed
                written += [f"$ {command.line}", *fresh]
            replaced.append((block.first, block.last, written))
    for first, last, written in reversed(replaced):
        lines[first:last] = written
    path.write_text("\n".join(lines))
    return stale


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="*", default=PAGES)
    stale = []
    for name in parser.parse_args().pages:
        stale += [f"{name}: {line}" for line in refresh(ROOT / name)]
    if stale:
        sys.exit("edit these by hand, their output has changed:\n" + "\n".join(stale))


if __name__ == "__main__":
    main()
