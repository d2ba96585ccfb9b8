"""The little language of blocks: what counts as a command, its output, and a match."""

import pytest
from scripts.doc_blocks import blocks, commands, matches

PAGE = """\
# Title

```console varies
$ one --flag \\
>   --other
printed
$ two
```

```python
x = 1
```
"""


def test_blocks_and_commands():
    console, python = blocks(PAGE)
    assert (console.language, console.options) == ("console", ("varies",))
    assert [(c.line, c.shown) for c in commands(console)] == [
        ("one --flag --other", ("printed",)),
        ("two", ()),
    ]
    assert (python.language, python.text) == ("python", "x = 1\n")


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        (["a", "b"], ["a", "b"], True),
        (["a"], ["a", "b"], False),
        (["a", "[...]"], ["a", "b", "c"], True),
        (["[...]", "c"], ["a", "b", "c"], True),
        (["[...]", "b", "[...]", "d"], ["a", "b", "c", "d"], True),
        (["[...]", "c", "[...]", "b"], ["a", "b", "c"], False),
        (["a", "[...]", "b"], ["a", "b"], True),
        (["[...]", "a "], ["a"], False),
    ],
)
def test_lines_left_out(shown, printed, same):
    assert matches(tuple(shown), printed) is same


@pytest.mark.parametrize("page", ["```console\n$ x", "```console\nx\n```"])
def test_malformed_pages_are_errors(page):
    with pytest.raises(ValueError, match="block"):
        [commands(block) for block in blocks(page)]
