"""Heads that attend alike: only the sum of what they write is determined.

Heads with equal query/key products have equal attention patterns on every input, so that their
values and outputs can be mixed (Ong, "No equivariant architecture covers all equivariant
attention", Theorem 7). The canonical form does not undo such moves: it counts these heads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.canonical.cancelling import deviation_of_sum
from fiberscope.checkpoints.canonical.places import Places
from fiberscope.checkpoints.canonical.readers import reference
from fiberscope.checkpoints.ledger.rules.constants import unrotated_index

if TYPE_CHECKING:
    from fiberscope.checkpoints.canonical.attention import Heads
    from fiberscope.checkpoints.canonical.points import Folded

Array = NDArray[np.float64]

EQUAL_HEADS = "equal heads"
PROBES = 3
"""Pairs of fixed vectors between which products are compared."""
REACH = 8.0
"""Standard deviations of rounding by which products may differ and still count as equal."""


def note_equal_heads(heads: Heads, places: Places, uncertain: float) -> None:
    """Count heads whose scores agree with an earlier one's, up to rounding.

    Scores are compared between fixed vectors: every plane's complex product, and the sum over the
    rows without position; behind normalised queries and keys the rows themselves.

    Parameters
    ----------
    uncertain
        By how much, relatively, rounding has moved balanced factors.
    """
    attention = heads.attention
    if attention.position_table is not None or attention.groups * attention.heads_per_group < 2:
        return
    values, sizes = _scores(heads)
    value = np.asarray(heads.value.rows.any(axis=-1))[:, None]
    alive = np.asarray((heads.output.any(axis=-1) & value).any(axis=-1)).reshape(-1)
    # Of each product both factors are rounded.
    deviations = np.hypot(deviation_of_sum(2.0 * sizes**2, heads.spacing), uncertain * sizes)
    found = []
    for second in range(1, len(values)):
        apart = np.abs(values[:second] - values[second])
        allowed = REACH * np.hypot(deviations[:second], deviations[second])
        close = (apart <= allowed).all(axis=1)
        if (close & (alive[:second] | alive[second])).any():
            found.append(second)
    places.add(EQUAL_HEADS, attention.layer, attention.label, found)


def _scores(heads: Heads) -> tuple[Array, Array]:
    """Numbers that tell the scores of all heads apart, and the usual size of each: ``(H, n)``."""
    attention, query, key = heads.attention, heads.query, heads.key
    width = query.rows.shape[-1]
    probes = reference(2, width, PROBES, stream=12) / np.sqrt(width)
    q, k = query.rows @ probes[0], (key.rows @ probes[1])[:, None]
    q_size, k_size = _lengths(query), _lengths(key)[:, None]
    if query.constant is not None:
        q = q + query.constant[..., None]
    if key.constant is not None:
        k = k + key.constant[:, None, :, None]
    count = attention.groups * attention.heads_per_group
    k, k_size = np.broadcast_to(k, q.shape), np.broadcast_to(k_size, q_size.shape)
    if attention.query_norm is not None:
        rows = np.concatenate([q, k], axis=2)
        lengths = np.concatenate([q_size, k_size], axis=2)
        sizes = np.broadcast_to(lengths[..., None], rows.shape)
        return rows.reshape(count, -1), sizes.reshape(count, -1)
    rest = unrotated_index(attention)
    parts = [(q * k)[:, :, rest].sum(axis=2)]
    terms = [np.sqrt(((q_size * k_size)[:, :, rest] ** 2).sum(axis=2))]
    for first, second in attention.rotary.planes if attention.rotary else ():
        a, b = q[:, :, first] + 1j * q[:, :, second], k[:, :, first] + 1j * k[:, :, second]
        product = a * b.conj()
        parts += [product.real, product.imag]
        size = np.hypot(q_size[:, :, first], q_size[:, :, second])
        terms += [size * np.hypot(k_size[:, :, first], k_size[:, :, second])] * 2
    values = np.stack(parts, axis=2).reshape(count, -1)
    return values, np.repeat(np.stack(terms, axis=2), PROBES, axis=2).reshape(count, -1)


def _lengths(part: Folded) -> Array:
    """Usual size of a row's product with a probe, its constant added."""
    squares = np.einsum("...d,...d->...", part.rows, part.rows) / part.rows.shape[-1]
    return np.sqrt(squares if part.constant is None else squares + part.constant**2)
