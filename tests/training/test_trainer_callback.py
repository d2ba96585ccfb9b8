"""The Trainer's callback: with the Trainer where accelerate is installed, and by its own calls."""

from types import SimpleNamespace

import pytest

from fiberscope.errors import InputError
from fiberscope.training import read_records, trainer_callback
from tests.training.test_monitor import gpt2, train

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.torch


def test_the_calls_of_a_trainer_build_and_close_a_monitor(tmp_path):
    model = gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    callback = trainer_callback(every=2, path=tmp_path / "run.jsonl")
    assert isinstance(callback, transformers.TrainerCallback)
    state = SimpleNamespace(global_step=3)
    callback.on_train_begin(None, state, None, model=model, optimizer=optimizer)
    callback.on_log(None, state, None, logs={"loss": 2.5})
    train(model, optimizer, 2)
    callback.on_train_end(None, state, None)
    train(model, optimizer, 1)
    start, measured = read_records(tmp_path / "run.jsonl")
    assert start.every == 2
    # A run resumed behind step 3 takes steps 4 and 5.
    assert (measured.step, measured.loss) == (4, 2.5)


def test_a_training_that_broke_off_leaves_no_hooks(tmp_path):
    model = gpt2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    callback = trainer_callback(every=1, path=tmp_path / "run.jsonl", append=True)
    for step in (0, 1):
        state = SimpleNamespace(global_step=step)
        callback.on_train_begin(None, state, None, model=model, optimizer=optimizer)
    train(model, optimizer, 1)
    callback.on_train_end(None, state, None)
    assert len(callback.monitor.measurements) == 1
    assert len(list(read_records(tmp_path / "run.jsonl"))) == 3


def test_a_model_that_cannot_be_measured_is_refused_when_training_begins():
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    callback = trainer_callback()
    with pytest.raises(InputError, match="no table"):
        callback.on_train_begin(
            None, SimpleNamespace(global_step=0), None, model=model, optimizer=optimizer
        )


@pytest.mark.filterwarnings("ignore")
def test_a_trainer_runs_with_it(tmp_path):
    pytest.importorskip("accelerate")
    model = gpt2(torch.float32)
    data = [
        {"input_ids": row, "labels": row.clone()}
        for row in torch.arange(64).remainder(22).reshape(8, 8)
    ]
    callback = trainer_callback(every=2, path=tmp_path / "run.jsonl")
    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=str(tmp_path / "out"),
            max_steps=4,
            per_device_train_batch_size=4,
            logging_steps=1,
            report_to=[],
            save_strategy="no",
            use_cpu=True,
            disable_tqdm=True,
        ),
        train_dataset=data,
        callbacks=[callback],
    )
    trainer.train()
    _, *measured = read_records(tmp_path / "run.jsonl")
    assert [record.step for record in measured] == [1, 2, 4]
    assert all(record.gradient.share < 1e-10 for record in measured)
    assert measured[-1].decay is not None
