"""Constants of values that no output bias takes: those of several groups can cancel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.canonical.readers import reference
from fiberscope.checkpoints.canonical.workspace import ROUNDINGS
from fiberscope.checkpoints.ledger.rules.constants import value_kernel_dimension
from fiberscope.checkpoints.ledger.wiring import Segment

if TYPE_CHECKING:
    from fiberscope.checkpoints.canonical.attention import Heads

Array = NDArray[np.float64]

TRIALS = 4
"""Roundings of the outputs, drawn to see how far rounding moves what cancels."""


@dataclass(frozen=True)
class _Kernel:
    """Combinations of constants that cancel in the output, orthonormal in what they write.

    With ``by_constant`` of shape ``(G, s, n)`` the part of constants ``c`` along them is
    ``by_constant^T c``; ``back`` of the same shape makes constants of it.
    """

    by_constant: Array
    back: Array


def settle_kernel(heads: Heads, segment: Segment) -> None:
    """Of all constants with one sum ``sum_g,m O_gm^T c_g`` take the shortest in what they write.

    Those have the smallest ``sum |O_gm^T c_g|^2``: no change of basis alters them.
    """
    value, constant = heads.value, heads.value.constant
    size = value_kernel_dimension(heads.attention, segment)
    if size == 0 or constant is None or not constant.any():
        return
    kernel = _kernel(heads.output, size)
    inside = np.einsum("gsn,gs->n", kernel.by_constant, constant)
    if not value.changed and _is_rounding(heads, kernel, inside):
        return
    value.constant = constant - kernel.back @ inside
    if value.deviation is not None:
        # c -> (1 - back by_constant^T) c: the squares of that matrix's rows, weighted.
        squares = value.deviation**2
        by_constant, back = kernel.by_constant, kernel.back
        moved = np.einsum("gsn,gsk,gs->nk", by_constant, by_constant, squares)
        kept = 1.0 - 2.0 * np.einsum("gsn,gsn->gs", back, by_constant)
        both = kept * squares + np.einsum("gsn,nk,gsk->gs", back, moved, back)
        value.deviation = np.sqrt(np.maximum(both, 0.0))
    value.changed = True


def _kernel(output: Array, size: int) -> _Kernel:
    groups, per_group, width, stream = output.shape
    stacked = output.swapaxes(1, 2).reshape(groups, width, per_group * stream)
    left, sizes, right = np.linalg.svd(stacked, full_matrices=False)
    live = sizes > width * np.finfo(np.float64).eps * sizes[:, :1]
    # What constants write, in orthonormal coordinates of each group: |O^T c| is their length.
    apart = right.reshape(groups, -1, per_group, stream).sum(axis=2) * live[..., None]
    total = apart.reshape(-1, stream)
    found = np.linalg.svd(total)[0][:, len(total) - size :].reshape(*live.shape, size)
    with np.errstate(divide="ignore"):
        inverse = np.where(live, 1.0 / sizes, 0.0)
    return _Kernel(
        np.einsum("gsk,gk,gkn->gsn", left, np.where(live, sizes, 0.0), found),
        np.einsum("gsk,gk,gkn->gsn", left, inverse, found),
    )


def _is_rounding(heads: Heads, kernel: _Kernel, inside: Array) -> bool:
    """Whether the part along the kernel is no more than rounding of constants and outputs."""
    value, constant = heads.value, heads.value.constant
    assert constant is not None
    rounding = ROUNDINGS * heads.spacing * np.abs(constant)
    if value.reader.bias is None and value.small_constant is not None:
        rounding = rounding + value.small_constant
    allowed = np.einsum("gsn,gs->n", np.abs(kernel.by_constant), rounding)
    if (np.abs(inside) <= allowed).all():
        return True
    # The kernel turns with the outputs' rounding; by how much has no simple bound.
    turned = 0.0
    for trial in range(TRIALS):
        drawn = np.clip(reference(*heads.output.shape, stream=32 + trial), -1.0, 1.0)
        near = _kernel(heads.output * (1.0 + heads.spacing / 2.0 * drawn), len(inside))
        other = np.einsum("gsn,gs->n", near.by_constant, constant)
        turned = max(turned, abs(float(np.linalg.norm(other) - np.linalg.norm(inside))))
    return bool(np.linalg.norm(inside) <= np.linalg.norm(allowed) + ROUNDINGS * turned)
