"""Options that describe a deep attention architecture, shared by its commands."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from fiberscope.errors import InputError
from fiberscope.families.deep_attention import (
    Architecture,
    Normalizer,
    deep_attention_architecture,
)

Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--depth", type=int, help="Number of layers (with --width)."),
    click.option("--width", type=int, help="Token width of every layer."),
    click.option("--widths", help="Token widths d_0,...,d_D, for example 5,3,2,4."),
    click.option("--rank", type=int, help="Query/key width of every layer."),
    click.option("--ranks", help="Query/key widths r_1,...,r_D."),
    click.option("--tokens", type=int, default=3, show_default=True, help="Number of tokens."),
    click.option(
        "--normalizer",
        default="softmax",
        show_default=True,
        help="softmax, cosh, exp-square, one-plus-square, softplus, sigmoid, or module:object for "
        "one of your own; one, or one a layer separated by commas.",
    ),
    click.option("--unnormalized", is_flag=True, help="Lightning attention: weights are scores."),
    click.option(
        "--heads", default="1", show_default=True, help="Heads; one number, or one a layer."
    ),
    click.option("--residual", is_flag=True, help="Every layer adds its input."),
    click.option("--causal", is_flag=True, help="A token attends to itself and earlier ones."),
    click.option("--layer-norm", is_flag=True, help="LayerNorm between layers."),
    click.option("--fixed-values", is_flag=True, help="Values fixed at identity over heads."),
    click.option("--mean-only", is_flag=True, help="Observe the mean of the output tokens only."),
)


def architecture_options(command: Command) -> Command:
    """Add the options; the command receives them as keyword arguments."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def integers(text: str, option: str) -> list[int]:
    """Integers of a comma-separated list."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InputError(
            f"{option} takes whole numbers separated by commas, got {text!r}"
        ) from None


def build_architecture(given: dict[str, Any]) -> Architecture:
    """Architecture of the command line's options.

    Raises
    ------
    InputError
        If widths or ranks are missing or given twice, and for everything that
        :func:`deep_attention_architecture` refuses.
    """
    if given["widths"] is not None:
        if given["depth"] is not None or given["width"] is not None:
            raise InputError("give either --widths, or --depth with --width, not both")
        widths = integers(given["widths"], "--widths")
    elif given["depth"] is not None and given["width"] is not None:
        if given["depth"] < 1:
            raise InputError(f"--depth must be positive, got {given['depth']}")
        widths = [given["width"]] * (given["depth"] + 1)
    else:
        raise InputError("the widths are missing: give --depth and --width, or --widths")
    if (given["ranks"] is None) == (given["rank"] is None):
        raise InputError("give one of --rank and --ranks")
    ranks = [given["rank"]] if given["ranks"] is None else integers(given["ranks"], "--ranks")
    normalizers = None
    if not given["unnormalized"]:
        normalizers = chosen_normalizers(given["normalizer"])
    return deep_attention_architecture(
        widths=widths,
        ranks=ranks,
        tokens=given["tokens"],
        normalizers=normalizers,
        heads=integers(given["heads"], "--heads"),
        causal=given["causal"],
        residual=given["residual"],
        layer_norm=given["layer_norm"],
        trainable_values=not given["fixed_values"],
        mean_only=given["mean_only"],
    )


def architecture_facts(architecture: Architecture) -> dict[str, Any]:
    """Describe an architecture as plain data for JSON."""
    normalizers = architecture.normalizers
    return {
        "widths": list(architecture.widths),
        "ranks": list(architecture.ranks),
        "heads": list(architecture.heads),
        "tokens": architecture.tokens,
        "normalizers": None if normalizers is None else [phi.name for phi in normalizers],
        "causal": architecture.causal,
        "residual": architecture.residual,
        "layer_norm": architecture.layer_norm,
        "trainable_values": architecture.trainable_values,
        "mean_only": architecture.mean_only,
    }


def load_object(path: str, what: str) -> Any:
    """Import ``module:attribute``, with the working directory on the path."""
    module_name, _, attribute = path.partition(":")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(f"{what} {path!r} cannot be loaded: {error}") from None


def chosen_normalizers(text: str) -> list[str | Normalizer]:
    """Normalizers of the option: names, or objects of ``module:object``."""
    return [_normalizer(name.strip()) for name in text.split(",")]


def _normalizer(name: str) -> str | Normalizer:
    if ":" not in name:
        return name
    found = load_object(name, "normalizer")
    if not isinstance(found, Normalizer):
        raise InputError(
            f"{name} is of type {type(found).__name__}: give a Normalizer, such as a "
            "CustomNormalizer with its Taylor data"
        )
    return found
