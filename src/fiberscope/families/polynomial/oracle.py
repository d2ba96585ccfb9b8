"""Oracles: something that answers with the outputs at inputs of our choice."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.families.polynomial.rationals import RATIONALS
from fiberscope.families.polynomial.weights import WeightedNetwork, read_weights


class Oracle:
    """Counts and checks the answers of a function ``inputs -> outputs``.

    Parameters
    ----------
    function
        Called with a list of ``inputs`` numbers (fractions when ``exact``, else floats); returns
        ``outputs`` numbers.
    exact
        True when the answers are rational numbers without rounding.
    """

    def __init__(
        self, function: Callable[[list[Any]], Sequence[Any]], inputs: int, outputs: int, exact: bool
    ) -> None:
        self.function, self.inputs, self.outputs, self.exact = function, inputs, outputs, exact
        self.queries = 0

    def __call__(self, points: NDArray[Any]) -> NDArray[Any]:
        """Answers at ``points`` of shape ``(n, inputs)``: shape ``(n, outputs)``.

        Raises
        ------
        InputError
            If an answer has the wrong length, is not a (rational, finite) number, or the function
            raises.
        """
        answers: list[list[Any]] = []
        for point in points:
            self.queries += 1
            asked = [Fraction(x) if self.exact else float(x) for x in point]
            try:
                answer = list(np.atleast_1d(np.asarray(self.function(asked), dtype=object)))
            except InputError:
                raise
            except Exception as error:
                shown = ", ".join(map(str, asked))
                raise InputError(
                    f"the oracle raised {type(error).__name__} at the input ({shown}): "
                    f"{' '.join(str(error).split()) or 'no message'}"
                ) from None
            if len(answer) != self.outputs:
                raise InputError(
                    f"the oracle answered with {len(answer)} numbers where {self.outputs} were "
                    "expected: check --widths"
                )
            answers.append([self._number(value) for value in answer])
        if self.exact:
            return np.array(answers, dtype=object).reshape(len(points), self.outputs)
        return np.array(answers, dtype=np.float64).reshape(len(points), self.outputs)

    def _number(self, value: Any) -> Any:
        if isinstance(value, np.generic):
            value = value.item()
        if self.exact:
            if isinstance(value, int | Fraction) and not isinstance(value, bool):
                return Fraction(value)
            raise InputError(
                f"the oracle answered {value!r} where a rational number is needed: return int or "
                "Fraction, or recover in floating point with --float"
            )
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = float("nan")
        if not np.isfinite(number):
            raise InputError(f"the oracle answered {value!r}, which is no finite number")
        return number


def network_oracle(network: WeightedNetwork, exact: bool) -> Oracle:
    """Use a network with known weights as an oracle."""
    family = network.family

    def function(point: list[Any]) -> Sequence[Any]:
        if exact:
            values = family.values(network.parameters, RATIONALS.array([point]), RATIONALS)
        else:
            floats = {name: array.astype(float) for name, array in network.parameters.items()}
            values = family.values(floats, np.array([point]))
        return list(values[0])

    return Oracle(function, family.architecture.widths[0], family.architecture.widths[-1], exact)


def load_oracle(text: str) -> WeightedNetwork | Callable[[list[Any]], Sequence[Any]]:
    """Read ``--oracle``: a weight file, or ``module:function`` with the folder on the path.

    Raises
    ------
    InputError
        If neither can be loaded.
    """
    path = Path(text)
    if path.suffix in {".json", ".npz"}:
        return read_weights(path)
    module, _, name = text.partition(":")
    if not name:
        raise InputError(
            f"the oracle {text!r} is neither a weight file (.json, .npz) nor module:function"
        )
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        function = getattr(importlib.import_module(module), name)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"the oracle {text!r} cannot be loaded: {reason}") from None
    if not callable(function):
        raise InputError(f"the oracle {text!r} is not a function")
    loaded: Callable[[list[Any]], Sequence[Any]] = function
    return loaded
