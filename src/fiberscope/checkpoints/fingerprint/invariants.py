"""Numbers that no exact symmetry changes, from the neutral form of a checkpoint.

Each is a smooth function of products that the changes of basis, scalings, permutations and
rotations of the stream leave alone. Parts that can be anything count as nothing (neurons whose
gate, up or down vector is zero, heads without values or outputs), and where equal heads or neurons
leave more freedom than that, the numbers they enter are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fiberscope.checkpoints.architecture.program import Activation, Attention, NormKind, Observable
from fiberscope.checkpoints.equality.folded import FoldedModel
from fiberscope.checkpoints.equality.folded_parts import FoldedAttention, FoldedMlp, Vectors
from fiberscope.checkpoints.equality.noisy import Noisy
from fiberscope.parameters import View

ROWS = 32
"""Rows of a table that are looked at, spread evenly."""
PLACES = 4
"""Layers, gains and constants that are looked at of each kind, spread evenly."""
_ALIKE = 0.05
"""Relative difference below which heads or neurons count as equal."""
_ROUNDINGS = 100.0
"""Squares, in units of the rounding variance, below which a factor counts as zero."""
_SKETCHES = 16
_FLUSHED = 2.0**-20
"""Numbers of which a copy in float16, whose smallest is 2^-24, may keep next to nothing."""

Array = NDArray[np.float64]
T = TypeVar("T")


@dataclass
class Gathered:
    """Numbers by name, in order, and why some are missing."""

    numbers: dict[str, float] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


@dataclass
class Selection:
    """What is decided once, at the stored weights, and kept when they are perturbed.

    ``alive`` maps an attention's label to the heads that count; ``skipped`` and ``hidden`` hold the
    blocks whose numbers are left out.
    """

    alive: dict[str, NDArray[np.bool_]] = field(default_factory=dict)
    skipped: set[str] = field(default_factory=set)
    hidden: set[str] = field(default_factory=set)


def spread(count: int, wanted: int) -> list[int]:
    """At most ``wanted`` of ``count`` indices, the first and the last among them."""
    if count <= wanted:
        return list(range(count))
    return sorted({round(k * (count - 1) / (wanted - 1)) for k in range(wanted)})


class Readable(Protocol):
    """A neutral form, and some rows of its tables without the others."""

    folded: FoldedModel

    def read(self, view: View, indices: NDArray[np.int64]) -> Array:
        """Rows of a view in float64, offset included."""
        ...


def invariants(source: Readable, selection: Selection, *, decide: bool) -> Gathered:
    """All numbers of a checkpoint.

    Parameters
    ----------
    source
        Its neutral form.
    selection
        Filled when ``decide``, followed otherwise.
    """
    gathered, model = Gathered(), source.folded
    tokens = token_rows(source)
    _of_rows(gathered, tokens, products=True)
    if (seen := unembedding_rows(source)) is not None:
        _of_rows(gathered, seen, products=False)
    for vectors in _some(model.kept):
        _of_whole(gathered, vectors)
    for vectors in _some(model.constants):
        _of_whole(gathered, vectors)
    wiring = model.wiring
    for attention in _some(wiring.attentions):
        _of_attention(gathered, model.attention(attention), selection, decide)
    for mlp in _some(wiring.mlps):
        _of_neurons(gathered, model.mlp(mlp), tokens.rows, selection, decide)
    return gathered


def _some(items: Sequence[T]) -> Iterator[T]:
    for index in spread(len(items), PLACES):
        yield items[index]


@dataclass(frozen=True)
class TableRows:
    """Some rows of a table, or differences of neighbours among them."""

    names: tuple[str, ...]
    rows: Array


def token_rows(source: Readable) -> TableRows:
    """Rows of the table with the most.

    Where a constant can move to or from the whole table, differences of its rows.
    """
    wiring = source.folded.wiring
    segments = [segment for segment in wiring.segments if segment.embedding is not None]
    found = [(w, s) for s in segments for w in s.writers if w.layer is None]
    writer, segment = max(found, key=lambda pair: pair[0].vectors)
    view = writer.view
    sums = [tables for s in segments if s.embedding for tables in s.embedding.sums]
    parts = [p for tables in sums if len(tables) > 1 for p in tables if p.tensor == view.tensor]
    if parts and (largest := max(parts, key=lambda part: part.size)).size < view.size:
        view = largest  # rows of different sums can take up different constants
    added = bool(parts)
    shared = wiring.observable is Observable.PROBABILITIES and writer.tied
    return _rows(source, writer.label, view, writer.axis, None, segment.blind == 1, added or shared)


def unembedding_rows(source: Readable) -> TableRows | None:
    """Rows of an untied unembedding with the gain in front of them, where they are determined."""
    wiring = source.folded.wiring
    head = wiring.head
    if head is None or wiring.tied:
        return None
    gain, layer_norm = None, False
    if head.dense is not None and head.norm is None:
        if head.dense.activation is Activation.HOMOGENEOUS:
            return None  # each column has a scale of its own
    else:
        norm = wiring.point_reading(head.output).norm
        gain, layer_norm = norm.gain, norm.kind is NormKind.LAYER
    shared = wiring.observable is Observable.PROBABILITIES
    return _rows(source, f"{head.label} rows", head.output, 1, gain, layer_norm, shared)


def _rows(
    source: Readable,
    label: str,
    view: View,
    axis: int,
    gain: View | None,
    centred: bool,
    differences: bool,
) -> TableRows:
    if axis != len(view.shape) - 1:
        others = [k for k in range(len(view.shape)) if k != axis]
        view = view.permute(*others, axis)
    indices = np.array(spread(view.shape[0], 2 * ROWS))
    rows = source.read(view, indices)
    if rows.ndim > 2:
        rows, indices = rows.reshape(-1, rows.shape[-1]), np.arange(rows[..., 0].size)
    if gain is not None:
        rows = rows * source.folded.model.values(gain)
    if centred:
        rows = rows - rows.mean(axis=1, keepdims=True)
    if not differences:
        return TableRows(tuple(f"{label}: row {index}" for index in indices), rows)
    names = (f"{label}: row {a} less row {b}" for a, b in pairwise(indices))
    return TableRows(tuple(names), rows[:-1] - rows[1:])


def _of_rows(gathered: Gathered, found: TableRows, *, products: bool) -> None:
    """Norms of up to 32 rows, and products of neighbours among them."""
    at = spread(len(found.rows), ROWS)
    for k in at:
        gathered.numbers[f"{found.names[k]}, norm"] = float(np.linalg.norm(found.rows[k]))
    if products:
        for a, b in pairwise(at):
            name = f"{found.names[a]}, product with {found.names[b].split(': ')[1]}"
            gathered.numbers[name] = float(found.rows[a] @ found.rows[b])


def _of_whole(gathered: Gathered, vectors: Vectors) -> None:
    values = vectors.array.value
    gathered.numbers[f"{vectors.label}: norm"] = float(np.linalg.norm(values))


# --- attention ---------------------------------------------------------------------------------


def _of_attention(
    gathered: Gathered, f: FoldedAttention, selection: Selection, decide: bool
) -> None:
    a = f.attention
    if decide:
        alive, hidden = _alive_heads(f)
        selection.alive[a.label] = alive
        if hidden:
            selection.hidden.add(a.label)
        if _alike(_head_sketches(f), alive.reshape(-1)):
            selection.skipped.add(a.label)
    if a.label in selection.hidden:
        gathered.left_out.append(f"{a.label}: rounding hides whether a head adds anything")
        return
    if a.label in selection.skipped:
        gathered.left_out.append(f"{a.label}: heads that attend (almost) alike")
        return
    alive = selection.alive[a.label]
    queries, keys = f.query.value, f.key.value
    total = 0.0
    if a.query_norm is not None:
        sizes = np.square(queries).sum(axis=(2, 3)) * np.square(keys).sum(axis=(1, 2))[:, None]
        total = float((sizes * alive).sum())
        if f.query_gain is not None and f.key_gain is not None:
            name = f"{a.label}: norm of the products of query and key gains"
            both = f.query_gain.value * f.key_gain.value
            gathered.numbers[name] = float(np.linalg.norm(both))
    else:
        for query, key in _blocks(queries, keys, f.attention):
            # |Q^H K|^2 = tr(Q Q^H K K^H), without ever forming a d x d matrix.
            gram = key @ key.conj().swapaxes(-1, -2)
            turned = np.einsum("gmrd,gmsd->gmrs", query, query.conj())
            sizes = np.einsum("gmrs,gsr->gm", turned, gram).real
            total += float((sizes * alive).sum())
    gathered.numbers[f"{a.label}: norm of the query/key circuits"] = float(np.sqrt(max(0.0, total)))
    sizes, largest = _value_output_sizes(f)
    total = float((np.square(sizes) * alive).sum())
    gathered.numbers[f"{a.label}: norm of the value/output circuits"] = float(np.sqrt(total))
    name = f"{a.label}: largest singular value of a value/output circuit"
    gathered.numbers[name] = float((largest * alive).max(initial=0.0))


def _blocks(
    queries: Array, keys: Array, a: Attention
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Queries ``(G, m, k, d)`` and keys ``(G, k, d)`` that a change of basis keeps together.

    Planes of equal frequency form complex rows: queries move by M, keys by M^-H.
    """
    planes: dict[float, list[tuple[int, int]]] = {}
    rotated: set[int] = set()
    if a.rotary is not None:
        for plane, frequency in zip(a.rotary.planes, a.rotary.frequencies, strict=True):
            oriented = plane if frequency > 0 else (plane[1], plane[0])
            planes.setdefault(abs(frequency), []).append(oriented)
            rotated.update(plane)
    for block in planes.values():
        first, second = np.array(block).T
        yield (
            queries[:, :, first] + 1j * queries[:, :, second],
            keys[:, first] + 1j * keys[:, second],
        )
    rest = [row for row in range(a.key_width) if row not in rotated]
    if rest:
        yield queries[:, :, rest], keys[:, rest]


def _value_output_sizes(f: FoldedAttention) -> tuple[Array, Array]:
    """Frobenius norm and largest singular value of every ``O_h V_g``, shape ``(G, m)``.

    From triangular factors: eigenvalues of Gram products would lose half of the digits.
    """
    values, outputs = f.value.value, f.output.value
    right: Any = np.linalg.qr(values.swapaxes(-1, -2), mode="r")
    left: Any = np.linalg.qr(outputs.swapaxes(-1, -2), mode="r")
    core = left @ right[:, None].swapaxes(-1, -2)
    singular = np.linalg.svd(core, compute_uv=False)
    return np.sqrt(np.square(singular).sum(axis=-1)), singular[..., 0]


def _alive_heads(f: FoldedAttention) -> tuple[NDArray[np.bool_], bool]:
    """Heads with values and outputs that are not zero up to rounding, shape ``(G, m)``.

    And whether that is in doubt: numbers that are not zero, but no larger than their rounding, can
    be what is left of a zero or of a head; tiny ones may be zero in another file.
    """
    doubts = []

    def nonzero(array: Noisy, axes: tuple[int, ...]) -> NDArray[np.bool_]:
        size = np.square(array.value).sum(axis=axes)
        live = np.asarray(size > _ROUNDINGS * array.variance.sum(axis=axes))
        flushed = np.abs(array.value).max(axis=axes) < _FLUSHED
        doubts.append(bool(((size > 0) & (~live | flushed)).any()))
        return live

    alive = nonzero(f.output, (2, 3)) & nonzero(f.value, (1, 2))[:, None]
    return alive, any(doubts)


def _head_sketches(f: FoldedAttention) -> Array:
    """A few bilinear readings of every head's query/key circuit, shape ``(heads, k)``."""
    rng = np.random.default_rng(0)
    width = f.query.shape[-1]
    left, right = rng.standard_normal((2, width, _SKETCHES))
    parts = []
    queries, keys = f.query.value, f.key.value
    for query, key in _blocks(queries, keys, f.attention):
        read = (query.conj() @ left).swapaxes(-1, -2) @ (key @ right)[:, None]
        parts += [read.real, read.imag] if np.iscomplexobj(read) else [read]
    heads = queries.shape[0] * queries.shape[1]
    return np.concatenate([part.reshape(heads, -1) for part in parts], axis=1)


def _alike(sketches: Array, alive: NDArray[np.bool_]) -> bool:
    """Whether two rows are almost the same."""
    rows = sketches[alive]
    size = np.linalg.norm(rows, axis=1)
    for k in range(len(rows)):
        apart = np.linalg.norm(rows[k + 1 :] - rows[k], axis=1)
        if np.any(apart <= _ALIKE * np.maximum(size[k + 1 :], size[k])):
            return True
    return False


# --- neurons -----------------------------------------------------------------------------------


def _of_neurons(
    gathered: Gathered,
    f: FoldedMlp,
    probes: Array,
    selection: Selection,
    decide: bool,
) -> None:
    assert f.mlp is not None
    if decide and _repeated(f):
        selection.skipped.add(f.label)
    if f.label in selection.skipped:
        gathered.left_out.append(f"{f.label}: neurons that respond (almost) alike")
        return
    up, down = (np.linalg.norm(part.value, axis=1) for part in (f.up, f.down))
    homogeneous = f.mlp.activation is Activation.HOMOGENEOUS
    power = 2 if f.mlp.activation_name == "relu2" else 1
    rows = f.up if f.gate is None else f.gate
    outside = down if f.gate is None else up * down
    inside = np.linalg.norm(rows.value, axis=1)
    name = f"{f.label}: sizes of the neurons"
    powers = (power,) if homogeneous else (1, 2)
    for exponent in powers:
        gathered.numbers[f"{name}, power {exponent}"] = float(outside @ inside**exponent)
    if probes.shape[1] != rows.shape[1]:
        return
    seen = np.abs(probes @ rows.value.T)
    for exponent in powers if homogeneous else (2, 3):
        total = float((outside * (seen**exponent).mean(axis=0)).sum())
        gathered.numbers[f"{f.label}: responses to token rows, power {exponent}"] = total


def _repeated(f: FoldedMlp) -> bool:
    """Whether two neurons that do anything have almost the same incoming vector.

    Neurons whose rows are close are close on a random line: only neighbours there are compared.
    """
    rows, constant = (f.up, f.up_constant) if f.gate is None else (f.gate, f.gate_constant)
    vectors = rows.value
    if constant is not None:
        vectors = np.concatenate([vectors, constant.value[:, None]], axis=1)
    sizes = np.linalg.norm(vectors, axis=1)
    at_work = (sizes > 0) & np.any(f.down.value != 0, axis=1)
    if f.gate is not None:
        at_work &= np.any(f.up.value != 0, axis=1)
    vectors, sizes = vectors[at_work], sizes[at_work]
    if f.mlp is not None and f.mlp.activation is Activation.HOMOGENEOUS:
        vectors = vectors / sizes[:, None]
        sizes = np.ones(len(sizes))
    rng = np.random.default_rng(0)
    lines = vectors @ rng.standard_normal((vectors.shape[1], _SKETCHES))
    from scipy.spatial import cKDTree

    if len(lines) < 2:
        return False
    # 16 random readings keep distances up to a factor of 3 with overwhelming probability.
    near = cKDTree(lines).query(lines, k=2)[1][:, 1]
    apart = np.linalg.norm(vectors - vectors[near], axis=1)
    return bool(np.any(apart <= _ALIKE * np.maximum(sizes, sizes[near])))
