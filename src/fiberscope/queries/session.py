"""Ask an oracle with a budget, a count by purpose, and a transcript that answers repetitions."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.queries.interruption import Interruption
from fiberscope.queries.oracle import BALL_BITS, Arithmetic, Oracle, float_answer
from fiberscope.queries.refusals import NotRecoveredError
from fiberscope.queries.transcript import Transcript, query_key

if TYPE_CHECKING:
    from fiberscope.queries.class_tests import ClassTests

Piece = list[tuple[bytes, int]]
"""Keys and places of the sequences handed to the oracle together."""

FIRST_REQUEST, SHORT, LONG = 32, 0.3, 1.5
"""Sequences of the first request to an endpoint whose answers are kept in a file; requests double
below the first number of seconds and are halved above the second, so that little is under way."""


class Purpose(Enum):
    """What a query is asked for; counted apart."""

    CLASS_TESTS = "class_tests"
    RECOVERY = "recovery"
    RETRIES = "retries"
    FINAL_CHECK = "final_check"


class QueryLimitError(InputError):
    """The number of queries that the user allows is spent."""


@dataclass(frozen=True)
class QueryCount:
    """Queries for one purpose.

    Attributes
    ----------
    queries
        Distinct sequences; one answered by a transcript of an earlier run counts as well.
    longest
        Tokens of the longest sequence.
    """

    queries: int = 0
    longest: int = 0


class QuerySession:
    """Everything that is asked of one oracle.

    Parameters
    ----------
    oracle
        What is asked.
    max_queries
        :class:`QueryLimitError` before this many distinct queries are exceeded.
    transcript
        Where answers are kept (default: in memory). A query that it knows is never asked again.
    batch
        Sequences handed to the oracle at a time.
    workers
        Batches under way at once; for endpoints that take their time.
    progress
        Called with (queries so far, purpose) after every batch.
    token_bound
        Largest 2-norm of a token that may be sent.
    interruption
        Heeds signals: what is under way is kept before the run stops.

    Attributes
    ----------
    width, arithmetic
        Those of the oracle.
    asked
        Sequences sent to the oracle by this session.
    refined
        Among them, sequences asked before with fewer bits (balls only). They are no new queries.
    replayed
        Queries answered by an earlier run's transcript.
    nonfinite
        Answers that were NaN or infinite.
    bits
        Precision of the last query, of a ball oracle.
    tests
        What the class tests found, once they are done; a refusal shows them.
    """

    def __init__(
        self,
        oracle: Oracle,
        *,
        max_queries: int | None = None,
        transcript: Transcript | None = None,
        batch: int = 4096,
        workers: int = 1,
        progress: Callable[[int, Purpose], None] | None = None,
        token_bound: float | None = None,
        interruption: Interruption | None = None,
    ) -> None:
        self.oracle, self.width, self.arithmetic = oracle, oracle.width, oracle.arithmetic
        self.max_queries, self.batch, self.workers = max_queries, max(1, batch), max(1, workers)
        if self.arithmetic is Arithmetic.BALLS:
            self.workers = 1  # python-flint's precision is one global
        self.transcript = Transcript() if transcript is None else transcript
        self.transcript.belongs_to(oracle)
        self.progress, self.token_bound = progress, token_bound
        self.interruption = interruption or Interruption()
        self._request = FIRST_REQUEST
        self.bits = 0
        self.tests: ClassTests | None = None
        self.asked = self.refined = self.replayed = self.nonfinite = 0
        self._seen: set[bytes] = set()
        self._counts = {purpose: QueryCount() for purpose in Purpose}

    @property
    def counts(self) -> Mapping[Purpose, QueryCount]:
        """Queries and greatest length by purpose."""
        return dict(self._counts)

    @property
    def queries(self) -> int:
        """Distinct queries for all purposes."""
        return len(self._seen)

    def representable(self, tokens: Any) -> NDArray[Any]:
        """Nearest tokens on the oracle's grid: build probes from these (`Arithmetic`)."""
        return self.arithmetic.representable(tokens)

    def ask(
        self,
        sequences: Sequence[NDArray[Any]] | NDArray[Any],
        purpose: Purpose,
        *,
        bits: int = BALL_BITS,
        repetition: int = 0,
    ) -> NDArray[Any]:
        """Answers to sequences, in order.

        Parameters
        ----------
        sequences
            Arrays ``(N, width)``, or one array ``(n, N, width)``; rounded to the oracle's grid.
        purpose
            Counts the queries that are new.
        bits
            Precision for a ball oracle: an answer known with fewer bits is asked again.
        repetition
            The same sequence with another number is another query: the repeat test.

        Returns
        -------
        numpy.ndarray
            Shape ``(n,)``: float64 (NaN and infinity as answered), or objects ``flint.arb``.

        Raises
        ------
        QueryLimitError
            Before asking more than ``max_queries``; nothing of this call has been asked then.
        InputError
            If a sequence has another shape, or the oracle answers with something else.
        NotRecoveredError
            If a token is longer than ``token_bound``; nothing of this call has been asked then.
        """
        self.bits = bits if self.arithmetic is Arithmetic.BALLS else 0
        tokens = self._prepare(sequences)
        self._within_bound(tokens)
        keys = [query_key(each, repetition) for each in tokens]
        missing: dict[bytes, int] = {}
        for place, key in enumerate(keys):
            if not self.transcript.knows(key, bits):
                missing.setdefault(key, place)
        self._count(keys, tokens, purpose)
        self._fetch(missing, tokens, purpose, bits, repetition)
        answers = [self.transcript.answer(key) for key in keys]
        if self.arithmetic is Arithmetic.BALLS:
            result = np.empty(len(answers), dtype=object)
            result[:] = answers
            return result
        values = np.array(answers, dtype=np.float64)
        self.nonfinite += int(np.count_nonzero(~np.isfinite(values)))
        return values

    def _prepare(self, sequences: Any) -> Sequence[NDArray[Any]]:
        if isinstance(sequences, np.ndarray) and sequences.dtype != object:
            tokens: Any = np.ascontiguousarray(self.representable(sequences))
        else:
            tokens = [np.ascontiguousarray(self.representable(each)) for each in sequences]
        for each in tokens:
            if each.ndim != 2 or each.shape[0] < 1 or each.shape[1] != self.width:
                raise InputError(
                    f"a query has shape {each.shape}: sequences have shape (tokens, {self.width})"
                )
        result: Sequence[NDArray[Any]] = tokens
        return result

    def _within_bound(self, tokens: Sequence[NDArray[Any]]) -> None:
        if self.token_bound is None:
            return
        for each in tokens:
            longest = float(np.linalg.norm(each.astype(np.float64), axis=1).max())
            if longest > self.token_bound * (1 + 2.0**-40):
                raise NotRecoveredError(
                    f"this method needs tokens of 2-norm {longest:.3g}, beyond --token-bound "
                    f"{self.token_bound:.3g}, to see scores: raise the bound"
                )

    def _count(
        self, keys: Sequence[bytes], tokens: Sequence[NDArray[Any]], purpose: Purpose
    ) -> None:
        fresh = {key: place for place, key in enumerate(keys) if key not in self._seen}
        if self.max_queries is not None and self.queries + len(fresh) > self.max_queries:
            raise QueryLimitError(
                f"{self.queries} queries are spent and {len(fresh)} more would exceed "
                f"--max-queries {self.max_queries}: raise it (a transcript keeps what is known)"
            )
        if not fresh:
            return
        self._seen.update(fresh)
        self.replayed += sum(self.transcript.is_old(key) for key in fresh)
        before = self._counts[purpose]
        longest = max(len(tokens[place]) for place in fresh.values())
        self._counts[purpose] = QueryCount(
            before.queries + len(fresh), max(before.longest, longest)
        )

    def _fetch(
        self,
        missing: Mapping[bytes, int],
        tokens: Any,
        purpose: Purpose,
        bits: int,
        repetition: int,
    ) -> None:
        """Ask for what is missing, in batches; each is kept as soon as it arrives."""
        waiting = deque(missing.items())
        self.refined += sum(self.transcript.knows(key, 0) for key in missing)

        def send(piece: Piece) -> Sequence[Any]:
            places = [place for _, place in piece]
            if isinstance(tokens, np.ndarray):
                return self._answers(tokens[places], bits)
            return self._answers([tokens[place] for place in places], bits)

        def keep(piece: Piece, answers: Sequence[Any]) -> None:
            for (key, place), value in zip(piece, answers, strict=True):
                self.transcript.add(key, tokens[place], value, purpose.value, bits, repetition)
            self.transcript.flush()
            self.asked += len(piece)
            if self.progress is not None:
                self.progress(self.queries, purpose)

        if not waiting:
            return
        # Without a file nothing can be kept, and an interruption may come at any time.
        if self.transcript.path is None:
            self._ask_for(waiting, send, keep)
        else:
            with self.interruption.under_way():
                self._ask_for(waiting, send, keep)

    def _next(self, waiting: deque[tuple[bytes, int]]) -> Piece:
        """Take what is sent together: the less, the less an accident can lose."""
        most = self.batch
        if self.transcript.path is not None:
            # What is asked one by one anyway is kept one by one.
            single = getattr(self.oracle, "one_at_a_time", False)
            if single or self.arithmetic is Arithmetic.BALLS:
                most = 1
            elif getattr(self.oracle, "remote", False):
                most = min(most, self._request)
        return [waiting.popleft() for _ in range(min(most, len(waiting)))]

    def _ask_for(
        self,
        waiting: deque[tuple[bytes, int]],
        send: Callable[[Piece], Sequence[Any]],
        keep: Callable[[Piece, Sequence[Any]], None],
    ) -> None:
        if self.workers == 1 and not getattr(self.oracle, "remote", False):
            while waiting:
                piece = self._next(waiting)
                keep(piece, send(piece))
                self.interruption.check()
            return
        # Threads that nobody has to wait for: a second interruption ends the program at once.
        done: queue.SimpleQueue[tuple[Piece, Sequence[Any], float, BaseException | None]]
        done = queue.SimpleQueue()

        def work(piece: Piece) -> None:
            start = time.monotonic()
            try:
                done.put((piece, send(piece), time.monotonic() - start, None))
            except BaseException as error:
                done.put((piece, (), 0.0, error))

        running, failure = 0, None
        try:
            while running or (waiting and failure is None and not self.interruption.requested):
                while (
                    waiting
                    and running < self.workers
                    and failure is None
                    and not self.interruption.requested
                ):
                    piece = self._next(waiting)
                    threading.Thread(target=work, args=(piece,), daemon=True).start()
                    running += 1
                try:
                    # A short wait, to notice a signal that came in the meantime.
                    left = self.interruption.remaining()
                    pause = 0.5 if left is None else left
                    piece, answers, seconds, failed = done.get(timeout=pause)
                except queue.Empty:
                    if self.interruption.remaining() == 0.0:
                        break
                    continue
                running -= 1
                if failed is not None:
                    failure = failed
                    continue
                keep(piece, answers)
                if seconds > LONG:
                    self._request = max(1, self._request // 2)
                elif seconds < SHORT and len(piece) >= self._request:
                    self._request = min(2 * self._request, self.batch)
        except KeyboardInterrupt:
            while not done.empty():
                piece, answers, _, failed = done.get()
                if failed is None:
                    keep(piece, answers)
            raise
        self.interruption.check()
        if failure is not None:
            raise failure

    def _answers(self, sequences: Any, bits: int) -> Sequence[Any]:
        answers = self.oracle.answer(sequences, bits)
        if len(answers) != len(sequences):
            raise InputError(
                f"the oracle gave {len(answers)} answers to {len(sequences)} sequences: one number "
                "for each is needed"
            )
        if self.arithmetic is Arithmetic.BALLS:
            return answers
        return [float_answer(value) for value in answers]
