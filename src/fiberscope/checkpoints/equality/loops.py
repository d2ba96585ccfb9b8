"""Whether compiled loops are at hand, and pay: loading them takes about a second."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

LEAST = 1 << 17
"""Numbers of a matrix from which loops are compiled, or loaded, for it."""


def loops(numbers: int, name: str = "kernels") -> ModuleType | None:
    """A module of loops beside this one, for so many numbers; None without Numba."""
    return loaded(name) if numbers >= LEAST and is_installed() else None


def prepare() -> None:
    """Load all modules of loops, where they are at hand: the first time compiles them."""
    if is_installed():
        for name in (
            "kernels",
            "sum_kernels",
            "residual_kernels",
            "factor_kernels",
            "head_kernels",
        ):
            loaded(name)


@cache
def is_installed() -> bool:
    """Whether Numba, the optional extra ``fast``, is there."""
    return find_spec("numba") is not None


@cache
def loaded(name: str) -> ModuleType:
    """A module of loops, which :func:`loops` says are there."""
    return import_module(f"fiberscope.checkpoints.equality.{name}")
