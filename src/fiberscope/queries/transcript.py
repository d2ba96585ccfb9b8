"""The record of what was asked and answered: exact, append-only, and enough to resume a run."""

from __future__ import annotations

import json
from fractions import Fraction
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.queries.oracle import Arithmetic, Oracle

SCHEMA = "fiberscope/transcript/1"


def query_key(tokens: NDArray[Any], repetition: int = 0) -> bytes:
    """Digest of one sequence ``(N, d)`` of float64 or fractions, and of the repetition."""
    if tokens.dtype == object:
        content = ",".join(str(value) for value in tokens.reshape(-1).tolist()).encode()
    else:
        # Adding zero turns -0.0 into 0.0: the same number is the same query.
        content = (tokens + 0.0).tobytes()
    head = f"{tokens.shape[0]}:{repetition}:".encode()
    return blake2b(head + content, digest_size=16).digest()


class Transcript:
    """Answers by query, in memory and, with a path, in a file of JSON lines.

    The first line names the oracle, its width and its arithmetic. Every other line is one answer::

        {"purpose": "recovery", "tokens": [["0x1.8p+0", ...], ...], "answer": "0x1.0p-1"}

    with hexadecimal floats (exact). A ball oracle's tokens are fractions ``"3/2"``, its answer is
    ``[m, e, r, s]`` for the ball ``m 2^e +- r 2^s``, and ``bits`` is the precision asked for. The
    repeat test's lines have a ``repetition``.

    Tokens in full are long: a million queries of two tokens of width 576 would be 25 GB. In a file
    whose first line has ``"queries": "digests"`` a line names its query by :func:`query_key`::

        {"purpose": "recovery", "query": "9f86d081...", "length": 2, "answer": "0x1.0p-1"}

    The same command with the same seed asks the same queries, so such a file resumes, replays and
    audits a run as well; only the tokens cannot be read from it.

    Parameters
    ----------
    path
        A new file, or one that an earlier run of the same oracle wrote: its answers are known.
    digests
        Name queries by their digests in a new file. An old one keeps its form.
    """

    def __init__(self, path: Path | None = None, digests: bool = False) -> None:
        self.path, self.digests = path, digests
        self._known: dict[bytes, tuple[Any, int]] = {}
        self._old: frozenset[bytes] = frozenset()
        self._stream: TextIO | None = None

    def __len__(self) -> int:
        return len(self._known)

    def __enter__(self) -> Transcript:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except InputError:
            if error is None:
                raise

    def belongs_to(self, oracle: Oracle) -> None:
        """Open the file for this oracle and read what is known.

        Raises
        ------
        InputError
            If the file is of another oracle, is no transcript, or cannot be written.
        """
        if self.path is None or self._stream is not None:
            return
        head = {
            "schema": SCHEMA,
            "oracle": oracle.identity,
            "width": oracle.width,
            "arithmetic": oracle.arithmetic.value,
        }
        try:
            exists = self.path.exists() and self.path.stat().st_size > 0
            if self.digests and not exists:
                head["queries"] = "digests"
            if exists:
                self._read(head, oracle.arithmetic)
            self._stream = self.path.open("a", encoding="ascii")
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise InputError(
                f"the transcript {self.path} cannot be used: {reason}; name another file"
            ) from None
        if not exists:
            self._write(head)
            # Before anything is asked: a full disk shows here.
            self.flush()
        self._old = frozenset(self._known)

    def _read(self, head: dict[str, Any], arithmetic: Arithmetic) -> None:
        assert self.path is not None
        raw = self.path.read_bytes()
        whole = raw.rfind(b"\n") + 1
        try:
            lines = raw[:whole].decode("ascii").splitlines()
            found = json.loads(lines[0])
            if not isinstance(found, dict) or found.get("schema") != SCHEMA:
                raise ValueError
            for name in ("oracle", "width", "arithmetic"):
                if found.get(name) != head[name]:
                    raise InputError(
                        f"the transcript {self.path} is of another oracle ({name} "
                        f"{found.get(name)!r}, now {head[name]!r}): name a new file"
                    )
            digests = found.get("queries") == "digests"
            if self.digests and not digests:
                raise InputError(
                    f"the transcript {self.path} holds tokens in full: leave out --digests, or "
                    "name a new file"
                )
            self.digests = digests
            for line in lines[1:]:
                record = json.loads(line)
                bits = int(record.get("bits", 0))
                if digests:
                    key = bytes.fromhex(record["query"])
                else:
                    tokens = _tokens(record["tokens"], arithmetic)
                    key = query_key(tokens, int(record.get("repetition", 0)))
                self._known[key] = (_answer(record["answer"], arithmetic), bits)
        except InputError:
            raise
        except (ValueError, KeyError, IndexError, TypeError):
            raise InputError(
                f"{self.path} is no transcript of queries ({SCHEMA}): name a new file"
            ) from None
        if whole < len(raw):
            # An interrupted run may leave half a line; it was never answered for good.
            with self.path.open("r+b") as stream:
                stream.truncate(whole)

    def knows(self, key: bytes, bits: int) -> bool:
        """Whether a query is answered, for balls with at least so many bits."""
        found = self._known.get(key)
        return found is not None and (isinstance(found[0], float) or found[1] >= bits)

    def is_old(self, key: bytes) -> bool:
        """Whether an earlier run asked it."""
        return key in self._old

    def answer(self, key: bytes) -> Any:
        """The answer to a query."""
        return self._known[key][0]

    def add(
        self,
        key: bytes,
        tokens: NDArray[Any],
        answer: Any,
        purpose: str,
        bits: int,
        repetition: int,
    ) -> None:
        """Keep an answer."""
        ball = not isinstance(answer, float)
        self._known[key] = (answer, bits if ball else 0)
        if self._stream is None:
            return
        record: dict[str, Any] = {"purpose": purpose}
        if repetition:
            record["repetition"] = repetition
        if ball:
            record["bits"] = bits
        if self.digests:
            record |= {"query": key.hex(), "length": len(tokens)}
        elif ball:
            record["tokens"] = [[str(x) for x in row] for row in tokens.tolist()]
        else:
            record["tokens"] = [[x.hex() for x in row] for row in tokens.tolist()]
        record["answer"] = _dump_ball(answer) if ball else answer.hex()
        self._write(record)

    def _write(self, record: dict[str, Any]) -> None:
        assert self._stream is not None
        try:
            self._stream.write(json.dumps(record) + "\n")
        except OSError as error:
            raise self._unwritten(error) from None

    def flush(self) -> None:
        """Hand everything to the file system."""
        if self._stream is None:
            return
        try:
            self._stream.flush()
        except OSError as error:
            raise self._unwritten(error) from None

    def close(self) -> None:
        """Close the file; what is known stays."""
        stream, self._stream = self._stream, None
        if stream is None:
            return
        try:
            stream.close()
        except OSError as error:
            raise self._unwritten(error) from None

    def _unwritten(self, error: OSError) -> InputError:
        reason = (error.strerror or str(error)).lower()
        return InputError(
            f"the transcript {self.path} cannot be written: {reason}; make room and run again, "
            "what it holds is kept, or name another file"
        )


def transcript_head(path: Path) -> dict[str, Any]:
    """The first line of a transcript: its oracle, width and arithmetic; empty if it is none."""
    try:
        with path.open("rb") as stream:
            found = json.loads(stream.readline(1 << 16))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and found.get("schema") == SCHEMA else {}


def _tokens(rows: Any, arithmetic: Arithmetic) -> NDArray[Any]:
    if arithmetic is Arithmetic.BALLS:
        return np.array([[Fraction(x) for x in row] for row in rows], dtype=object)
    return np.array([[float.fromhex(x) for x in row] for row in rows], dtype=np.float64)


def _dump_ball(ball: Any) -> list[str]:
    middle, exponent = ball.mid().man_exp()
    radius, scale = ball.rad().man_exp()
    return [str(middle), str(exponent), str(radius), str(scale)]


def _answer(text: Any, arithmetic: Arithmetic) -> Any:
    if arithmetic is not Arithmetic.BALLS:
        return float.fromhex(text)
    from fiberscope.numbers.balls import ball_precision, load_flint

    arb = load_flint().arb
    middle, exponent, radius, scale = (int(part) for part in text)
    with ball_precision(max(64, middle.bit_length() + 8)):
        return arb((middle, exponent), (radius, scale))
