"""The sentences of the training report."""

from __future__ import annotations

from fiberscope.report.numerals import count
from fiberscope.report.training_run import TrainingRun
from fiberscope.training.record import SELF_CHECK

JOINT = (
    "The part of each step that changes no output, by its squared length. The grey band is what a "
    "direction drawn at random would have."
)
PLACES = "Share of the update along one mechanism in one place; darker lines are later layers."
ALONG_ACROSS = (
    "Lengths of the measured updates, split by the fiber through the weights before each: along it "
    "nothing changes. Lengths add up to more than the net distance wherever a path turns."
)
IMBALANCES = (
    "|a - b| / (|a| + |b|) of the two sides that a mechanism trades. Gradient flow conserves "
    "a - b; weight decay shrinks it; other optimizers move it."
)
DEAD_BIASES = (
    "The exact gradient is zero, so what moves is rounding, made visible by the optimizer."
)


def percent(share: float | None) -> str:
    """A share in [0, 1] in percent, three significant digits."""
    if share is None:
        return "-"
    value = 100 * share
    if value == 0:
        return "0 %"
    if abs(value) < 1e-3:
        return f"{value:.1e} %"
    return f"{value:#.3g}".rstrip(".") + " %"


def run_line(run: TrainingRun) -> str:
    """Model, optimizer and size in a line."""
    start = run.start
    first, last = run.measurements[0].step, run.measurements[-1].step
    return (
        f"{start.model}, {start.optimizer}, observed: {start.observable}; "
        f"{count(start.parameters)} trained parameters, of which {count(start.invisible)} "
        f"dimensions are invisible; {count(len(run.measurements))} measured steps from "
        f"{count(first)} to {count(last)}"
    )


def headline(run: TrainingRun) -> str:
    """What the run says, in a sentence or two."""
    share, expected = run.update.wasted, run.start.expected_share
    if share is None:
        return "No measured update moved anything."
    against = ""
    if expected > 0:
        ratio = share / expected
        against = f", {ratio:.2g} times the share of a random direction"
    return (
        f"Of the squared length of the measured updates {percent(share)} lay in directions that "
        f"change no output{against}."
    )


def self_check(run: TrainingRun) -> str:
    """The gradient's share, which must vanish."""
    if run.gradient is None:
        return "The gradient's share was not measured."
    if run.gradient.largest > SELF_CHECK:
        return (
            f"The self-check fails: the gradient's invisible share was up to "
            f"{run.gradient.largest:.1e}, which is no rounding. The loss saw more than "
            f"{run.start.observable}, or dropout, a padding row or a change of single gradients "
            "broke the symmetries; the shares are then not those of moves that do nothing."
        )
    return (
        f"Self-check: the gradient's invisible share was at most {run.gradient.largest:.1e} (it is "
        "zero but for rounding, unless gradients were changed one by one)."
    )
