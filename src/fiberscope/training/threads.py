"""Few threads for small matrices: a measurement must not fight with the training for the cores."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from typing import Any

SMALL = 10_000_000
"""Trained parameters up to which the matrices are too small for several threads to pay."""


def threads_for(parameters: int) -> int | None:
    """Threads of a measurement that the caller did not choose: one for small models, else all."""
    return 1 if parameters <= SMALL else None


def limited(threads: int | None) -> AbstractContextManager[Any]:
    """Limit the threads of NumPy's linear algebra in a block; None leaves them.

    Without the package ``threadpoolctl`` there is no way to, and the block does nothing.
    """
    limit = _limiter()
    if threads is None or limit is None:
        return nullcontext()
    entered: AbstractContextManager[Any] = limit(limits=threads, user_api="blas")
    return entered


@cache
def _limiter() -> Callable[..., Any] | None:
    try:
        package = import_module("threadpoolctl")
    except ImportError:
        return None
    import scipy.linalg  # noqa: F401 - its library is limited only if it is loaded

    # Libraries are looked for once: that takes longer than limiting them.
    limit: Callable[..., Any] = package.ThreadpoolController().limit
    return limit
