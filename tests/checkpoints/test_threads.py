"""Tasks in a few threads: order, bounded size, errors; one result for any number of threads."""

import threading
import time

import numpy as np
import pytest

from fiberscope.checkpoints import threads
from fiberscope.checkpoints.canonical import canonicalize
from fiberscope.checkpoints.threads import in_order

MODEL = "src/fiberscope/examples/llama-a"


def test_results_come_in_the_order_of_the_tasks():
    def task(number):
        time.sleep(0.01 * (number % 3 == 0))
        return number

    tasks = [(1, lambda number=number: task(number)) for number in range(20)]
    assert list(in_order(tasks, 100)) == list(range(20))


def test_no_more_is_under_way_than_allowed():
    lock, running, most = threading.Lock(), 0, 0

    def task(size):
        nonlocal running, most
        with lock:
            running += size
            most = max(most, running)
        time.sleep(0.002)
        with lock:
            running -= size

    sizes = [3, 4, 2, 6, 1, 12, 5, 5, 4]
    list(in_order([(size, lambda size=size: task(size)) for size in sizes], 10))
    assert most <= 12  # the one that is larger than what is allowed was alone


def test_an_error_of_a_task_comes_in_its_place():
    def fail():
        raise ValueError("third")

    found = in_order([(1, lambda: 1), (1, lambda: 2), (1, fail), (1, lambda: 4)], 10)
    assert [next(found), next(found)] == [1, 2]
    with pytest.raises(ValueError, match="third"):
        next(found)


def test_a_form_does_not_depend_on_the_number_of_threads(tmp_path, monkeypatch):
    written = []
    for count in (1, 4):
        monkeypatch.setattr(threads, "workers", lambda count=count: count)
        canonicalize(MODEL, tmp_path / str(count), dtype="float32")
        written.append((tmp_path / str(count) / "model.safetensors").read_bytes())
    assert written[0] == written[1]


def test_a_narrow_workspace_writes_what_rounding_at_the_end_does(tmp_path):
    """Each tensor rounded when its last role is written, against the float64 form rounded whole."""
    from safetensors.numpy import load_file

    from fiberscope.checkpoints.canonical.canonicalize import canonical_parameters
    from fiberscope.checkpoints.opening import open_model
    from fiberscope.checkpoints.writing import FORMATS, rounded

    for name in ("llama-a", "gpt2"):
        location = f"src/fiberscope/examples/{name}"
        model = open_model(location, None, prefer_head=True)
        stored = model.matching.stored
        parameters = {key: model.source.read(place) for key, place in stored.items()}
        form, _ = canonical_parameters(model.architecture, parameters, model.observable)
        canonicalize(location, tmp_path / name)
        found = load_file(tmp_path / name / "model.safetensors")
        for key, place in stored.items():
            expected = rounded(form[key], FORMATS[model.source.tensors[place].dtype])
            np.testing.assert_array_equal(found[place], expected, err_msg=key)
