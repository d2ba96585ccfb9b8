"""A blind randomised campaign for `compare`: moved copies, changed copies, adversarial weights.

Every draw takes a random toy of a supported class with random, often adversarial weights (clustered
singular values, almost equal heads, equal and tiny gains, zero heads, dead and duplicate neurons),
stores it in one of four formats, and compares it with

* a copy moved by a random element of the whole symmetry group (condition up to 1,000), in another
  of the formats: the truth is SAME;
* a copy that was changed (one weight, heads exchanged across groups, the mean taken from the
  embeddings, noise on everything, other weights) and usually moved as well: the truth is DIFFERENT
  where the change moves the outputs by far more than the rounding of either file's format does, and
  not counted otherwise.

Run as ``python benchmarks/compare_campaign.py --pairs 2000 --seed 1 [--json FILE]``.
The thresholds under test are those of the released code; seeds are drawn afterwards.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
sys.path.insert(0, str(Path(__file__).parent))

from fiberscope.checkpoints.architecture.program import Architecture, Observable
from fiberscope.checkpoints.architecture.registry import architecture
from fiberscope.checkpoints.equality.comparison import compare_models
from fiberscope.checkpoints.equality.noisy import rounding_variance
from fiberscope.checkpoints.equality.stored import StoredModel
from fiberscope.checkpoints.forward import outputs, probe_inputs
from fiberscope.checkpoints.ledger.wiring import Wiring, wire
from fiberscope.checkpoints.moves import Catalogue, RandomMove
from fiberscope.checkpoints.moves.exceptional import NEURON_MIXING
from fiberscope.errors import InputError
from three_routes_campaign import FAMILIES, observable_for, pick

Parameters = dict[str, np.ndarray]
Rng = np.random.Generator

FORMATS: Mapping[str, Any] = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
    "bfloat16": ml_dtypes.bfloat16,
}
CONDITIONS = (None, None, 1.0, 10.0, 100.0, 1000.0)
"""Condition numbers of the moves; None draws between 1 and 16."""
COARSE_CONDITIONS = (None, None, 1.0, 10.0)
"""The same for copies in 16 bits: on heads of two to four rows anything larger leaves products
uncertain by more than 10 %, which the verdict UNDECIDED says rightly (see --coarse)."""


def stored(parameters: Mapping[str, np.ndarray], name: str) -> Parameters:
    """Numbers as a file of this format holds them."""
    with np.errstate(over="ignore"):
        return {key: np.asarray(value).astype(FORMATS[name]) for key, value in parameters.items()}


def fits(parameters: Mapping[str, np.ndarray]) -> bool:
    """Whether every number is finite."""
    return all(np.isfinite(value.astype(np.float64)).all() for value in parameters.values())


# --- weights ----------------------------------------------------------------------------------


def draw_weights(model: Architecture, wiring: Wiring, rng: Rng) -> tuple[Parameters, list[str]]:
    """Random weights, with up to three adversarial features."""
    parameters = {}
    for name, shape in model.tensors.items():
        scale = 1.0 if len(shape) == 1 else float(np.sqrt(1.0 / max(1, shape[-1])))
        parameters[name] = scale * rng.standard_normal(shape)
    for point in wiring.points:
        if point.norm.gain is not None:
            gain = point.norm.gain
            gain.write(parameters, 2.0 ** rng.uniform(-1, 1, gain.shape))
    features = []
    for _ in range(pick(rng, 0, 1, 1, 2, 3)):
        feature = pick(rng, *ADVERSARIES)
        if feature(parameters, wiring, rng):
            features.append(feature.__name__)
    return parameters, features


def clustered_singular_values(p: Parameters, wiring: Wiring, rng: Rng) -> bool:
    a = pick(rng, *wiring.attentions)
    value = a.value.read(p)
    width = min(value.shape[1:])
    for group in range(value.shape[0]):
        full = rng.standard_normal(value.shape[1:])
        left, _, right = np.linalg.svd(full, full_matrices=False)
        sizes = np.where(np.arange(width) < width // 2 + 1, 1.0, 0.5)
        value[group] = (left * sizes) @ right
    a.value.write(p, value)
    return True


def almost_equal_heads(p: Parameters, wiring: Wiring, rng: Rng) -> bool:
    a = pick(rng, *wiring.attentions)
    delta = 10.0 ** rng.uniform(-9, -1)
    if a.groups > 1:
        for view in (a.query, a.key, a.value, a.query_bias, a.key_bias, a.value_bias):
            if view is not None:
                array = view.read(p)
                array[1] = array[0] * (1 + delta * rng.standard_normal(array[0].shape))
                view.write(p, array)
        return True
    if a.heads_per_group > 1:
        array = a.query.read(p)
        array[:, 1] = array[:, 0] * (1 + delta * rng.standard_normal(array[:, 0].shape))
        a.query.write(p, array)
        return True
    return False


def equal_gains(p: Parameters, wiring: Wiring, rng: Rng) -> bool:
    gains = [point.norm.gain for point in wiring.points if point.norm.gain is not None]
    if not gains:
        return False
    blocks = pick(rng, 1, 2)
    for gain in gains:
        values = np.resize(np.array([1.0, 1.5])[:blocks], gain.shape)
        gain.write(p, values if rng.random() < 0.5 else rng.permutation(values))
    return True


def tiny_gains(p: Parameters, wiring: Wiring, rng: Rng) -> bool:
    point = pick(rng, *wiring.points)
    if point.norm.gain is None:
        return False
    values = point.norm.gain.read(p)
    values[int(rng.integers(len(values)))] = 10.0 ** rng.uniform(-4, -2)
    point.norm.gain.write(p, values)
    return True


def zero_head(p: Parameters, wiring: Wiring, rng: Rng) -> bool:
    a = pick(rng, *wiring.attentions)
    view = pick(rng, a.output, a.value, a.query)
    array = view.read(p)
    array[int(rng.integers(a.groups))] = 0.0
    view.write(p, array)
    return True


def rank_deficient_head(p: Parameters, wiring: Wiring, rng: Rng) -> bool:
    a = pick(rng, *wiring.attentions)
    if a.value_width < 2:
        return False
    array = a.value.read(p)
    array[:, -1] = array[:, 0]
    a.value.write(p, array)
    return True


def dead_neuron(p: Parameters, wiring: Wiring, rng: Rng) -> bool:
    m = pick(rng, *wiring.mlps)
    neuron = int(rng.integers(m.neurons))
    views = [(m.down, 1), (m.up, 0)] if m.gate is None else [(m.gate, 0), (m.up, 0), (m.down, 1)]
    view, axis = views[int(rng.integers(len(views)))]
    array = view.read(p)
    np.moveaxis(array, axis, 0)[neuron] = 0.0
    view.write(p, array)
    for bias in (m.up_bias, m.gate_bias):
        if bias is not None and axis == 0:
            array = bias.read(p)
            array[neuron] = 0.0
            bias.write(p, array)
    return True


def duplicate_neurons(p: Parameters, wiring: Wiring, rng: Rng) -> bool:
    m = pick(rng, *wiring.mlps)
    if m.neurons < 2:
        return False
    views = [m.gate, m.gate_bias] if m.gate is not None else [m.up, m.up_bias]
    for view in views:
        if view is not None:
            array = view.read(p)
            array[1] = array[0]
            view.write(p, array)
    return True


ADVERSARIES: tuple[Callable[[Parameters, Wiring, Rng], bool], ...] = (
    clustered_singular_values,
    almost_equal_heads,
    equal_gains,
    tiny_gains,
    zero_head,
    rank_deficient_head,
    dead_neuron,
    duplicate_neurons,
)


# --- changes ----------------------------------------------------------------------------------


def one_weight(p: Parameters, wiring: Wiring, rng: Rng, ulp: float) -> str | None:
    name = pick(rng, *p)
    array = p[name]
    spot = tuple(int(rng.integers(size)) for size in array.shape)
    row = array[spot[:-1]] if array.ndim > 1 else array
    # Ten times the largest allowed residual, in roundings of a row of this size.
    rounding = ulp * float(np.sqrt(np.mean(np.square(row)) or 1.0)) / np.sqrt(12.0)
    array[spot] += 10 * 25 * rounding * pick(rng, -1.0, 1.0)
    return f"one weight of {name}"


def values_across_groups(p: Parameters, wiring: Wiring, rng: Rng, ulp: float) -> str | None:
    a = pick(rng, *wiring.attentions)
    if a.groups < 2:
        return None
    array = a.value.read(p)
    a.value.write(p, array[::-1].copy())
    return "values exchanged across groups"


def flat_permutation(p: Parameters, wiring: Wiring, rng: Rng, ulp: float) -> str | None:
    a = pick(rng, *wiring.attentions)
    if a.groups < 2 or a.heads_per_group < 2:
        return None
    for view in (a.query, a.output, a.query_bias):
        if view is not None:
            array = view.read(p)
            flat = array.reshape(-1, *array.shape[2:])
            view.write(p, np.roll(flat, 1, axis=0).reshape(array.shape))
    return "query heads permuted without regard to their groups"


def mean_of_embeddings(p: Parameters, wiring: Wiring, rng: Rng, ulp: float) -> str | None:
    segment = wiring.segments[0]
    if segment.blind:
        return None
    view = segment.writers[0].view
    array = view.read(p)
    view.write(p, array - array.mean(axis=-1, keepdims=True))
    return "mean subtracted from the embeddings"


def noise_everywhere(p: Parameters, wiring: Wiring, rng: Rng, ulp: float) -> str | None:
    size = 10.0 ** rng.uniform(-2, -1)
    for name in p:
        p[name] = p[name] * (1 + size * rng.standard_normal(p[name].shape))
    return "fine-tuned: relative noise on every weight"


def other_weights(p: Parameters, wiring: Wiring, rng: Rng, ulp: float) -> str | None:
    for name in p:
        p[name] = rng.permutation(p[name].reshape(-1)).reshape(p[name].shape)
    return "other weights"


CHANGES = (
    one_weight,
    one_weight,
    one_weight,
    values_across_groups,
    flat_permutation,
    mean_of_embeddings,
    noise_everywhere,
    other_weights,
)


# --- pairs ------------------------------------------------------------------------------------


def moved(
    model: Architecture,
    observable: Observable,
    p: Parameters,
    rng: Rng,
    mixing: bool,
    conditions: tuple[float | None, ...],
) -> Parameters:
    """A copy moved by a random element of the whole group."""
    catalogue = Catalogue(model, observable)
    only = None
    if mixing and any(mlp.gate is not None for mlp in catalogue.wiring.mlps):
        plain = RandomMove(catalogue, 0)
        only = sorted({*plain.chosen, NEURON_MIXING})
    move = RandomMove(
        catalogue, int(rng.integers(2**31)), condition=pick(rng, *conditions), only=only
    )
    return {k: np.array(v) for k, v in move.tensors(lambda name: p[name].copy())}


def run(pairs: int, seed: int, verbose: bool, coarse_too: bool) -> dict[str, Any]:
    """Compare that many pairs."""
    counts: Counter[str] = Counter()
    wrong: list[dict[str, Any]] = []
    undecided: list[dict[str, Any]] = []
    rms: dict[str, list[float]] = {}
    done, draw, start = 0, 0, time.time()
    while done < pairs:
        rng = np.random.default_rng([seed, draw])
        draw += 1
        try:
            case = one_pair(rng, coarse_too)
        except InputError as error:
            counts[f"refused: {str(error)[:40]}"] += 1
            continue
        except Exception:
            wrong.append({"draw": draw - 1, "error": traceback.format_exc(limit=-4)})
            done += 1
            continue
        if case is None:
            continue
        done += 1
        truth, verdict = case["truth"], case["verdict"]
        counts[f"{truth} -> {verdict}"] += 1
        case["draw"] = draw - 1
        if truth in ("SAME", "DIFFERENT") and verdict not in (truth, "UNDECIDED"):
            wrong.append(case)
        elif verdict == "UNDECIDED" and truth != "between":
            undecided.append(case)
        if truth == "SAME" and verdict == "SAME":
            rms.setdefault(case["formats"][1], []).append(case["rms"])
        if verbose and done % 100 == 0:
            print(f"{done} pairs, {time.time() - start:.0f} s, {dict(counts)}", file=sys.stderr)
    return {
        "pairs": done,
        "seed": seed,
        "seconds": time.time() - start,
        "counts": dict(counts),
        "wrong": wrong,
        "undecided": undecided,
        "worst_rms_by_format": {
            name: {"median": float(np.median(v)), "largest": float(np.max(v))}
            for name, v in rms.items()
        },
    }


def one_pair(rng: Rng, coarse_too: bool = False) -> dict[str, Any] | None:
    """One drawn pair, its truth and the verdict; None when a draw does not exist."""
    config = pick(rng, *FAMILIES)(rng)
    observable = Observable(observable_for(config, rng))
    model = architecture(config)
    wiring = wire(model, observable)
    parameters, features = draw_weights(model, wiring, rng)
    formats = pick(rng, *FORMATS), pick(rng, *FORMATS)
    first = stored(parameters, formats[0])
    if not fits(first):
        return None
    source = {name: value.astype(np.float64) for name, value in first.items()}
    change, target = None, {name: value.copy() for name, value in source.items()}
    if rng.random() < 0.5:
        coarse = max(float(ml_dtypes.finfo(FORMATS[f]).eps) for f in formats)
        change = pick(rng, *CHANGES)(target, wiring, rng, coarse)
        if change is None:
            return None
    probe = probe_inputs(model, int(rng.integers(2**31)), 4, 4)
    reference = outputs(model, lambda view: view.read(source), probe, observable)
    changed = outputs(model, lambda view: view.read(target), probe, observable)
    copy = target
    if change is None or rng.random() < 0.7:
        mixing = "duplicate_neurons" in features and rng.random() < 0.5
        wide = coarse_too or "16" not in formats[1]
        conditions = CONDITIONS if wide else COARSE_CONDITIONS
        copy = moved(model, observable, target, rng, mixing, conditions)
    second = stored(copy, formats[1])
    if not fits(second):
        return None
    final = {name: value.astype(np.float64) for name, value in second.items()}
    rounded = outputs(model, lambda view: view.read(final), probe, observable)
    # Either may be the copy, and the coarser one may be the rounding of anything within half a
    # unit in its last place: what such a draw does to the outputs, no comparison can tell apart.
    coarser = max(formats, key=list(FORMATS).index)
    blurred = {
        name: value
        + np.sqrt(rounding_variance(value.astype(FORMATS[coarser])))
        * rng.standard_normal(value.shape)
        for name, value in target.items()
    }
    hidden = outputs(model, lambda view: view.read(blurred), probe, observable)
    scale = float(np.sqrt(np.square(reference - reference.mean()).mean())) or 1.0
    effect = float(np.abs(changed - reference).max()) / scale
    rounding = max(float(np.abs(rounded - changed).max()), float(np.abs(hidden - changed).max()))
    rounding /= scale
    truth = "SAME"
    if change is not None:
        truth = "between"
        if effect > max(30 * rounding, 1e-9):
            truth = "DIFFERENT"
    pair = (
        StoredModel.of(model, first, observable, "first"),
        StoredModel.of(model, second, observable, "second"),
    )
    backwards = bool(rng.random() < 0.5)
    found = compare_models(*(reversed(pair) if backwards else pair))
    worst = found.worst
    return {
        "truth": truth,
        "verdict": found.outcome.name,
        "reason": found.reason,
        "class": model.name,
        "observable": observable.value,
        "features": features,
        "formats": formats,
        "backwards": backwards,
        "change": change,
        "effect": effect,
        "rounding": rounding,
        "rms": worst.rms if worst else 0.0,
        "first_difference": found.first_difference,
        "uncertainty": found.uncertainty[0],
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pairs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--coarse", action="store_true", help="ill-conditioned moves in 16 bits")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = run(options.pairs, options.seed, True, options.coarse)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1, default=str))
    print(f"{found['pairs']} pairs, seed {found['seed']}, {found['seconds']:.0f} s")
    for name, count in sorted(found["counts"].items()):
        print(f"  {name}: {count}")
    for name, value in found["worst_rms_by_format"].items():
        middle, largest = value["median"], value["largest"]
        print(f"  worst rms a pair, {name}: median {middle:.2f}, largest {largest:.2f}")
    print(f"wrong: {len(found['wrong'])}")
    for case in found["wrong"]:
        print("  ", case)
    print(f"undecided: {len(found['undecided'])}")
    for case in found["undecided"][:40]:
        print("  ", case)
    if found["wrong"]:
        sys.exit(1)


if __name__ == "__main__":
    main()
