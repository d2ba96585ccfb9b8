"""Real signals sent to real runs: what was under way is kept, and nothing is asked twice."""

import collections
import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from fiberscope.queries.heads import AttentionHeads
from fiberscope.queries.server import serve
from fiberscope.queries.weights_oracle import HeadsOracle

RUN = "import sys; from fiberscope.cli.main import main; main(sys.argv[1:])"
SLOW = """
import os, sys, time
from fiberscope.cli.main import main
from {module} import {oracle} as Oracle
answer = Oracle.answer
def slowly(self, sequences, bits=128):
    time.sleep({seconds})
    found = answer(self, sequences, bits)
    with open("asked.txt", "a") as stream:
        stream.write(f"{{len(sequences)}}\\n")
    return found
Oracle.answer = slowly
main(sys.argv[1:])
"""


class Counting:
    """Remembers every sequence that it answers."""

    def __init__(self, oracle):
        self.oracle, self.width, self.arithmetic = oracle, oracle.width, oracle.arithmetic
        self.identity, self.seen, self.lock = oracle.identity, [], threading.Lock()

    def answer(self, sequences, bits=128):
        with self.lock:
            self.seen += [np.asarray(each).tobytes() for each in sequences]
        return self.oracle.answer(sequences, bits)


def heads(d=4):
    rng = np.random.default_rng(2)
    return AttentionHeads(rng.standard_normal((1, d, d)), rng.standard_normal((1, d)))


@pytest.fixture
def start(tmp_path):
    """Start the command in a folder of its own."""
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}

    def begin(code, *arguments):
        command = [sys.executable, "-c", code, "recover", "attention", *arguments, "--json"]
        return subprocess.Popen(
            command,
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    return begin


def wait_until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGINT, "1"), (signal.SIGTERM, "3")])
def test_an_endpoint_is_asked_nothing_twice(start, tmp_path, number, workers):
    oracle = Counting(HeadsOracle(heads()))
    server = serve(oracle, delay=0.15)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    address = "http://{}:{}/".format(*server.server_address[:2])
    try:
        asking = ("--oracle", address, "--heads", "1", "--workers", workers)
        whole = json.loads(start(RUN, *asking).communicate(timeout=60)[0])
        expected, oracle.seen = collections.Counter(oracle.seen), []
        keep = ("--transcript", "kept.jsonl")
        for stop_at in (20, 130, 170):
            process = start(RUN, *asking, *keep)
            wait_until(lambda least=stop_at: len(oracle.seen) >= least)
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
            assert (process.returncode, out) == (130, "") and "interrupt" in err
            kept = len((tmp_path / "kept.jsonl").read_text().splitlines()) - 1
            assert kept == len(oracle.seen) >= stop_at
        found = json.loads(start(RUN, *asking, *keep).communicate(timeout=60)[0])
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert collections.Counter(oracle.seen) == expected
    assert found["replayed"] >= 170 and found["sent"] + found["replayed"] == whole["sent"]
    assert np.allclose(found["W"], whole["W"], rtol=1e-9)


def save(name, path):
    if name == "box.npz":
        np.savez(path, W=heads().W, v=heads().v)
        return "fiberscope.queries.weights_oracle", "HeadsOracle", 0.4
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    from tests.queries.test_onnx_oracle import attention_model

    attention_model(path, np.float64)
    return "fiberscope.queries.onnx_oracle", "OnnxOracle", 0.01


@pytest.mark.parametrize("name", ["box.npz", "box.onnx"])
def test_a_file_finishes_what_it_is_asked(start, tmp_path, name):
    module, oracle, seconds = save(name, tmp_path / name)
    code = SLOW.format(module=module, oracle=oracle, seconds=seconds)
    asking = ("--oracle", name, "--heads", "1")
    log = tmp_path / "asked.txt"

    def asked():
        return sum(map(int, log.read_text().split())) if log.exists() else 0

    whole = json.loads(start(code, *asking).communicate(timeout=60)[0])
    assert asked() == whole["sent"]
    log.unlink()
    for stop_at in (1, 30):
        process = start(code, *asking, "--transcript", "kept.jsonl")
        wait_until(lambda least=stop_at: asked() >= least)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 130
        lines = (tmp_path / "kept.jsonl").read_text().splitlines()
        assert len(lines) - 1 == asked() < whole["sent"]
    again = json.loads(
        start(code, *asking, "--transcript", "kept.jsonl").communicate(timeout=60)[0]
    )
    assert asked() == whole["sent"] == again["sent"] + again["replayed"]


def test_the_second_signal_stops_at_once(start, tmp_path):
    module, oracle, _ = save("box.npz", tmp_path / "box.npz")
    code = SLOW.format(module=module, oracle=oracle, seconds=30)
    process = start(code, "--oracle", "box.npz", "--transcript", "kept.jsonl")
    wait_until(lambda: (tmp_path / "kept.jsonl").exists())
    time.sleep(0.5)
    begun = time.monotonic()
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 130 and time.monotonic() - begun < 20
    assert "interrupt again to stop now" in err
