"""Constants that cancel or are seen only as a sum: biases and free input directions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Attention, NormKind
from fiberscope.checkpoints.ledger.item import Item, Overlap
from fiberscope.checkpoints.ledger.rules import shift_terms
from fiberscope.checkpoints.ledger.rules.heads import unrotated_rows
from fiberscope.checkpoints.ledger.wiring import Point, Reader, Role, Segment, Wiring
from fiberscope.errors import InputError
from fiberscope.parameters import Parameters, View
from fiberscope.symmetry import Symmetry, Translation

KEY_BIAS = "key bias"
VALUE_BIAS = "value bias"
NORM_BIAS = "norm bias"
INPUT_DIRECTION = "LayerNorm input direction"
PARALLEL_BIAS = "parallel output biases"
ALONG_ONES = "residual write along 1"

CANCELLED = 1e-13
"""A sum of terms that is smaller than this part of their sizes is rounding."""

Arrays = dict[str, NDArray[Any]]


def output_map(attention: Attention, parameters: Arrays) -> NDArray[Any]:
    """What a constant value of each group adds to the stream: shape ``(d, G s)``."""
    summed = attention.output.read(parameters).sum(axis=1)
    return summed.reshape(-1, summed.shape[-1]).T


def value_kernel_dimension(attention: Attention, segment: Segment) -> int:
    """Dimension of the constant values that the output map sends to nothing anyone sees."""
    total = attention.groups * attention.value_width
    return max(0, total - (segment.width - segment.blind))


def value_kernel(attention: Attention, segment: Segment, parameters: Arrays) -> NDArray[Any]:
    """Orthonormal constants of all groups that nobody sees, ``(G s, value_kernel_dimension)``."""
    matrix = output_map(attention, {name: np.real(v) for name, v in parameters.items()})
    if segment.blind:
        matrix = matrix - matrix.mean(axis=0)
    # The rank of the centred map is known; rounding must not change the number of directions.
    size = value_kernel_dimension(attention, segment)
    if size == 0:
        return np.zeros((matrix.shape[1], 0))
    kernel = np.linalg.svd(matrix)[2][-size:].T
    # Rounding decides signs and order of null vectors; the basis nearest to a fixed one is stable.
    fixed = np.random.default_rng(0).standard_normal((len(kernel), size))
    left, _, right = np.linalg.svd(kernel.T @ fixed)
    return kernel @ (left @ right)


def unrotated_index(attention: Attention) -> NDArray[np.int64]:
    """Indices of the key rows that carry no position."""
    rotated = {r for plane in (attention.rotary.planes if attention.rotary else ()) for r in plane}
    return np.array([r for r in range(attention.key_width) if r not in rotated], dtype=np.int64)


def key_constant_rows(reader: Reader) -> int:
    """Key rows whose constant has no effect (softmax cancels what is equal for all keys)."""
    attention = reader.attention
    if attention is None or reader.role is not Role.KEY or attention.key_norm is not None:
        return 0
    return attention.groups * unrotated_rows(attention)


def bias_items(wiring: Wiring) -> Iterator[Item]:
    """Key biases, value biases and parallel output biases."""
    for attention in wiring.attentions:
        reader = wiring.reader_of(attention, Role.KEY)
        if attention.key_bias is not None and key_constant_rows(reader):
            yield _key_bias(attention, key_constant_rows(reader))
        if attention.value_bias is not None:
            reader = wiring.reader_of(attention, Role.VALUE)
            if (item := _value_bias(attention, reader)) is not None:
                yield item
    for segment in wiring.segments:
        for layer, biases in segment.biases:
            if len(biases) > 1:
                yield _parallel_bias(layer, biases, segment.width)


def bias_overlaps(wiring: Wiring) -> Iterator[Overlap]:
    """Parallel biases that move along the ones vector are also writes along 1."""
    shared = sum(
        segment.blind * (len(biases) - 1)
        for segment in wiring.segments
        for _, biases in segment.biases
    )
    if shared:
        yield Overlap(
            (PARALLEL_BIAS, ALONG_ONES),
            shared,
            "moving the ones vector from one output bias to the other is also two writes along 1",
        )


def _key_bias(attention: Attention, dimension: int) -> Item:
    def build() -> Symmetry:
        rows = unrotated_index(attention)
        view = attention.key_bias
        assert view is not None

        def increments(parameters: Arrays, shift: NDArray[Any]) -> Any:
            whole = np.zeros(view.shape, dtype=shift.dtype)
            whole[:, rows] = shift
            return [(view, whole)]

        return Translation(
            f"{attention.label}: {KEY_BIAS}",
            (attention.groups, len(rows)),
            [view],
            increments,
            linear=lambda _: shift_terms.some_columns(view, rows),
        )

    return Item(KEY_BIAS, attention.layer, dimension, build, attention.label)


def _value_bias(attention: Attention, reader: Reader) -> Item | None:
    segment = reader.lands_on
    assert segment is not None
    total = attention.groups * attention.value_width
    absorbed = bool(reader.absorbing_biases)
    dimension = total if absorbed else value_kernel_dimension(attention, segment)
    if dimension == 0:
        return None

    def build() -> Symmetry:
        view = attention.value_bias
        assert view is not None

        def increments(parameters: Arrays, shift: NDArray[Any]) -> Any:
            if absorbed:
                into = reader.absorbing_biases[0]
                moved = output_map(attention, parameters) @ shift
                return [(view, shift.reshape(view.shape)), (into, -moved)]
            moved = value_kernel(attention, segment, parameters) @ shift
            return [(view, moved.reshape(view.shape))]

        def linear(parameters: Parameters) -> shift_terms.Terms:
            given = dict(parameters)
            if absorbed:
                into = reader.absorbing_biases[0]
                return shift_terms.folded(view, into, output_map(attention, given))
            return shift_terms.within(view, value_kernel(attention, segment, given))

        views: Sequence[View] = [view, *reader.absorbing_biases[:1]]
        name = f"{attention.label}: {VALUE_BIAS}"
        return Translation(name, (dimension,), views, increments, linear=linear)

    return Item(VALUE_BIAS, attention.layer, dimension, build, attention.label)


def _parallel_bias(layer: int, biases: tuple[View, ...], width: int) -> Item:
    def build() -> Symmetry:
        def increments(parameters: Arrays, shift: NDArray[Any]) -> Any:
            return [
                (biases[0], -shift.sum(axis=0)),
                *((bias, part) for bias, part in zip(biases[1:], shift, strict=True)),
            ]

        return Translation(
            f"layer {layer}: {PARALLEL_BIAS}",
            (len(biases) - 1, width),
            biases,
            increments,
            linear=lambda _: shift_terms.first_takes_back(biases, width),
        )

    return Item(PARALLEL_BIAS, layer, (len(biases) - 1) * width, build, f"layer {layer}")


def free_directions(reader: Reader, point: Point) -> int:
    """Free input directions of a reader behind a LayerNorm.

    Normalised vectors are orthogonal to 1, so adding multiples of ``1/gain`` to a reader's rows
    only adds constants ``u . bias``; they are free where a bias takes the constant, where there is
    no norm bias, or where the constant is dead.
    """
    if point.norm.kind is not NormKind.LAYER or reader.tied:
        return 0
    if reader.bias is not None or point.norm.bias is None:
        return reader.outputs
    if reader.role is Role.KEY:
        return key_constant_rows(reader)
    if reader.role is Role.VALUE:
        assert reader.attention is not None and reader.lands_on is not None
        if reader.absorbing_biases:
            return reader.outputs
        return value_kernel_dimension(reader.attention, reader.lands_on)
    return 0


def point_items(wiring: Wiring) -> Iterator[Item]:
    """Free input directions and norm biases of every point."""
    for point in wiring.points:
        for reader in point.readers:
            if count := free_directions(reader, point):
                yield _input_direction(reader, point, count)
        if norm_bias_is_free(point):
            yield _norm_bias(point)


def input_direction(point: Point, parameters: Arrays) -> tuple[NDArray[Any], Any]:
    """The direction ``u = 1/gain`` and the constant ``u . bias`` it brings along."""
    gain = point.norm.gain
    width = point.width
    u = np.ones(width) if gain is None else 1.0 / gain.read(parameters)
    constant = 0.0 if point.norm.bias is None else u @ point.norm.bias.read(parameters)
    return u, constant


def _input_direction(reader: Reader, point: Point, count: int) -> Item:
    def build() -> Symmetry:
        units = reader.weight.shape[:-1]
        attention, segment = reader.attention, reader.lands_on
        absorbing = reader.bias is None and point.norm.bias is not None
        into = reader.absorbing_biases[0] if absorbing and reader.absorbing_biases else None

        def increments(parameters: Arrays, shift: NDArray[Any]) -> Any:
            u, constant = input_direction(point, parameters)
            if not absorbing:
                rows = shift.reshape(units)
                moved = [(reader.weight, rows[..., None] * u)]
                if reader.bias is not None:
                    moved.append((reader.bias, -rows * constant))
                return moved
            assert attention is not None
            if reader.role is Role.KEY:
                rows = np.zeros(units, dtype=shift.dtype)
                rows[:, unrotated_index(attention)] = shift.reshape(units[0], -1)
                return [(reader.weight, rows[..., None] * u)]
            if into is not None:
                rows = shift.reshape(units)
                lands = output_map(attention, parameters) @ shift
                return [(reader.weight, rows[..., None] * u), (into, -lands * constant)]
            assert segment is not None
            rows = (value_kernel(attention, segment, parameters) @ shift).reshape(units)
            return [(reader.weight, rows[..., None] * u)]

        def linear(parameters: Parameters) -> shift_terms.Terms:
            given = dict(parameters)
            u, constant = input_direction(point, given)
            if not absorbing:
                bias = None if reader.bias is None else (reader.bias, constant)
                return shift_terms.rows_along(reader.weight, u, bias=bias)
            assert attention is not None
            if reader.role is Role.KEY:
                columns = unrotated_index(attention)
                return shift_terms.rows_along(reader.weight, u, columns=columns)
            if into is not None:
                lands = constant * output_map(attention, given)
                return shift_terms.rows_along(reader.weight, u, into=(into, lands))
            assert segment is not None
            basis = value_kernel(attention, segment, given)
            return shift_terms.rows_along(reader.weight, u, basis=basis)

        views = [reader.weight, reader.bias, into]
        name = f"{reader.label}: {INPUT_DIRECTION}"
        return Translation(name, (count,), views, increments, linear=linear)

    return Item(INPUT_DIRECTION, reader.layer, count, build, reader.label)


def norm_bias_is_free(point: Point) -> bool:
    """Whether every reader of the point can take back a shift of the norm's bias."""
    if point.norm.bias is None or point.observed or (point.carried and not point.carried_biases):
        return False
    return not any(reader.tied and reader.bias is None for reader in point.readers)


def _norm_bias(point: Point) -> Item:
    """Shift the norm's bias and take it back in every reader (and in the carried sum).

    A reader without a bias moves along ``u = 1/gain`` by its image over the constant ``u . bias``
    after the shift. Where that constant is zero before (a fresh model), no small shift has a small
    effect on such a reader: of the directions only their limit is left, in which the reader moves
    and nothing else. Where it is zero after, the shift has no finite effect and is refused.
    """
    label = point.norm.label
    dividing = [reader for reader in point.readers if reader.bias is None and not reader.tied]

    def build() -> Symmetry:
        bias = point.norm.bias
        assert bias is not None

        def increments(parameters: Arrays, shift: NDArray[Any]) -> Any:
            u, constant = input_direction(point, parameters)
            if dividing and constant == 0.0 and not np.real(shift).any():
                # An imaginary shift is a derivative; no shift at all moves nothing either way.
                limit = [(r.weight, -(r.weight.read(parameters) @ shift)) for r in dividing]
                return [(weight, brought[..., None] * u) for weight, brought in limit]
            moved: list[tuple[View, NDArray[Any]]] = [(bias, shift)]
            if point.carried:
                moved.append((point.carried_biases[0], -shift))
            after = constant + u @ shift
            if dividing:
                _refuse_cancelled(label, after, np.abs(u) @ np.abs(bias.read(parameters) + shift))
            for reader in point.readers:
                brought = reader.weight.read(parameters) @ shift
                if reader.bias is not None:
                    moved.append((reader.bias, -brought))
                elif not reader.tied:
                    moved.append((reader.weight, (-brought / after)[..., None] * u))
            return moved

        views = [bias, *(point.carried_biases[:1] if point.carried else ())]
        for reader in point.readers:
            views.append(reader.weight if reader.bias is None else reader.bias)

        def linear(parameters: Parameters) -> shift_terms.Terms:
            given = dict(parameters)
            u, constant = input_direction(point, given)
            weights = [(reader, reader.weight.read(given)) for reader in point.readers]
            return shift_terms.norm_bias(
                bias,
                point.carried_biases[0] if point.carried else None,
                [(reader.bias, weight) for reader, weight in weights if reader.bias is not None],
                [
                    (reader.weight, weight)
                    for reader, weight in weights
                    if reader.bias is None and not reader.tied
                ],
                u,
                float(constant),
            )

        name = f"{label}: {NORM_BIAS}"
        return Translation(name, (point.width,), views, increments, linear=linear)

    return Item(NORM_BIAS, point.layer, point.width, build, label)


def _refuse_cancelled(label: str, constant: Any, size: Any) -> None:
    """Refuse to divide by a constant that is zero but for the rounding of its terms' ``size``."""
    if abs(constant) <= CANCELLED * size:
        raise InputError(
            f"the shift of the bias of {label} makes bias/gain add up to zero, where readers "
            "without a bias cannot take it back; use another shift"
        )
