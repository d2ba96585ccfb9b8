"""Evaluating a published model class truly in float64.

Published classes cast to float32 inside norms, softmax, rotary tables and masks, whatever the dtype
of their weights. The cast leaves noise of 1e-7, in which exact symmetries and genuinely small
singular values cannot be told apart. Here every request for a narrower floating type is answered
with float64, at the level of torch's function calls, so no class needs to be known by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any


@cache
def _float64_mode() -> type[Any]:
    """The torch function mode that turns every request for a narrow float into float64."""
    import torch
    from torch.overrides import TorchFunctionMode

    narrow = {torch.float32, torch.float16, torch.bfloat16}
    casts = {
        torch.Tensor.float: torch.Tensor.double,
        torch.Tensor.half: torch.Tensor.double,
        torch.Tensor.bfloat16: torch.Tensor.double,
    }

    def widen(value: Any) -> Any:
        return torch.float64 if isinstance(value, torch.dtype) and value in narrow else value

    class Float64Mode(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            func = casts.get(func, func)
            widened = {name: widen(value) for name, value in (kwargs or {}).items()}
            return func(*(widen(value) for value in args), **widened)

    return Float64Mode


@contextmanager
def float64_evaluation() -> Iterator[None]:
    """Make all floating torch arithmetic inside the block float64.

    Rewrites every ``dtype`` argument that asks for float32, float16 or bfloat16 and every
    ``.float()``, ``.half()`` and ``.bfloat16()``, and makes float64 torch's default type. The
    default is restored on exit. Tensors that are *already* narrow are not converted: build the
    model inside the block too, so that its tables (rotary frequencies, scales) are born in float64.
    """
    import torch

    previous = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _float64_mode()():
            yield
    finally:
        torch.set_default_dtype(previous)
