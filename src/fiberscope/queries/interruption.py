"""Stop a run without losing answers: what is under way is awaited and kept first."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any

GRACE = 8.0
"""Seconds for which requests to an endpoint are awaited after an interruption."""


class Interruption:
    """Turn the first SIGINT or SIGTERM into a request to stop, while queries are under way.

    As a context manager it installs its handlers (in the main thread; elsewhere it does nothing)
    and puts the former ones back. The second signal, and one that arrives while nothing is under
    way, raises :class:`KeyboardInterrupt` at once.

    Parameters
    ----------
    say
        Called with one sentence when a signal is heeded later; it must be safe in a signal handler.
    grace
        Seconds, see :data:`GRACE`.

    Attributes
    ----------
    requested
        Whether to stop once what is under way is kept.
    """

    def __init__(self, say: Callable[[str], None] | None = None, grace: float = GRACE) -> None:
        self.requested = False
        self._say, self._grace = say, grace
        self._busy, self._since = False, 0.0
        self._former: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._former[number] = signal.signal(number, self._heed)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, former in self._former.items():
            signal.signal(number, signal.SIG_DFL if former is None else former)
        self._former.clear()

    def _heed(self, number: int, frame: FrameType | None) -> None:
        if self.requested or not self._busy:
            raise KeyboardInterrupt
        self.requested, self._since = True, time.monotonic()
        if self._say is not None:
            self._say("stopping once the answers under way are kept; interrupt again to stop now")

    @contextlib.contextmanager
    def under_way(self) -> Iterator[None]:
        """Hold a first signal back until the end of the block, or the next `check`."""
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
        self.check()

    def check(self) -> None:
        """Stop here if asked to.

        Raises
        ------
        KeyboardInterrupt
            If so.
        """
        if self.requested:
            raise KeyboardInterrupt

    def remaining(self) -> float | None:
        """Seconds left of the grace; None as long as nobody asked to stop."""
        if not self.requested:
            return None
        return max(0.0, self._since + self._grace - time.monotonic())
