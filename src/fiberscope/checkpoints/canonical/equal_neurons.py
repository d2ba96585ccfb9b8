"""Neurons with equal arguments: only the sum of what they write is determined.

Neurons without a gate whose rows ``g`` and constants agree write ``act(g x) sum_i down_i``: the
first takes the sum, the others become zero. With gates that agree they write
``act(g x) sum_i down_i (up_i x)``: of all factorisations of the matrix ``sum_i down_i up_i^T`` the
balanced one is taken, aligned as the factors of heads are. Behind a positively homogeneous
activation a row counts up to its length, behind an odd one up to its sign: the first one's is given
to all.

Rows are equal when every entry is, up to the rounding of the storage (`equal_sets`); rows that
nearly are so are left alone and counted. Where the writes of rows that differ by rounding are large
and cancel, taking them for equal would change what the layer writes by more than its rounding
(`Effects`): such sets are left alone and counted, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.canonical.balancing import balance
from fiberscope.checkpoints.canonical.frame import COARSE
from fiberscope.checkpoints.canonical.places import Places
from fiberscope.checkpoints.canonical.readers import reference
from fiberscope.checkpoints.canonical.workspace import ROUNDINGS, SNAP

if TYPE_CHECKING:
    from fiberscope.checkpoints.canonical.neurons import Neurons
    from fiberscope.checkpoints.canonical.points import Folded

Array = NDArray[np.float64]
Sets = list[NDArray[np.int64]]

EQUAL_NEURONS = "equal neurons"
CANCELLING = "equal up to rounding with writes that cancel"
MERGED = "neurons whose part an equal one took over"
NEAR = 16.0
"""Rows that differ by up to this many times the rounding are counted as nearly equal."""
ROUNDED = 4.0
"""Roundings of a row's root mean square entry that an entry may differ by, except in 16-bit files,
where that would be more than rounding: there an entry may differ by its own rounding only."""
CHAIN = 2.0**-36
"""Relative rounding of float64 after several moves one after the other."""
SLACK = 4.0
"""Roundings of a layer's sum that taking rows for equal may cost: copies of ordinary sizes, moved
and stored again, come that far apart."""


class Effects:
    """How much of a layer's sum changes when rows that differ by rounding are taken for equal.

    A unit of row ``g`` that writes ``w`` contributes about ``|g|^p |w|``. Given another row at a
    relative distance ``t``, its contribution changes by at most ``p t`` times as much, which the
    sum hides up to the rounding of all contributions that are left when the writes of equal rows
    have been added, ``allowed``.
    """

    def __init__(
        self, rows: Rows, sizes: Array, left: Array, degree: int, spacing: float, tolerance: float
    ) -> None:
        self.rows, self.sizes, self.degree = rows, sizes, degree
        self.tolerance = tolerance
        self.allowed = SLACK * (tolerance + _general(spacing)) * float(np.linalg.norm(left))

    def hidden(self, members: NDArray[np.int64]) -> bool:
        """Whether giving all members the first one's row is hidden by rounding."""
        first = self.rows[members[0]]
        length = np.linalg.norm(first)
        for member in members[1:]:
            apart = np.linalg.norm(self.rows[member] - first) / length
            if self.degree * apart * self.sizes[member] > self.allowed:
                return False
        return True

    def certain(self, members: NDArray[np.int64]) -> bool:
        """Whether it would be with any rows that are equal up to rounding."""
        largest = self.sizes[members].max()
        return bool(self.degree * self.tolerance * largest <= self.allowed)


def _general(spacing: float) -> float:
    """Relative rounding that means and moves leave in rows."""
    return (ROUNDED if spacing < COARSE else 0.0) * max(spacing, CHAIN)


def merge_equal(neurons: Neurons, places: Places) -> int:
    """Units without a gate: the first of equal ones takes the sum of the writes.

    Returns how many neighbours nearly agree.
    """
    assert neurons.up is None
    rows = Rows(neurons.gate)
    _normalise(rows, neurons)
    scale = rows.scale
    # Of two rows of different length both are rounded.
    roundings = 1.0 if neurons.power is None else 2.0
    sets, near = equal_sets(rows, roundings * neurons.spacing)
    _note_near(neurons, near, places)
    degree = 1 if neurons.power is None else neurons.power
    reach = rows.sizes**degree
    sizes = np.linalg.norm(neurons.down, axis=1) * reach
    totals = []
    left = sizes.copy()
    for members in sets:
        # act(c x) = c^p act(x) for c > 0, and an odd activation passes the sign on.
        factors = np.sign(scale[members])
        if neurons.power is not None:
            factors = np.abs(scale[members[0]] / scale[members]) ** neurons.power
        total = (factors[:, None] * neurons.down[members]).sum(axis=0) * factors[0]
        totals.append(total)
        left[members] = 0.0
        left[members[0]] = np.linalg.norm(total) * reach[members[0]]
    effects = Effects(rows, sizes, left, degree, neurons.spacing, roundings * neurons.spacing)
    kept = 0
    for members, total in zip(sets, totals, strict=True):
        first = members[0]
        hidden = effects.hidden(members)
        if not (hidden and effects.certain(members)):
            kept += len(members)
        if not hidden:
            continue
        size = SNAP * neurons.spacing * sizes[members].sum()
        if left[first] <= min(size, effects.allowed):
            total = np.zeros_like(total)
        neurons.down[first] = total
        _silence(neurons, members[1:])
        places.note_dead(MERGED, len(members) - 1)
    places.add(EQUAL_NEURONS, neurons.layer, f"{neurons.label}, {CANCELLING}", (), kept)
    return near


def _silence(neurons: Neurons, index: NDArray[np.int64]) -> None:
    gate = neurons.gate
    gate.rows[index] = 0.0
    if gate.constant is not None:
        gate.constant = gate.constant.copy()
        gate.constant[index] = 0.0
    neurons.down[index] = 0.0
    gate.changed = neurons.down_changed = True


def equal_gates(neurons: Neurons, places: Places) -> tuple[Sets, int]:
    """Sets of gated units whose gates agree, each of at least two, members ascending.

    Beside them, how many neighbours nearly agree. Gates that agree up to what the activation lets
    through are made equal: the rest of them moves into what the units write.
    """
    assert neurons.up is not None
    from fiberscope.checkpoints.canonical.neurons import rows_with_constant

    rows = Rows(neurons.gate)
    degree = 1 if neurons.power is None else neurons.power
    _normalise(rows, neurons)
    # Of two rows of different length both are rounded.
    tolerance = (1.0 if neurons.power is None else 2.0) * neurons.spacing
    sets, near = equal_sets(rows, tolerance)
    _note_near(neurons, near, places)
    if not sets:
        return [], near
    up = rows_with_constant(neurons.up)
    reach = rows.sizes**degree
    sizes = np.linalg.norm(up, axis=1) * np.linalg.norm(neurons.down, axis=1) * reach
    left = sizes.copy()
    for members in sets:
        # The squared Frobenius norm of the matrix that they apply together.
        factors = np.sign(rows.scale[members]) * reach[members]
        writes = factors[:, None] * neurons.down[members]
        joint = float(((up[members] @ up[members].T) * (writes @ writes.T)).sum())
        left[members] = 0.0
        left[members[0]] = np.sqrt(max(joint, 0.0))
    effects = Effects(rows, sizes, left, degree, neurons.spacing, tolerance)
    hidden = [effects.hidden(members) for members in sets]
    kept = sum(
        len(members)
        for members, good in zip(sets, hidden, strict=True)
        if not (good and effects.certain(members))
    )
    places.add(EQUAL_NEURONS, neurons.layer, f"{neurons.label}, {CANCELLING}", (), kept)
    sets = [members for members, good in zip(sets, hidden, strict=True) if good]
    for members in sets:
        if neurons.odd:
            _agree_in_sign(neurons, members, rows)
        if neurons.power is not None:
            _agree_in_length(neurons, members, neurons.power)
    return sets, near


def _normalise(rows: Rows, neurons: Neurons) -> None:
    """Divide rows by what the activation lets through: a positive factor, or a sign."""
    if neurons.power is not None:
        rows.scale = np.divide(1.0, rows.sizes, out=rows.scale, where=rows.sizes > 0)
    if neurons.odd:
        rows.scale = np.where(rows.keys < 0, -rows.scale, rows.scale)


def _agree_in_sign(neurons: Neurons, members: NDArray[np.int64], rows: Rows) -> None:
    """Behind an odd activation: turn gates of the other sign, and what they write."""
    other = members[rows.scale[members] * rows.scale[members[0]] < 0]
    gate = neurons.gate
    if not len(other):
        return
    gate.rows[other] *= -1.0
    if gate.constant is not None:
        gate.constant = gate.constant.copy()
        gate.constant[other] *= -1.0
    neurons.down[other] *= -1.0
    gate.changed = neurons.down_changed = True


def _agree_in_length(neurons: Neurons, members: NDArray[np.int64], power: int) -> None:
    """Behind a homogeneous activation: all gates become the first one, of a length fixed by them.

    ``sum |g_i|^p down_i up_i^T`` on a gate of length 1 is ``c^-p`` times that on gates of length c.
    Its balanced factors have squares ``|J|_* / c^p`` in all (nuclear norm). The scale is spread
    evenly when the k gates have as much: ``k c^(2 + p) = |J|_*``.
    """
    gate, up = neurons.gate, neurons.up
    assert up is not None
    from fiberscope.checkpoints.canonical.neurons import rows_with_constant

    rows = rows_with_constant(gate)[members]
    lengths = np.linalg.norm(rows, axis=1)
    factors = lengths**power
    applied = rows_with_constant(up)[members] * factors[:, None]
    writes = neurons.down[members]
    total = _nuclear_norm(applied, writes)
    size = (np.linalg.norm(applied, axis=1) * np.linalg.norm(writes, axis=1)).sum()
    if total <= SNAP * neurons.spacing * size:
        # Nothing but rounding is left of what they write together.
        if total > 0:
            up.rows[members] = neurons.down[members] = 0.0
            if up.constant is not None:
                up.constant = up.constant.copy()
                up.constant[members] = 0.0
            up.changed = neurons.down_changed = True
        total = 0.0
    length = (total / len(members)) ** (1.0 / (2 + power)) if total > 0 else 1.0
    if (np.abs(lengths / length - 1.0) <= ROUNDINGS * neurons.spacing).all():
        return
    gate.rows[members] = gate.rows[members[0]] * (length / lengths[0])
    if gate.constant is not None:
        gate.constant = gate.constant.copy()
        gate.constant[members] = gate.constant[members[0]] * (length / lengths[0])
    if gate.deviation is not None:
        gate.deviation = gate.deviation.copy()
        gate.deviation[members] *= length / lengths
    factors = factors / length**power
    up.rows[members] *= factors[:, None]
    if up.constant is not None:
        up.constant = up.constant.copy()
        up.constant[members] *= factors
    if up.deviation is not None:
        up.deviation = up.deviation.copy()
        up.deviation[members] *= factors
    gate.changed = up.changed = True


def _nuclear_norm(first: Array, second: Array) -> float:
    """Sum of the singular values of ``first^T second``, from factors of their own size."""
    upper, other = (np.linalg.qr(rows.T)[1] for rows in (first, second))
    return float(np.linalg.svd(upper @ other.T, compute_uv=False).sum())


def factor_jointly(neurons: Neurons, sets: Sets, places: Places) -> None:
    """Balanced factors of what units with equal gates write together.

    More units than the matrix has rows or columns leave the last of them without a part.
    """
    from fiberscope.checkpoints.canonical.neurons import rows_with_constant

    up = neurons.up
    assert up is not None
    for members in sets:
        rows, writes = rows_with_constant(up)[members], neurons.down[members]
        enough = min(len(members), rows.shape[1], writes.shape[1])
        spare = members[enough:]
        taken_over = bool(rows[enough:].any() or writes[enough:].any())
        if taken_over:
            # The matrix itself beside an identity: factors with no row to spare.
            joint = writes.T @ rows
            wide = rows.shape[1] < writes.shape[1]
            rows, writes = (np.eye(enough), joint.T) if wide else (joint, np.eye(enough))
            places.note_dead(MERGED, len(spare))
        found = balance(rows[None, :enough], writes[None, :enough], neurons.spacing)
        loose = int(found.loose.sum())
        places.add(
            EQUAL_NEURONS, neurons.layer, neurons.label, members.tolist() if loose else (), loose
        )
        if found.settled and not taken_over:
            continue
        members, width = members[:enough], up.rows.shape[1]
        up.rows[spare] = neurons.down[spare] = 0.0
        up.rows[members] = found.first[0][:, :width]
        if up.constant is not None and found.first.shape[-1] > width:
            up.constant = up.constant.copy()
            up.constant[spare] = 0.0
            up.constant[members] = found.first[0][:, width]
        neurons.down[members] = found.second[0]
        up.changed = neurons.down_changed = True


def _note_near(neurons: Neurons, near: int, places: Places) -> None:
    places.add(EQUAL_NEURONS, neurons.layer, f"{neurons.label}, nearly equal", (), near)


class Rows:
    """Rows with their constants, never joined; what each is multiplied by can be set."""

    def __init__(self, part: Folded) -> None:
        self.rows, self.constant = part.rows, part.constant
        fixed = reference(part.rows.shape[1] + 1, stream=8)
        self.keys: Array = part.rows @ fixed[:-1]
        squares = np.einsum("ij,ij->i", part.rows, part.rows)
        if part.constant is not None:
            self.keys = self.keys + part.constant * fixed[-1]
            squares = squares + part.constant**2
        self.sizes: Array = np.sqrt(squares)
        # A mean that was taken from a row was rounded with it.
        lost = 0.0 if part.lost is None else part.rows.shape[1] * part.lost**2
        self.rounded: Array = np.sqrt(squares + lost)
        self.summed = part.summed
        self.scale: Array = np.ones(len(self.rows))

    def __getitem__(self, index: int) -> Array:
        row = self.rows[index]
        if self.constant is not None:
            row = np.append(row, self.constant[index])
        return row * self.scale[index]

    def allowed(self, index: int, tolerance: float, floor: float) -> Array:
        """Rounding of the entries of a row: their own, and part of what all of it has."""
        found = tolerance * np.abs(self[index])
        found += floor * self.rounded[index] * np.abs(self.scale[index])
        if self.constant is not None and self.summed is not None:
            found[-1] += tolerance * self.summed[index] * np.abs(self.scale[index])
        return found


def equal_sets(rows: Rows, tolerance: float) -> tuple[Sets, int]:
    """Sets of rows that agree entry by entry, and how many neighbours nearly agree.

    Rows of zeros are left out. Rows are sorted by their product with a fixed vector, and only
    neighbours are compared. That finds all equal ones unless an unequal row has the same product
    up to rounding.

    Parameters
    ----------
    tolerance
        Relative difference of equal entries.
    """
    # What was added to a row and is taken from it again, a mean say, leaves its own rounding.
    general = _general(tolerance)
    keys = rows.keys * rows.scale
    sizes = rows.rounded * np.abs(rows.scale)
    live = np.flatnonzero(rows.sizes > 0)
    order = live[np.argsort(keys[live], kind="stable")]
    reach = NEAR * (tolerance + general) * sizes[order[1:]]
    close = np.flatnonzero(np.diff(keys[order]) <= reach)
    sets: list[list[int]] = []
    near = 0
    floor = general / np.sqrt(rows.rows.shape[1])
    end = -1
    for place in close:
        first, second = int(order[place]), int(order[place + 1])
        apart = np.abs(rows[first] - rows[second])
        allowed = np.maximum(*(rows.allowed(i, tolerance, floor) for i in (first, second)))
        if (apart <= allowed).all():
            if place == end:
                sets[-1].append(second)
            else:
                sets.append([first, second])
            end = int(place) + 1
        elif (apart <= NEAR * allowed).all():
            near += 1
    return [np.sort(np.array(members, dtype=np.int64)) for members in sets], near
