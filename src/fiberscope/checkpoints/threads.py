"""Few threads, each with one thread of linear algebra: layers are many, their matrices small."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import import_module
from typing import Any, TypeVar

Result = TypeVar("Result")

MOST = 4
"""Threads at most: beyond that the memory's bandwidth is the limit."""


def workers() -> int:
    """How many threads to use."""
    return min(MOST, os.cpu_count() or 1)


def in_order(
    tasks: Iterable[tuple[int, Callable[[], Result]]], allowance: int, threads: int | None = None
) -> Iterator[Result]:
    """Results of independent tasks, in the order of the tasks, computed a few at a time.

    Parameters
    ----------
    tasks
        What to call, each with its size. Asked for the next task, the iterator may run code of its
        own; that happens in the calling thread.
    allowance
        Sum of the sizes of tasks that are under way or whose result was not handed out yet; a
        larger task runs alone. This is what bounds the memory.
    threads
        How many work; by default :func:`workers`. One is the calling thread itself.

    Yields
    ------
    Result
        What each task returned. An exception of a task comes in its place, and ends the others.
    """
    count = workers() if threads is None else threads
    if count < 2:
        yield from (task() for _, task in tasks)
        return
    with ThreadPoolExecutor(count) as pool:
        waiting: deque[tuple[int, Future[Result]]] = deque()
        under_way = 0
        try:
            for size, task in tasks:
                while waiting and (under_way + size > allowance or len(waiting) > 2 * count):
                    done, future = waiting.popleft()
                    yield future.result()
                    under_way -= done
                waiting.append((size, pool.submit(task)))
                under_way += size
            while waiting:
                yield waiting.popleft()[1].result()
        finally:
            for _, future in waiting:
                future.cancel()


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
