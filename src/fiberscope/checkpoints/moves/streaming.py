"""Acting on a checkpoint group of tensors by group, so that one layer at a time is in memory."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Attention, Mlp
from fiberscope.checkpoints.ledger.wiring import Wiring
from fiberscope.checkpoints.moves.catalogue import Step
from fiberscope.checkpoints.moves.exceptional import Exceptional, SubsetLinear
from fiberscope.checkpoints.moves.witness import PREMISE_TOLERANCE, Witness, act, check_premise
from fiberscope.parameters import View
from fiberscope.symmetry import (
    Element,
    GeneralLinear,
    NormReaders,
    Permutation,
    ResidualRotation,
    Symmetry,
)
from fiberscope.symmetry.scaling import Scaling

Read = Callable[[str], NDArray[np.float64]]
"""Reads one tensor of the architecture as a new float64 array."""
Groups = tuple[tuple[str, ...], ...]


def is_divisible(symmetry: Symmetry) -> bool:
    """Whether it acts on every slot by itself, so that it can be applied tensor by tensor."""
    divisible = (GeneralLinear, Permutation, ResidualRotation, Scaling, SubsetLinear)
    return isinstance(symmetry, divisible)


def tensor_groups(wiring: Wiring, symmetries: Iterable[Symmetry]) -> Groups:
    """Divide the tensors so that what acts or reads across tensors stays together.

    Together are: each attention and each MLP, each norm with its linear readers, and whatever a
    symmetry that is not divisible touches. In a pre-norm decoder that is a group a layer, the
    tables, and the end. An encoder's last norm joins all the cross attentions that read it (T5).

    Returns
    -------
    tuple of tuples of str
        All stored tensors, each once, in the architecture's order.
    """
    names = tuple(wiring.architecture.tensors)
    parent = {name: name for name in names}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    def join(members: Iterable[str]) -> None:
        first: str | None = None
        for name in members:
            if first is None:
                first = root(name)
            else:
                parent[root(name)] = first

    blocks: tuple[Attention | Mlp, ...] = (*wiring.attentions, *wiring.mlps)
    for block in blocks:
        join(dict.fromkeys(view.tensor for view in _views(block)))
    for point in wiring.points:
        views = [point.norm.gain, point.norm.bias]
        for reader in point.readers:
            views += [reader.weight, reader.bias]
        join(view.tensor for view in views if view is not None)
    for symmetry in symmetries:
        if not is_divisible(symmetry):
            join(symmetry.touches)
    gathered: dict[str, list[str]] = {}
    for name in names:
        gathered.setdefault(root(name), []).append(name)
    return tuple(tuple(group) for group in gathered.values())


def _views(block: Attention | Mlp) -> Iterator[View]:
    for value in vars(block).values():
        if isinstance(value, View):
            yield value
    if isinstance(block, Attention):
        for norm in (block.query_norm, block.key_norm):
            if norm is not None:
                yield from (view for view in (norm.gain, norm.bias) if view is not None)


class FixedRotation(ResidualRotation):
    """A residual rotation whose whole matrix is computed once, for many tensors."""

    def __init__(self, symmetry: ResidualRotation, element: Element) -> None:
        super().__init__(
            symmetry.name, symmetry.bases, symmetry.writers, symmetry.norms, kind=symmetry.kind
        )
        self._fixed = symmetry.rotation(element)

    def rotation(self, element: Element) -> NDArray[Any]:
        """The matrix of the element given at first, whatever the element."""
        return self._fixed


def restricted(symmetry: Symmetry, tensors: frozenset[str]) -> Symmetry | None:
    """The symmetry on some of its tensors only; None where it touches none of them.

    Raises
    ------
    ValueError
        If it cannot be divided there.
    """
    touches = set(symmetry.touches)
    if not touches & tensors:
        return None
    if touches <= tensors:
        return symmetry
    part: Any = copy.copy(symmetry)
    if isinstance(symmetry, ResidualRotation):
        part.writers = tuple(s for s in symmetry.writers if s.view.tensor in tensors)
        norms = []
        for norm in symmetry.norms:
            readers = tuple(s for s in norm.readers if s.view.tensor in tensors)
            bias = norm.bias if norm.bias is not None and norm.bias.tensor in tensors else None
            if (readers or bias) and norm.gain is not None and norm.gain.tensor not in tensors:
                raise ValueError(f"{symmetry.name} needs a gain that is in another group")
            if readers or bias:
                norms.append(NormReaders(norm.gain, bias, readers))
        part.norms = tuple(norms)
    elif is_divisible(symmetry):
        part.slots = tuple(s for s in part.slots if s.view.tensor in tensors)
    else:
        raise ValueError(f"{symmetry.name} cannot act on some of its tensors only")
    moved: Symmetry = part
    return moved


def moved_groups(
    witness: Witness, read: Read, *, tolerance: float = PREMISE_TOLERANCE
) -> tuple[Groups, Callable[[int], dict[str, NDArray[np.float64]]]]:
    """Prepare a witness to act group by group.

    Returns
    -------
    groups
        The tensors, divided; see `tensor_groups`.
    move
        From the number of a group to its moved tensors in float64, read anew each time.

    Raises
    ------
    InputError
        As `Witness.apply`; what is equal is checked when the group is moved.
    """
    steps: list[tuple[Step, Exceptional, Symmetry, frozenset[str]]] = []
    for step in witness.steps:
        found = witness.catalogue.acting(step)
        acting = found.symmetry
        if isinstance(acting, ResidualRotation):
            acting = FixedRotation(acting, step.element)
        steps.append((step, found, acting, frozenset(acting.touches)))
    groups = tensor_groups(witness.catalogue.wiring, (symmetry for _, _, symmetry, _ in steps))

    def move(number: int) -> dict[str, NDArray[np.float64]]:
        group = frozenset(groups[number])
        arrays = {name: read(name) for name in groups[number]}
        for step, found, symmetry, touches in steps:
            if not touches & group:
                continue
            if found.reads and group.issuperset(found.reads):
                check_premise(step, found.premise(arrays), tolerance)
            part = restricted(symmetry, group)
            assert part is not None
            act(part, step.element, arrays)
        return arrays

    return groups, move


def moved_tensors(
    witness: Witness, read: Read, *, tolerance: float = PREMISE_TOLERANCE
) -> Iterator[tuple[str, NDArray[np.float64]]]:
    """Move a checkpoint by a witness, one group of tensors in memory at a time."""
    groups, move = moved_groups(witness, read, tolerance=tolerance)
    for number in range(len(groups)):
        arrays = move(number)
        for name in groups[number]:
            yield name, arrays.pop(name)


class MovedReader:
    """Reads views of a moved checkpoint, keeping the groups read last in memory.

    Parameters
    ----------
    keep
        Bytes of moved tensors that may stay.
    """

    def __init__(self, witness: Witness, read: Read, keep: int = 2**29) -> None:
        self._groups, self._move = moved_groups(witness, read)
        self._number = {name: k for k, group in enumerate(self._groups) for name in group}
        self._kept: dict[int, dict[str, NDArray[np.float64]]] = {}
        self.keep = keep

    def __call__(self, view: View) -> NDArray[Any]:
        """Read a view of the moved tensors."""
        number = self._number[view.tensor]
        if number not in self._kept:
            size = sum(a.nbytes for arrays in self._kept.values() for a in arrays.values())
            while self._kept and size > self.keep:
                oldest = self._kept.pop(next(iter(self._kept)))
                size -= sum(a.nbytes for a in oldest.values())
            self._kept[number] = self._move(number)
        return view.read(self._kept[number])
