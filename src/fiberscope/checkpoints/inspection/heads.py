"""Spectra of the factor products of attention heads, and the extra freedom of deficient ones.

For factors A of shape ``(r, a)`` and B of shape ``(r, b)`` the function sees only ``A^T B``. The
derivative of the product has rank ``a rank(B) + b rank(A) - rank(A) rank(B)``: at a rank-deficient
pair the kernel is larger than at a generic one by the difference of these ranks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Attention
from fiberscope.checkpoints.inspection.equal_heads import Heads, equal_heads
from fiberscope.checkpoints.inspection.factors import (
    Factor,
    Matrix,
    conditions_of,
    product_spectrum,
    resolution,
    seen_rank,
    seen_through,
    triangular,
)
from fiberscope.checkpoints.inspection.finding import Exceptional, HeadConditioning
from fiberscope.checkpoints.inspection.roles import RoleReader, storage_epsilon
from fiberscope.checkpoints.ledger.effective import product_coordinates
from fiberscope.checkpoints.ledger.wiring import Point, Role, Wiring


def inspect_heads(
    wiring: Wiring, attention: Attention, reader: RoleReader
) -> tuple[HeadConditioning, list[Exceptional]]:
    """Conditioning of every head of one attention, and its rank-deficient products."""
    a = attention
    point, segment = wiring.point_of(a, Role.VALUE), wiring.segment_of(a)
    gain, _ = _norm_of(point, reader)
    value = seen_through(point, reader.read(a.value), None, (gain, None))
    output = reader.read(a.output)
    if segment.blind:
        output = output - output.mean(axis=-1, keepdims=True)
    query, key = _queries_and_keys(wiring, a, reader)
    seen = point.width - point.blind, segment.width - segment.blind
    constant = _seen_value_constant(point, a)
    alike: list[Exceptional] = []
    together: set[int] = set()
    if a.query_norm is None:
        width = wiring.point_of(a, Role.KEY).width
        heads = Heads(a, query, key, value, output, (width, *seen), seen_constant=constant)
        alike, together = equal_heads(heads)
    value_output, dead, found = _value_output(a, reader, value, output, seen, constant)
    query_key, more = _query_key(wiring, a, reader, query, key, dead, constant)
    # Heads that attend alike are counted together, with all that is special about each of them.
    single = [e for e in (*found, *more) if not together & set(e.statistics["groups"])]
    return HeadConditioning(a.label, a.layer, query_key, value_output), [*alike, *single]


def _norm_of(point: Point, reader: RoleReader) -> tuple[Matrix, Matrix | None]:
    bias = point.norm.bias
    return reader.gain(point.norm, point.width), None if bias is None else reader.read(bias)


def _value_output(
    a: Attention,
    reader: RoleReader,
    value: Matrix,
    output: Matrix,
    seen: tuple[int, int],
    constant: bool,
) -> tuple[tuple[float, ...], NDArray[np.bool_], list[Exceptional]]:
    right_value, right_output = triangular(value), triangular(output)
    # Singular values of O_h^T V_g from the triangular factors: r x r, never d x d.
    left, right = seen
    # Behind a LayerNorm a head as wide as the model has fewer generic singular values than rows.
    generic_rank = min(a.value_width, left, right)
    values, scale = product_spectrum(right_value[:, None], right_output)
    values = values[..., :generic_rank]
    dead = values[..., 0] <= resolution(values)
    conditions = conditions_of(values)
    found = []
    epsilon = max(storage_epsilon(reader.dtype(a.value)), storage_epsilon(reader.dtype(a.output)))
    stacked = output.swapaxes(1, 2).reshape(a.groups, a.value_width, -1)
    for group in range(a.groups):
        total = a.heads_per_group * right
        ranks = full = min(a.value_width, left), min(a.value_width, total)
        if not np.all(np.isfinite(conditions[group])):
            ranks = (
                int(Factor(right_value[group], left).ranks()),
                int(Factor(triangular(stacked[group]), total).ranks()),
            )
        if ranks == full:
            factors = (value[group], left), (stacked[group], total)
            found += _nearly(
                "value/output", a, group, values[group], scale[group], factors, epsilon
            )
            continue
        generic = product_coordinates(a.value_width, left, total)
        extra: int | None = generic - seen_rank(*ranks, left, total)
        if constant:
            # The values' constant is seen too, summed over heads: no closed form.
            extra = None
        found.append(
            Exceptional(
                "rank-deficient value/output product",
                f"{a.label}, {_group(a, group)}",
                extra,
                f"value factor of rank {ranks[0]} and output factor of rank {ranks[1]} "
                f"at width {a.value_width}",
                _spectrum(group, values[group] * scale[group]),
            )
        )
    return tuple(conditions.reshape(-1).tolist()), dead, found


def _seen_value_constant(point: Point, a: Attention) -> bool:
    """Whether a constant of the values reaches the stream with no bias there to take it over."""
    if a.value_bias is None and point.norm.bias is None:
        return False
    reader = next(r for r in point.readers if r.attention is a and r.role is Role.VALUE)
    return not reader.absorbing_biases


def _group(a: Attention, group: int) -> str:
    return f"head {group}" if a.heads_per_group == 1 else f"key/value group {group}"


def _spectrum(group: int, values: Matrix) -> dict[str, Any]:
    """Singular values of the heads of one group, largest first."""
    rows = [[float(v) for v in row] for row in np.atleast_2d(values)]
    return {"groups": [group], "singular_values": rows}


def _equal_plane_gains(a: Attention, reader: RoleReader) -> list[Exceptional]:
    """Rotary planes whose two gains agree, for queries and for keys: each group may turn them."""
    assert a.query_norm is not None
    assert a.key_norm is not None
    if a.rotary is None or a.query_norm.gain is None or a.key_norm.gain is None:
        return []
    planes = np.array(a.rotary.planes)
    equal = np.ones(len(planes), dtype=bool)
    for gain in (reader.read(a.query_norm.gain), reader.read(a.key_norm.gain)):
        equal &= gain[planes[:, 0]] == gain[planes[:, 1]]
    if not equal.any():
        return []
    return [
        Exceptional(
            "equal gains on rotary planes",
            a.label,
            a.groups * int(equal.sum()),
            f"{int(equal.sum())} of {len(planes)} planes have equal gains for queries and for "
            "keys: every key/value group may turn them",
            {"groups": list(range(a.groups)), "planes": np.flatnonzero(equal).tolist()},
        )
    ]


def _nearly(
    what: str,
    a: Attention,
    group: int,
    values: Matrix,
    scale: Matrix,
    factors: tuple[tuple[Matrix, int], tuple[Matrix, int]],
    epsilon: float,
) -> list[Exceptional]:
    """Whether rounding to the stored format could have hidden a rank deficiency of a factor.

    Independent rounding errors of relative size ``epsilon / sqrt(12)`` form a matrix of spectral
    norm about ``rms (sqrt(r) + sqrt(inputs)) epsilon / sqrt(12)``; a factor whose smallest
    singular value lies below it is not known to have full rank. Each factor comes with the number
    of independent inputs that it reads.
    """
    # The values are relative to the factors' norms; well above rounding nothing can be hidden.
    if float(np.min(values[..., -1])) >= 100 * epsilon:
        return []
    for factor, independent in factors:
        width, inputs = factor.shape
        spectrum = np.linalg.svd(triangular(factor), compute_uv=False)
        smallest = float(spectrum[min(width, independent) - 1])
        rms = float(np.sqrt(np.mean(factor**2)))
        limit = rms * (np.sqrt(width) + np.sqrt(inputs)) * epsilon / np.sqrt(12)
        if smallest < limit:
            return [
                Exceptional(
                    f"nearly rank-deficient {what} product",
                    f"{a.label}, {_group(a, group)}",
                    0,
                    f"a factor's smallest singular value is {smallest:.1e}, below the rounding of "
                    f"the stored format ({limit:.1e})",
                    _spectrum(group, values * scale),
                )
            ]
    return []


def _queries_and_keys(wiring: Wiring, a: Attention, reader: RoleReader) -> tuple[Matrix, Matrix]:
    query_point, key_point = wiring.point_of(a, Role.QUERY), wiring.point_of(a, Role.KEY)
    query_bias = None if a.query_bias is None else reader.read(a.query_bias)
    key_bias = None if a.key_bias is None else reader.read(a.key_bias)
    query = seen_through(
        query_point, reader.read(a.query), query_bias, _norm_of(query_point, reader)
    )
    key = seen_through(key_point, reader.read(a.key), key_bias, _norm_of(key_point, reader))
    return query, key


def _query_key(
    wiring: Wiring,
    a: Attention,
    reader: RoleReader,
    query: Matrix,
    key: Matrix,
    dead: NDArray[np.bool_],
    constant: bool,
) -> tuple[tuple[float, ...] | None, list[Exceptional]]:
    query_point, key_point = wiring.point_of(a, Role.QUERY), wiring.point_of(a, Role.KEY)
    # A silent head also hides its column of a position table that no other layer reads.
    only_reader = a.position_table is not None and not any(
        other is not a and other.memory is None and wiring.segment_of(other) is wiring.segment_of(a)
        for other in wiring.attentions
    )
    found = _unseen(a, query_point, key_point, dead, constant or only_reader)
    if a.query_norm is not None:
        return None, [*found, *_equal_plane_gains(a, reader)]
    if a.rotary is None:
        conditions, more = _plain(a, reader, query, key, key_point, dead)
        return tuple(conditions.reshape(-1).tolist()), [*found, *more]
    turning, more = _rotary(a, reader, query, key, key_point, dead)
    return turning, [*found, *more]


def _query_key_generic(
    a: Attention, query_inputs: int, key_inputs: int, key_plain: int, heads: int
) -> int:
    """Identified coordinates of one group's queries and keys with ``heads`` heads seen."""
    planes = len(a.rotary.planes) if a.rotary else 0
    rest = a.key_width - 2 * planes
    total = product_coordinates(rest, heads * query_inputs, key_plain)
    if heads:
        total += planes * 2 * product_coordinates(1, heads * query_inputs, key_inputs)
    return total


def _unseen(
    a: Attention,
    query_point: Point,
    key_point: Point,
    dead: NDArray[np.bool_],
    more_hidden: bool,
) -> list[Exceptional]:
    """Heads whose value/output product is zero: nobody sees where they attend."""
    found = []
    query_inputs = query_point.width - query_point.blind
    query_inputs += int(a.query_bias is not None or query_point.norm.bias is not None)
    plain = key_point.width - key_point.blind
    turned = plain + int(a.key_bias is not None or key_point.norm.bias is not None)
    for group in range(a.groups):
        silent = int(dead[group].sum())
        if not silent:
            continue
        alive = a.heads_per_group - silent
        if a.query_norm is None:
            extra: int | None = _query_key_generic(
                a, query_inputs, turned, plain, a.heads_per_group
            ) - _query_key_generic(a, query_inputs, turned, plain, alive)
        else:
            extra = a.key_width * (silent * query_inputs + (turned if not alive else 0))
            if dead.all() and group == a.groups - 1:
                # Nobody is left to see the products of the gains.
                planes = len(a.rotary.planes) if a.rotary else 0
                extra += 2 * a.key_width - (a.key_width - planes)
        heads = [group * a.heads_per_group + int(h) for h in np.flatnonzero(dead[group])]
        if more_hidden:
            # A constant of the values, or a position column, can be unseen too: no closed form.
            extra = None
        found.append(
            Exceptional(
                "silent heads",
                f"{a.label}, heads {', '.join(map(str, heads))}",
                extra,
                "the value/output product is zero, so the queries and keys are not seen",
                {"groups": [group], "heads": heads},
            )
        )
    return found


def _plain(
    a: Attention,
    reader: RoleReader,
    query: Matrix,
    key: Matrix,
    key_point: Point,
    dead: NDArray[np.bool_],
) -> tuple[Matrix, list[Exceptional]]:
    """Rows without position: singular values of ``Q_h^T K_g``; shape ``(G, m)`` of conditions."""
    inputs = key_point.width - key_point.blind
    width = key.shape[1]
    # The constant of a key is the same for all keys: softmax cancels it.
    key = key[..., : key_point.width]
    right_query, right_key = triangular(query), triangular(key)
    query_inputs = inputs + query.shape[-1] - key_point.width
    values, scale = product_spectrum(right_query, right_key[:, None])
    values = values[..., : min(width, query_inputs, inputs)]
    conditions = conditions_of(values)
    found = []
    epsilon = max(storage_epsilon(reader.dtype(a.query)), storage_epsilon(reader.dtype(a.key)))
    for group in range(a.groups):
        alive = ~dead[group]
        heads = int(alive.sum())
        if not heads:
            continue
        stacked = query[group][alive].swapaxes(0, 1).reshape(width, -1)
        total = heads * query_inputs
        ranks = full = min(width, total), min(width, inputs)
        if not np.all(np.isfinite(conditions[group][alive])):
            ranks = (
                int(Factor(triangular(stacked), total).ranks()),
                int(Factor(right_key[group], inputs).ranks()),
            )
        if ranks == full:
            factors = (stacked, total), (key[group], inputs)
            found += _nearly(
                "query/key",
                a,
                group,
                values[group][alive],
                scale[group][alive],
                factors,
                epsilon,
            )
            continue
        generic = product_coordinates(width, total, inputs)
        found.append(
            Exceptional(
                "rank-deficient query/key product",
                f"{a.label}, {_group(a, group)}",
                generic - seen_rank(*ranks, total, inputs),
                f"query factor of rank {ranks[0]} and key factor of rank {ranks[1]} at width "
                f"{width}",
                _spectrum(group, values[group] * scale[group]),
            )
        )
    return conditions, found


def _rotary(
    a: Attention,
    reader: RoleReader,
    query: Matrix,
    key: Matrix,
    key_point: Point,
    dead: NDArray[np.bool_],
) -> tuple[tuple[float, ...], list[Exceptional]]:
    """Rotary heads: plane strengths ``|q_j| |k_j|``, and singular values of unrotated rows."""
    assert a.rotary is not None
    planes = np.array(a.rotary.planes)
    rotated = set(planes.reshape(-1).tolist())
    rest = [row for row in range(a.key_width) if row not in rotated]
    query_size = np.sqrt(np.sum(query[..., planes, :] ** 2, axis=(-1, -2)))
    key_size = np.sqrt(np.sum(key[..., planes, :] ** 2, axis=(-1, -2)))
    strengths = query_size * key_size[:, None]
    ordered = -np.sort(-strengths, axis=-1)
    conditions = conditions_of(ordered)
    found: list[Exceptional] = []
    if rest:
        plain, found = _plain(a, reader, query[:, :, rest], key[:, rest], key_point, dead)
        conditions = np.maximum(conditions, plain)
    inputs = key_point.width - key_point.blind
    turned = inputs + key.shape[-1] - key_point.width
    query_inputs = inputs + query.shape[-1] - key_point.width
    for group in range(a.groups):
        alive = ~dead[group]
        if not alive.any():
            continue
        total = int(alive.sum()) * query_inputs
        no_query = np.all(query_size[group][alive] == 0, axis=0)
        no_key = key_size[group] == 0
        weak = np.flatnonzero(no_query | no_key)
        # A plane sees 2 (total + turned - 1) directions; a zero factor leaves the other's alone.
        extra = 0
        for plane in weak:
            seen = _seen_by_plane(bool(no_query[plane]), bool(no_key[plane]), total, turned)
            extra += 2 * (total + turned - 1) - seen
        if len(weak):
            found.append(
                Exceptional(
                    "zero rotary planes",
                    f"{a.label}, {_group(a, group)}",
                    extra,
                    f"{len(weak)} of {len(planes)} planes have zero queries or zero keys",
                    {"groups": [group], "planes": [int(p) for p in weak]},
                )
            )
    return tuple(conditions.reshape(-1).tolist()), found


def _seen_by_plane(no_query: bool, no_key: bool, query_inputs: int, key_inputs: int) -> int:
    """Directions seen of a plane with a zero factor: the derivative keeps the other factor's."""
    if no_query and no_key:
        return 0
    return 2 * (query_inputs if no_query else key_inputs)
