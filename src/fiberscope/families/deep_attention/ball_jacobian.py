"""Closed-form Jacobian in ball arithmetic, by adjoint accumulation, one input at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.families.deep_attention.architecture import Architecture
from fiberscope.families.deep_attention.forward import causal_mask, require_positive
from fiberscope.numbers.balls import Balls

Matrix = Any
"""A ``flint.arb_mat``."""


@dataclass
class _Head:
    query: Matrix
    key: Matrix
    value: Matrix | None


@dataclass
class _Record:
    """What the backward pass needs of one head in one layer."""

    head: _Head
    tokens: Matrix
    mixed: Matrix
    weights: Matrix
    # Entry (a, b) is d(weight)/d(score) before normalisation, over the row's sum.
    slopes: Matrix


def ball_jacobian(
    architecture: Architecture,
    parameters: Mapping[str, NDArray[Any]],
    inputs: NDArray[Any],
    system: Balls,
) -> Matrix:
    """Jacobian of all outputs in all native entries, an enclosing ``arb_mat``.

    With ``u_a = sum_b W_ab x_b``, scores ``s_ab = x_a^T Q K^T x_b`` and ``g = phi' / phi``,

    ``du_a = sum_b W_ab g_ab (x_b - u_a) ds_ab + sum_b W_ab dx_b``

    (for unnormalized weights ``du_a = sum_b x_b ds_ab + s_ab dx_b``). Cotangents of all outputs
    are carried from the last layer to the first, so the cost is a few small matrix products per
    layer, head and token.

    Parameters
    ----------
    architecture
        Any wiring of the family.
    parameters
        Object arrays of balls, shaped as ``architecture.space``.
    inputs
        Object array of balls, shape ``(inputs, tokens, d_0)``.
    system
        Gives the working precision.

    Returns
    -------
    arb_mat
        Shape ``(inputs * observed tokens * d_D, parameters)``, rows in the order of
        ``DeepAttention.observe``.
    """
    space = architecture.space
    with system.precision():
        heads = _heads(architecture, parameters, system)
        rows: list[Any] = []
        for x in inputs:
            blocks = _one_input(architecture, heads, system.matrix(x), system)
            outputs = next(iter(blocks.values())).shape[0]
            ordered = np.concatenate(
                [blocks[name].reshape(outputs, -1) for name in space.shapes], axis=1
            )
            rows.extend(ordered.reshape(-1).tolist())
        return system.flint.arb_mat(len(rows) // space.size, space.size, rows)


def _heads(
    architecture: Architecture, parameters: Mapping[str, NDArray[Any]], system: Balls
) -> list[list[_Head]]:
    layers = []
    for layer in range(1, architecture.depth + 1):
        values = parameters.get(f"V{layer}")
        layers.append(
            [
                _Head(
                    system.matrix(parameters[f"Q{layer}"][head]),
                    system.matrix(parameters[f"K{layer}"][head]),
                    None if values is None else system.matrix(values[head]),
                )
                for head in range(architecture.heads[layer - 1])
            ]
        )
    return layers


def _one_input(
    architecture: Architecture, layers: list[list[_Head]], x: Matrix, system: Balls
) -> dict[str, NDArray[Any]]:
    """Blocks of the Jacobian by parameter name, each ``(outputs, *shape)``."""
    flint = system.flint
    records: list[list[_Record]] = []
    norms: list[tuple[Matrix, list[Any]] | None] = []
    for layer, heads in enumerate(layers, start=1):
        kept, total = [], None
        for head in heads:
            record = _forward_head(architecture, layer, head, x, system)
            kept.append(record)
            moved = _valued(architecture, layer, record)
            total = moved if total is None else total + moved
        records.append(kept)
        x = x + total if architecture.residual else total
        norm = None
        if architecture.layer_norm and layer < architecture.depth:
            x, deviations = _normalise(x, flint)
            norm = (x, deviations)
        norms.append(norm)
    tokens, width = architecture.tokens, architecture.widths[-1]
    # Row a of the stack is the cotangent of token a: entries (output, coordinate), flattened.
    if architecture.mean_only:
        outputs = width
        share = flint.arb(1) / tokens
        eye = [share if o == c else flint.arb(0) for o in range(outputs) for c in range(width)]
        stack = flint.arb_mat(tokens, outputs * width, eye * tokens)
    else:
        outputs = tokens * width
        stack = flint.arb_mat(tokens, outputs * width)
        for a in range(tokens):
            for c in range(width):
                stack[a, (a * width + c) * width + c] = 1
    blocks: dict[str, NDArray[Any]] = {}
    for layer in range(architecture.depth, 0, -1):
        norm = norms[layer - 1]
        if norm is not None:
            stack = _normalise_back(stack, outputs, norm, flint)
        back = None
        parts: dict[str, list[NDArray[Any]]] = {"Q": [], "K": [], "V": []}
        for record in records[layer - 1]:
            through = _backward_head(architecture, layer, record, stack, outputs, system, parts)
            if through is not None:
                back = through if back is None else back + through
        for kind, pieces in parts.items():
            if pieces:
                blocks[f"{kind}{layer}"] = np.stack(pieces, axis=1)
        if layer > 1:
            stack = back + stack if architecture.residual else back
    return blocks


def _forward_head(
    architecture: Architecture, layer: int, head: _Head, x: Matrix, system: Balls
) -> _Record:
    flint, tokens = system.flint, architecture.tokens
    scores = (x * head.query) * (x * head.key).transpose()
    mask = causal_mask(tokens) if architecture.causal else None
    if architecture.normalizers is None:
        ones = [1] * tokens**2 if mask is None else mask.reshape(-1).tolist()
        entries = [s * m for s, m in zip(scores.entries(), ones, strict=True)]
        weights = flint.arb_mat(tokens, tokens, entries)
        slopes = flint.arb_mat(tokens, tokens, ones)
        return _Record(head, x, weights * x, weights, slopes)
    phi = architecture.normalizers[layer - 1]
    array = system.from_matrix(scores)
    values = phi.value(array, system)
    require_positive(phi, layer, values)
    derivatives = values if phi.name == "softmax" else phi.derivative(array, system)
    if mask is not None:
        values, derivatives = values * mask, derivatives * mask
    sums = values.sum(axis=1, keepdims=True)
    weights = system.matrix(values / sums)
    return _Record(head, x, weights * x, weights, system.matrix(derivatives / sums))


def _valued(architecture: Architecture, layer: int, record: _Record) -> Matrix:
    if record.head.value is None:
        return record.mixed / architecture.heads[layer - 1]
    return record.mixed * record.head.value.transpose()


def _rows(matrix: Matrix, rows: int, columns: int, flint: Any) -> list[Matrix]:
    """Split every row of ``matrix`` into an ``arb_mat`` of shape ``(rows, columns)``."""
    entries = matrix.entries()
    size = rows * columns
    return [
        flint.arb_mat(rows, columns, entries[k * size : (k + 1) * size])
        for k in range(matrix.nrows())
    ]


def _backward_head(
    architecture: Architecture,
    layer: int,
    record: _Record,
    stack: Matrix,
    outputs: int,
    system: Balls,
    parts: dict[str, list[NDArray[Any]]],
) -> Matrix | None:
    """Add the head's parameter blocks to ``parts``; return the cotangents of its input tokens.

    The first layer's input is given, so there is nothing to return.
    """
    flint, tokens = system.flint, architecture.tokens
    head, x = record.head, record.tokens
    width_in, width_out = architecture.widths[layer - 1], architecture.widths[layer]
    cotangents = _rows(stack, outputs, width_out, flint)
    if head.value is not None:
        value_block = stack.transpose() * record.mixed
        parts["V"].append(_block(value_block, (outputs, width_out, width_in)))
        cotangents = [g * head.value for g in cotangents]
    else:
        cotangents = [g / architecture.heads[layer - 1] for g in cotangents]
    # Entry (a, (o, b)): cotangent of the score s_ab in output o.
    x_columns = x.transpose()
    score_rows: list[Any] = []
    slopes = record.slopes.tolist()
    mixed = record.mixed.tolist()
    for a, g in enumerate(cotangents):
        along = (g * x_columns).tolist()
        if architecture.normalizers is None:
            score_rows.append(
                [entry * s for line in along for entry, s in zip(line, slopes[a], strict=True)]
            )
            continue
        own = (g * flint.arb_mat(width_in, 1, mixed[a])).entries()
        score_rows.append(
            [
                (entry - centre) * s
                for line, centre in zip(along, own, strict=True)
                for entry, s in zip(line, slopes[a], strict=True)
            ]
        )
    keys, queries = x * head.key, x * head.query
    # For query a: sum over keys b of the score's cotangent times x_b^T K, and dually for keys.
    per_query = [flint.arb_mat(outputs, tokens, line) for line in score_rows]
    key_sums = _stacked([e * keys for e in per_query], flint)
    per_key = _regrouped(score_rows, outputs, tokens, flint)
    query_sums = _stacked([e * queries for e in per_key], flint)
    rank = architecture.ranks[layer - 1]
    query_block = _block(x_columns * key_sums, (width_in, outputs, rank))
    key_block = _block(x_columns * query_sums, (width_in, outputs, rank))
    parts["Q"].append(query_block.transpose(1, 0, 2))
    parts["K"].append(key_block.transpose(1, 0, 2))
    if layer == 1:
        return None
    back = record.weights.transpose() * _stacked(cotangents, flint)
    into_query = [m * head.query.transpose() for m in _rows(key_sums, outputs, rank, flint)]
    into_key = [m * head.key.transpose() for m in _rows(query_sums, outputs, rank, flint)]
    return back + _stacked(into_query, flint) + _stacked(into_key, flint)


def _stacked(matrices: list[Matrix], flint: Any) -> Matrix:
    """One row per matrix, holding its entries."""
    columns = matrices[0].nrows() * matrices[0].ncols()
    return flint.arb_mat(len(matrices), columns, [e for m in matrices for e in m.entries()])


def _regrouped(rows: list[list[Any]], outputs: int, tokens: int, flint: Any) -> list[Matrix]:
    """From per-query ``(output, key)`` entries to per-key ``(output, query)`` matrices."""
    return [
        flint.arb_mat(
            outputs,
            tokens,
            [rows[a][o * tokens + b] for o in range(outputs) for a in range(tokens)],
        )
        for b in range(tokens)
    ]


def _block(matrix: Matrix, shape: tuple[int, int, int]) -> NDArray[Any]:
    array = np.empty(matrix.nrows() * matrix.ncols(), dtype=object)
    array[:] = matrix.entries()
    return array.reshape(shape)


def _normalise(x: Matrix, flint: Any) -> tuple[Matrix, list[Any]]:
    """LayerNorm of every row; returns the normalised rows and their standard deviations."""
    width = x.ncols()
    rows, deviations = [], []
    for line in x.tolist():
        mean = sum(line, flint.arb(0)) / width
        centred = [value - mean for value in line]
        deviation = (sum((c * c for c in centred), flint.arb(0)) / width).sqrt()
        rows.append([c / deviation for c in centred])
        deviations.append(deviation)
    return flint.arb_mat(rows), deviations


def _normalise_back(
    stack: Matrix, outputs: int, norm: tuple[Matrix, list[Any]], flint: Any
) -> Matrix:
    """Cotangents before a LayerNorm: ``(g - mean(g) - y mean(g y)) / deviation``."""
    normalised, deviations = norm
    width = normalised.ncols()
    pulled = []
    for g, y, deviation in zip(
        _rows(stack, outputs, width, flint), normalised.tolist(), deviations, strict=True
    ):
        rows = []
        for line in g.tolist():
            mean = sum(line, flint.arb(0)) / width
            along = sum((a * b for a, b in zip(line, y, strict=True)), flint.arb(0)) / width
            rows.append([(a - mean - along * b) / deviation for a, b in zip(line, y, strict=True)])
        pulled.append(flint.arb_mat(rows))
    return _stacked(pulled, flint)
