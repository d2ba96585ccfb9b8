"""Rotary planes in canonical form: queries and keys of equal size, phases against a reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.canonical.places import Places
from fiberscope.checkpoints.canonical.readers import reference
from fiberscope.checkpoints.canonical.workspace import ROUNDINGS, relative_noise
from fiberscope.checkpoints.ledger.rules.heads import QUERY_KEY, QUERY_KEY_GAIN

if TYPE_CHECKING:
    from fiberscope.checkpoints.canonical.attention import Heads
    from fiberscope.checkpoints.canonical.points import Folded

Array = NDArray[np.float64]


def balance_planes(heads: Heads, places: Places) -> None:
    """Scale and turn every rotary plane: ``|q| = |k|``, and a positive product with a reference.

    A plane's two rows are one complex row; queries times z, keys divided by the conjugate of z keep
    all scores. Planes of one frequency mix by invertible complex matrices; they are balanced as
    factors are, through real matrices of twice the size.
    """
    attention = heads.attention
    assert attention.rotary is not None
    blocks: dict[float, list[tuple[int, int]]] = {}
    for (first, second), frequency in zip(
        attention.rotary.planes, attention.rotary.frequencies, strict=True
    ):
        plane = (first, second) if frequency > 0 else (second, first)
        blocks.setdefault(abs(frequency), []).append(plane)
    single = np.array([block[0] for block in blocks.values() if len(block) == 1])
    if len(single):
        _single_planes(heads, single[:, 0], single[:, 1], places)
    for block in blocks.values():
        if len(block) > 1:
            _shared_frequency(heads, np.array(block), places)


def _complex(
    rows: Array, constant: Array | None, first: NDArray[np.int64], second: NDArray[np.int64]
) -> tuple[Array, Array]:
    """Both rows of every plane with their constants, as two real arrays, axis -2 counts planes."""
    if constant is not None:
        rows = np.concatenate([rows, constant[..., None]], axis=-1)
    return rows[..., first, :], rows[..., second, :]


def _joined(real: Array, imaginary: Array) -> Array:
    """All entries of a group's planes: ``(G, m, P, D)`` twice to ``(G, P, 2 m D)``."""
    both = np.concatenate([real, imaginary], axis=-1).swapaxes(1, 2)
    return both.reshape(*both.shape[:2], -1)


def _put(
    heads_part: object, a: Array, b: Array, first: NDArray[np.int64], second: NDArray[np.int64]
) -> None:
    part = heads_part
    rows: Array = part.rows  # type: ignore[attr-defined]
    d = rows.shape[-1]
    rows[..., first, :] = a[..., :d]
    rows[..., second, :] = b[..., :d]
    constant: Array | None = part.constant  # type: ignore[attr-defined]
    if constant is not None:
        constant = constant.copy()
        constant[..., first] = a[..., d]
        constant[..., second] = b[..., d]
        part.constant = constant  # type: ignore[attr-defined]
    part.changed = True  # type: ignore[attr-defined]


def _scaled_deviation(
    part: Folded, factor: Array, first: NDArray[np.int64], second: NDArray[np.int64]
) -> None:
    """Planes are turned and scaled: either row can have the rounding of both."""
    if part.deviation is not None:
        part.deviation = part.deviation.copy()
        both = np.hypot(part.deviation[..., first], part.deviation[..., second]) * factor
        part.deviation[..., first] = part.deviation[..., second] = both


def _single_planes(
    heads: Heads, first: NDArray[np.int64], second: NDArray[np.int64], places: Places
) -> None:
    query, key = heads.query, heads.key
    q_real, q_imaginary = _complex(query.rows, query.constant, first, second)
    k_real, k_imaginary = _complex(key.rows, key.constant, first, second)
    q_size = np.sqrt((q_real**2 + q_imaginary**2).sum(axis=(1, 3)))
    k_size = np.sqrt((k_real**2 + k_imaginary**2).sum(axis=2))
    per_group = q_real.shape[1]
    q_width, k_width = q_real.shape[-1], k_real.shape[-1]
    weights = reference(per_group, 1, q_width, stream=1) / np.sqrt(per_group * q_width)
    key_weights = reference(k_width, stream=2) / np.sqrt(k_width)

    def product(
        real: Array, imaginary: Array, key_real: Array, key_imaginary: Array
    ) -> NDArray[np.complex128]:
        found = (real * weights).sum(axis=(1, 3)) + key_real @ key_weights
        return found + 1j * ((imaginary * weights).sum(axis=(1, 3)) + key_imaginary @ key_weights)

    live = (q_size > 0) & (k_size > 0)
    places.note_dead(
        "directions of heads outside the product (rotary planes)",
        int(2 * np.count_nonzero(~live & ((q_size > 0) | (k_size > 0)))),
    )
    ratio = np.sqrt(np.divide(k_size, q_size, out=np.zeros_like(q_size), where=live))
    inverse = np.divide(1.0, ratio, out=np.zeros_like(ratio), where=ratio > 0)
    now = product(q_real, q_imaginary, k_real, k_imaginary)
    tolerance = ROUNDINGS * heads.spacing
    size = np.maximum(q_size, k_size)
    # A sum with normal weights of norm about one has the rounding of a single entry.
    entry = size / np.sqrt(min(q_width, k_width))
    noise = np.hypot(
        relative_noise(_joined(q_real, q_imaginary), heads.spacing),
        relative_noise(_joined(k_real[:, None], k_imaginary[:, None]), heads.spacing),
    )
    settled = (
        (np.abs(q_size - k_size) <= noise * size)
        & (np.abs(now.imag) <= tolerance * entry)
        & (now.real >= -tolerance * entry)
    )
    aligned = product(
        q_real * ratio[:, None, :, None],
        q_imaginary * ratio[:, None, :, None],
        k_real * inverse[..., None],
        k_imaginary * inverse[..., None],
    )
    length = np.abs(aligned)
    loose = live & (length <= 1e3 * heads.spacing * np.sqrt(q_size * k_size) / np.sqrt(q_width))
    places.add(
        QUERY_KEY,
        heads.attention.layer,
        f"{heads.attention.label}, rotary planes",
        np.flatnonzero(loose.any(axis=1)).tolist(),
        int(loose.sum()),
    )
    if settled.all():
        return
    turn = np.divide(aligned.conj(), length, out=np.ones_like(aligned), where=length > 0)
    z = turn * ratio
    w = turn * inverse
    _scaled_deviation(query, ratio[:, None, :], first, second)
    _scaled_deviation(key, inverse, first, second)
    _put(
        query,
        q_real * z.real[:, None, :, None] - q_imaginary * z.imag[:, None, :, None],
        q_real * z.imag[:, None, :, None] + q_imaginary * z.real[:, None, :, None],
        first,
        second,
    )
    _put(
        key,
        k_real * w.real[..., None] - k_imaginary * w.imag[..., None],
        k_real * w.imag[..., None] + k_imaginary * w.real[..., None],
        first,
        second,
    )


def _shared_frequency(heads: Heads, block: NDArray[np.int64], places: Places) -> None:
    """Several planes of one frequency: complex factors, balanced by a complex decomposition."""
    query, key = heads.query, heads.key
    first, second = block[:, 0], block[:, 1]
    q_real, q_imaginary = _complex(query.rows, query.constant, first, second)
    k_real, k_imaginary = _complex(key.rows, key.constant, first, second)
    groups, per_group, count = q_real.shape[:3]
    q = (q_real + 1j * q_imaginary).swapaxes(1, 2).reshape(groups, count, -1)
    k = k_real + 1j * k_imaginary
    q_weights = reference(q.shape[-1], count, stream=3)
    k_weights = reference(k.shape[-1], count, stream=4)
    tolerance = ROUNDINGS * heads.spacing
    new_q, new_k = np.empty_like(q), np.empty_like(k)
    settled = True
    for group in range(groups):
        left, right = q[group] @ q[group].conj().T, k[group] @ k[group].conj().T
        aligned = q[group] @ q_weights + k[group] @ k_weights
        size = np.sqrt(np.abs(np.diagonal(left)).max())
        settled &= bool(
            np.abs(left - right).max() <= tolerance * size**2
            and np.abs(aligned - aligned.conj().T).max() <= tolerance * size
            and np.linalg.eigvalsh(aligned + aligned.conj().T)[0] >= -2 * tolerance * size * count
        )
        a, upper = np.linalg.qr(q[group].conj().T)
        b, other = np.linalg.qr(k[group].conj().T)
        x, s, y = np.linalg.svd(upper @ other.conj().T)
        s = np.where(s > count * 1e-16 * np.linalg.norm(upper) * np.linalg.norm(other), s, 0.0)
        half = np.sqrt(s)[:, None]
        moved, partner = half * (a @ x).conj().T, half * (b @ y.conj().T).conj().T
        left_vectors, _, right_vectors = np.linalg.svd(moved @ q_weights + partner @ k_weights)
        turn = (left_vectors @ right_vectors).conj().T
        new_q[group], new_k[group] = turn @ moved, turn @ partner
    if settled:
        return
    turned = new_q.reshape(groups, count, per_group, -1).swapaxes(1, 2)
    _put(query, turned.real, turned.imag, first, second)
    _put(key, new_k.real, new_k.imag, first, second)


def order_gains(heads: Heads, places: Places) -> None:
    """Normalised queries and keys: only the product of their two gains is seen, plane by plane.

    Signs of rows move into the rows, so that all gains are positive; then each plane's two gains
    get the same length in queries and keys. Turning a plane by a right angle exchanges its gains:
    the one with the larger product comes first; the half turn that is left in each group is fixed
    by a sign. Where both products agree the plane can be turned by any angle, group by group; its
    phase is then fixed as for planes without norms.
    """
    query, key = heads.query, heads.key
    q_gain, k_gain = heads.query_gain, heads.key_gain
    attention = heads.attention
    if q_gain is None or k_gain is None:
        return
    q_gain, k_gain = q_gain.copy(), k_gain.copy()
    for part, gain in ((query, q_gain), (key, k_gain)):
        sign = np.where(gain < 0, -1.0, 1.0)
        if (sign < 0).any():
            part.rows *= sign[:, None]
            if part.constant is not None:
                part.constant = part.constant * sign
            part.changed = heads.gains_changed = True
            gain *= sign
    planes = list(attention.rotary.planes) if attention.rotary else []
    rotated = {row for plane in planes for row in plane}
    rest = [(row,) for row in range(attention.key_width) if row not in rotated]
    tolerance = ROUNDINGS * heads.spacing
    turned: list[tuple[int, int]] = []
    free: list[tuple[int, int]] = []
    close = []
    for number, rows in enumerate([*planes, *rest]):
        index = list(rows)
        a, b = float(np.linalg.norm(q_gain[index])), float(np.linalg.norm(k_gain[index]))
        if a > 0 and b > 0 and abs(a - b) > tolerance * max(a, b):
            q_gain[index] *= np.sqrt(b / a)
            k_gain[index] *= np.sqrt(a / b)
            heads.gains_changed = True
        if len(rows) == 2:
            product = q_gain[index] * k_gain[index]
            pairs = heads.round_gain(q_gain[index]), heads.round_gain(k_gain[index])
            if all(pair[0] == pair[1] for pair in pairs):
                free.append((rows[0], rows[1]))
            elif abs(product[0] - product[1]) <= 2 * tolerance * product.max():
                close.append(number)
            elif product[1] > product[0]:
                turned.append((rows[0], rows[1]))
    places.add(QUERY_KEY_GAIN, attention.layer, attention.label, close)
    for first, second in turned:
        # (a, b) -> (-b, a) on both: the turn by a right angle, which commutes with positions.
        for part, gain in ((query, q_gain), (key, k_gain)):
            part.rows[..., [first, second], :] = part.rows[..., [second, first], :]
            part.rows[..., first, :] *= -1.0
            if part.constant is not None:
                part.constant = part.constant.copy()
                part.constant[..., [first, second]] = part.constant[..., [second, first]]
                part.constant[..., first] *= -1.0
            gain[[first, second]] = gain[[second, first]]
            part.changed = heads.gains_changed = True
    heads.query_gain, heads.key_gain = q_gain, k_gain
    taken = {row for plane in free for row in plane}
    _half_turns(heads, [list(rows) for rows in [*planes, *rest] if rows[0] not in taken], places)
    if free:
        _free_phases(heads, np.array(free), places)


def _half_turns(heads: Heads, blocks: list[list[int]], places: Places) -> None:
    """Sign of every plane (or row without position) of a group, the same for queries and key."""
    query, key = heads.query, heads.key
    groups, width = key.rows.shape[0], key.rows.shape[2]
    products = key.rows @ (reference(width, stream=6) / np.sqrt(width))
    sizes = np.sqrt((key.rows**2).mean(axis=2))
    tolerance = ROUNDINGS * heads.spacing
    leading = np.array([rows[0] for rows in blocks], dtype=np.int64)
    close = np.abs(products[:, leading]) <= 2 * tolerance * sizes[:, leading]
    places.add(
        QUERY_KEY_GAIN,
        heads.attention.layer,
        f"{heads.attention.label}, signs",
        np.flatnonzero(close.any(axis=0)).tolist(),
    )
    sign = np.ones((groups, key.rows.shape[1]))
    for rows in blocks:
        turning = products[:, rows[0]] < -tolerance * sizes[:, rows[0]]
        sign[np.ix_(turning, rows)] = -1.0
    if (sign > 0).all():
        return
    for part, factor in ((query, sign[:, None]), (key, sign)):
        part.rows *= factor[..., None]
        if part.constant is not None:
            part.constant = part.constant * factor
        part.changed = True


def _free_phases(heads: Heads, planes: NDArray[np.int64], places: Places) -> None:
    """Turn planes of equal gains so that the keys' product with a reference is positive."""
    query, key = heads.query, heads.key
    first, second = planes[:, 0], planes[:, 1]
    k_real, k_imaginary = _complex(key.rows, key.constant, first, second)
    q_real, q_imaginary = _complex(query.rows, query.constant, first, second)
    weights = reference(k_real.shape[-1], stream=5) / np.sqrt(k_real.shape[-1])
    aligned = k_real @ weights + 1j * (k_imaginary @ weights)
    size = np.sqrt((k_real**2 + k_imaginary**2).sum(-1)) / np.sqrt(k_real.shape[-1])
    tolerance = ROUNDINGS * heads.spacing
    if ((np.abs(aligned.imag) <= tolerance * size) & (aligned.real >= -tolerance * size)).all():
        return
    length = np.abs(aligned)
    z = np.divide(aligned.conj(), length, out=np.ones_like(aligned), where=length > 0)
    _put(
        key,
        k_real * z.real[..., None] - k_imaginary * z.imag[..., None],
        k_real * z.imag[..., None] + k_imaginary * z.real[..., None],
        first,
        second,
    )
    turn = z[:, None]
    _put(
        query,
        q_real * turn.real[..., None] - q_imaginary * turn.imag[..., None],
        q_real * turn.imag[..., None] + q_imaginary * turn.real[..., None],
        first,
        second,
    )
