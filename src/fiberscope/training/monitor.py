"""The monitor: hooks on an optimizer that measure, now and then, which part of a step does nothing.

monitor = fiberscope.training.SymmetryMonitor(model, optimizer, path="run.jsonl")
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Observable
from fiberscope.errors import InputError
from fiberscope.training.attention_roles import AttentionRoles
from fiberscope.training.binding import bind, bound_again, to_float64, trained
from fiberscope.training.decay import decay_direction, decay_factors, decays_apart
from fiberscope.training.measure import Measured, Meter, Parts
from fiberscope.training.projection import SHARE_ERROR
from fiberscope.training.record import SELF_CHECK, ItemRecord, Measurement, Start
from fiberscope.training.refusals import inner_optimizer
from fiberscope.training.table import LiveTable
from fiberscope.training.threads import limited, threads_for
from fiberscope.training.writers import JsonLines, TensorBoard, Writer

Arrays = dict[str, NDArray[np.float64]]


@dataclass(frozen=True)
class _Before:
    """What the hook before a step keeps for the hook behind it."""

    weights: Arrays
    gradient: Arrays | None
    decay_factors: dict[int, float]
    learning_rates: tuple[float, ...]
    seconds: float


class SymmetryMonitor:
    """Measures the share of an optimizer's updates that leaves the model's function alone.

    The invisible part of a direction is its orthogonal projection onto the span of all exact
    symmetries' tangents at the current weights, in float64. Step 1 and every ``every``-th step are
    measured, by hooks before and behind ``optimizer.step``; other steps cost nothing.

    Parameters
    ----------
    model
        A transformers model whose class has a table, or any module whose attention is declared by
        ``attention``.
    optimizer
        The torch optimizer (or accelerate's wrapper) that steps its parameters. Parameters that it
        does not step, or that need no gradient, are frozen. Where that changes during the run (a
        layer is unfrozen, a group added), the next measurement begins with a new start record.
    every
        Steps from one measurement to the next.
    observable
        What is observed: ``"probabilities"`` (what a cross-entropy loss sees), ``"logits"`` or
        ``"hidden"``.
    path
        File of JSON lines to write; a file that exists is refused unless ``append``.
    append
        Continue an existing file.
    table
        Show a live table on standard error.
    tensorboard
        Directory of TensorBoard files (needs ``tensorboard``), or a ``SummaryWriter``.
    writers
        Further writers.
    project
        Remove the invisible part of every update: the weights move by the rest only. This agrees
        with the plain step to first order in its size; the function after the step differs in
        second order. The optimizer's own state is left as it is. Costs a projection every step.
    tolerance
        Largest error of a joint share.
    masters
        Name of a parameter -> the float32 tensor that is stepped in its place, for weights stored
        in half precision.
    attention
        Attention modules declared by roles, for models without a table: see
        :class:`fiberscope.training.AttentionRoles`.
    threads
        Threads of NumPy's linear algebra during a measurement, where ``threadpoolctl`` is
        installed; None is one for models of up to ten million trained parameters, and as many as
        NumPy takes otherwise.

    Attributes
    ----------
    start : Start
        What is measured now.
    measurements : list of Measurement
        Everything measured so far. Their ``item_shares`` go with the start that came before them.

    Raises
    ------
    InputError
        If the class has no table, the weights are in half precision without masters, sharded,
        offloaded or quantized, the step is fused into the backward pass, or the file exists.

    Notes
    -----
    The symmetries are those of the function without dropout and on unpadded embeddings: with
    dropout, or where torch withholds the gradient of a padding row, the gradient's share is not
    zero but for rounding, which the gradient's own line shows.
    """

    def __init__(
        self,
        model: Any,
        optimizer: Any,
        *,
        every: int = 50,
        observable: str = "probabilities",
        path: str | Path | None = None,
        append: bool = False,
        table: bool = False,
        tensorboard: Any = None,
        writers: Sequence[Writer] = (),
        project: bool = False,
        tolerance: float = SHARE_ERROR,
        masters: Mapping[str, Any] | None = None,
        attention: Sequence[AttentionRoles] = (),
        threads: int | None = None,
    ) -> None:
        if not isinstance(every, int) or every < 1:
            raise InputError(f"every is {every}; give a whole number of steps, from 1 on")
        if threads is not None and (not isinstance(threads, int) or threads < 1):
            raise InputError(f"threads is {threads}; give a whole number from 1 on, or None")
        if not 0.0 < tolerance < 1.0:
            raise InputError(f"tolerance is {tolerance}; give a share error between 0 and 1")
        self.every, self.project = every, project
        self.step = 0
        self.measurements: list[Measurement] = []
        self.loss: float | None = None
        self._optimizer = inner_optimizer(optimizer)
        self.binding = bind(model, self._optimizer, _observable(observable), masters, attention)
        self._meter = Meter(self.binding.items, self.binding.symmetries, tolerance)
        self._apart = decays_apart(self._optimizer)
        self._before: _Before | None = None
        self._warned = self._doubted = False
        self._tolerance, self._threads = tolerance, threads
        self._model_notes = [*_dropout_note(model), *_padding_note(model)]
        self.start = self._described()
        for writer in writers:
            if not (callable(getattr(writer, "write", None)) and hasattr(writer, "close")):
                raise InputError(
                    f"a {type(writer).__name__} is no writer; give objects with write(record) and "
                    "close()"
                )
        self._writers: list[Writer] = []
        # The file comes last: what is refused before it leaves no file behind.
        if tensorboard is not None and _is_first_process():
            self._writers.append(TensorBoard(tensorboard))
        if path is not None and _is_first_process():
            self._writers.append(JsonLines(path, append=append))
        if table and _is_first_process():
            self._writers.append(LiveTable())
        self._writers += writers
        for writer in self._writers:
            writer.write(self.start)
        self._handles = [
            self._optimizer.register_step_pre_hook(self._before_step),
            self._optimizer.register_step_post_hook(self._behind_step),
        ]

    def close(self) -> None:
        """Take the hooks off the optimizer and close the writers; may be called again."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for writer in self._writers:
            writer.close()
        self._writers = []

    def __enter__(self) -> SymmetryMonitor:
        """The monitor itself; it is closed at the end of the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def _is_due(self, step: int) -> bool:
        return step == 1 or step % self.every == 0

    def _before_step(self, optimizer: Any, given: Any, named: Any) -> None:
        due = self._is_due(self.step + 1)
        if not (due or self.project):
            return
        started = time.perf_counter()
        if trained(self.binding.tensors, self._optimizer) != self.binding.free:
            try:
                self._bind_again()
            except InputError as error:
                self._warn(self.step + 1, error)
                return
        # A step with a closure computes its gradient inside: what is stored now is stale. The first
        # argument is the optimizer itself.
        stale = any(value is not None for value in (*given[1:], *named.values()))
        gradient = self.binding.gradients() if due and not stale else None
        scale = getattr(self._optimizer, "grad_scale", None)
        if gradient is not None and scale is not None:
            # A fused step divides by the scaler's factor inside.
            gradient = {name: array / float(scale) for name, array in gradient.items()}
        self._before = _Before(
            self.binding.weights(),
            gradient,
            decay_factors(self._optimizer),
            tuple(float(group["lr"]) for group in self._optimizer.param_groups),
            time.perf_counter() - started,
        )

    def _behind_step(self, optimizer: Any, given: Any, named: Any) -> None:
        self.step += 1
        before, self._before = self._before, None
        if before is None:
            return
        started = time.perf_counter()
        binding = self.binding
        update = {
            name: to_float64(binding.tensors[name]) - before.weights[name] for name in binding.free
        }
        decay = None
        if self._apart:
            free = {name: before.weights[name] for name in binding.free}
            decay = decay_direction(before.decay_factors, binding.tensors, free)
        parts = Parts(before.weights, update, decay, before.gradient)
        threads = threads_for(binding.parameters) if self._threads is None else self._threads
        try:
            if self._is_due(self.step):
                with limited(threads):
                    measured = self._meter.measure(parts)
                seconds = before.seconds + time.perf_counter() - started
                self._record(measured, before.learning_rates, seconds)
                if self.project:
                    self._remove(measured.invisible, parts)
            elif self.project:
                with limited(threads):
                    invisible = self._meter.invisible(parts)
                self._remove(invisible, parts)
        except InputError as error:
            # A diverging run is the user's to stop, not the monitor's.
            self._warn(self.step, error)

    def _warn(self, step: int, error: InputError) -> None:
        if not self._warned:
            warnings.warn(f"step {step} is not measured: {error}", stacklevel=3)
        self._warned = True

    def _bind_again(self) -> None:
        """Other parameters are trained than before: other symmetries are free, from here on."""
        self.binding = bound_again(self.binding, self._optimizer)
        self._meter = Meter(self.binding.items, self.binding.symmetries, self._tolerance)
        self._apart = decays_apart(self._optimizer)
        self.start = self._described()
        for writer in self._writers:
            writer.write(self.start)

    def _remove(self, invisible: Arrays, parts: Parts) -> None:
        import torch

        with torch.no_grad():
            for name in self.binding.free:
                if name in invisible:
                    kept = parts.weights[name] + parts.update[name] - invisible[name]
                    self.binding.tensors[name].copy_(torch.from_numpy(kept))

    def _record(
        self, measured: Measured, learning_rates: tuple[float, ...], seconds: float
    ) -> None:
        measurement = Measurement(
            self.step,
            measured.update,
            measured.decay,
            measured.adaptive,
            measured.gradient,
            measured.item_shares,
            measured.balances,
            measured.dead_bias_drifts,
            learning_rates,
            _finite(self.loss),
            seconds,
            measured.iterations,
            self.project,
        )
        self.measurements.append(measurement)
        self._check_gradient(measurement)
        for writer in self._writers:
            writer.write(measurement)

    def _check_gradient(self, measurement: Measurement) -> None:
        """Warn once where the self-check fails and the start does not say why."""
        found = measurement.gradient
        if found is None or found.share is None or found.share <= SELF_CHECK:
            return
        if not (self._doubted or self._model_notes):
            warnings.warn(
                f"the gradient of step {measurement.step} has the invisible share "
                f"{found.share:.1e} instead of zero: the loss sees more than "
                f"{self.start.observable}, or single gradients were changed, so the measured "
                "shares are not those of moves that do nothing",
                stacklevel=3,
            )
        self._doubted = True

    def _described(self) -> Start:
        binding = self.binding
        k, total = binding.invisible, binding.parameters
        notes = [*binding.notes, *self._model_notes]
        if self._apart is None:
            notes.append(
                f"whether {type(self._optimizer).__name__} decays weights apart from the gradient "
                "is not known, so its decay is not shown apart"
            )
        if self.project:
            notes.append(
                "the invisible part of every update is removed, which agrees with the plain step "
                "to first order only"
            )
        return Start(
            binding.name,
            binding.ledger.observable.value,
            type(self._optimizer).__name__,
            total,
            binding.frozen,
            k,
            k / total,
            standard_deviation(k, total),
            self._tolerance,
            self.every,
            self.project,
            tuple(
                ItemRecord(item.mechanism, item.layer, item.where, item.dimension)
                for item in binding.items
            ),
            self._meter.traded,
            self._meter.dead,
            tuple(notes),
        )


def standard_deviation(invisible: int, parameters: int) -> float:
    """Standard deviation of a random direction's share: ``sqrt(2k(P-k) / (P^2 (P+2)))``.

    The share of a uniformly random direction has the Beta law with parameters ``k/2`` and
    ``(P-k)/2``.
    """
    k, total = invisible, parameters
    return sqrt(2.0 * k * (total - k) / (total**2 * (total + 2)))


def _finite(loss: Any) -> float | None:
    """The loss as a number, None where it is none (a diverging run goes on)."""
    value = None if loss is None else float(loss)
    return value if value is not None and isfinite(value) else None


def _observable(name: str) -> Observable:
    try:
        return Observable(name)
    except ValueError as error:
        choices = ", ".join(choice.value for choice in Observable)
        raise InputError(f"observable is {name!r}; use one of {choices}") from error


def _dropout_note(model: Any) -> list[str]:
    rates = [float(getattr(m, "p", 0.0)) for m in model.modules() if type(m).__name__ == "Dropout"]
    if not any(rates):
        return []
    return [
        "the model has dropout, which breaks some symmetries of the function from step to step, so "
        "the gradient's share is not zero"
    ]


def _padding_note(model: Any) -> list[str]:
    rows = [
        module
        for module in model.modules()
        if getattr(module, "padding_idx", None) is not None
        and getattr(getattr(module, "weight", None), "requires_grad", False)
    ]
    if not rows:
        return []
    return [
        "torch withholds the gradient of an embedding's padding row, so the gradient's share is "
        "not zero where batches hold that token"
    ]


def _is_first_process() -> bool:
    """Whether this process writes: all of them measure the same weights."""
    import torch

    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return True
    return int(distributed.get_rank()) == 0
