"""The page on families runs as printed."""

import contextlib
import io
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "families.md"


def test_code_on_the_page_prints_what_the_page_says():
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert [language for language, _ in blocks].count("python") == 5
    names: dict[str, object] = {"__name__": "page"}
    printed, compared = "", 0
    for language, text in blocks:
        if language == "python":
            assert printed == "", "the page leaves out what the block before this one prints"
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(text, str(PAGE), "exec"), names)
            printed = out.getvalue()
        else:
            assert printed == text
            printed, compared = "", compared + 1
    assert printed == ""
    assert compared == 4
