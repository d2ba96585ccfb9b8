"""Oracles by name: a Python function, an ONNX file, an endpoint, or a file of weights."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fiberscope.errors import InputError
from fiberscope.queries.oracle import Arithmetic, FunctionOracle, Oracle
from fiberscope.queries.transcript import transcript_head

FORMS = (
    "python:module:function, an .onnx file, an http(s):// address, or an .npz file of weights W, v"
)


def load_oracle(
    text: str,
    width: int | None = None,
    arithmetic: Arithmetic | None = None,
    transcript: Path | None = None,
) -> Oracle:
    """The oracle that ``--oracle`` names.

    Parameters
    ----------
    text
        One of :data:`FORMS`.
    width
        Entries of a token; a weights file, an ONNX file of fixed width and an endpoint say it
        themselves.
    arithmetic
        What a weights file computes in (default float64), or what the answers of others are taken
        for.
    transcript
        Where an earlier run wrote what an endpoint answered: it is contacted only for more.

    Raises
    ------
    InputError
        If nothing can be loaded, or the width contradicts what the oracle says.
    """
    if text.startswith("python:"):
        oracle: Oracle = _function_oracle(text, width, arithmetic)
    elif text.startswith(("http://", "https://")):
        from fiberscope.queries.http_oracle import HttpOracle

        head = {} if transcript is None else transcript_head(transcript)
        said = head if head.get("oracle") == text else None
        oracle = HttpOracle(text, arithmetic, said=said)
    elif text.endswith(".onnx"):
        from fiberscope.queries.onnx_oracle import OnnxOracle

        oracle = OnnxOracle(Path(text), width, arithmetic)
    elif text.endswith(".npz"):
        from fiberscope.queries.weights_oracle import HeadsOracle, read_heads

        oracle = HeadsOracle(read_heads(Path(text)), arithmetic or Arithmetic.FLOAT64)
    elif text.endswith((".gguf", ".safetensors")) or Path(text).is_dir():
        raise InputError(
            f"{text} is a checkpoint: --layer N makes the attention of its layer N an oracle"
        )
    else:
        raise InputError(f"the oracle {text!r} is none of the known forms: give {FORMS}")
    if width is not None and width != oracle.width:
        raise InputError(
            f"--width {width} was given, but {text} has {oracle.width}: leave out --width"
        )
    return oracle


def _function_oracle(text: str, width: int | None, arithmetic: Arithmetic | None) -> FunctionOracle:
    if width is None:
        raise InputError("a Python function does not say its width: give --width")
    function = load_function(text.removeprefix("python:"))
    declared = getattr(function, "arithmetic", None)
    try:
        known = None if declared is None else Arithmetic(declared)
    except ValueError:
        choices = ", ".join(each.value for each in Arithmetic)
        raise InputError(
            f"{text} declares the arithmetic {declared!r}: it must be one of {choices}"
        ) from None
    balls = Arithmetic.BALLS
    if arithmetic is not None and (arithmetic is balls) != (known is balls):
        raise InputError(
            f"--arithmetic {arithmetic.value} does not fit {text}: a ball oracle declares itself "
            "with fiberscope.queries.oracle.ball_oracle"
        )
    return FunctionOracle(function, width, arithmetic or known, text)


def load_function(text: str) -> Callable[..., Any]:
    """A function from ``module:name``, with the current folder on the path."""
    module, _, name = text.partition(":")
    if not module or not name:
        raise InputError(f"the oracle {text!r} is not of the form python:module:function")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        function = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # foreign code runs on import
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise InputError(f"the oracle {text!r} cannot be loaded: {reason}") from None
    if not callable(function):
        raise InputError(f"the oracle {text!r} is not a function")
    loaded: Callable[..., Any] = function
    return loaded
