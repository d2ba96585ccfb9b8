"""A random element of the whole symmetry group of a checkpoint, drawn group of tensors by group."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.ledger.rules.constants import INPUT_DIRECTION, NORM_BIAS
from fiberscope.checkpoints.ledger.rules.norms import NORM_GAIN
from fiberscope.checkpoints.ledger.rules.outputs import UNREAD
from fiberscope.checkpoints.ledger.rules.stream import ROTATION
from fiberscope.checkpoints.ledger.wiring import Point
from fiberscope.checkpoints.moves import exceptional
from fiberscope.checkpoints.moves.catalogue import Catalogue, Key, Step
from fiberscope.checkpoints.moves.drawing import draw_element, draw_shift
from fiberscope.checkpoints.moves.exceptional import (
    DEAD_COLUMNS,
    EQUAL_GAINS,
    NEURON_MIXING,
    UNSEEN_GAIN,
    equal_gain_blocks,
    tied_group,
)
from fiberscope.checkpoints.moves.streaming import (
    FixedRotation,
    Groups,
    Read,
    restricted,
    tensor_groups,
)
from fiberscope.checkpoints.moves.witness import Witness, act
from fiberscope.errors import InputError
from fiberscope.symmetry import Kind, ResidualRotation, Symmetry, Translation

NAMED_ONLY = (NEURON_MIXING,)
"""Mechanisms of particular weights that are drawn only when named."""
LARGEST_CONDITION = 1e12
"""Condition number up to which float64 inverts a matrix with a few correct digits."""
_LARGEST_MIXING = 64
"""Neurons mixed at once; more equal ones are mixed in parts."""

_INITIAL = 0.02
_TINY_GAIN = 1e-3
"""Size of a gain, relative to the median of its norm, below which its bias is moved on first."""

Arrays = dict[str, NDArray[Any]]


class RandomMove:
    """Draws a move while it acts on the tensors.

    All exact continuous and discrete mechanisms are drawn: gains are folded to one first, so that
    rotations meet no tiny gain; then come shifts as large as the weights they move, changes of
    basis, scalings and permutations, then rotations of the stream; new gains come last.

    Parameters
    ----------
    catalogue
        The symmetries that act.
    seed
        Every step draws from a stream of its own, so that a choice of mechanisms does not change
        the elements of the others that do not depend on the weights.
    condition
        See `draw_element`.
    only
        Names of mechanisms; approximate ones, and mixings of equal neurons, are drawn only when
        named here.

    Attributes
    ----------
    notes
        Sentences about what was left alone and why.

    Raises
    ------
    InputError
        If a name is unknown, or nothing is left to draw.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        seed: int,
        *,
        condition: float | None = None,
        only: Collection[str] | None = None,
    ) -> None:
        if condition is not None and not 1 <= condition <= LARGEST_CONDITION:
            raise InputError(
                f"a condition number of {condition:g} is not drawn; use one from 1 to "
                f"{LARGEST_CONDITION:g}"
            )
        self.catalogue, self.seed, self.condition = catalogue, seed, condition
        self.approximate = tuple(
            dict.fromkeys(
                key.mechanism
                for key, item in catalogue.items.items()
                if item.kind is Kind.APPROXIMATE
            )
        )
        has_frame = tied_group(catalogue.wiring) is not None
        gated = any(mlp.gate is not None for mlp in catalogue.wiring.mlps)
        extra = ((EQUAL_GAINS,) if has_frame else ()) + ((NEURON_MIXING,) if gated else ())
        known = (*catalogue.mechanisms(), *extra)
        if only is None:
            chosen = [n for n in known if n not in self.approximate and n not in NAMED_ONLY]
        else:
            chosen = [named(name, known, catalogue.architecture.name) for name in only]
        self.chosen = frozenset(chosen)
        self.named = only is not None
        self.notes: list[str] = []
        self.folds = NORM_GAIN in self.chosen and bool(self.chosen & {ROTATION, INPUT_DIRECTION})
        self._phases: tuple[list[Step], ...] = ([], [], [], [])
        self._local: list[Key] = []
        self._global: list[tuple[Step, Symmetry, frozenset[str]]] = []
        self.groups: Groups = ()

    @property
    def witness(self) -> Witness:
        """The move, once all tensors have been drawn from `tensors`."""
        steps = tuple(step for phase in self._phases for step in phase)
        witness = Witness(self.catalogue.architecture, self.catalogue.observable, steps)
        witness.__dict__["_catalogue"] = self.catalogue
        return witness

    def tensors(self, read: Read) -> Iterator[tuple[str, NDArray[np.float64]]]:
        """Draw, act, and yield every moved tensor; one group of them is in memory."""
        self._prepare(read)
        for group in self.groups:
            arrays: Arrays = {name: read(name) for name in group}
            self._move(frozenset(group), arrays)
            for name in group:
                yield name, arrays.pop(name)

    # --- what is the same for all groups -----------------------------------------------------

    def _prepare(self, read: Read) -> None:
        catalogue = self.catalogue
        keys = [key for key in catalogue.items if key.mechanism in self.chosen]
        symmetries = {key: catalogue.symmetry(key) for key in keys}
        if ROTATION in self.chosen:
            self._check_gains(read)
        self.groups = tensor_groups(catalogue.wiring, symmetries.values())
        group_of = {name: k for k, group in enumerate(self.groups) for name in group}
        wide = []
        for key in keys:
            if key.mechanism == NORM_GAIN:
                continue
            if len({group_of[name] for name in symmetries[key].touches}) > 1:
                wide.append(key)
            else:
                self._local.append(key)
        turning = self._equal_gains(read)
        for step, symmetry in turning:
            self._add_global(step, symmetry)
        # Rotations before permutations and signs: blocks of equal gains are those of the input.
        wide.sort(key=lambda key: not isinstance(symmetries[key], ResidualRotation))
        for key in wide:
            element = draw_element(symmetries[key], self._stream(key), self.condition)
            self._add_global(Step(key, element), symmetries[key])
        if UNREAD in self.chosen and any(key.mechanism == UNREAD for key in keys):
            self.notes.append(
                "Parameters that the observed function never reads were changed at random."
            )
        if not keys and not turning and NEURON_MIXING not in self.chosen:
            raise InputError(
                f"{catalogue.architecture.name} has nothing to move under these mechanisms; name "
                "others with --only"
            )

    def _add_global(self, step: Step, symmetry: Symmetry) -> None:
        touches = frozenset(symmetry.touches)
        if isinstance(symmetry, ResidualRotation):
            symmetry = FixedRotation(symmetry, step.element)
        self._global.append((step, symmetry, touches))
        self._phases[2].append(step)

    def _equal_gains(self, read: Read) -> list[tuple[Step, Symmetry]]:
        if EQUAL_GAINS not in self.chosen:
            return []
        last = self.catalogue.wiring.tied_point
        assert last is not None
        if last.norm.gain is None:
            return []
        gain = last.norm.gain
        blocks = equal_gain_blocks(gain.window(read(gain.tensor)))
        if len(np.unique(blocks)) == len(blocks):
            return []
        key = Key(EQUAL_GAINS, None, last.norm.label)
        found = exceptional.equal_gains(self.catalogue.wiring, blocks)
        if not found.symmetry.generators and last.norm.kind.value == "LayerNorm":
            # Pairs behind a LayerNorm leave the identity or an exchange, which is a permutation.
            return []
        element = found.symmetry.random(self._stream(key))
        return [(Step(key, element, {"blocks": blocks}), found.symmetry)]

    def _check_gains(self, read: Read) -> None:
        """A rotation cannot keep a zero gain: it has to be folded first."""
        if self.folds:
            return
        for point in self.catalogue.wiring.points:
            gain = point.norm.gain
            if (
                gain is not None
                and point.only_linear
                and not np.all(gain.read({gain.tensor: read(gain.tensor)}))
            ):
                raise InputError(
                    f"{point.norm.label} has gains of zero, which a rotation cannot keep; name "
                    f"'{NORM_GAIN}' too in --only"
                )

    # --- one group ---------------------------------------------------------------------------

    def _move(self, group: frozenset[str], arrays: Arrays) -> None:
        typical = _typical(arrays)
        points = [
            point
            for point in self.catalogue.wiring.points
            if point.norm.gain is not None and point.norm.gain.tensor in group
        ]
        gains = [
            key
            for key in self.catalogue.items
            if key.mechanism == NORM_GAIN
            and NORM_GAIN in self.chosen
            and group.issuperset(self.catalogue.symmetry(key).touches)
        ]
        if self.folds:
            for key in gains:
                self._fold(key, points, arrays)
        for key in self._local:
            symmetry = self.catalogue.symmetry(key)
            if not group.issuperset(symmetry.touches):
                continue
            if isinstance(symmetry, Translation):
                shift = draw_shift(symmetry, arrays, self._stream(key), typical)
                if shift is None:
                    self.notes.append(
                        f"Left alone, as no finite shift there can be undone: {key.mechanism} "
                        f"({key.where})."
                    )
                    continue
                self._act(1, Step(key, shift), symmetry, arrays)
            else:
                element = draw_element(symmetry, self._stream(key), self.condition)
                self._act(1, Step(key, element), symmetry, arrays)
        if NEURON_MIXING in self.chosen:
            self._mix_neurons(group, arrays)
        for step, symmetry, touches in self._global:
            if touches & group and (part := restricted(symmetry, group)) is not None:
                act(part, step.element, arrays)
        for key in gains:
            symmetry = self.catalogue.symmetry(key)
            element = draw_element(symmetry, self._stream(key), self.condition)
            self._act(3, Step(key, element), symmetry, arrays)

    def _act(self, phase: int, step: Step, symmetry: Symmetry, arrays: Arrays) -> None:
        act(symmetry, step.element, arrays)
        self._phases[phase].append(step)

    def _fold(self, key: Key, points: Sequence[Point], arrays: Arrays) -> None:
        """Bring the gains of one norm to one, also those that are zero."""
        point = next(p for p in points if (p.layer, p.norm.label) == (key.layer, key.where))
        gain, bias = point.norm.gain, point.norm.bias
        assert gain is not None
        values = np.array(gain.read(arrays))
        zero = np.flatnonzero(values == 0)
        # The bias is seen through the gain when it turns: beside a tiny gain it would become huge.
        small = np.flatnonzero(np.abs(values) <= _TINY_GAIN * np.median(np.abs(values)))
        if bias is not None and np.any(bias.read(arrays)[small]):
            dropped = self._drop_biases(point, small, arrays)
            if not dropped and np.any(bias.read(arrays)[zero]):
                raise InputError(
                    f"{point.norm.label} has a gain of zero beside a bias that no reader can "
                    "take over, which a rotation cannot keep; choose mechanisms with --only"
                )
        if len(zero):
            data = {"features": zero}
            dead = exceptional.dead_columns(point, zero)
            columns = [
                reader.weight.read(arrays).reshape(-1, point.width)[:, zero]
                for reader in point.readers
            ]
            place = (point.layer, point.norm.label)
            step = Step(Key(DEAD_COLUMNS, *place), -np.concatenate(columns), data)
            self._act(0, step, dead.symmetry, arrays)
            unseen = exceptional.unseen_gain(point, zero)
            step = Step(Key(UNSEEN_GAIN, *place), np.ones(len(zero)), data)
            self._act(0, step, unseen.symmetry, arrays)
            values[zero] = 1.0
        with np.errstate(over="ignore"):  # a subnormal gain: what is not finite is not written
            inverse = 1.0 / values
        self._act(0, Step(key, inverse), self.catalogue.symmetry(key), arrays)

    def _drop_biases(self, point: Point, where: NDArray[np.int64], arrays: Arrays) -> bool:
        """Move a norm's biases at some features into its readers' biases."""
        place = (NORM_BIAS, point.layer, point.norm.label)
        key = next((k for k in self.catalogue.items if k[:3] == place), None)
        bias = point.norm.bias
        if key is None or bias is None or any(reader.bias is None for reader in point.readers):
            return False
        shift = np.zeros(point.width)
        shift[where] = -bias.read(arrays)[where]
        self._act(0, Step(key, shift), self.catalogue.symmetry(key), arrays)
        return True

    def _mix_neurons(self, group: frozenset[str], arrays: Arrays) -> None:
        for mlp in self.catalogue.wiring.mlps:
            if mlp.gate is None or mlp.gate.tensor not in group:
                continue
            rows = mlp.gate.read(arrays)
            if mlp.gate_bias is not None:
                rows = np.concatenate([rows, mlp.gate_bias.read(arrays)[:, None]], axis=1)
            number = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
            for equal in np.flatnonzero(np.bincount(number) > 1):
                members = np.flatnonzero(number == equal)
                for start in range(0, len(members) - 1, _LARGEST_MIXING):
                    neurons = members[start : start + _LARGEST_MIXING]
                    if len(neurons) < 2:
                        continue
                    found = exceptional.neuron_mixing(mlp, neurons)
                    key = Key(NEURON_MIXING, mlp.layer, mlp.label, int(neurons[0]))
                    element = draw_element(found.symmetry, self._stream(key), self.condition)
                    step = Step(key, element, {"neurons": neurons})
                    self._act(1, step, found.symmetry, arrays)

    def _stream(self, key: Key) -> np.random.Generator:
        """A random stream of this step's own."""
        text = "\0".join(map(str, key)).encode()
        return np.random.default_rng([self.seed, zlib.crc32(text)])


def named(name: str, known: Sequence[str], architecture: str) -> str:
    """The mechanism of a name, or of the only one that contains it.

    Raises
    ------
    InputError
        If there is none, or more than one.
    """
    wanted = name.strip().lower()
    exact = [mechanism for mechanism in known if mechanism.lower() == wanted]
    found = exact or [mechanism for mechanism in known if wanted and wanted in mechanism.lower()]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(found or known)
    what = "names several mechanisms" if found else "is no mechanism"
    raise InputError(f"{name.strip()!r} {what} of {architecture}; use one of: {listed}")


def _typical(arrays: Arrays) -> float:
    """Root mean square over all tensors of a group, or that of usual initial weights."""
    total = sum(float(np.square(array).sum()) for array in arrays.values())
    found = float(np.sqrt(total / max(1, sum(array.size for array in arrays.values()))))
    return found or _INITIAL
