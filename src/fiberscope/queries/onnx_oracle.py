"""An ONNX file as an oracle (onnxruntime, optional)."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.queries.oracle import BALL_BITS, Arithmetic, float_answer

_KINDS = {
    "tensor(double)": (np.float64, Arithmetic.FLOAT64),
    "tensor(float)": (np.float32, Arithmetic.FLOAT32),
}


class OnnxOracle:
    """A model with one input and at least one output, whose first value is the answer.

    The input is a tensor of float or double of shape ``(tokens, width)`` or
    ``(batch, tokens, width)``; the number of tokens must be free. The first output holds one number
    for each sequence.

    Parameters
    ----------
    path
        The file.
    width
        Needed where the model leaves its last axis open.
    arithmetic
        Overrides what the type of the input says.

    Raises
    ------
    InputError
        If onnxruntime is missing, or the model has other inputs.
    """

    one_at_a_time = True

    def __init__(
        self, path: Path, width: int | None = None, arithmetic: Arithmetic | None = None
    ) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise InputError(
                "ONNX files need onnxruntime: pip install 'fiberscope[onnx]'"
            ) from None
        try:
            content = path.read_bytes()
            options = onnxruntime.SessionOptions()
            options.log_severity_level = 4
            self._session = onnxruntime.InferenceSession(
                content, options, providers=["CPUExecutionProvider"]
            )
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from None
        except Exception as error:  # onnxruntime's own exceptions share no base
            reason = " ".join(str(error).split())[:120]
            raise InputError(f"{path} is no ONNX model that can run here: {reason}") from None
        self.identity = f"{path.name} {sha256(content).hexdigest()[:16]}"
        inputs = self._session.get_inputs()
        shape = inputs[0].shape if len(inputs) == 1 else []
        if len(shape) not in (2, 3) or inputs[0].type not in _KINDS:
            raise InputError(
                f"{path} must have one input of float or double of shape (tokens, width) or "
                "(batch, tokens, width)"
            )
        last = shape[-1] if isinstance(shape[-1], int) else width
        if last is None:
            raise InputError(f"{path} leaves the width of a token open: give --width")
        if isinstance(shape[-2], int):
            raise InputError(
                f"{path} takes exactly {shape[-2]} tokens: export it with a free number of tokens"
            )
        if arithmetic is Arithmetic.BALLS:
            raise InputError("an ONNX model answers floats: balls come from python: or weights")
        self.width = int(last)
        self._name, self._axes = inputs[0].name, len(shape)
        self._type, kind = _KINDS[inputs[0].type]
        self.arithmetic = arithmetic or kind

    def answer(self, sequences: Sequence[NDArray[Any]], bits: int = BALL_BITS) -> list[float]:
        """One run a sequence; the first output's value."""
        answers = []
        for tokens in sequences:
            fed = np.asarray(tokens).astype(self._type)
            fed = fed if self._axes == 2 else fed[None]
            try:
                output = self._session.run(None, {self._name: fed})[0]
            except Exception as error:
                reason = " ".join(str(error).split())[:120]
                raise InputError(
                    f"{self.identity} failed on {len(tokens)} tokens of width {self.width}: "
                    f"{reason}; check --width"
                ) from None
            answers.append(float_answer(output))
        return answers
