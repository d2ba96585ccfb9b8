"""Independent tasks in several processes: threads would wait for the interpreter's lock.

A step on a layer is hundreds of short array operations, and threads hand over the lock at each.
Forked processes share what is in memory already and hand back only their results.
"""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

Result = TypeVar("Result")
_PARENT_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of Linux."""

_tasks: Sequence[Callable[[], Any]] = ()


def results(tasks: Sequence[Callable[[], Result]], processes: int) -> Iterator[Result]:
    """Results of tasks in their order, computed by some processes.

    Where processes cannot be forked safely (another system than Linux, other threads at work), or
    one is asked for, the tasks run here, one after the other. Daemon threads, such as those that
    show progress, do not count: nothing of theirs is used in the processes.

    Parameters
    ----------
    tasks
        What to call. Their results must be picklable.
    processes
        How many at most.

    Yields
    ------
    Result
        What each task returned. An exception of a task comes in its place, and ends the others.
    """
    count = min(processes, len(tasks))
    if count < 2 or sys.platform != "linux" or not _alone():
        yield from (task() for task in tasks)
        return
    global _tasks
    _tasks = tasks
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(count, mp_context=context, initializer=_obey) as pool:
        try:
            futures = [pool.submit(_run, number) for number in range(len(tasks))]
            for future in futures:
                yield future.result()
        finally:
            _tasks = ()
            pool.shutdown(wait=True, cancel_futures=True)


def _obey() -> None:
    """Leave interrupts to the parent, and end with it whatever ended it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGTERM)


def _alone() -> bool:
    return all(
        thread.daemon or thread is threading.current_thread() for thread in threading.enumerate()
    )


def _run(number: int) -> Any:
    return _tasks[number]()
