"""One attention layer of SmolLM2 behind a black box: heads from queries, compared with the file.

The weights are those of SmolLM2-135M-Instruct (nine heads of rank 64, width 576, three key and
value heads; no biases), de-quantised to float64. The box answers f(X), with rotary positions off,
read out along one random direction of the layer's output. The method is told the rank 64 and
nothing else. It asks about 1.3 * 2 r d H two-token queries instead of the 4 H d^2 of the general
method: some directions z show that z^T W_h lies in r dimensions, and in those few coordinates all
other directions are cheap.

    python benchmarks/recover_attention_smollm2.py PATH/SmolLM2-135M-Instruct.Q4_1.gguf --layer 12
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.formats import open_checkpoint
from fiberscope.queries.many_heads import circle as circles
from fiberscope.queries.many_heads.circle import Circle
from fiberscope.queries.many_heads.pairs import PairProbe
from fiberscope.queries.many_heads.steps import Steps
from fiberscope.queries.many_heads.sweep import typical_size
from fiberscope.queries.noise import NoiseLevel
from fiberscope.queries.oracle import Arithmetic
from fiberscope.queries.session import Purpose, QuerySession

Floats = NDArray[np.float64]
REACH, MOVE, EACH = 100.0, 0.0015, 1.25


class LayerOracle:
    """The layer in float64, factors kept apart."""

    def __init__(
        self, path: Path, layer: int, rng: np.random.Generator, span: int | None = None
    ) -> None:
        weights = open_checkpoint(path).weights
        assert weights is not None
        name = f"model.layers.{layer}.self_attn"
        key, query, value, output = (
            weights.read_float64(f"{name}.{part}_proj.weight") for part in "kqvo"
        )
        d = query.shape[1]
        self.arithmetic = Arithmetic.FLOAT64
        self.identity = f"{path.name} layer {layer}"
        rank = 64
        self.heads = query.shape[0] // rank
        group = query.shape[0] // key.shape[0]
        readout = rng.normal(size=output.shape[0]) / np.sqrt(output.shape[0])
        self.key = key.reshape(-1, rank, d)
        self.query = query.reshape(-1, rank, d) / np.sqrt(rank)
        self.group = group
        shares = (readout @ output).reshape(-1, rank)
        values = value.reshape(-1, rank, d)
        self.v = np.stack([shares[h] @ values[h // group] for h in range(self.heads)])
        if span is not None and span < d:
            # Tokens are coordinates in a random subspace: the layer restricted to it.
            frame = np.linalg.qr(rng.normal(size=(d, span)))[0]
            self.key, self.query, self.v = self.key @ frame, self.query @ frame, self.v @ frame
        self.width = self.v.shape[1]

    def answer(self, sequences: Any, bits: int = 128) -> Floats:
        """Answers, shape ``(n,)``."""
        if not isinstance(sequences, np.ndarray):
            return np.concatenate([self.answer(np.asarray(each)[None]) for each in sequences])
        X = sequences
        keys = [X @ part.T for part in self.key]
        total = np.zeros(len(X))
        for h in range(self.heads):
            asked = X[:, -1] @ self.query[h].T
            scores = (keys[h // self.group] @ asked[:, :, None])[:, :, 0]
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            total += (weights * (X @ self.v[h])).sum(axis=1) / weights.sum(axis=1)
        return total

    def true_scores(self, h: int) -> Floats:
        """The true score matrix, for comparison only."""
        return np.asarray(self.key[h // self.group].T @ self.query[h])


def design(directions: Floats, frames: list[Floats], each: float, rng: Any) -> Floats:
    """Points inside every head's step, spread over the rows of its frame."""
    points = []
    # Orthonormal sides: as many points as unknowns then suffice without near dependence.
    size = len(frames[0])
    rotations = [np.linalg.qr(rng.normal(size=(size, size)))[0] for _ in range(2)]
    sheets = np.concatenate(rotations) * np.sqrt(size)
    for direction, frame in zip(directions, frames, strict=True):
        length = np.linalg.norm(direction)
        count = int(each * len(frame)) + 6
        sides = sheets[:count] @ frame
        sides -= np.outer(sides @ direction, direction) / length**2
        along = rng.uniform(-1.2, 1.2, size=count)
        along[::4] = rng.choice([-3.0, 3.0], size=len(along[::4]))
        points.append(sides * REACH / length + np.outer(along, direction) / length**2)
    return np.concatenate(points)


def fit(
    y: Floats, values: Floats, frames: list[Floats] | None, start: Steps
) -> tuple[Steps, float]:
    """Gauss-Newton for all heads; coordinates in frames, or conjugate gradients in all of them."""
    from scipy.linalg import cho_factor, cho_solve

    steps, count = start, start.count
    features = [y @ frame.T for frame in frames] if frames else [y] * count
    widths = [each.shape[1] for each in features]
    ends = np.cumsum([0, *widths])
    factors: list[Any] = []
    last = np.inf
    for _ in range(20):
        half = np.tanh(0.5 * (y @ steps.directions.T))
        left = values - 0.5 * half @ steps.heights - steps.constant
        size = float(np.sqrt(np.mean(left**2)))
        small = size < 1e-11 * float(np.abs(steps.heights).sum())
        if size > 0.9 * last or (small and size > 0.2 * last):
            last = min(size, last)
            break
        last = size
        slopes = 0.25 * (1 - half**2) * steps.heights
        sides = np.concatenate([0.5 * half, np.ones((len(y), 1))], axis=1)

        def forward(x: Floats, slopes: Floats = slopes, sides: Floats = sides) -> Floats:
            total = sides @ x[ends[-1] :]
            if frames is None:
                total += np.einsum("nh,nh->n", y @ x[: ends[-1]].reshape(count, -1).T, slopes)
                return total
            for h in range(count):
                total += slopes[:, h] * (features[h] @ x[ends[h] : ends[h + 1]])
            return total

        def backward(r: Floats, slopes: Floats = slopes, sides: Floats = sides) -> Floats:
            if frames is None:
                parts = [((slopes * r[:, None]).T @ y).reshape(-1)]
            else:
                parts = [features[h].T @ (slopes[:, h] * r) for h in range(count)]
            return np.concatenate([*parts, sides.T @ r])

        if not factors:
            # Every head's own block of the normal equations, its height included.
            for h in range(count):
                strong = np.abs(slopes[:, h]) > 0.02 * np.abs(slopes[:, h]).max()
                block = features[h][strong] * slopes[strong, h : h + 1]
                gram = np.empty((widths[h] + 1, widths[h] + 1))
                gram[:-1, :-1] = block.T @ block
                gram[:-1, -1] = gram[-1, :-1] = block.T @ sides[strong, h]
                gram[-1, -1] = sides[:, h] @ sides[:, h]
                gram[np.diag_indices_from(gram)] *= 1 + 1e-10
                factors.append(cho_factor(gram, check_finite=False))

        def precondition(r: Floats) -> Floats:
            solved = np.empty_like(r)
            solved[-1] = r[-1] / len(y)
            for h in range(count):
                own = np.append(r[ends[h] : ends[h + 1]], r[ends[-1] + h])
                own = cho_solve(factors[h], own, check_finite=False)
                solved[ends[h] : ends[h + 1]], solved[ends[-1] + h] = own[:-1], own[-1]
            return solved

        x = np.zeros(ends[-1] + count + 1)
        r = backward(left)
        z = precondition(r)
        p, rho = z, float(r @ z)
        first = rho
        for _ in range(30):
            Ap = backward(forward(p))
            alpha = rho / float(p @ Ap)
            x, r = x + alpha * p, r - alpha * Ap
            z = precondition(r)
            rho, before = float(r @ z), rho
            if rho < 1e-8 * first:
                break
            p = z + rho / before * p
        moves = [x[ends[h] : ends[h + 1]] for h in range(count)]
        if frames:
            moves = [move @ frame for move, frame in zip(moves, frames, strict=True)]
        steps = Steps(
            steps.directions + np.array(moves),
            steps.heights + x[ends[-1] : -1],
            steps.constant + float(x[-1]),
        )
    return steps, last


def first_direction(probe: PairProbe, length: float, heads: int, rng: Any) -> tuple[Floats, Steps]:
    """All steps for one direction: circle, then moves off it at every crossing."""
    d = len(probe.total)
    radius = float(2.0 ** np.round(np.log2(np.sqrt(length)) - 1))
    for attempt in range(12):
        if attempt % 2 == 0:
            z = rng.normal(size=d)
            z = probe.direction(z * (length / radius / np.linalg.norm(z)), 4 * radius)
            half = probe.half(z)
        circle = Circle(probe, z, half, *Circle.axes(d, rng), radius)
        found = circle.steps(circles.STEPS)
        if found is None or found.steps.count != heads:
            continue
        flat = found.steps
        frame = np.stack([circle.p, circle.q], axis=1)
        basis = np.linalg.qr(np.concatenate([frame, np.eye(d)], axis=1)[:, : d + 2])[0]
        others = basis[:, 2:d].T
        inside = np.linalg.solve(frame.T @ frame, flat.directions.T).T @ frame.T
        crossing = np.stack([flat.directions[:, 1], -flat.directions[:, 0]], axis=1)
        crossing *= radius / np.linalg.norm(flat.directions, axis=1)[:, None]
        rows = []
        for h in range(heads):
            reach = 1.0 / np.linalg.norm(inside[h])
            slope = np.zeros(len(others))
            pending = np.arange(len(others))
            for _ in range(6):
                y0 = crossing[h] @ frame.T
                plus = probe.points(z, y0 + reach * others[pending])
                minus = probe.points(z, y0 - reach * others[pending])
                rise = probe.values(z, plus, half) - probe.values(z, minus, half)
                rise = rise / flat.heights[h]
                slope[pending] = 2 * np.arctanh(np.clip(rise, -0.98, 0.98)) / reach
                pending = pending[np.abs(rise) > 0.9]
                reach /= 5
                if not len(pending):
                    break
            rows.append(inside[h] + slope @ others)
        return z, Steps(np.array(rows), flat.heights)
    raise SystemExit("no circle separated the heads")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", type=Path)
    parser.add_argument("--layer", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rank", type=int, default=64)
    parser.add_argument("--span", type=int, help="restrict tokens to a random subspace")
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    oracle = LayerOracle(options.path, options.layer, rng, options.span)
    session = QuerySession(oracle)
    d, started = oracle.width, time.process_time()

    def say(text: str) -> None:
        spent = time.process_time() - started
        print(f"{spent:7.0f} s  {session.queries:8d} queries  {text}", file=sys.stderr, flush=True)

    total = session.ask(np.eye(d)[:, None, :], Purpose.RECOVERY)
    probe = PairProbe(session, total, NoiseLevel(Arithmetic.FLOAT64.unit), Purpose.RECOVERY)
    from fiberscope.queries.many_heads.floats import _Search

    search = _Search(session, probe.noise, rng, circles.STEPS, True)
    length = search.saturating_length()
    assert length is not None
    z, steps = first_direction(probe, 64 * length, oracle.heads, rng)
    say(f"{steps.count} heads")
    size = typical_size(steps, z)
    factor = size / float(np.linalg.norm(z))
    base = Steps(steps.directions * factor, steps.heights * factor)
    whole = [np.eye(d)] * base.count
    basis = np.linalg.qr(np.concatenate([z[:, None], rng.normal(size=(d, d - 1))], axis=1))[0].T
    rows, directions, heights = [], [], []
    frames: list[Floats] | None = None
    for i in range(d):
        here = probe.direction(z * factor + basis[i] * (size * MOVE if i else 0.0), size)
        half = probe.half(here)
        y = probe.points(here, design(base.directions, frames or whole, EACH, rng))
        found, left = fit(y, probe.values(here, y, half), frames, base)
        if left > 1e-9 * float(np.abs(found.heights).sum()):
            raise SystemExit(f"direction {i} is not explained: {left:.2g}")
        if i == 0:
            base = found
        rows.append(here)
        directions.append(found.directions)
        heights.append(found.heights)
        if i == options.rank + 4:
            stack = np.array(directions)
            frames, drops = [], []
            for h in range(base.count):
                # Unit rows of the moves: the small ones would drown in the first direction.
                moves = np.concatenate([stack[:1, h], (stack[1:, h] - stack[0, h]) / MOVE])
                _, singular, right = np.linalg.svd(moves, full_matrices=False)
                drops.append(singular[options.rank] / singular[options.rank - 1])
                frames.append(right[: options.rank])
            say(f"ranks: singular value {options.rank + 1} / {options.rank} <= {max(drops):.1g}")
        if i < 4 or i % 16 == 0:
            say(f"direction {i}, residual {left:.1g}")
    Z = np.array(rows)
    W = np.linalg.solve(Z, np.array(directions).transpose(1, 0, 2))
    w = np.linalg.solve(Z, np.array(heights)).T
    say("all directions")
    unit = w / np.linalg.norm(w, axis=1, keepdims=True)
    signs = np.sign(np.linalg.lstsq(unit.T, total, rcond=None)[0])
    W, w = W * signs[:, None, None], w * signs[:, None]
    tokens = rng.normal(size=(64, 9, d)) * size / d**0.5 / 2
    answers = session.ask(tokens, Purpose.FINAL_CHECK)
    predicted = np.zeros(len(tokens))
    for matrix, vector in zip(W, w, strict=True):
        scores = (tokens @ (tokens[:, -1] @ matrix.T)[:, :, None])[:, :, 0]
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        predicted += (weights * (tokens @ vector)).sum(axis=1) / weights.sum(axis=1)
    deviation = np.abs(predicted - answers).max() / np.abs(answers).max()
    count = sum(each.queries for p, each in session.counts.items() if p is not Purpose.FINAL_CHECK)
    print(
        f"queries {count}, 2 r d H = {2 * options.rank * d * base.count}, ratio "
        f"{count / (2 * options.rank * d * base.count):.2f}, 4 H d^2 = {4 * base.count * d * d}"
    )
    print(f"64 fresh sequences of 9 tokens: largest relative deviation {deviation:.1e}")
    print("head of the file | bits of W | bits of v")
    for h in range(oracle.heads):
        truth = oracle.true_scores(h)
        near = int(np.argmin([np.linalg.norm(each - truth) for each in W]))
        bits = -np.log2(np.linalg.norm(W[near] - truth) / np.linalg.norm(truth))
        v_bits = -np.log2(np.linalg.norm(w[near] - oracle.v[h]) / np.linalg.norm(oracle.v[h]))
        print(f"{h} | {bits:.1f} | {v_bits:.1f}")


if __name__ == "__main__":
    main()
