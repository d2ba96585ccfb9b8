"""The monitor in training loops: what it measures, what it leaves alone, what it refuses."""

import io
import json
import sys
import types
from contextlib import contextmanager

import numpy as np
import pytest

from fiberscope.errors import InputError
from fiberscope.symmetry import Kind
from fiberscope.training import SymmetryMonitor, read_records, threads
from tests.training.toys import dense_basis, drawn_up, space_of

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.torch


def gpt2(dtype=None, *, seed=0, **changes):
    torch.manual_seed(seed)
    sizes = {"n_embd": 8, "n_head": 2, "n_layer": 2, "n_inner": 12, "n_positions": 8}
    config = transformers.GPT2Config(
        **sizes | {"vocab_size": 22, "bos_token_id": None, "eos_token_id": None} | changes,
        attn_pdrop=0.0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
    )
    model = transformers.GPT2LMHeadModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model.to(dtype or torch.float64)


def loss_of(model, seed=0):
    rng = np.random.default_rng(seed)
    tokens = torch.from_numpy(rng.integers(0, model.config.vocab_size, (6, 8)))
    logits = model(input_ids=tokens[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def train(model, optimizer, steps, first=0):
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss_of(model, step).backward()
        optimizer.step()


def stored(model):
    return {
        name: parameter.detach().double().numpy().copy()
        for name, parameter in model.named_parameters()
    }


def dense_share(model_before, difference, frozen=()):
    """The share by singular values of the listed directions that leave frozen tensors alone."""
    config = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "n_embd": 8,
        "n_head": 2,
        "n_layer": 2,
        "n_inner": 12,
        "n_positions": 8,
        "vocab_size": 22,
    }
    found = drawn_up(config, "probabilities")
    space = space_of(found)
    rows = [
        symmetry.tangents(model_before, space)
        for symmetry in found.symmetries(Kind.EXACT)
        if not set(symmetry.touches) & set(frozen)
    ]
    basis = dense_basis(np.concatenate(rows))
    vector = space.vector(difference)
    return np.sum((basis @ vector) ** 2) / (vector @ vector), len(basis)


def test_three_lines_measure_a_run(tmp_path):
    model = gpt2(torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)
    monitor = SymmetryMonitor(model, optimizer, every=3, path=tmp_path / "run.jsonl")
    before = stored(model)
    train(model, optimizer, 1)
    after = stored(model)
    train(model, optimizer, 6, first=1)
    monitor.close()

    expected, dimension = dense_share(before, {n: after[n] - before[n] for n in before})
    start, *measured = read_records(tmp_path / "run.jsonl")
    assert start.invisible == dimension
    assert start.parameters == sum(value.size for value in before.values())
    assert start.expected_share == pytest.approx(dimension / start.parameters)
    assert (start.model, start.observable, start.optimizer) == (
        "GPT2LMHeadModel",
        "probabilities",
        "AdamW",
    )
    assert [record.step for record in measured] == [1, 3, 6]
    assert measured == monitor.measurements
    first = measured[0]
    assert first.update.share == pytest.approx(expected, abs=1e-6)
    norm = np.sqrt(sum(np.sum((after[n] - before[n]) ** 2) for n in before))
    assert first.update.norm == pytest.approx(norm)
    assert len(first.item_shares) == len(start.items)
    # A float32 gradient is the exact one to rounding.
    assert all(record.gradient.share < 1e-12 for record in measured)
    assert any("not orthogonal" in note for note in start.notes)


def test_decay_and_the_adaptive_part_are_projected_apart():
    model = gpt2()
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices}, {"params": vectors, "weight_decay": 0.0, "lr": 3e-3}],
        lr=1e-2,
        weight_decay=0.2,
    )
    monitor = SymmetryMonitor(model, optimizer, every=1, tolerance=1e-9)
    before = stored(model)
    train(model, optimizer, 1)
    after = stored(model)
    decay = {n: -1e-2 * 0.2 * value * (value.ndim >= 2) for n, value in before.items()}
    update = {n: after[n] - before[n] for n in before}
    adaptive = {n: update[n] - decay[n] for n in before}
    (measured,) = monitor.measurements
    for part, difference in (
        (measured.update, update),
        (measured.decay, decay),
        (measured.adaptive, adaptive),
    ):
        share, _ = dense_share(before, difference)
        assert part.share == pytest.approx(share, abs=1e-8)
        assert part.norm == pytest.approx(
            np.linalg.norm(np.concatenate([value.ravel() for value in difference.values()])),
            rel=1e-6,
        )
    assert measured.learning_rates == (1e-2, 3e-3)


def test_coupled_decay_is_not_shown_apart_and_the_unknown_is_said():
    model = gpt2()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1)
    monitor = SymmetryMonitor(model, optimizer)
    train(model, optimizer, 1)
    assert monitor.measurements[0].decay is None

    class Custom(torch.optim.SGD):
        pass

    optimizer = Custom(model.parameters(), lr=0.1)
    monitor = SymmetryMonitor(model, optimizer)
    assert any("Custom decays" in note for note in monitor.start.notes)


def test_plain_gradient_descent_has_no_invisible_part_with_clipping_and_accumulation():
    model = gpt2()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    monitor = SymmetryMonitor(model, optimizer, every=1)
    for step in range(3):
        optimizer.zero_grad()
        for part in range(2):
            (loss_of(model, 10 * step + part) / 2).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    assert len(monitor.measurements) == 3
    for measured in monitor.measurements:
        assert measured.update.norm == pytest.approx(0.05 * 0.1, rel=1e-4)
        assert measured.update.share < 1e-12
        assert measured.gradient.share < 1e-12


@pytest.mark.parametrize(
    "frozen",
    [
        ("transformer.wte.weight",),
        ("transformer.wpe.weight",),
        ("transformer.h.0.attn.c_attn.weight", "transformer.h.0.attn.c_attn.bias"),
        ("transformer.h.1.ln_2.weight", "transformer.ln_f.bias"),
    ],
)
def test_frozen_tensors_switch_their_symmetries_off(frozen):
    model = gpt2()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name not in frozen)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    monitor = SymmetryMonitor(model, optimizer, tolerance=1e-9)
    before = stored(model)
    train(model, optimizer, 1)
    after = stored(model)
    difference = {n: after[n] - before[n] for n in before}
    share, dimension = dense_share(before, difference, frozen)
    assert monitor.start.invisible == dimension
    assert monitor.start.frozen == sum(before[name].size for name in frozen)
    assert monitor.measurements[0].update.share == pytest.approx(share, abs=1e-8)
    assert any("frozen" in note for note in monitor.start.notes)


def test_parameters_outside_the_optimizer_are_frozen():
    model = gpt2()
    inside = [p for n, p in model.named_parameters() if ".h.1." in n]
    optimizer = torch.optim.Adam(inside, lr=1e-2)
    monitor = SymmetryMonitor(model, optimizer)
    assert monitor.start.parameters == sum(p.numel() for p in inside)
    assert {item.layer for item in monitor.start.items} == {1}


def test_projecting_leaves_only_the_visible_part():
    model, plain = gpt2(), gpt2()
    optimizers = [torch.optim.Adam(m.parameters(), lr=1e-2) for m in (model, plain)]
    monitor = SymmetryMonitor(model, optimizers[0], project=True, tolerance=1e-12)
    before = stored(model)
    for one, optimizer in zip((model, plain), optimizers, strict=True):
        train(one, optimizer, 1)
    kept = {n: value - before[n] for n, value in stored(model).items()}
    whole = {n: value - before[n] for n, value in stored(plain).items()}
    assert dense_share(before, kept)[0] < 1e-11
    share, _ = dense_share(before, whole)
    assert share > 0.01
    left = sum(np.sum(v**2) for v in kept.values()) / sum(np.sum(v**2) for v in whole.values())
    assert left == pytest.approx(1 - share, abs=1e-8)
    assert monitor.measurements[0].update.share == pytest.approx(share, abs=1e-8)
    assert any("first order only" in note for note in monitor.start.notes)


def test_the_function_after_a_projected_step_differs_in_second_order():
    def log_probabilities(model):
        tokens = torch.arange(8)[None]
        return torch.log_softmax(model(input_ids=tokens).logits, -1).detach()

    differences = []
    for rate in (1e-2, 1e-3):
        outputs = []
        for project in (False, True):
            model = gpt2()
            optimizer = torch.optim.Adam(model.parameters(), lr=rate)
            SymmetryMonitor(model, optimizer, project=project, tolerance=1e-14)
            train(model, optimizer, 1)
            outputs.append(log_probabilities(model))
        differences.append(float((outputs[0] - outputs[1]).abs().max()))
    # A tenth of the step leaves a hundredth of the difference.
    assert 50 < differences[0] / differences[1] < 200


def test_dead_biases_rest_in_float64_and_balances_follow_their_definition():
    model = gpt2()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    monitor = SymmetryMonitor(model, optimizer, every=2)
    train(model, optimizer, 4)
    last = monitor.measurements[-1]
    assert len(last.dead_bias_drifts) == 2
    # Rounding of the zero gradient over Adam's epsilon of 1e-8.
    assert max(last.dead_bias_drifts) < 1e-6
    train(model, optimizer, 1, first=4)
    weights = stored(model)
    train(model, optimizer, 1, first=5)
    start, last = monitor.start, monitor.measurements[-1]
    place = [
        number
        for number, index in enumerate(start.balances)
        if start.items[index].mechanism == "query/key basis change"
    ]
    for layer, number in enumerate(place):
        fused = weights[f"transformer.h.{layer}.attn.c_attn.weight"]
        bias = weights[f"transformer.h.{layer}.attn.c_attn.bias"]
        rows = np.concatenate([fused, bias[None]]).T
        query, key = rows[:8].reshape(2, 4, 9), rows[8:16].reshape(2, 4, 9)
        left, right = query @ query.swapaxes(1, 2), key @ key.swapaxes(1, 2)
        difference = np.linalg.norm(left - right)
        assert last.balances[number].difference == pytest.approx(difference)
        size = np.linalg.norm(left) + np.linalg.norm(right)
        assert last.balances[number].imbalance == pytest.approx(difference / size)


def test_gradient_flow_conserves_what_is_said_to_be_conserved():
    drifts = []
    for rate, steps in ((4e-3, 25), (1e-3, 100)):
        model = gpt2()
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        monitor = SymmetryMonitor(model, optimizer, every=steps)
        for _ in range(steps):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
        last = monitor.measurements[-1]
        drifts.append(max(b.drift / b.difference for b in last.balances))
    # Euler steps break the law in proportion to the step size, for the same time in all.
    assert drifts[1] < drifts[0] < 1e-2
    assert 2.5 < drifts[0] / drifts[1] < 6.0


def test_a_closure_computes_its_gradient_inside_the_step():
    model = gpt2()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = SymmetryMonitor(model, optimizer)

    def closure():
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    optimizer.step(closure)
    (measured,) = monitor.measurements
    assert measured.gradient is None
    assert measured.update.share < 1e-12


def test_tied_tensors_count_once_and_untied_ones_twice():
    tied, untied = gpt2(), gpt2(tie_word_embeddings=False)
    counts = []
    for model in (tied, untied):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        counts.append(SymmetryMonitor(model, optimizer).start.parameters)
    assert counts[1] - counts[0] == 22 * 8


def test_the_monitor_changes_nothing_and_can_be_taken_off():
    runs = []
    for watched in (False, True):
        model = gpt2(torch.float32)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        if watched:
            monitor = SymmetryMonitor(model, optimizer, every=1)
        train(model, optimizer, 3)
        runs.append(stored(model))
    for name in runs[0]:
        np.testing.assert_array_equal(runs[0][name], runs[1][name])
    monitor.close()
    monitor.close()
    train(model, optimizer, 1)
    assert len(monitor.measurements) == 3


def test_a_diverging_run_is_not_stopped():
    model = gpt2()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = SymmetryMonitor(model, optimizer, every=1)
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, float("nan"))
    with pytest.warns(UserWarning, match="step 1 is not measured"):
        optimizer.step()
    optimizer.step()
    assert monitor.measurements == []


def test_dropout_is_noted():
    model = gpt2()
    model.transformer.drop.p = 0.1
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    assert any("dropout" in note for note in SymmetryMonitor(model, optimizer).start.notes)


def refused(match, model, optimizer=None, **options):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.01)
    with pytest.raises(InputError, match=match) as caught:
        SymmetryMonitor(model, optimizer, **options)
    assert "\n" not in str(caught.value)


def test_what_cannot_be_measured_is_refused():
    refused("no table for the class 'Linear'", torch.nn.Linear(3, 3))
    refused("without master weights", gpt2(torch.bfloat16))
    refused("without master weights", gpt2(torch.float16))
    refused("pass observable='hidden'", gpt2().transformer)
    refused("every is 0", gpt2(), every=0)
    refused("tolerance is 0", gpt2(), tolerance=0.0)
    refused("observable is 'outputs'", gpt2(), observable="outputs")
    refused("no parameter 'x'", gpt2(), masters={"x": torch.zeros(1)})
    model = gpt2()
    refused("steps no parameter", model, torch.optim.SGD(gpt2().parameters(), lr=0.1))
    model = gpt2()
    model.lm_head.weight.register_post_accumulate_grad_hook(lambda parameter: None)
    refused("inside the backward pass", model)
    model = gpt2().to("meta")
    refused("values are not here", model)
    model = gpt2()
    model.transformer.wpe.weight.ds_id = 3
    refused("sharded", model)

    model = gpt2()
    model.transformer.wpe.weight.data = torch.zeros(0, dtype=torch.float64)
    refused("offloaded or sharded", model)

    class FullyShardedDataParallel(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.inner = module

    model = gpt2()
    model.transformer.h[0].mlp = FullyShardedDataParallel(model.transformer.h[0].mlp)
    refused("sharded by FullyShardedDataParallel", model)

    class Lomo:
        param_groups = ()

    refused("Lomo steps", gpt2(), Lomo())
    refused("no step hooks", gpt2(), object())


@pytest.mark.filterwarnings("ignore:the gradient of step")
def test_master_weights_stand_for_half_precision():
    model = gpt2(torch.bfloat16)
    masters = {name: torch.nn.Parameter(p.detach().float()) for name, p in model.named_parameters()}
    optimizer = torch.optim.SGD(masters.values(), lr=0.01)
    monitor = SymmetryMonitor(model, optimizer, masters=masters)
    for parameter in masters.values():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    assert monitor.measurements[0].update.norm == pytest.approx(
        0.01 * np.sqrt(monitor.start.parameters), rel=1e-4
    )


def test_wrappers_are_looked_through():
    class DataParallel(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    class AcceleratedOptimizer:
        def __init__(self, optimizer):
            self.optimizer = optimizer

    model = gpt2()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    monitor = SymmetryMonitor(DataParallel(model), AcceleratedOptimizer(optimizer))
    train(model, optimizer, 1)
    assert len(monitor.measurements) == 1


def test_files_are_not_overwritten_and_can_be_continued(tmp_path):
    path = tmp_path / "run.jsonl"
    model = gpt2()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with SymmetryMonitor(model, optimizer, path=path):
        train(model, optimizer, 1)
    with pytest.raises(InputError, match="exists already"):
        SymmetryMonitor(model, optimizer, path=path)
    with open(path, "a") as file:
        file.write('{"schema": "fiberscope/train')  # a run that was killed while it wrote
    assert [type(r).__name__ for r in read_records(path)] == ["Start", "Measurement"]
    with SymmetryMonitor(model, optimizer, path=path, append=True):
        train(model, optimizer, 1)
    names = [type(record).__name__ for record in read_records(path)]
    assert names == ["Start", "Measurement", "Start", "Measurement"]
    for line in path.read_text().splitlines():
        assert json.loads(line)["schema"] == "fiberscope/training/1"


def test_table_and_tensorboard_show_the_same_numbers():
    from rich.console import Console

    from fiberscope.training.table import LiveTable
    from fiberscope.training.writers import TensorBoard

    class Board:
        def __init__(self):
            self.seen = {}

        def add_scalar(self, tag, value, step):
            self.seen[tag, step] = value

    text, board = io.StringIO(), Board()
    table = LiveTable(Console(file=text, width=100))
    model = gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    with SymmetryMonitor(model, optimizer, every=2, tensorboard=board, writers=[table]) as monitor:
        train(model, optimizer, 2)
    last = monitor.measurements[-1]
    assert board.seen["invisible share/update", 2] == last.update.share
    tag = "share of query/key basis change/layer 0 attention", 2
    assert tag in board.seen, sorted(board.seen)
    shown = text.getvalue()
    assert f"{last.update.share:.4f}" in shown
    assert "not orthogonal" in shown
    assert max(len(line) for line in shown.splitlines()) <= 100
    assert TensorBoard(board)


def test_tensorboard_directories_need_the_package(tmp_path):
    try:
        import tensorboard  # noqa: F401
    except ImportError:
        model = gpt2()
        refused("need the package tensorboard", model, tensorboard=tmp_path)
    else:
        model = gpt2()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with SymmetryMonitor(model, optimizer, tensorboard=tmp_path):
            train(model, optimizer, 1)
        assert list(tmp_path.iterdir())


def test_layers_unfrozen_on_the_way_are_measured(tmp_path):
    model = gpt2()
    held = list(model.transformer.h[0].parameters())
    for parameter in held:
        parameter.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    path = tmp_path / "run.jsonl"
    options = {"every": 1, "path": path, "table": True, "tolerance": 1e-10}
    monitor = SymmetryMonitor(model, optimizer, **options)
    train(model, optimizer, 1)
    fewer = monitor.start
    for parameter in held:
        parameter.requires_grad_(True)
    before = stored(model)
    train(model, optimizer, 1, first=1)
    monitor.close()
    difference = {name: value - before[name] for name, value in stored(model).items()}
    share, dimension = dense_share(before, difference)
    assert monitor.measurements[-1].update.share == pytest.approx(share, abs=1e-9)
    assert monitor.start.invisible == dimension > fewer.invisible
    kinds = [type(record).__name__ for record in read_records(path)]
    assert kinds == ["Start", "Measurement", "Start", "Measurement"]


def test_a_model_that_is_frozen_on_the_way_trains_on():
    model = gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    monitor = SymmetryMonitor(model, optimizer, every=1)
    train(model, optimizer, 1)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    with pytest.warns(UserWarning, match="is not measured"):
        optimizer.step()
    assert len(monitor.measurements) == 1


def test_groups_of_coupled_decay_are_not_counted_as_decoupled():
    model = gpt2()
    matrices = [p for p in model.parameters() if p.ndim > 1]
    vectors = [p for p in model.parameters() if p.ndim == 1]
    groups = [
        {"params": matrices, "decoupled_weight_decay": True},
        {"params": vectors, "decoupled_weight_decay": False},
    ]
    optimizer = torch.optim.Adam(groups, lr=1e-2, weight_decay=0.3)
    monitor = SymmetryMonitor(model, optimizer, every=1)
    norm = np.sqrt(sum(float((p.detach() ** 2).sum()) for p in matrices))
    train(model, optimizer, 1)
    assert monitor.measurements[0].decay.norm == pytest.approx(1e-2 * 0.3 * norm, rel=1e-12)


def test_padding_rows_are_noted():
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    notes = []
    for token in (0, None):
        config = transformers.BertConfig(
            **sizes, vocab_size=23, intermediate_size=12, pad_token_id=token
        )
        model = transformers.BertForMaskedLM(config)
        monitor = SymmetryMonitor(model, torch.optim.AdamW(model.parameters()))
        notes.append(any("padding row" in note for note in monitor.start.notes))
    assert notes == [True, False]


def test_a_scaled_gradient_of_a_fused_step_is_unscaled():
    model = gpt2(torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    monitor = SymmetryMonitor(model, optimizer, every=1)
    loss_of(model).backward()
    norm = np.sqrt(sum(float((p.grad.double() ** 2).sum()) for p in model.parameters()))
    optimizer.zero_grad()
    scaler.scale(loss_of(model)).backward()
    scaler.step(optimizer)
    assert monitor.measurements[0].gradient.norm == pytest.approx(norm, rel=1e-5)


def test_what_is_refused_leaves_no_file_and_no_hooks(tmp_path):
    model = gpt2()
    optimizer = torch.optim.AdamW(model.parameters())
    notes = tmp_path / "notes.txt"
    notes.write_text("not a run, and no line feed")
    path = tmp_path / "run.jsonl"
    for options, sentence in (
        ({"path": path, "tensorboard": 3}, "give a directory or a SummaryWriter"),
        ({"path": path, "writers": [3]}, "is no writer"),
        ({"path": path, "every": 2.5}, "whole number"),
        ({"path": notes, "append": True}, "no record of a monitored run"),
    ):
        with pytest.raises(InputError, match=sentence):
            SymmetryMonitor(model, optimizer, **options)
    assert not path.exists()
    assert notes.read_text() == "not a run, and no line feed"
    assert not optimizer._optimizer_step_pre_hooks


def test_a_loss_that_is_no_number_does_not_end_the_training(tmp_path):
    model = gpt2()
    optimizer = torch.optim.AdamW(model.parameters())
    monitor = SymmetryMonitor(model, optimizer, every=1, path=tmp_path / "run.jsonl")
    for loss in (float("nan"), torch.tensor(2.5)):
        monitor.loss = loss
        train(model, optimizer, 1)
    monitor.close()
    _, *measured = read_records(tmp_path / "run.jsonl")
    assert [record.loss for record in measured] == [None, 2.5]


def test_a_loss_that_sees_more_is_noticed():
    """A penalty on logits sees their common shift, which probabilities do not show."""
    model = gpt2()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    tokens = torch.arange(16).reshape(2, 8)
    for observable, shares in (("probabilities", (1e-4, 1.0)), ("logits", (0.0, 1e-24))):
        with SymmetryMonitor(model, optimizer, every=1, observable=observable) as monitor:
            for number in range(2):
                optimizer.zero_grad()
                (model(input_ids=tokens).logits ** 2).mean().backward()
                if observable == "probabilities" and number == 0:
                    with pytest.warns(UserWarning, match="sees more than probabilities"):
                        optimizer.step()
                else:
                    optimizer.step()
        low, high = shares
        assert all(low <= m.gradient.share <= high for m in monitor.measurements)


def test_threads_are_limited_during_a_measurement_only(monkeypatch):
    seen = []

    class Controller:
        @contextmanager
        def limit(self, *, limits, user_api):
            seen.append((limits, user_api))
            yield
            seen.append("over")

    monkeypatch.setitem(
        sys.modules, "threadpoolctl", types.SimpleNamespace(ThreadpoolController=Controller)
    )
    threads._limiter.cache_clear()
    try:
        model = gpt2()
        optimizer = torch.optim.AdamW(model.parameters())
        for given, expected in ((None, 1), (3, 3)):
            seen.clear()
            with SymmetryMonitor(model, optimizer, every=5, threads=given):
                train(model, optimizer, 2)
            assert seen == [(expected, "blas"), "over"]
        with pytest.raises(InputError, match="threads is 0"):
            SymmetryMonitor(model, optimizer, threads=0)
    finally:
        threads._limiter.cache_clear()
    assert threads.threads_for(10**9) is None
