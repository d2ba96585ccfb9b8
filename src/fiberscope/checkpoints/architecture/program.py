"""An architecture as data: roles (views of stored tensors) wired along residual streams.

A stream starts from an embedding, is read by branches (through a norm, or directly behind one),
receives what they write, may be normalised in place (post-norm), and ends in a final norm or in
nothing. Every symmetry rule looks only at such local facts; no rule knows an architecture's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from fiberscope.parameters import View


class Observable(Enum):
    """What is observed of the model on every input sequence."""

    LOGITS = "logits"
    PROBABILITIES = "probabilities"
    HIDDEN = "hidden"


class NormKind(Enum):
    """LayerNorm removes the mean and divides by the deviation; RMSNorm only divides."""

    LAYER = "LayerNorm"
    RMS = "RMSNorm"


@dataclass(frozen=True)
class Norm:
    """``gain * normalised(x) + bias``; gain and bias views have shape ``(width,)``."""

    label: str
    kind: NormKind
    gain: View | None
    bias: View | None
    epsilon: float


@dataclass(frozen=True)
class Rotary:
    """Row pairs turned by position, and one frequency a pair (radians per token).

    Attributes
    ----------
    planes, frequencies
        The pairs and their frequencies. Where a scheme changes these with the length of the input,
        the unscaled ones stand for them.
    interleaved
        Whether a pair is two neighbouring rows.
    factor
        What turned queries and keys are multiplied by besides (yarn, longrope).
    short_frequencies
        Frequencies on inputs no longer than those trained on, where they are others (longrope).
    """

    planes: tuple[tuple[int, int], ...]
    frequencies: tuple[float, ...]
    interleaved: bool = False
    factor: float = 1.0
    short_frequencies: tuple[float, ...] | None = None

    @property
    def rotated(self) -> int:
        """Number of rotated rows."""
        return 2 * len(self.planes)


@dataclass(frozen=True)
class RelativePositions:
    """Which entry of the position table a score reads: the bucket of key minus query position.

    See :func:`fiberscope.checkpoints.architecture.relative_positions.relative_buckets`.
    """

    bidirectional: bool
    buckets: int
    furthest: int


@dataclass(frozen=True)
class Attention:
    """Attention with G key/value groups of m query heads, widths r (query, key) and s (value).

    Views: query ``(G, m, r, d)``, key ``(G, r, d)``, value ``(G, s, d)``, output ``(G, m, s, d)``;
    biases without the last axis, the output bias ``(d,)``. ``position_table`` has shape
    ``(buckets, G, m)`` and is added to the scores; layers that share one name it once, in the
    layer that owns it. ``memory`` names the stream whose end keys and values read (cross
    attention), None for self attention.

    Scores are ``score_scale`` times the products of queries and keys, None meaning 1/sqrt(r);
    where there are ``relative_positions``, the entries of the stream's nearest position table are
    added. A ``causal`` attention sees no later position, and of earlier ones at most the last
    ``window``, its own included.
    """

    label: str
    layer: int
    query: View
    key: View
    value: View
    output: View
    query_bias: View | None = None
    key_bias: View | None = None
    value_bias: View | None = None
    output_bias: View | None = None
    rotary: Rotary | None = None
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    position_table: View | None = None
    memory: str | None = None
    causal: bool = False
    window: int | None = None
    score_scale: float | None = None
    relative_positions: RelativePositions | None = None

    @property
    def groups(self) -> int:
        """Key/value groups G."""
        return self.key.shape[0]

    @property
    def heads_per_group(self) -> int:
        """Query heads in a group, m."""
        return self.query.shape[1]

    @property
    def key_width(self) -> int:
        """Width r of queries and keys."""
        return self.key.shape[1]

    @property
    def value_width(self) -> int:
        """Width s of values."""
        return self.value.shape[1]


class Activation(Enum):
    """What matters of an activation function: which moves of its argument it undoes."""

    GENERIC = "generic"
    HOMOGENEOUS = "positively homogeneous"
    ODD = "odd"


@dataclass(frozen=True)
class Mlp:
    """``down(activation(gate x) * up x)`` or ``down(activation(up x))``.

    Views: up and gate ``(f, d)`` with biases ``(f,)``, down ``(d, f)`` with bias ``(d,)``.
    """

    label: str
    layer: int
    up: View
    down: View
    activation: Activation
    activation_name: str
    gate: View | None = None
    up_bias: View | None = None
    gate_bias: View | None = None
    down_bias: View | None = None

    @property
    def neurons(self) -> int:
        """Number of neurons f."""
        return self.up.shape[0]


@dataclass(frozen=True)
class Branch:
    """Sublayers that read the stream at one place: through ``norm``, or directly when None."""

    norm: Norm | None
    sublayers: tuple[Attention | Mlp, ...]


@dataclass(frozen=True)
class Residual:
    """All branches read the stream as it is, then everything they compute is added to it."""

    layer: int
    branches: tuple[Branch, ...]


@dataclass(frozen=True)
class Normalize:
    """Replace the stream by its norm (post-norm, embedding norm)."""

    norm: Norm


class Lookup(Enum):
    """How a table's rows reach the stream."""

    TOKEN = "the row of the token"
    POSITION = "the row of the position"
    TYPE = "the row of the token type"
    FIRST = "its only row is the first position"
    INPUT = "the input vector is multiplied by the rows"
    EVERY_INPUT = "its only row is added at the position of every input vector"


@dataclass(frozen=True)
class Table:
    """Vectors written into the stream by look-up, rows ``(rows, d)``, or by a linear input map.

    ``first`` is the token (position, type) that reads row 0.
    """

    label: str
    rows: View
    lookup: Lookup
    first: int = 0


@dataclass(frozen=True)
class Embedding:
    """What starts a stream.

    ``tables`` lists everything written; each entry of ``sums`` lists tables (or parts of them) of
    which exactly one row each is added whenever one is: constants can move between them.
    Token rows are multiplied by ``token_scale``.
    """

    tables: tuple[Table, ...]
    sums: tuple[tuple[View, ...], ...]
    token_scale: float = 1.0


@dataclass(frozen=True)
class Stream:
    """One residual stream; ``final`` is the norm at its end (None for post-norm streams)."""

    label: str
    width: int
    embedding: Embedding
    steps: tuple[Residual | Normalize, ...]
    final: Norm | None


@dataclass(frozen=True)
class Dense:
    """A linear map followed by an activation, inside a head: weight ``(out, in)``."""

    label: str
    weight: View
    bias: View | None
    activation: Activation
    activation_name: str


@dataclass(frozen=True)
class Head:
    """What turns the end of the last stream into logits: ``output(norm(dense(scale * x)))``.

    ``output`` has shape ``(labels, d)``; it is tied when it is a view of an embedding's tensor.
    With ``first_position`` only the first position is read: one output a sequence.
    """

    label: str
    output: View
    output_bias: View | None = None
    dense: Dense | None = None
    norm: Norm | None = None
    scale: float = 1.0
    first_position: bool = False


@dataclass(frozen=True)
class Unread:
    """Parameters that the observed function never reads."""

    label: str
    view: View


@dataclass(frozen=True)
class Architecture:
    """A model class at given sizes: stored tensors, wiring, and what its inputs are.

    Attributes
    ----------
    name
        The class, ``GPT2LMHeadModel``.
    tensors
        Stored name and shape of every parameter, in the file's order; tied ones once.
    optional
        Tensors that files of the class may lack, all together (a pooler built on request).
    optional_copies
        Names a file may store again for a tied tensor -> the tensor they must equal.
    aliases
        Endings of names that other releases of the class write -> the ending used here.
    prefix
        Prefix of the base model's tensors, which files of either kind may carry or omit.
    buffers
        Suffixes of stored arrays that are not parameters.
    streams
        In order; the last one ends in the head or is observed.
    head
        None for a base model.
    unread
        Parameters unread whatever is observed.
    unread_without_head, unread_with_head
        Further ones, by whether the head is observed.
    tokens
        Vocabulary size, or None for continuous inputs (patches).
    input_dimension
        For continuous inputs, the number of entries of one patch.
    longest_input
        Rows of the position table that inputs can reach, or None.
    assumptions
        What is assumed of inputs, in words.
    sizes
        The integers of the configuration by key, defaults included.
    siblings
        Lays out the other classes of the model type: their heads may be stored besides.
    """

    name: str
    family: str
    tensors: Mapping[str, tuple[int, ...]]
    streams: tuple[Stream, ...]
    head: Head | None
    tied: bool
    tokens: int | None
    default_observable: Observable
    input_dimension: int | None = None
    longest_input: int | None = None
    unread: tuple[Unread, ...] = ()
    unread_without_head: tuple[Unread, ...] = ()
    unread_with_head: tuple[Unread, ...] = ()
    optional: tuple[str, ...] = ()
    optional_copies: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    prefix: str = ""
    buffers: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()
    sizes: Mapping[str, object] = field(default_factory=dict)
    siblings: Callable[[], tuple[Architecture, ...]] = field(
        default=tuple, repr=False, compare=False
    )

    @property
    def parameters(self) -> int:
        """Number of stored parameters, tied ones once."""
        total = 0
        for shape in self.tensors.values():
            count = 1
            for size in shape:
                count *= size
            total += count
        return total
