"""Aligning two checkpoints, block by block, and measuring what no symmetry explains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from fiberscope.checkpoints.architecture.program import Activation, Attention, Mlp
from fiberscope.checkpoints.equality.folded import FoldedModel
from fiberscope.checkpoints.equality.folded_parts import Vectors, held
from fiberscope.checkpoints.equality.frame import Frame, candidates, is_centred_wiring
from fiberscope.checkpoints.equality.heads import HeadMatch, carried, match_heads
from fiberscope.checkpoints.equality.neuron_assignment import Scales
from fiberscope.checkpoints.equality.neuron_fit import NeuronMatch
from fiberscope.checkpoints.equality.neurons import carried_mlp, match_neurons, scales_of
from fiberscope.checkpoints.equality.noisy import Noisy
from fiberscope.checkpoints.equality.rows import Rows
from fiberscope.checkpoints.equality.statistic import Statistic, statistic, statistic_of_parts
from fiberscope.checkpoints.equality.tiles import statistic_of_rows
from fiberscope.checkpoints.ledger import Ledger
from fiberscope.checkpoints.threads import in_order, limited, workers

WIDE = 512
"""Width from which products with rotations are worth more than one thread."""
Progress = Callable[[int, int, str], None]


@dataclass
class Alignment:
    """What carries one model to another as well as any symmetry can.

    Attributes
    ----------
    statistics
        One per circuit or tensor, in the order of the network.
    heads, neurons
        Per layer, by label.
    reasons
        Why agreement or difference would not be conclusive.
    mismatches
        Differences no number measures: blocks that do not correspond.
    tables
        How many statistics, the first ones, are those of tables.
    """

    frame: Frame
    statistics: list[Statistic] = field(default_factory=list)
    heads: dict[str, HeadMatch] = field(default_factory=dict)
    neurons: dict[str, NeuronMatch] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)
    mismatches: list[str] = field(default_factory=list)
    uncertainty: tuple[float, str] = (0.0, "")
    centred: bool = False
    tables: int = 0

    @property
    def mixes(self) -> bool:
        """Whether numbers share the rounding of their row.

        A fitted rotation passes it on, and so does a subtracted mean: after a common shift all
        entries lie on one grid, and their errors can be one and the same.
        """
        return self.frame.rotated or self.centred


def align(
    first: FoldedModel,
    second: FoldedModel,
    ledger: Ledger,
    progress: Progress | None = None,
    threads: int = 1,
) -> Alignment:
    """Find the frame, then match every block in it.

    Parameters
    ----------
    first, second
        Models of one wiring (numbers of groups and neurons may differ where some are dead).
    ledger
        What acts on the first.
    threads
        How many may work on the layers.
    """
    with limited(1):
        return _aligned(first, second, ledger, progress, threads)


def _aligned(
    first: FoldedModel,
    second: FoldedModel,
    ledger: Ledger,
    progress: Progress | None,
    threads: int,
) -> Alignment:
    blocks = blocks_of(first, second)
    steps = len(blocks) + 2

    def tick(number: int, what: str) -> None:
        if progress is not None:
            progress(number, steps, what)

    tick(0, "frame of the residual stream")
    # What is asked of both models anyway, at the same time; its operations are large.
    tasks = [(1, partial(_prepared, model)) for model in (first, second)]
    list(in_order(tasks, workers()))
    # A rotation is fitted and applied by large products, which share their work themselves.
    products = workers() if first.wiring.segments[0].width >= WIDE else 1
    with limited(products):
        frame, tables = _frame(first, second, ledger, threads)
    centred = is_centred_wiring(second.wiring)
    found = Alignment(frame, tables, centred=centred, tables=len(tables))
    rotated = found.mixes
    matches = [(1, partial(_match, first, second, a, b, found.frame, rotated)) for a, b in blocks]
    with limited(1 if threads > 1 else products):
        for number, match in enumerate(in_order(matches, len(matches), threads)):
            tick(number + 1, blocks[number][1].label)
            _take(match, found)
    tick(len(blocks) + 1, "norms and head")
    for one, other in zip(first.kept, second.kept, strict=True):
        found.statistics.append(_kept(one, other, found.frame))
    for one, other in zip(first.constants, second.constants, strict=True):
        # An ill-conditioned output passes its rounding on along one direction.
        moved, target = found.frame.carry(one.array), _seen(other.array, found.frame)
        part = statistic(other.label, target, moved, rotated=found.mixes, independent=1.0)
        found.statistics.append(part)
    with limited(products):
        _head(first, second, found, threads)
    return found


def _prepared(model: FoldedModel) -> None:
    """Let a model fold its tables and constants; it keeps them."""
    assert model.tables is not None
    assert model.constants is not None
    assert model.unembedding is not None


def blocks_of(
    first: FoldedModel, second: FoldedModel
) -> list[tuple[Attention | Mlp, Attention | Mlp]]:
    """Sublayers in the order of the network."""
    ordered = []
    for model in (first, second):
        blocks: list[Attention | Mlp] = []
        attentions, mlps = list(model.wiring.attentions), list(model.wiring.mlps)
        for stream in model.wiring.architecture.streams:
            for step in stream.steps:
                for branch in getattr(step, "branches", ()):
                    blocks += branch.sublayers
        assert len(blocks) == len(attentions) + len(mlps)
        ordered.append(blocks)
    return list(zip(*ordered, strict=True))


def _frame(
    first: FoldedModel, second: FoldedModel, ledger: Ledger, threads: int
) -> tuple[Frame, list[Statistic]]:
    """The first frame in which the tables agree, or the one in which they differ least."""
    best: tuple[Frame, list[Statistic]] | None = None
    for frame in candidates(first, second, ledger):
        parts = [
            _vectors(a, b, frame, threads) for a, b in zip(first.tables, second.tables, strict=True)
        ]
        parts += [_kept(a, b, frame) for a, b in zip(first.kept, second.kept, strict=True)]
        if all(part.is_same for part in parts):
            return frame, parts[: len(first.tables)]
        if best is None or _badness(parts) < _badness(best[1]):
            best = frame, parts
    assert best is not None
    return best[0], best[1][: len(first.tables)]


def _badness(parts: list[Statistic]) -> float:
    return max((part.rms for part in parts), default=0.0)


def _vectors(a: Vectors, b: Vectors, frame: Frame, threads: int = 1) -> Statistic:
    exact = a.untouched and b.untouched and not frame.rotated
    mixes = frame.rotated or b.centred
    if isinstance(a.rows, Rows) and isinstance(b.rows, Rows) and not frame.rotated:
        moved = a.rows.renamed(*frame.renaming)
        return statistic_of_rows(
            b.label, b.rows, moved, rotated=mixes, computed=not exact, threads=threads
        )
    parts = ((_seen(y, frame), frame.carry(x)) for x, y in zip(a.parts(), b.parts(), strict=True))
    return statistic_of_parts(b.label, parts, rotated=mixes, computed=not exact)


def _seen(array: Noisy, frame: Frame) -> Noisy:
    """An array of the second model where both are looked at."""
    return array if frame.arrival is None else frame.arrival.carry(array)


def _kept(a: Vectors, b: Vectors, frame: Frame) -> Statistic:
    """Gains follow their coordinates and keep their sign; biases are vectors."""
    if a.kind == "vector":
        return _vectors(a, b, frame)
    if a.kind == "signed gain":
        return statistic(b.label, _seen(b.array, frame), frame.carry(a.array))
    matrix = np.abs(frame.matrix) if not frame.rotated else frame.matrix**2
    return statistic(b.label, b.array, a.array.turned(matrix, -1), rotated=False)


def _match(
    first: FoldedModel,
    second: FoldedModel,
    a: Attention | Mlp,
    b: Attention | Mlp,
    frame: Frame,
    rotated: bool,
) -> HeadMatch | NeuronMatch:
    """Match one sublayer; sublayers do not depend on each other once the frame is known."""
    if isinstance(a, Attention):
        assert isinstance(b, Attention)
        target = second.attention(b)
        if frame.arrival is not None:
            target = carried(target, frame.arrival)
        return match_heads(carried(first.attention(a), frame), target, rotated=rotated)
    assert isinstance(b, Mlp)
    one, other = carried_mlp(first.mlp(a), frame), second.mlp(b)
    if frame.arrival is not None:
        other = carried_mlp(other, frame.arrival)
    scales = scales_of(other, b.activation, b.activation_name, True)
    return match_neurons(one, other, scales, rotated=rotated)


def _take(match: HeadMatch | NeuronMatch, found: Alignment) -> None:
    """Enter what was found in one sublayer."""
    found.statistics += match.statistics
    if match.mismatch:
        found.mismatches.append(match.mismatch)
    if match.reason:
        found.reasons.append(match.reason)
    if isinstance(match, HeadMatch):
        found.heads[match.label] = match
        uncertainty = match.uncertainty
    else:
        found.neurons[match.label] = match
        uncertainty = (match.uncertainty, f"{match.label} neurons")
    if uncertainty[0] > found.uncertainty[0]:
        found.uncertainty = uncertainty


def _head(first: FoldedModel, second: FoldedModel, found: Alignment, threads: int) -> None:
    """Dense layer, unembedding and constants of the logits."""
    frame = found.frame
    one, other = first.dense, second.dense
    (rows_a, bias_a), (rows_b, bias_b) = first.unembedding, second.unembedding
    head = second.wiring.head
    if one is None or other is None or head is None or head.dense is None:
        if rows_a is not None and rows_b is not None:
            found.statistics.append(_vectors(rows_a, rows_b, frame, threads))
    elif head.norm is not None and second.wiring.tied:
        # The columns of a tied table name the units of the dense layer too.
        order = np.abs(frame.matrix).argmax(axis=1)
        moved = carried_mlp(one, frame, down_moves=False)
        moved = moved.chosen(order)
        assert rows_a is not None and rows_b is not None
        found.statistics.append(
            statistic(other.label, held(other.up), held(moved.up), rotated=found.mixes)
        )
        if moved.up_constant is not None and other.up_constant is not None:
            found.statistics.append(
                statistic(
                    f"{other.label} constant",
                    other.up_constant.reshaped(1, -1),
                    moved.up_constant.reshaped(1, -1),
                )
            )
        turned = rows_a.array.take(order, -1)
        found.statistics.append(statistic(rows_b.label, rows_b.array, turned))
    else:
        scales = scales_of(
            other, head.dense.activation, head.dense.activation_name, head.norm is None
        )
        moved = carried_mlp(one, frame, down_moves=False)
        if frame.arrival is not None:
            other = carried_mlp(other, frame.arrival, down_moves=False)
        _take(
            match_neurons(
                moved,
                other,
                Scales(False, scales.homogeneous, scales.power, scales.odd),
                rotated=found.mixes,
            ),
            found,
        )
    if bias_a is not None and bias_b is not None:
        found.statistics.append(
            statistic("constants of the logits", bias_b.reshaped(1, -1), bias_a.reshaped(1, -1))
        )


def first_difference(statistics: list[Statistic]) -> Iterator[Statistic]:
    """Statistics that rounding cannot explain, in the order of the network."""
    yield from (part for part in statistics if part.is_different)


__all__ = ["Activation", "Alignment", "align", "first_difference"]
