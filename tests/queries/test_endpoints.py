import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from fiberscope.errors import InputError
from fiberscope.queries.heads import AttentionHeads
from fiberscope.queries.http_oracle import HttpOracle
from fiberscope.queries.loading import load_oracle
from fiberscope.queries.oracle import Arithmetic
from fiberscope.queries.recover import Request, recover_attention
from fiberscope.queries.server import serve
from fiberscope.queries.session import Purpose, QuerySession
from fiberscope.queries.transcript import Transcript
from fiberscope.queries.weights_oracle import HeadsOracle


def draw(seed=0, d=3):
    rng = np.random.default_rng(seed)
    return AttentionHeads(rng.standard_normal((1, d, d)), rng.standard_normal((1, d)))


@pytest.fixture
def run():
    """Run servers in threads and stop them afterwards."""
    started = []

    def start(server):
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        started.append((server, thread))
        host, port = server.server_address[:2]
        return f"http://{host}:{port}/"

    yield start
    for server, thread in started:
        server.shutdown()
        thread.join()
        server.server_close()


class Scripted:
    """A server that gives the answers it is told, and remembers what it was sent."""

    def __init__(self, *replies):
        script, self.received = list(replies), []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self):
                length = int(self.headers.get("Content-Length") or 0)
                outer.received.append(self.rfile.read(length))
                status, body = script.pop(0) if len(script) > 1 else script[0]
                body = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = answer  # noqa: N815

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)


HELLO = (200, {"width": 3, "arithmetic": "float32"})


def test_recovery_over_http_equals_recovery_at_home(run):
    heads = draw()
    address = run(serve(HeadsOracle(heads)))
    session = QuerySession(HttpOracle(address), batch=64, workers=4)
    far = recover_attention(session, Request(heads=1), seed=5)
    home = recover_attention(QuerySession(HeadsOracle(heads)), Request(heads=1), seed=5)
    # Batches differ, and with them the order of sums inside products.
    assert np.allclose(far.heads.W, home.heads.W, rtol=1e-11)
    assert np.linalg.norm(far.heads.W - heads.W) < 1e-11


def test_workers_overlap_requests_to_a_slow_endpoint(run):
    address = run(serve(HeadsOracle(draw()), delay=0.1))
    X = np.random.default_rng(0).standard_normal((16, 2, 3))
    session = QuerySession(HttpOracle(address), batch=2, workers=8)
    start = time.monotonic()
    values = session.ask(X, Purpose.RECOVERY)
    assert time.monotonic() - start < 0.1 * 8
    assert np.allclose(values, draw().evaluate_many(X))


def test_shape_of_the_exchange(run):
    scripted = Scripted(HELLO, (200, {"answers": [1.5, None]}))
    oracle = HttpOracle(run(scripted.server))
    assert (oracle.width, oracle.arithmetic) == (3, Arithmetic.FLOAT32)
    values = oracle.answer([np.full((2, 3), 0.1), np.ones((1, 3))])
    assert values[0] == 1.5 and np.isnan(values[1])
    assert json.loads(scripted.received[1]) == {"sequences": [[[0.1] * 3] * 2, [[1.0] * 3]]}


def test_busy_endpoints_are_asked_again(run):
    scripted = Scripted(HELLO, (503, {}), (429, {}), (200, {"answers": [2.0]}))
    oracle = HttpOracle(run(scripted.server), pause=0.01)
    assert oracle.answer([np.ones((1, 3))]) == [2.0]
    assert len(scripted.received) == 4


@pytest.mark.parametrize(
    ("replies", "message"),
    [
        ([(404, {"error": "nothing here"})], "status 404 .nothing here."),
        ([(200, {"width": 0})], "positive integer"),
        ([(200, b"<html>")], "JSON"),
        ([(200, [1])], "JSON object"),
        ([(200, {"width": 3, "arithmetic": "decimal"})], "float64, float32 or bfloat16"),
        ([HELLO, (200, {"answers": [1.0, 2.0]})], "list 'answers' of 1"),
        ([HELLO, (200, {"answers": ["1.0"]})], "neither a number"),
        ([HELLO, (500, {})], "status 500"),
        ([HELLO, (200, b"[" * 100_000)], "JSON"),
    ],
)
def test_bad_endpoints(run, replies, message):
    address = run(Scripted(*replies).server)
    with pytest.raises(InputError, match=message):
        HttpOracle(address, pause=0.001).answer([np.ones((1, 3))])


def test_an_integer_beyond_floats_is_infinite(run):
    body = b'{"answers": [1' + b"0" * 400 + b"]}"
    oracle = HttpOracle(run(Scripted(HELLO, (200, body)).server), pause=0.001)
    assert oracle.answer([np.ones((1, 3))]) == [np.inf]


def test_answers_cut_off_are_asked_again_and_then_refused(run):
    scripted = Scripted(HELLO, (200, {"answers": [2.0]}))
    oracle = HttpOracle(run(scripted.server), pause=0.001)
    whole = scripted.server.RequestHandlerClass.send_header

    def longer(self, name, value):
        whole(self, name, str(int(value) + 9) if name == "Content-Length" else value)

    scripted.server.RequestHandlerClass.send_header = longer
    with pytest.raises(InputError, match="did not answer"):
        oracle.answer([np.ones((1, 3))])
    assert len(scripted.received) == 5


def test_nobody_there():
    with pytest.raises(InputError, match="nothing answered: connection refused"):
        HttpOracle("http://127.0.0.1:9/", pause=0.001)


def test_a_transcript_replays_without_the_endpoint(run, tmp_path):
    server = serve(HeadsOracle(draw()))
    address = run(server)
    path = tmp_path / "asked.jsonl"
    with Transcript(path) as record:
        session = QuerySession(load_oracle(address, transcript=path), transcript=record)
        first = recover_attention(session, Request(heads=1), seed=5)
    server.shutdown()
    server.server_close()
    with Transcript(path) as record:
        oracle = load_oracle(address, width=3, transcript=path)
        session = QuerySession(oracle, transcript=record)
        again = recover_attention(session, Request(heads=1), seed=5)
        assert session.asked == 0 and session.replayed == session.queries
        assert np.array_equal(first.heads.W, again.heads.W)
        # More than it holds is asked, and there is nobody.
        oracle._pause = 0.001
        with pytest.raises(InputError, match="nothing answered"):
            session.ask(np.full((1, 2, 3), 0.3), Purpose.RECOVERY)


def test_an_endpoint_that_is_another_now_is_refused_at_first_contact(run):
    oracle = HttpOracle(
        run(Scripted((200, {"width": 4})).server), said={"width": 3, "arithmetic": "float64"}
    )
    assert oracle.width == 3
    with pytest.raises(InputError, match="now has width 4"):
        oracle.answer([np.ones((1, 3))])


@pytest.mark.parametrize(
    "body", [b"{", b"[]", b'{"sequences": [[[1, 2]]]}', b'{"sequences": [[]]}']
)
def test_server_refuses_other_shapes(run, body):
    address = run(serve(HeadsOracle(draw())))
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(urllib.request.Request(address, body))
    with caught.value:
        assert caught.value.code == 400
        assert "error" in json.load(caught.value)


def test_example_server_as_a_program(tmp_path):
    heads = draw(3)
    np.savez(tmp_path / "weights.npz", W=heads.W, v=heads.v)
    command = [sys.executable, "-m", "fiberscope.queries.server", "weights.npz", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            oracle = HttpOracle(process.stdout.readline().strip())
            X = np.random.default_rng(1).standard_normal((4, 5, 3))
            assert np.allclose(oracle.answer(list(X)), heads.evaluate_many(X), rtol=1e-12)
        finally:
            process.terminate()
    missing = [*command[:3], "none.npz"]
    found = subprocess.run(missing, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert found.stderr.startswith("fiberscope: none.npz cannot be read")
