"""Parts of the canonical form that go by names of their own, and where they are no symmetry."""

from __future__ import annotations

from fiberscope.checkpoints.architecture.program import NormKind
from fiberscope.checkpoints.canonical.points import Style
from fiberscope.checkpoints.ledger.rules.norms import gain_is_free
from fiberscope.checkpoints.ledger.wiring import Wiring
from fiberscope.errors import InputError

STYLES = ("canonical", "balanced", "folded", "centred")
_NOTHING = Style(False, False, False, False, False, False)


def style_named(
    name: str, wiring: Wiring, *, drop: bool = False, keep_unread: bool = False
) -> Style:
    """The parts of a named style.

    ``canonical`` is everything. ``balanced`` only balances factors and scales, ``folded`` only
    folds norm gains and biases into the linear maps behind them, ``centred`` only removes the mean
    of everything that is written to the stream.

    Raises
    ------
    InputError
        If the name is unknown, or the style is no symmetry of the model; the sentence says why.
    """
    if name not in STYLES:
        raise InputError(f"{name!r} is no style; use one of {', '.join(STYLES)}")
    if name == "canonical":
        return Style(drop=drop, keep_unread=keep_unread)
    if drop:
        raise InputError(f"--drop belongs to the whole form; leave it out with --style {name}")
    if name == "balanced":
        return Style(**{**vars(_NOTHING), "balance": True})
    if name == "folded":
        _refuse_folding(wiring)
        return Style(**{**vars(_NOTHING), "fold": True, "constants": True, "keep_unread": True})
    _refuse_centring(wiring)
    return Style(**{**vars(_NOTHING), "centre": True})


def _refuse_folding(wiring: Wiring) -> None:
    for point in wiring.points:
        if point.norm.gain is None or gain_is_free(point) or not (point.readers or point.observed):
            continue
        if any(reader.tied for reader in point.readers):
            reason = "the unembedding behind it is the token embedding, which would change as well"
        elif point.observed:
            reason = "its output is what is observed"
        else:
            reason = "the residual stream carries its output on"
        raise InputError(
            f"the gain of the {point.norm.label} cannot be folded: {reason}; without --style "
            "the gains of all other norms are folded"
        )


def _refuse_centring(wiring: Wiring) -> None:
    for segment in wiring.segments:
        if segment.blind:
            continue
        norm = next((n for n in segment.readers if n.kind is NormKind.RMS), None)
        if norm is not None:
            reason = f"the {norm.label} is an RMSNorm, which sees the mean"
        else:
            reason = "what is written there is read without a norm"
        raise InputError(
            f"what is written to the {segment.label} cannot be centred: {reason}; subtracting the "
            "mean would change the function"
        )
    tied = [w for segment in wiring.segments for w in segment.writers if w.tied]
    if tied:
        raise InputError(
            f"the {tied[0].label} cannot be centred: the unembedding is the same tensor and reads "
            "the mean of its rows; without --style everything else that is written is centred"
        )
