"""Serve a file of weights as a black box: ``python -m fiberscope.queries.server WEIGHTS.npz``.

The shape of requests and answers is that of `fiberscope.queries.http_oracle`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.queries.oracle import Arithmetic, Oracle
from fiberscope.queries.weights_oracle import HeadsOracle, read_heads

_LARGEST_REQUEST = 1 << 28


def serve(
    oracle: Oracle, host: str = "127.0.0.1", port: int = 0, delay: float = 0.0
) -> ThreadingHTTPServer:
    """A server for an oracle, bound but not yet running (`serve_forever`, `server_close`).

    Parameters
    ----------
    oracle
        Answers floats.
    host, port
        Where; port 0 takes a free one, see ``server_address``.
    delay
        Seconds that every request takes longer, to imitate a slow endpoint.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._reply(200, {"width": oracle.width, "arithmetic": oracle.arithmetic.value})

        def do_POST(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            if length > _LARGEST_REQUEST:
                self.close_connection = True
                self._reply(413, {"error": "the request is too long: send fewer sequences"})
                return
            try:
                sequences = _sequences(json.loads(self.rfile.read(length)), oracle.width)
            except (ValueError, TypeError, KeyError) as error:
                self._reply(400, {"error": f"no list of sequences: {error}"})
                return
            time.sleep(delay)
            answers = [float(value) for value in oracle.answer(sequences)]
            plain = [value if np.isfinite(value) else None for value in answers]
            self._reply(200, {"answers": plain})

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

        def _reply(self, status: int, data: dict[str, Any]) -> None:
            body = json.dumps(data).encode("ascii")
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    return ThreadingHTTPServer((host, port), Handler)


def _sequences(data: Any, width: int) -> list[NDArray[np.float64]]:
    found = [np.array(each, dtype=np.float64) for each in data["sequences"]]
    for each in found:
        if each.ndim != 2 or each.shape[1] != width or not len(each):
            raise ValueError(f"a sequence has shape {each.shape}, expected (tokens, {width})")
    return found


def main(arguments: list[str] | None = None) -> None:
    """Command line of the example server."""
    parser = argparse.ArgumentParser(
        prog="python -m fiberscope.queries.server", description=__doc__
    )
    parser.add_argument("weights", type=Path, help="npz file with W (H, d, d) and v (H, d)")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8765, help="0 takes a free one")
    kinds = [each.value for each in Arithmetic if each is not Arithmetic.BALLS]
    parser.add_argument("--arithmetic", choices=kinds, default="float64")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds added to every request")
    chosen = parser.parse_args(arguments)
    try:
        oracle = HeadsOracle(read_heads(chosen.weights), Arithmetic(chosen.arithmetic))
        server = serve(oracle, chosen.host, chosen.port, chosen.delay)
    except InputError as error:
        sys.exit(f"fiberscope: {error}")
    except OSError as error:
        sys.exit(f"fiberscope: {chosen.host}:{chosen.port} cannot be served: {error.strerror}")
    host, port = server.server_address[:2]
    print(f"http://{host!s}:{port}/", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()


if __name__ == "__main__":
    main()
