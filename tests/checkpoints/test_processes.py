"""Tasks in several processes give what they give here, in their order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fiberscope.checkpoints.processes import results
from fiberscope.errors import InputError


def _square(value: int) -> tuple[int, np.ndarray, int]:
    return value, np.full(3, value**2), os.getpid()


def _fail() -> tuple[int, np.ndarray, int]:
    raise InputError("tensor 'x' is damaged; load it again")


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_results_come_in_order(processes: int) -> None:
    found = list(results([partial(_square, value) for value in range(7)], processes))
    assert [value for value, _, _ in found] == list(range(7))
    assert [int(array[0]) for _, array, _ in found] == [value**2 for value in range(7)]
    elsewhere = {pid for _, _, pid in found} - {os.getpid()}
    assert bool(elsewhere) == (processes > 1 and sys.platform == "linux")


def test_an_error_comes_in_its_place() -> None:
    found = results([partial(_square, 1), _fail, partial(_square, 2)], 2)
    assert next(found)[0] == 1
    with pytest.raises(InputError, match="damaged"):
        next(found)


def test_nothing_is_forked_beside_other_threads() -> None:
    over = threading.Event()
    other = threading.Thread(target=over.wait)
    other.start()
    try:
        found = list(results([partial(_square, value) for value in range(3)], 2))
    finally:
        over.set()
        other.join()
    assert {pid for _, _, pid in found} == {os.getpid()}


_PROGRAM = """
import os, sys, time
from functools import partial
from fiberscope.checkpoints.processes import results

def wait(number):
    os.write(1, f"{os.getpid()}\\n".encode())  # whole lines, also beside another process
    time.sleep(30 if number else 0.1)
    return number

for _ in results([partial(wait, number) for number in range(3)], 2):
    pass
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGKILL])
def test_the_processes_end_with_their_parent(stop: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM], stdout=subprocess.PIPE, text=True
    ) as program:
        assert program.stdout is not None
        workers = {int(program.stdout.readline()) for _ in range(3)}
        assert len(workers) == 2
        program.send_signal(stop)
        program.wait(timeout=20)
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() and not _is_over(pid) for pid in workers):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _is_over(pid: int) -> bool:
    """Ended, but for the exit status that its new parent may not have asked for yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True
