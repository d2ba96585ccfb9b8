"""Train the example checkpoints that ship with fiberscope.

    python scripts/train_examples.py --model gpt2 --out DIR [--steps N]

Three character-level language models of about half a million parameters, trained on Python's own
documentation (``pydoc_data.topics`` of the standard library, so nothing is downloaded): a
GPT-2-style decoder, and a Llama-style decoder with two seeds, a pair of independent trainings of
one architecture. Needs the ``twins`` extra. One thread, about ten minutes per model.

Training is deterministic: the same machine, Python documentation and package versions give the
same bytes. Other processors or versions round differently, so their weights differ in value but
not in kind; the corpus and the versions used are written beside the weights.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import platform
import shutil
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fiberscope.errors import InputError

VOCABULARY_SIZE = 128
OTHER_CHARACTER = 26  # ASCII's own SUBSTITUTE character stands for every non-ASCII one
CONTEXT = 128
BLOCK_CHARACTERS = 4096
VALIDATION_EVERY = 10  # of every ten consecutive blocks the last is held out
SLICE_CHARACTERS = 8192  # the part of the validation text whose loss a test recomputes
CURVE_POINTS = 30


@dataclass(frozen=True)
class Recipe:
    """Everything about a training run that is not the architecture or the corpus."""

    steps: int
    batch_windows: int = 32
    learning_rate: float = 3e-3
    final_learning_rate: float = 3e-4
    warmup_steps: int = 100
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    gradient_clip: float = 1.0
    dropout: float = 0.0


@dataclass(frozen=True)
class Example:
    """One shipped checkpoint: its architecture, its shape, its seed and its number of steps."""

    architecture: str
    seed: int
    shape: dict[str, Any]
    steps: int


GPT2_SHAPE: dict[str, Any] = {"n_layer": 4, "n_embd": 96, "n_head": 4}
LLAMA_SHAPE: dict[str, Any] = {
    "num_hidden_layers": 4,
    "hidden_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "intermediate_size": 288,
}
# The Llama-style decoder learns faster, and overfits this small corpus when trained as long.
EXAMPLES = {
    "gpt2": Example("GPT2LMHeadModel", 1, GPT2_SHAPE, 2100),
    "llama-a": Example("LlamaForCausalLM", 1, LLAMA_SHAPE, 1000),
    "llama-b": Example("LlamaForCausalLM", 2, LLAMA_SHAPE, 1000),
}


@dataclass(frozen=True)
class Corpus:
    """The documentation, split: ``training`` and ``validation`` are texts, not yet token ids."""

    training: str
    validation: str
    sha256: str


def documentation_corpus() -> Corpus:
    """Read Python's documentation topics and split them into training and validation text.

    The topics quote each other at length, which would put validation text into the training part,
    so a paragraph that has occurred before (up to white space) is dropped first.
    """
    from pydoc_data import topics

    paragraphs: dict[str, str] = {}
    for label in sorted(topics.topics):
        for paragraph in topics.topics[label].split("\n\n"):
            paragraphs.setdefault(" ".join(paragraph.split()), paragraph)
    text = "\n\n".join(paragraphs.values())
    blocks = [text[at : at + BLOCK_CHARACTERS] for at in range(0, len(text), BLOCK_CHARACTERS)]
    held_out = VALIDATION_EVERY - 1
    return Corpus(
        training="".join(b for i, b in enumerate(blocks) if i % VALIDATION_EVERY != held_out),
        validation="".join(b for i, b in enumerate(blocks) if i % VALIDATION_EVERY == held_out),
        sha256=hashlib.sha256(text.encode()).hexdigest(),
    )


def token_ids(text: str) -> np.ndarray:
    """Map every character to its ASCII code, or to ``OTHER_CHARACTER`` if it has none."""
    codes = np.frombuffer(text.encode("utf-32-le"), dtype="<u4").astype(np.int64)
    return np.where(codes < VOCABULARY_SIZE, codes, OTHER_CHARACTER)


@contextlib.contextmanager
def deterministic_torch(seed: int) -> Iterator[None]:
    """One thread, deterministic kernels and a seeded generator; restores all three at the end."""
    import torch

    threads = torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    with torch.random.fork_rng(devices=[]):
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(deterministic)
            torch.set_num_threads(threads)


def build_model(example: Example, recipe: Recipe) -> Any:
    """Return the randomly initialised ``transformers`` model of an example, in float32."""
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    # The vocabulary has no special tokens; the classes' default ids would lie outside it.
    no_tokens: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None}
    if example.architecture == "GPT2LMHeadModel":
        return GPT2LMHeadModel(
            GPT2Config(
                vocab_size=VOCABULARY_SIZE,
                n_positions=CONTEXT,
                resid_pdrop=recipe.dropout,
                embd_pdrop=recipe.dropout,
                attn_pdrop=recipe.dropout,
                **example.shape,
                **no_tokens,
            )
        )
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY_SIZE,
            max_position_embeddings=CONTEXT,
            rms_norm_eps=1e-5,
            attention_dropout=recipe.dropout,
            tie_word_embeddings=False,
            **example.shape,
            **no_tokens,
        )
    )


def evaluation_loss(model: Any, ids: np.ndarray) -> float:
    """Mean next-character loss, in nats, over consecutive windows of ``CONTEXT`` characters.

    Windows do not overlap: each predicts its characters 2 ... ``CONTEXT`` from the ones before
    them in the window. A last incomplete window is left out. The mean is taken in float64.
    """
    import torch
    from torch.nn.functional import cross_entropy

    windows = torch.from_numpy(ids[: len(ids) // CONTEXT * CONTEXT].reshape(-1, CONTEXT))
    total = 0.0
    with torch.no_grad():
        for batch in windows.split(64):
            logits = model(input_ids=batch, use_cache=False).logits[:, :-1].double()
            loss = cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="sum")
            total += float(loss)
    return total / (len(windows) * (CONTEXT - 1))


def learning_rate(step: int, recipe: Recipe) -> float:
    """Return the rate of a step (from 0): linear warm-up, then a cosine to the final rate."""
    if step < recipe.warmup_steps:
        return recipe.learning_rate * (step + 1) / recipe.warmup_steps
    progress = (step - recipe.warmup_steps) / max(1, recipe.steps - recipe.warmup_steps)
    span = recipe.learning_rate - recipe.final_learning_rate
    return recipe.final_learning_rate + 0.5 * span * (1 + math.cos(math.pi * progress))


def train(
    model: Any, corpus: Corpus, seed: int, recipe: Recipe, name: str
) -> list[dict[str, float]]:
    """Train in place; return the loss curve.

    Each point has the steps taken, the mean training loss since the point before, and the loss on
    the whole validation text.
    """
    import torch
    from torch.nn.functional import cross_entropy

    text = torch.from_numpy(token_ids(corpus.training))
    validation = token_ids(corpus.validation)
    # Decay acts on the matrices; norms and biases are left alone, as is usual.
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}],
        lr=recipe.learning_rate,
        betas=recipe.betas,
        weight_decay=recipe.weight_decay,
    )
    rng = np.random.default_rng(seed)
    within = torch.arange(CONTEXT + 1)
    every = max(1, recipe.steps // CURVE_POINTS)
    curve: list[dict[str, float]] = []
    since_point: list[float] = []
    model.train()
    for step in range(recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, recipe)
        starts = torch.from_numpy(rng.integers(0, len(text) - CONTEXT, size=recipe.batch_windows))
        windows = text[starts[:, None] + within]
        logits = model(input_ids=windows[:, :-1], use_cache=False).logits
        loss = cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.gradient_clip)
        optimizer.step()
        since_point.append(loss.item())
        taken = step + 1
        if taken % every == 0 or taken == recipe.steps:
            point = {
                "step": taken,
                "training_loss": round(float(np.mean(since_point)), 6),
                "validation_loss": round(evaluation_loss(model, validation), 6),
            }
            curve.append(point)
            since_point = []
            losses = ", ".join(f"{key} {value:.4f}" for key, value in list(point.items())[1:])
            print(f"{name}: {taken}/{recipe.steps}, {losses}", file=sys.stderr, flush=True)
    model.eval()
    return curve


def training_record(
    model: Any,
    name: str,
    example: Example,
    recipe: Recipe,
    corpus: Corpus,
    untrained: float,
    curve: list[dict[str, float]],
) -> dict[str, Any]:
    """Return what ``training.json`` says; it holds no times, so equal runs write equal bytes."""
    import torch
    import transformers

    validation = token_ids(corpus.validation)
    return {
        "name": name,
        "architecture": example.architecture,
        "parameters": sum(p.numel() for p in model.parameters()),
        "seed": example.seed,
        "recipe": {"optimizer": "AdamW", "precision": "float32", "context": CONTEXT}
        | asdict(recipe),
        "corpus": {
            "source": f"pydoc_data.topics of Python {platform.python_version()}",
            "licence": "Python Software Foundation License Version 2",
            "sha256": corpus.sha256,
            "training_characters": len(corpus.training),
            "validation_characters": len(corpus.validation),
        },
        "loss": {
            "unit": "nats per character",
            "untrained_validation": round(untrained, 6),
            "validation": round(evaluation_loss(model, validation), 6),
            "slice_characters": SLICE_CHARACTERS,
            "slice": round(evaluation_loss(model, validation[:SLICE_CHARACTERS]), 6),
            "curve": curve,
        },
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        },
    }


def readme_text(record: dict[str, Any]) -> str:
    """Return the README that is written beside the weights."""
    recipe, loss, corpus = record["recipe"], record["loss"], record["corpus"]
    introduction = (
        f"A small {record['architecture']} with {record['parameters']:,} parameters, trained from "
        "scratch as an example checkpoint for fiberscope. It exists to be analysed; it is too "
        "small to be a useful language model."
    )
    items = {
        "Vocabulary": (
            f"the 128 ASCII codes, one per character; id {OTHER_CHARACTER} stands for every other "
            "character. Of the control characters the text has only the line feed, so the input "
            f"embeddings of the others (but for id {OTHER_CHARACTER}) were never read in training. "
            f"Context: {CONTEXT} characters."
        ),
        "Corpus": (
            f"the documentation that ships with Python {record['versions']['python']} "
            "(`pydoc_data.topics`), repeated paragraphs removed; "
            f"{corpus['training_characters']:,} characters for training, "
            f"{corpus['validation_characters']:,} held out. The documentation is copyright Python "
            "Software Foundation, under the PSF License Version 2."
        ),
        "Recipe": (
            f"seed {record['seed']}, {recipe['steps']:,} steps of {recipe['batch_windows']} "
            f"windows, AdamW with weight decay {recipe['weight_decay']} on matrices, learning rate "
            f"{recipe['learning_rate']:g} after {recipe['warmup_steps']} warm-up steps and a "
            f"cosine to {recipe['final_learning_rate']:g}, gradients clipped at norm "
            f"{recipe['gradient_clip']:g}, dropout {recipe['dropout']:g}, float32, one CPU thread."
        ),
        "Loss reached": (
            f"{loss['validation']:.4f} nats per character on the held-out text, "
            f"{loss['slice']:.4f} on its first {loss['slice_characters']:,} characters "
            f"(untrained: {loss['untrained_validation']:.4f})."
        ),
        "Licence of the weights": "Apache-2.0.",
    }
    items["Made by"] = (
        f"`python scripts/train_examples.py --model {record['name']} --steps {recipe['steps']} "
        "--out DIR` in the source repository; `training.json` has the loss curve and the versions."
    )
    lines = [f"- **{title}**: {text}" for title, text in items.items()]
    head = f"# {record['name']}\n\n{textwrap.fill(introduction, 99)}\n\n"
    return head + "".join(textwrap.fill(line, 99, subsequent_indent="  ") + "\n" for line in lines)


def save(model: Any, record: dict[str, Any], out: Path) -> None:
    """Write the Hugging Face directory; it appears under its name only when complete."""
    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    try:
        model.save_pretrained(partial)
        (partial / "generation_config.json").unlink(missing_ok=True)
        (partial / "training.json").write_text(json.dumps(record, indent=1) + "\n")
        (partial / "README.md").write_text(readme_text(record))
        for file in partial.iterdir():
            file.chmod(0o644)
        partial.chmod(0o755)
        partial.rename(out)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def train_example(name: str, out: Path, recipe: Recipe, example: Example | None = None) -> None:
    """Train one example and write it to ``out``, which must not exist.

    ``example`` overrides the shape and seed of ``EXAMPLES[name]``. Raises ``InputError`` if ``out``
    exists.
    """
    if out.exists():
        raise InputError(f"{out} exists already; name a directory that does not exist yet.")
    chosen = EXAMPLES[name] if example is None else example
    corpus = documentation_corpus()
    with deterministic_torch(chosen.seed):
        model = build_model(chosen, recipe)
        untrained = evaluation_loss(model, token_ids(corpus.validation))
        curve = train(model, corpus, chosen.seed, recipe, name)
        record = training_record(model, name, chosen, recipe, corpus, untrained, curve)
        save(model, record, out)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit code (3 for bad input)."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", required=True, choices=sorted(EXAMPLES))
    parser.add_argument("--out", required=True, type=Path, help="directory to create")
    parser.add_argument("--steps", type=int, help="default: those of the shipped model")
    options = parser.parse_args(arguments)
    try:
        steps = EXAMPLES[options.model].steps if options.steps is None else options.steps
        if steps < 1:
            raise InputError(f"--steps is {steps}; give at least 1.")
        train_example(options.model, options.out, Recipe(steps))
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
