"""JSON in which nothing is ambiguous: no repeated key, no NaN, no text that cannot be printed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import NoReturn

from fiberscope.checkpoints.formats.files import opened, quoted
from fiberscope.errors import InputError

LARGEST_JSON = 100_000_000
"""Bytes of JSON read at most; the safetensors format sets the same limit for its header."""


class _RefusedError(ValueError):
    """A document that Python's parser accepts and this module does not."""


def parse_object(content: bytes, what: str, remedy: str) -> dict[str, object]:
    """Parse a JSON object.

    Parameters
    ----------
    content
        UTF-8 text.
    what
        The document, as the subject of the error message: "the header of x.safetensors".
    remedy
        What the reader of the message can do, as its last clause.

    Raises
    ------
    InputError
        If the content is not UTF-8, not JSON, nested beyond reason, not an object, repeats a key,
        or holds NaN, an infinity, or half a surrogate pair.
    """
    try:
        text = content.decode("utf-8")
        document = json.loads(
            text,
            object_pairs_hook=_without_repetition,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
        if "\\u" in text:
            json.dumps(document, ensure_ascii=False).encode("utf-8")
    except json.JSONDecodeError as error:
        raise InputError(
            f"{what} is not valid JSON at line {error.lineno}, column {error.colno} "
            f"({error.msg}); {remedy}."
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{what} is not UTF-8 text at byte {error.start}; {remedy}.") from error
    except UnicodeEncodeError as error:
        raise InputError(f"{what} holds half a surrogate pair; {remedy}.") from error
    except RecursionError as error:
        raise InputError(f"{what} is nested too deeply; {remedy}.") from error
    except _RefusedError as error:
        raise InputError(f"{what} {error}; {remedy}.") from error
    except ValueError as error:  # an integer of thousands of digits
        raise InputError(f"{what} holds a number that is far too long; {remedy}.") from error
    if not isinstance(document, dict):
        raise InputError(f"{what} is not a JSON object but {_named(document)}; {remedy}.")
    return document


def read_object(path: Path, remedy: str) -> dict[str, object]:
    """Read a file that holds one JSON object; raises as `parse_object`, and when unreadable."""
    with opened(path) as (stream, size):
        if size > LARGEST_JSON:
            raise InputError(f"{path} has {size} bytes, too many for a JSON file; {remedy}.")
        content = stream.read()
    return parse_object(content, str(path), remedy)


def _without_repetition(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _RefusedError(f"has the key {quoted(key)} twice")
            seen.add(key)
    return result


def _refuse_constant(constant: str) -> NoReturn:
    raise _RefusedError(f"holds {constant}, which is not JSON")


def _finite(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _RefusedError(f"holds {quoted(digits)}, which is beyond float64")
    return value


def _named(value: object) -> str:
    if value is None:
        return "null"
    names = {list: "a list", str: "a string", bool: "true or false"}
    return names.get(type(value), "a number")
