"""The symmetries of deep attention as groups acting on the native parameters."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.families.deep_attention.architecture import Architecture
from fiberscope.families.deep_attention.tangents import (
    reached_width,
    seen_width,
    unreached_bases,
    unseen_bases,
)
from fiberscope.numbers.fields import RealField
from fiberscope.parameters import View
from fiberscope.symmetry import (
    GeneralLinear,
    NormReaders,
    Permutation,
    ResidualRotation,
    ScaledSlot,
    Scaling,
    SignFlip,
    Slot,
    Symmetry,
    Translation,
    ones_complement,
)


def deep_attention_symmetries(architecture: Architecture) -> list[Symmetry]:
    """All known symmetries that act at generic points.

    Continuous: one *factor* group a layer, one *interface* group a hidden width, *unreached* and
    *unseen* shifts where the widths or a LayerNorm force them, one *scale* a layer of an
    unnormalized network or before a LayerNorm.
    Discrete: signs at even normalizers, permutations of heads.
    """
    found: list[Symmetry] = []
    for layer in range(1, architecture.depth + 1):
        query, key = _view(architecture, f"Q{layer}"), _view(architecture, f"K{layer}")
        found.append(
            GeneralLinear(f"factor {layer}", (Slot(query, 2), Slot(key, 2, dual=True))),
        )
        heads = architecture.heads[layer - 1]
        if not architecture.normalized and architecture.trainable_values:
            slots = [ScaledSlot(query, 0), ScaledSlot(_view(architecture, f"V{layer}"), 0, -1)]
            found.append(Scaling(f"scale {layer}", heads, slots))
        if architecture.normalizers is not None and architecture.normalizers[layer - 1].even:
            found.append(SignFlip(f"sign {layer}", heads, [ScaledSlot(query, 0)]))
        if heads > 1:
            names = [f"Q{layer}", f"K{layer}"]
            names += [f"V{layer}"] if architecture.trainable_values else []
            slots_moved = [Slot(_view(architecture, name), 0) for name in names]
            found.append(Permutation(f"heads {layer}", heads, slots_moved))
    if not architecture.trainable_values:
        return found
    for layer in range(1, architecture.depth):
        if not architecture.residual and architecture.layer_norm:
            value = _view(architecture, f"V{layer}")
            scaled = ScaledSlot(value, ())
            found += [
                Scaling(f"scale {layer}", 1, [scaled], positive=True),
                _rotation(architecture, layer),
            ]
        elif not architecture.residual:
            found.append(_interface(architecture, layer))
        if reached_width(architecture, layer) < architecture.widths[layer]:
            found.append(_unreached(architecture, layer + 1))
        if seen_width(architecture, layer) < architecture.widths[layer]:
            found.append(_unseen(architecture, layer))
    return found


def _view(architecture: Architecture, name: str) -> View:
    return View.whole(name, architecture.space.shapes[name])


def _interface(architecture: Architecture, layer: int) -> Symmetry:
    def whole(name: str) -> View:
        view = _view(architecture, name)
        return view.split(0, 1, view.shape[0])

    return GeneralLinear(
        f"interface {layer}",
        (
            Slot(whole(f"V{layer}"), 2),
            Slot(whole(f"V{layer + 1}"), 3, dual=True),
            Slot(whole(f"Q{layer + 1}"), 2, dual=True),
            Slot(whole(f"K{layer + 1}"), 2, dual=True),
        ),
    )


def _rotation(architecture: Architecture, layer: int) -> Symmetry:
    """Rotations of the vectors that sum to zero: what a LayerNorm leaves of the interface."""
    after = layer + 1
    readers = [Slot(_view(architecture, f"{kind}{after}"), 1) for kind in "QK"]
    readers.append(Slot(_view(architecture, f"V{after}"), 2))
    return ResidualRotation(
        f"interface {layer}",
        [ones_complement(architecture.widths[layer])],
        [Slot(_view(architecture, f"V{layer}"), 1)],
        [NormReaders(None, None, tuple(readers))],
    )


def _projector(basis: NDArray[np.float64] | None, width: int) -> NDArray[np.float64]:
    return np.zeros((width, width)) if basis is None else basis @ basis.T


def _real(parameters: dict[str, NDArray[Any]]) -> dict[str, NDArray[np.float64]]:
    return {name: np.real(value).astype(np.float64) for name, value in parameters.items()}


def _unreached(architecture: Architecture, layer: int) -> Symmetry:
    """Shift of layer ``layer`` along input directions that no token has."""
    heads, width = architecture.heads[layer - 1], architecture.widths[layer - 1]
    rank, out = architecture.ranks[layer - 1], architecture.widths[layer]
    names = (f"Q{layer}", f"K{layer}", f"V{layer}")
    views = tuple(_view(architecture, name) for name in names)

    def increments(
        parameters: dict[str, NDArray[Any]], shift: NDArray[Any]
    ) -> list[tuple[View, NDArray[Any]]]:
        bases, _ = unreached_bases(architecture, _real(parameters), RealField())
        onto = _projector(bases.get(layer), width)
        moved = onto @ shift
        parts = (moved[..., :rank], moved[..., rank : 2 * rank], moved[..., 2 * rank :])
        return list(
            zip(views, (parts[0], parts[1], parts[2].swapaxes(-1, -2)), strict=True),
        )

    return Translation(f"unreached {layer}", (heads, width, 2 * rank + out), views, increments)


def _unseen(architecture: Architecture, layer: int) -> Symmetry:
    """Shift of the values of layer ``layer`` along output directions that no later layer reads."""
    view = _view(architecture, f"V{layer}")

    def increments(
        parameters: dict[str, NDArray[Any]], shift: NDArray[Any]
    ) -> list[tuple[View, NDArray[Any]]]:
        bases, _ = unseen_bases(architecture, _real(parameters), RealField())
        return [(view, _projector(bases.get(layer), view.shape[1]) @ shift)]

    return Translation(f"unseen {layer}", view.shape, (view,), increments)
