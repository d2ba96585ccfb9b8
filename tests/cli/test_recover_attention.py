import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fiberscope.cli.main import main
from fiberscope.errors import InputError
from fiberscope.queries.heads import AttentionHeads
from fiberscope.queries.layer_oracle import readout_vector
from fiberscope.queries.weights_oracle import HeadsOracle
from tests.queries.functions import OUT_OF_CLASS

MODULE = """
import numpy as np
from tests.queries.functions import Functions
functions = Functions(0)
asked = []

def head(X):
    asked.append(len(X))
    assert type(X) is np.ndarray and X.dtype == np.float64 and X.ndim == 2
    return functions.one_head(X)

def __getattr__(name):
    return getattr(functions, name)
"""


@pytest.fixture
def cli(tmp_path, monkeypatch, capsys):
    """Run the command in a folder with an importable module; return code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "blackbox.py").write_text(MODULE)
    sys.modules.pop("blackbox", None)

    def run(*arguments):
        with pytest.raises(SystemExit) as caught:
            main(["recover", "attention", *arguments])
        shown = capsys.readouterr()
        return caught.value.code, shown.out, shown.err

    yield run
    sys.modules.pop("blackbox", None)


def weights(path, d=3, heads=1, seed=0, **more):
    rng = np.random.default_rng(seed)
    found = {"W": rng.standard_normal((heads, d, d)), "v": rng.standard_normal((heads, d))}
    np.savez(path, **{**found, **more})
    return found


def test_python_function_to_npz_and_json(cli, tmp_path):
    code, out, err = cli(
        "--oracle",
        "python:blackbox:head",
        "--width",
        "4",
        "--heads",
        "1",
        "-o",
        "OUT.npz",
        "--json",
    )
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["schema"] == "fiberscope/recover/1"
    assert (found["family"], found["outcome"]) == ("attention", "recovered")
    blackbox = sys.modules["blackbox"]
    with np.load(tmp_path / "OUT.npz") as stored:
        assert stored["W"].shape == (1, 4, 4) and stored["v"].shape == (1, 4)
        assert stored["W"].dtype == stored["v"].dtype == np.float64
        assert np.abs(stored["W"][0] - blackbox.functions.W).max() < 1e-12
        assert np.array_equal(stored["W"], found["W"])
    queries = found["queries"]
    assert queries["recovery"] == {"queries": 20, "longest": 2}
    assert set(queries) == {"recovery", "class_tests", "retries", "final_check", "total"}
    assert queries["total"]["queries"] == len(blackbox.asked)
    assert queries["total"]["longest"] == max(blackbox.asked)
    precision = found["precision"]
    assert precision["kind"] == "conditional"
    assert precision["worst_head_bits"] == min(precision["W_bits"] + precision["v_bits"]) > 38
    assert "-log2" in precision["definition"]
    assert found["final_check"]["passed"] is True
    assert "sum of their v" in found["ambiguity"]
    assert {test["name"] for test in found["class_tests"]} >= {"repeat", "reflection", "scale"}


def test_table(cli):
    code, out, err = cli("--oracle", "python:blackbox:head", "--width", "4", "--heads", "1")
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 100
    for text in ("1 head of width 4", "queries: recovery", "20, at most 2 tokens", "conditional"):
        assert text in out


@pytest.mark.parametrize("name", OUT_OF_CLASS)
def test_other_functions(cli, name):
    with np.errstate(over="ignore"):
        code, out, err = cli(
            "--oracle", f"python:blackbox:{name}", "--width", "4", "--heads", "1", "--json"
        )
    assert (code, err) == (1, "")
    found = json.loads(out)
    assert found["outcome"] == "not_of_this_form"
    assert found["failed_test"] in found["reason"]
    assert found["queries"]["recovery"]["queries"] == 0
    assert found["queries"]["total"]["queries"] <= 130


def test_other_functions_in_words(cli):
    code, out, _ = cli("--oracle", "python:blackbox:residual", "--width", "4", "--heads", "1")
    assert code == 1
    assert out.startswith("NOT OF THIS FORM: ") and "(reflection)" in out


def test_relu_network_on_top(cli, tmp_path):
    from tests.queries.functions import Functions

    code, out, _ = cli("--oracle", "python:blackbox:relu_network", "--width", "4")
    assert code == 1 and "try --relu" in " ".join(out.split())
    code, out, err = cli(
        *("--oracle", "python:blackbox:relu_network", "--width", "4", "--relu", "--json"),
        *("-o", "net.npz"),
    )
    assert code == 0, err
    plain = json.loads(out)
    assert plain["schema"] == "fiberscope/recover/1" and plain["outcome"] == "recovered"
    assert plain["kinks"] == 6 and plain["agreement_bits"] > 20
    assert plain["queries"]["total"]["queries"] == plain["sent"]
    net, function = np.load(tmp_path / "net.npz"), Functions(0)
    for X in np.random.default_rng(1).standard_normal((20, 7, 4)):
        scores = [X @ W @ X[-1] for W in net["W"]]
        parts = [np.exp(s - s.max()) @ X / np.exp(s - s.max()).sum() for s in scores]
        found = np.maximum(net["inner"] @ np.concatenate(parts), 0) @ net["outer"]
        assert abs(found - function.relu_network(X)) < 1e-6
    code, out, _ = cli("--oracle", "python:blackbox:relu_network", "--width", "4", "--relu")
    assert code == 0 and "kinks found" in out


NETWORK = """
import numpy as np

rng = np.random.default_rng(4)
W, V = rng.standard_normal((2, {heads}, 8, 8)) / 8**0.5
U, w = rng.standard_normal(({neurons}, 8)), rng.standard_normal({neurons})
W, V, U, w = (each.astype(np.{kind}) for each in (W, V, U, w))

def answer(X):
    X = X.astype(np.{kind})
    total = 0
    for matrix, values in zip(W, V):
        scores = X @ (matrix @ X[-1])
        weights = np.exp(scores - scores.max())
        total = total + values @ (weights @ X / weights.sum())
    return float(w @ np.maximum(U @ total, 0))

answer.arithmetic = "{kind}"
"""


@pytest.mark.parametrize(
    ("heads", "neurons", "kind", "least"), [(3, 32, "float64", 25), (1, 8, "float32", 10)]
)
def test_several_heads_under_a_relu_network(cli, tmp_path, heads, neurons, kind, least):
    """Four times the width in neurons behind three heads; float32 up to about the width."""
    text = NETWORK.format(heads=heads, neurons=neurons, kind=kind)
    (tmp_path / "network.py").write_text(text)
    sys.modules.pop("network", None)
    arguments = ("--oracle", "python:network:answer", "--width", "8", "--relu", "--json")
    code, out, err = cli(*arguments, "-o", "net.npz")
    assert code == 0, (out, err)
    plain, net, truth = json.loads(out), np.load(tmp_path / "net.npz"), sys.modules.pop("network")
    assert plain["heads"] == heads and plain["agreement_bits"] >= least
    for X in np.random.default_rng(1).standard_normal((20, 7, 8)).astype(np.float32):
        scores = [X @ W @ X[-1] for W in net["W"]]
        parts = [np.exp(s - s.max()) @ X / np.exp(s - s.max()).sum() for s in scores]
        found = np.maximum(net["inner"] @ np.concatenate(parts), 0) @ net["outer"]
        assert abs(found - truth.answer(X)) < 2.0 ** (3 - least) * np.abs(net["outer"]).sum()


@pytest.mark.parametrize("name", ["tanh_network", "value_bias", "sink", "rotary", "residual"])
def test_other_functions_are_no_relu_network(cli, name):
    code, out, _ = cli("--oracle", f"python:blackbox:{name}", "--width", "4", "--relu", "--json")
    assert code in (1, 2)
    assert json.loads(out)["outcome"] in ("not_of_this_form", "not_recovered")


def test_fewer_heads_than_stated_are_noted(cli):
    arguments = ("--oracle", "python:blackbox:head", "--width", "4", "--heads", "3", "--json")
    code, out, _ = cli(*arguments)
    plain = json.loads(out)
    assert (code, plain["heads"]) == (0, 1)
    assert any(note.startswith("3 heads were stated and 1 show") for note in plain["notes"])


def test_more_heads_than_promised(cli, tmp_path):
    weights(tmp_path / "two.npz", heads=2)
    code, out, _ = cli("--oracle", "two.npz", "--heads", "1", "-o", "OUT.npz")
    assert code == 2
    assert out.startswith("NOT RECOVERED: ") and "--heads-at-most" in " ".join(out.split())
    assert not (tmp_path / "OUT.npz").exists()


@pytest.mark.parametrize("arithmetic", ["float64", "float32", "balls"])
def test_weights_file_in_every_arithmetic(cli, tmp_path, arithmetic):
    if arithmetic == "balls":
        pytest.importorskip("flint")
    truth = weights(tmp_path / "weights.npz")
    code, out, _ = cli(
        "--oracle", "weights.npz", "--arithmetic", arithmetic, "--heads", "1", "--json"
    )
    found = json.loads(out)
    assert (code, found["arithmetic"]) == (0, arithmetic)
    error = np.linalg.norm(np.array(found["W"]) - truth["W"]) / np.linalg.norm(truth["W"])
    assert error < {"float64": 1e-11, "float32": 1e-4, "balls": 1e-15}[arithmetic]
    assert found["precision"]["kind"] == ("certified" if arithmetic == "balls" else "conditional")
    assert (found["enclosures"] is None) == (arithmetic != "balls")


def test_rank_noise_and_token_bound(cli, tmp_path):
    rng = np.random.default_rng(1)
    W = np.outer(*rng.standard_normal((2, 12)))[None]
    weights(tmp_path / "weights.npz", d=12, W=W)
    code, out, _ = cli("--oracle", "weights.npz", "--rank", "1", "--json")
    assert code == 0
    assert json.loads(out)["queries"]["recovery"]["queries"] == 12 + 2 * (24 - 2)
    code, out, _ = cli(
        "--oracle", "weights.npz", "--noise", "1e-6", "--token-bound", "4", "--heads", "1", "--json"
    )
    found = json.loads(out)
    assert code == 0 and any("guarantee" in note for note in found["notes"])


@pytest.mark.parametrize("bound", [("--heads", "2"), ("--heads-at-most", "3"), ()])
def test_many_heads_from_floats(cli, tmp_path, bound):
    truth = weights(tmp_path / "two.npz", heads=2, d=4)
    code, out, _ = cli("--oracle", "two.npz", *bound, "--json")
    found = json.loads(out)
    assert (code, found["heads"]) == (0, 2)
    wanted = AttentionHeads(truth["W"], truth["v"]).canonical()
    for got, real, stated in zip(found["W"], wanted.W, found["precision"]["W_bits"], strict=True):
        error = np.linalg.norm(np.array(got) - real) / np.linalg.norm(real)
        assert error <= 2.0**-stated <= 2.0**-30


@pytest.mark.parametrize(
    ("extra", "queries"),
    [(("--heads", "2"), 4 * 2 * 9 - 3), (("--heads", "2", "--shorter"), 4 * 11 + 1)],
)
def test_many_heads_in_balls(cli, tmp_path, extra, queries):
    pytest.importorskip("flint")
    weights(tmp_path / "two.npz", heads=2)
    code, out, _ = cli("--oracle", "two.npz", "--arithmetic", "balls", *extra, "--json")
    found = json.loads(out)
    assert (code, found["heads"]) == (0, 2)
    assert found["queries"]["recovery"] == {"queries": queries, "longest": 5}
    assert found["precision"]["kind"] == "certified"


def test_interrupted_run_asks_nothing_twice(cli, tmp_path):
    arguments = ("--oracle", "python:blackbox:head", "--width", "4", "--heads", "1", "--seed", "3")
    keep = ("--transcript", "queries.jsonl", "--json")
    code, whole, _ = cli(*arguments, "--json")
    total = len(sys.modules["blackbox"].asked)
    assert code == 0
    code, out, err = cli(*arguments, *keep, "--max-queries", "150", "--batch", "10")
    assert (code, out) == (3, "") and "--max-queries 150" in err
    before = len(sys.modules["blackbox"].asked) - total
    assert 0 < before <= 150
    code, out, _ = cli(*arguments, *keep)
    resumed = json.loads(out)
    assert code == 0
    assert (resumed["sent"], resumed["replayed"]) == (total - before, before)
    assert len(sys.modules["blackbox"].asked) == 2 * total
    assert len((tmp_path / "queries.jsonl").read_text().splitlines()) == 1 + total
    code, out, _ = cli(*arguments, *keep)
    replayed = json.loads(out)
    assert (replayed["sent"], replayed["replayed"]) == (0, total)
    whole = json.loads(whole)
    for name in ("W", "v", "queries", "precision", "final_check", "noise"):
        assert replayed[name] == resumed[name] == whole[name]


def test_files_are_not_overwritten_unasked(cli, tmp_path):
    weights(tmp_path / "weights.npz")
    arguments = ("--oracle", "weights.npz", "--heads", "1", "-o", "OUT.npz")
    (tmp_path / "OUT.npz").write_text("mine")
    code, _, err = cli(*arguments)
    assert code == 3 and "--overwrite" in err
    assert (tmp_path / "OUT.npz").read_text() == "mine"
    assert cli(*arguments, "--overwrite")[0] == 0
    assert np.load(tmp_path / "OUT.npz")["W"].shape == (1, 3, 3)


def test_output_is_an_oracle_again(cli, tmp_path):
    truth = weights(tmp_path / "weights.npz")
    assert cli("--oracle", "weights.npz", "--heads", "1", "-o", "OUT.npz")[0] == 0
    with np.load(tmp_path / "OUT.npz") as stored:
        again = HeadsOracle(AttentionHeads(stored["W"], stored["v"]))
    X = np.random.default_rng(9).standard_normal((5, 6, 3))
    heads = AttentionHeads(truth["W"], truth["v"])
    assert np.allclose(again.answer(X), heads.evaluate_many(X), rtol=1e-10)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--oracle", "model.gguf"], "--layer N makes"),
        (["--oracle", "model.safetensors"], "--layer N makes"),
        (["--oracle", "good.npz", "--heads", "1", "--token-bound", "1e-300"], "is too small"),
        (["--oracle", "nothing"], "none of the known forms"),
        (["--oracle", "none.npz"], "cannot be read"),
        (["--oracle", "wrong.npz"], "lacks W or v"),
        (["--oracle", "shapes.npz"], "(H, d, d)"),
        (["--oracle", "nan.npz"], "NaN or infinity"),
        (["--oracle", "good.npz", "--width", "4"], "leave out --width"),
        (["--oracle", "good.npz", "--heads", "0"], "--heads must be positive"),
        (["--oracle", "good.npz", "--heads", "1", "--rank", "0"], "--rank must be positive"),
        (["--oracle", "good.npz", "--heads", "1", "--heads-at-most", "2"], "not both"),
        (["--oracle", "good.npz", "--noise", "nan", "--heads", "1"], "--noise must be positive"),
        (["--oracle", "good.npz", "-o", "none/OUT.npz"], "none is no directory"),
        (["--oracle", "python:blackbox:head"], "give --width"),
        (["--oracle", "python:blackbox", "--width", "4"], "python:module:function"),
        (["--oracle", "python:nomodule:f", "--width", "4"], "ModuleNotFoundError"),
        (["--oracle", "python:blackbox:asked", "--width", "4"], "is not a function"),
        (["--oracle", "python:blackbox:head", "--width", "5", "--heads", "1"], "check --width"),
        (
            ["--oracle", "python:blackbox:head", "--width", "4", "--arithmetic", "balls"],
            "ball_oracle",
        ),
        (["--oracle", "http://127.0.0.1:9/nobody"], "nothing answered: connection refused"),
    ],
)
def test_bad_input_is_one_sentence(cli, tmp_path, monkeypatch, arguments, message):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    weights(tmp_path / "good.npz")
    weights(tmp_path / "shapes.npz", W=np.zeros((1, 2, 3)))
    weights(tmp_path / "nan.npz", v=np.full((1, 3), np.nan))
    np.savez(tmp_path / "wrong.npz", X=np.zeros(3))
    code, out, err = cli(*arguments)
    assert (code, out) == (3, "")
    assert err.count("\n") == 1 and err.startswith("fiberscope: ")
    assert message in err


def test_help_needs_no_heavy_package():
    code = (
        "import sys; sys.argv = ['fiberscope', 'recover', 'attention', '--help'];"
        "from fiberscope.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert not {'torch', 'scipy', 'flint', 'onnxruntime'} & set(sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "--transcript" in found.stdout


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (("--heads", "1", "--shorter"), "--shorter is for ball oracles"),
        (("--heads", "1", "--precision", "coarse"), "--precision coarse would change nothing"),
        (("--rank", "3"), "--rank 3 says nothing at width 3"),
        (("--rank", "1", "--noise", "0.1"), "--rank would change nothing with --noise"),
        (("--arithmetic", "balls", "--noise", "0.1"), "--noise is for floating-point oracles"),
        (("--arithmetic", "balls", "--heads", "1", "--shorter"), "--shorter would change nothing"),
        (("--arithmetic", "balls", "--precision", "coarse"), "--precision coarse"),
        (("--arithmetic", "balls", "--workers", "2"), "--workers is for floating-point oracles"),
        (("--relu", "--shorter", "--rank", "1"), "--rank and --shorter would change nothing"),
        (("--overwrite",), "give -o as well"),
    ],
)
def test_options_without_effect_are_refused_before_any_query(cli, tmp_path, extra, message):
    weights(tmp_path / "weights.npz")
    keep = ("--transcript", "asked.jsonl")
    code, out, err = cli("--oracle", "weights.npz", *extra, *keep)
    assert (code, out, err.count("\n")) == (3, "", 1) and message in err
    lines = (tmp_path / "asked.jsonl").read_text() if (tmp_path / "asked.jsonl").exists() else ""
    assert lines.count("\n") <= 1


def layer_file(folder, d=24, heads=4, rank=4):
    """A checkpoint of one small Llama layer; returns its tensors."""
    safetensors = pytest.importorskip("safetensors.numpy")
    transformers = pytest.importorskip("transformers")
    import torch

    config = transformers.LlamaConfig(
        hidden_size=d,
        intermediate_size=8,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=rank,
        vocab_size=11,
    )
    torch.manual_seed(0)
    model = transformers.LlamaModel(config)
    tensors = {
        name: (15.0 if "_proj" in name else 1.0) * value.numpy()
        for name, value in model.state_dict().items()
    }
    folder.mkdir()
    safetensors.save_file(tensors, folder / "model.safetensors")
    config.architectures = ["LlamaModel"]
    config.save_pretrained(folder)
    return tensors


def test_a_layer_of_a_checkpoint(cli, tmp_path):
    tensors = layer_file(tmp_path / "model")
    readout = np.random.default_rng(1).normal(size=24)
    np.save(tmp_path / "readout.npy", readout)
    given = ["--oracle", "model", "--layer", "1", "--readout", "readout.npy", "--rank", "4"]
    given += ["--heads-at-most", "9", "--transcript", "asked.jsonl", "--digests", "--json"]
    code, out, _ = cli(*given, "-o", "OUT.npz")
    assert code == 0
    plain = json.loads(out)
    with np.load(tmp_path / "OUT.npz") as stored:
        W, v = stored["W"], stored["v"]
    query, key, value, output = (
        tensors[f"layers.1.self_attn.{part}_proj.weight"].astype(np.float64) for part in "qkvo"
    )
    met = set()
    for head in range(4):
        mine, shared = slice(4 * head, 4 * head + 4), slice(head // 2 * 4, head // 2 * 4 + 4)
        true_W = key[shared].T @ query[mine] / 2
        true_v = value[shared].T @ (output[:, mine].T @ readout)
        near = int(np.argmin([np.linalg.norm(each - true_W) for each in W]))
        met.add(near)
        bits = -np.log2(np.linalg.norm(W[near] - true_W) / np.linalg.norm(true_W))
        assert bits >= plain["precision"]["W_bits"][near] > 20
        np.testing.assert_allclose(v[near], true_v, rtol=1e-6, atol=1e-6 * np.abs(true_v).max())
    assert len(met) == len(W) == 4
    # Digests replay: nothing is sent, and the answer is the same.
    lines = (tmp_path / "asked.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["queries"] == "digests"
    assert json.loads(lines[1]).keys() == {"purpose", "query", "length", "answer"}
    assert len(lines) - 1 == plain["queries"]["total"]["queries"]
    code, out, _ = cli(*given)
    again = json.loads(out)
    assert (code, again["sent"], again["W"]) == (0, 0, plain["W"])
    # An interrupted run: half of the file and half a line.
    whole = (tmp_path / "asked.jsonl").read_bytes()
    (tmp_path / "asked.jsonl").write_bytes(whole[: len(whole) // 2])
    code, out, _ = cli(*given)
    resumed = json.loads(out)
    assert code == 0
    # Other batches are other matrix products, which differ in their last bits.
    scale = float(np.abs(plain["W"]).max())
    np.testing.assert_allclose(resumed["W"], plain["W"], rtol=0, atol=1e-9 * scale)
    assert resumed["replayed"] + resumed["sent"] == plain["queries"]["total"]["queries"]
    assert 0 < resumed["sent"] < 0.6 * plain["sent"]


def test_layer_options_that_make_no_sense(cli, tmp_path):
    weights(tmp_path / "good.npz")
    for given, said in (
        (["--oracle", "good.npz", "--layer", "0"], "--layer is for a checkpoint"),
        (["--oracle", "good.npz", "--readout", "0"], "give --layer as well"),
        (["--oracle", "good.npz", "--digests"], "give --transcript as well"),
        (["--oracle", "nothing", "--layer", "0"], "nothing"),
        (["--oracle", "x", "--layer", "0", "--width", "3"], "leave it out with --layer"),
    ):
        code, _, err = cli(*given)
        assert code == 3
        assert said in err and "Traceback" not in err


def test_full_disks_are_one_sentence(cli, tmp_path):
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    weights(tmp_path / "good.npz")
    code, out, err = cli("--oracle", "good.npz", "--heads", "1", "--transcript", "/dev/full")
    assert (code, out, err.count("\n")) == (3, "", 1)
    assert "/dev/full cannot be written: no space left" in err
    program = "from fiberscope.cli.main import main; main()"
    command = [sys.executable, "-c", program, "recover", "attention", "--oracle", "good.npz"]
    for more in ([], ["--json"]):
        with open("/dev/full", "w") as full:
            run = subprocess.run(
                [*command, "--heads", "1", *more],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        assert run.returncode == 3
        assert run.stderr.count("\n") == 1 and "the output cannot be written" in run.stderr


def test_a_file_size_limit_keeps_what_was_answered(cli, tmp_path):
    resource = pytest.importorskip("resource")
    weights(tmp_path / "good.npz")
    given = ("--oracle", "good.npz", "--heads", "1", "--transcript", "asked.jsonl", "--json")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        code, _, err = cli(*given)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert code == 3 and "asked.jsonl cannot be written: file too large" in err
    code, out, _ = cli(*given)
    assert code == 0 and json.loads(out)["replayed"] > 0


def test_the_transcript_is_not_the_output(cli, tmp_path):
    weights(tmp_path / "good.npz")
    (tmp_path / "link").symlink_to(tmp_path / "OUT.npz")
    for name in ("OUT.npz", "./OUT.npz", "link"):
        given = ("--oracle", "good.npz", "--heads", "1", "-o", "OUT.npz", "--transcript", name)
        code, out, err = cli(*given)
        assert (code, out) == (3, "") and "name two files" in err
    assert not (tmp_path / "OUT.npz").exists()


def test_refusals_say_what_was_found_out(cli, tmp_path):
    weights(tmp_path / "two.npz", heads=2)
    code, out, _ = cli("--oracle", "two.npz", "--heads", "1", "--seed", "4", "--json")
    plain = json.loads(out)
    assert (code, plain["seed"]) == (2, 4)
    assert plain["noise"]["repeatable"] is True
    assert {test["name"] for test in plain["class_tests"]} >= {"repeat", "scale"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.ones(4) * 1j, "holds complex128 values"),
        (np.array([1, np.nan, 0, 2]), "holds NaN or infinity"),
        (np.ones(3), "has shape (3,)"),
    ],
)
def test_readouts_that_are_none(tmp_path, values, message):
    np.save(tmp_path / "readout.npy", values)
    with pytest.raises(InputError, match=re.escape(message)):
        readout_vector(str(tmp_path / "readout.npy"), 4)


def test_a_transcript_keeps_its_form(cli, tmp_path):
    weights(tmp_path / "good.npz")
    given = ["--oracle", "good.npz", "--heads", "1", "--transcript", "asked.jsonl"]
    assert cli(*given)[0] == 0
    code, _, err = cli(*given, "--digests")
    assert code == 3 and "holds tokens in full" in err
