"""An endpoint as an oracle: JSON over HTTP.

``GET`` the address: ``{"width": 16, "arithmetic": "float64"}``. ``POST`` to it
``{"sequences": [[[...], ...], ...]}``, sequences of tokens of ``width`` numbers each: it answers
``{"answers": [...]}`` with one number for each, ``null`` standing for NaN or infinity, or with an
error status and ``{"error": "one sentence"}``. Numbers are written so that reading them back gives
the same float64. `fiberscope.queries.server` serves a file of weights in this way.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.queries.oracle import BALL_BITS, Arithmetic, float_answer

_TIMEOUT = 120.0
_ATTEMPTS = 4
_PASSING = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses that may be gone a moment later."""


class HttpOracle:
    """Ask an endpoint; connection errors and busy answers are tried again, with pauses.

    Parameters
    ----------
    address
        Of the endpoint, ``http://`` or ``https://``.
    arithmetic
        Overrides what the endpoint says it computes in.
    pause
        Seconds before the second attempt; doubled for each one after that.
    said
        What a transcript says that the endpoint said of itself, ``width`` and ``arithmetic``: then
        it is contacted only when something is asked, and must still say so.
    """

    remote = True

    def __init__(
        self,
        address: str,
        arithmetic: Arithmetic | None = None,
        pause: float = 1.0,
        said: dict[str, Any] | None = None,
    ) -> None:
        self.identity, self._pause = address, pause
        self._declared, self._contacted = arithmetic, threading.Lock()
        self._known = said is None
        self.width, self.arithmetic = self._read(self._exchange(None) if said is None else said)

    def _read(self, said: dict[str, Any]) -> tuple[int, Arithmetic]:
        """Width and arithmetic from what the endpoint says of itself."""
        address, arithmetic = self.identity, self._declared
        width, kind = said.get("width"), said.get("arithmetic", Arithmetic.FLOAT64.value)
        if not isinstance(width, int) or isinstance(width, bool) or width < 1:
            raise InputError(
                f"{address} must answer a GET with a positive integer 'width', not {width!r}"
            )
        if kind not in {"float64", "float32", "bfloat16"}:
            raise InputError(
                f"{address} computes in {str(kind)[:40]!r}: float64, float32 or bfloat16 is needed"
            )
        if arithmetic is Arithmetic.BALLS:
            raise InputError(
                "an endpoint answers floats: balls come from python: or a weights file"
            )
        return width, arithmetic or Arithmetic(kind)

    def _first_contact(self) -> None:
        """See that the endpoint is still what the transcript says."""
        with self._contacted:
            if self._known:
                return
            width, kind = self._read(self._exchange(None))
            if (width, kind) != (self.width, self.arithmetic):
                raise InputError(
                    f"{self.identity} now has width {width} in {kind.value}, and the transcript "
                    f"width {self.width} in {self.arithmetic.value}: name a new file"
                )
            self._known = True

    def answer(self, sequences: Sequence[NDArray[Any]], bits: int = BALL_BITS) -> list[float]:
        """One request for all sequences."""
        self._first_contact()
        body = json.dumps({"sequences": [np.asarray(each).tolist() for each in sequences]})
        answers = self._exchange(body.encode("ascii")).get("answers")
        if not isinstance(answers, list) or len(answers) != len(sequences):
            raise InputError(
                f"{self.identity} must answer with a list 'answers' of {len(sequences)} numbers"
            )
        if not all(value is None or type(value) in (int, float) for value in answers):
            raise InputError(f"{self.identity} gave an answer that is neither a number nor null")
        return [float("nan") if value is None else float_answer(value) for value in answers]

    def _exchange(self, body: bytes | None) -> dict[str, Any]:
        """Send a request and read a JSON object."""
        for attempt in range(_ATTEMPTS):
            if attempt:
                time.sleep(self._pause * 2 ** (attempt - 1))
            last = attempt + 1 == _ATTEMPTS
            request = urllib.request.Request(
                self.identity, body, {"Content-Type": "application/json"}
            )
            try:
                with urllib.request.urlopen(request, timeout=_TIMEOUT) as reply:
                    found = json.load(reply)
            except urllib.error.HTTPError as error:
                with error:
                    if error.code in _PASSING and not last:
                        continue
                    said = _sentence(error)
                raise InputError(
                    f"{self.identity} refused with status {error.code}{said}: check the address"
                ) from None
            except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
                if isinstance(error, OSError | http.client.HTTPException) and not last:
                    continue
                reason = getattr(error, "reason", error)
                reason = getattr(reason, "strerror", None) or str(reason) or type(error).__name__
                what = "did not answer with JSON"
                if isinstance(error, OSError):
                    what = "cannot be reached, nothing answered"
                elif isinstance(error, http.client.HTTPException):
                    what = "did not answer in full"
                raise InputError(
                    f"{self.identity} {what}: {reason[:120].lower()}; check the address, and that "
                    "the server runs"
                ) from None
            if not isinstance(found, dict):
                raise InputError(f"{self.identity} must answer with a JSON object")
            return found
        raise AssertionError


def _sentence(error: urllib.error.HTTPError) -> str:
    try:
        found = json.load(error)
        return f" ({str(found['error'])[:160]})"
    except (ValueError, OSError, KeyError, TypeError):
        return ""
