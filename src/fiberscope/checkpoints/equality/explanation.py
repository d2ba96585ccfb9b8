"""What would explain a difference: an approximate symmetry, a wrong rotary layout, a lost mean."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np

from fiberscope.checkpoints.architecture.program import NormKind
from fiberscope.checkpoints.equality.alignment import Alignment, align
from fiberscope.checkpoints.equality.folded import FoldedModel, T
from fiberscope.checkpoints.equality.folded_parts import Vectors
from fiberscope.checkpoints.equality.statistic import statistic
from fiberscope.checkpoints.equality.stored import StoredModel
from fiberscope.checkpoints.ledger import Ledger
from fiberscope.checkpoints.ledger.rules.stream import STREAM_SCALE
from fiberscope.checkpoints.ledger.wiring import Segment


class ScaledStream(FoldedModel):
    """A model whose residual stream is multiplied by one factor, up to the norms' epsilon."""

    def __init__(self, model: StoredModel, factor: float) -> None:
        super().__init__(model)
        self.factor = factor

    def write(self, array: T, segment: Segment, axis: int = -1) -> T:
        """Everything written is multiplied."""
        return super().write(array, segment, axis).scaled(self.factor)

    @cached_property
    def tables(self) -> list[Vectors]:
        """Multiplied like everything written, so no longer the stored numbers."""
        return [replace(v, untouched=False) for v in super().tables]

    def kept_vectors(self) -> list[Vectors]:
        """The gain and bias in front of a tied table take the factor back."""
        last = self.wiring.tied_point
        found = []
        for vectors in super().kept_vectors():
            mine = last is not None and vectors.label.startswith(last.norm.label)
            array = vectors.array.scaled(1 / self.factor) if mine else vectors.array
            found.append(Vectors(vectors.label, array, vectors.kind))
        return found


def explanation(first: StoredModel, second: StoredModel, found: Alignment, ledger: Ledger) -> str:
    """One sentence, or nothing."""
    for attempt in (_scaled, _other_layout, _mean_removed):
        if sentence := attempt(first, second, found, ledger):
            return sentence
    return ""


def _scaled(first: StoredModel, second: StoredModel, found: Alignment, ledger: Ledger) -> str:
    """One factor on the whole stream."""
    scales = [item for item in ledger.items if item.mechanism == STREAM_SCALE]
    if len(scales) != 1:
        return ""
    one, other = FoldedModel(first), FoldedModel(second)
    sizes = [
        np.sqrt(sum(float((v.array.value**2).sum()) for v in model.tables))
        for model in (one, other)
    ]
    if not all(sizes) or abs(sizes[1] / sizes[0] - 1) < 1e-6:
        return ""
    factor = float(sizes[1] / sizes[0])
    for a, b in zip(one.tables, other.tables, strict=True):
        lengths = [np.sqrt((v.array.value**2).sum(axis=-1)) for v in (a, b)]
        if np.abs(lengths[1] - factor * lengths[0]).max(initial=0.0) > 0.02 * lengths[1].max():
            return ""  # row norms do not depend on the frame
    scaled = ScaledStream(first, factor)
    again = align(scaled, other, ledger)
    if again.mismatches or not all(part.is_same for part in again.statistics):
        return ""
    epsilon = max(scales[0].epsilons, default=0.0)
    return (
        f"the second is the first with its residual stream multiplied by {factor:.6g}: an "
        f"approximate symmetry, exact only up to the norms' epsilon of {epsilon:g}"
    )


def _other_layout(first: StoredModel, second: StoredModel, found: Alignment, ledger: Ledger) -> str:
    """Rows of queries and keys arranged for the other rotary layout."""
    rotary = [a.rotary for a in second.wiring.attentions if a.rotary is not None]
    bad = [part for part in found.statistics if not part.is_same]
    if not rotary or not bad or not all(" QK" in part.name for part in bad):
        return ""
    other = FoldedModel(second, other_rotary_layout=True)
    again = align(FoldedModel(first), other, ledger)
    if again.mismatches or not all(part.is_same for part in again.statistics):
        return ""
    names = ("half-split", "interleaved")
    says = names[rotary[0].interleaved]
    return (
        f"the second's queries and keys are laid out for {names[not rotary[0].interleaved]} rotary "
        f"encoding while its configuration means {says}: permute their rows when converting"
    )


def _mean_removed(first: StoredModel, second: StoredModel, found: Alignment, ledger: Ledger) -> str:
    """Tables whose rows lost their mean where no LayerNorm forgives it."""
    one, other = FoldedModel(first), FoldedModel(second)
    kinds = {norm.kind for segment in one.wiring.segments for norm in segment.readers}
    if kinds != {NormKind.RMS}:
        return ""
    width = one.wiring.segments[0].width
    for a, b in zip(one.tables, other.tables, strict=True):
        if a.array.shape != b.array.shape:
            return ""
        if not statistic("", b.array, a.array.centred(-1), leverage=1.0).is_same:
            return ""
    return (
        f"the second's embeddings are the first's with the mean over the {width} features "
        "subtracted, which only LayerNorm forgives: these norms are RMSNorms"
    )
