"""The monitor as a callback of the transformers Trainer."""

from __future__ import annotations

from functools import cache
from typing import Any

from fiberscope.errors import InputError
from fiberscope.training.monitor import SymmetryMonitor


def trainer_callback(**options: Any) -> Any:
    """A ``transformers.TrainerCallback`` that monitors the run it is given to.

        trainer = Trainer(..., callbacks=[trainer_callback(every=50, path="run.jsonl")])

    The monitor is built when training begins (so that what it refuses is said before the first
    step) and closed when it ends; the callback's attribute ``monitor`` holds it. A resumed run
    counts on from its global step. The records carry the loss that the Trainer logged last.

    Parameters
    ----------
    options
        Keyword arguments of :class:`~fiberscope.training.SymmetryMonitor`.

    Raises
    ------
    InputError
        If transformers is not installed; when training begins, whatever the monitor refuses.
    """
    return _callback_class()(options)


@cache
def _callback_class() -> type[Any]:
    try:
        from transformers import TrainerCallback
    except ImportError as error:
        raise InputError(
            "the callback needs the package transformers; install it, or put the hooks on the "
            "optimizer with SymmetryMonitor"
        ) from error

    class SymmetryCallback(TrainerCallback):  # type: ignore[misc]
        """Builds a monitor when training begins and closes it when it ends."""

        def __init__(self, options: dict[str, Any]) -> None:
            self.options = options
            self.monitor: SymmetryMonitor | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            """Put the hooks on the Trainer's optimizer, those of a broken-off training away."""
            if self.monitor is not None:
                self.monitor.close()
            self.monitor = SymmetryMonitor(given["model"], given["optimizer"], **self.options)
            self.monitor.step = int(state.global_step)

        def on_log(
            self, args: Any, state: Any, control: Any, logs: Any = None, **given: Any
        ) -> None:
            """Remember the loss."""
            if self.monitor is not None and logs and "loss" in logs:
                self.monitor.loss = float(logs["loss"])

        def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            """Take the hooks off and close the files."""
            if self.monitor is not None:
                self.monitor.close()

    return SymmetryCallback
