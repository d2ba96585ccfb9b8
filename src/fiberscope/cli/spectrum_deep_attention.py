"""`fiberscope spectrum deep-attention`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from fiberscope.analysis.spectrum import PathSpectrum, fisher_eigenvalues, spectrum_along
from fiberscope.cli.deep_attention_options import (
    architecture_facts,
    architecture_options,
    build_architecture,
)
from fiberscope.errors import InputError
from fiberscope.families.deep_attention import Architecture, DeepAttention, InputBank
from fiberscope.families.deep_attention.bank_design import designed_bank
from fiberscope.families.deep_attention.banks import (
    exact_orders,
    has_leading_frame,
    separates,
    smallest_bank,
    theorem_orders,
)
from fiberscope.families.deep_attention.exact_orders import random_residue_path, residue_path
from fiberscope.families.deep_attention.paths import (
    ContactPath,
    load_bank,
    load_path,
    matrix_case,
    random_bank,
    random_path,
    scalar_case,
)
from fiberscope.numbers.power_series import JET_PRIME
from fiberscope.report.spectrum_plot import plot_spectrum

MOST_RATIONAL = 24
"""Exact orders over the rational numbers are computed up to this many parameters."""


@click.command("deep-attention")
@architecture_options
@click.option("--t", "t_list", help="Points of the path, for example 0.1,0.06.")
@click.option(
    "--example",
    type=click.Choice(["matrix", "scalar"]),
    help="A published case instead of an architecture: matrix (768 x 96) or scalar (depth 4).",
)
@click.option("--path", "path_file", type=click.Path(), help="npz with U1, W1, ... (and V1, ...).")
@click.option("--bank", "bank_file", type=click.Path(), help="npz with the inputs as X.")
@click.option("--inputs", type=int, help="Random inputs; default: the smallest separating bank.")
@click.option("--input-scale", type=float, default=0.6, show_default=True, help="Their deviation.")
@click.option(
    "--design",
    type=click.Choice(["known", "unknown"]),
    help="Design the inputs, for this path or for paths that are only known to be random.",
)
@click.option("--input-norm", type=float, default=2.4, show_default=True, help="Designed norm.")
@click.option(
    "--values",
    type=click.Choice(["identity", "generic"]),
    default="identity",
    show_default=True,
    help="Values along the path: identity (over the heads) or random.",
)
@click.option("--exact-orders", is_flag=True, help="Orders from exact power series, no floats.")
@click.option(
    "--rational",
    is_flag=True,
    help="With --exact-orders: rational coefficients, no prime (small networks).",
)
@click.option("--digits", type=int, default=20, show_default=True, help="Digits of every value.")
@click.option("--noise", help="Noise deviation: adds the Fisher information.")
@click.option("--plot", "plot_file", type=click.Path(path_type=Path), help="Figure to write.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seeds every random draw.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(as_json: bool, plot_file: Path | None, **given: Any) -> None:
    """Contact spectrum: all singular values towards query/key collapse, with proved digits."""
    if plot_file is not None and plot_file.exists():
        raise InputError(f"{plot_file} exists: give another name, or move it away")
    if given["t_list"] is None and not given["exact_orders"]:
        raise InputError("give --t with one or more points, or --exact-orders, or both")
    if given["digits"] < 1:
        raise InputError(f"--digits must be positive, got {given['digits']}")
    if given["rational"] and not given["exact_orders"]:
        raise InputError("--rational goes with --exact-orders: give both")
    points = _points(given["t_list"])
    if plot_file is not None and not points:
        raise InputError("a plot needs points: give --t")
    noise = None if given["noise"] is None else _number(given["noise"], "--noise")
    if noise is not None and noise <= 0:
        raise InputError(f"--noise must be positive, got {given['noise']}")
    path, bank, notes = _path_and_bank(given)
    architecture = path.architecture
    orders, source, warnings, separating = _orders(path, bank, given)
    notes += warnings
    for note in notes:
        click.echo(f"note: {note}", err=True)
    found = None
    if points:
        found = spectrum_along(
            DeepAttention(architecture),
            {t: path.at(t) for t in points.values()},
            bank,
            orders=orders,
            orders_from=source,
            digits=given["digits"],
            progress=lambda message: click.echo(message, err=True),
        )
    answer = _answer(
        architecture, bank, points, found, orders, source, given["digits"], noise, separating
    )
    if plot_file is not None and found is not None:
        plot_spectrum(
            plot_file,
            {float(t): answer["singular_values"][label] for label, t in points.items()},
            [(band.order, band.multiplicity) for band in found.bands],
            architecture.describe(),
        )
    if as_json:
        click.echo(json.dumps({**answer, "notes": notes, "seed": given["seed"]}))
    else:
        _print(architecture, answer)


def _number(text: str, option: str) -> Fraction:
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise InputError(f"{option} takes decimal numbers, got {text!r}") from None


def _points(text: str | None) -> dict[str, Fraction]:
    if text is None:
        return {}
    points = {part.strip(): _number(part, "--t") for part in text.split(",")}
    for label, t in points.items():
        if t == 0:
            raise InputError(
                f"--t {label}: at t = 0 every score is zero and the network has collapsed; give "
                "nonzero points"
            )
    if len({abs(t) for t in points.values()}) < len(points):
        raise InputError("--t lists a point twice: give distinct absolute values")
    return points


def _path_and_bank(given: Mapping[str, Any]) -> tuple[ContactPath, InputBank, list[str]]:
    notes: list[str] = []
    if given["example"] is not None:
        if any(given[name] is not None for name in ("depth", "width", "widths", "rank", "ranks")):
            raise InputError("--example is an architecture already: leave out depth, widths, ranks")
        path, bank = matrix_case() if given["example"] == "matrix" else scalar_case()
    else:
        architecture = build_architecture(dict(given))
        seeds = np.random.default_rng([given["seed"], 0])
        if given["path_file"] is not None:
            path = load_path(architecture, given["path_file"], given["values"])
        else:
            path = random_path(architecture, seeds, given["values"])
        bank = None
    if given["rational"]:
        _refuse_rational(path.architecture)
    if given["bank_file"] is not None:
        bank = load_bank(path.architecture, given["bank_file"])
    elif bank is None or given["inputs"] is not None or given["design"] is not None:
        bank = _made_bank(path, given, notes)
    return path, bank, notes


def _made_bank(path: ContactPath, given: Mapping[str, Any], notes: list[str]) -> InputBank:
    architecture = path.architecture
    rng = np.random.default_rng([given["seed"], 1])
    size = given["inputs"]
    if size is None:
        size = smallest_bank(architecture, values=given["values"]).size
    if size < 1:
        raise InputError(f"--inputs must be positive, got {size}")
    if given["design"] is None:
        return random_bank(architecture, size, rng, given["input_scale"])
    paths = [path]
    if given["design"] == "unknown":
        paths = [random_path(architecture, rng) for _ in range(12)]
    steps = 500 if given["design"] == "known" else 100
    found = designed_bank(paths, size, rng, norm=given["input_norm"], steps=steps)
    notes.append(
        f"{size} designed inputs of norm {given['input_norm']}: the last band is "
        f"{found.gain:.3g} times the median of {len(found.random_constants)} random banks of that "
        f"size and norm, {found.constant / found.random_constants[-1]:.3g} times the best"
    )
    return found.bank


def _orders(
    path: ContactPath, bank: InputBank, given: Mapping[str, Any]
) -> tuple[dict[int, int], str, list[str], bool]:
    """Orders on this bank, where they come from, warnings, and whether the bank separates."""
    architecture = path.architecture
    residues = residue_path(path, bank.inputs, None if given["rational"] else JET_PRIME)
    if has_leading_frame(architecture) and given["values"] == "identity":
        expected = theorem_orders(architecture)
        if separates(residues, expected) and not given["exact_orders"]:
            return expected, "theorem", [], True
    if architecture.layer_norm:
        # Square roots of given data need not exist in the prime field; generic data of this kind.
        rng = np.random.default_rng(given["seed"])
        residues = random_residue_path(architecture, bank.size, rng, given["values"])
    found = exact_orders(residues)
    warnings = []
    smallest = smallest_bank(architecture, values=given["values"])
    if not found.resolved:
        invisible = (
            f"{found.kernel_dimension} directions show no order below {found.precision} on these "
            f"{bank.size} inputs, more than the known symmetries explain"
        )
        if bank.size < smallest.size:
            raise InputError(
                f"{invisible}: the bank cannot separate; give at least {smallest.size} inputs"
            )
        if given["t_list"] is not None and _fault_of_bank(path, smallest.size, given["seed"]):
            # Singular values that are zero beyond the known kernel can never be enclosed.
            raise InputError(
                f"{invisible}: the bank cannot separate although other banks do; give at least "
                f"{smallest.size} inputs in general position, all different and nonzero"
            )
        warnings.append(f"{invisible}: higher orders, or freedom that is not known")
    if dict(found.multiplicities) != dict(smallest.orders):
        distinct = _distinct(bank, architecture)
        few = f", of which {distinct} are different," if distinct < bank.size else ""
        warnings.append(
            f"these {bank.size} inputs{few} do not separate: some orders are higher than they need "
            f"to be; the smallest generic bank has {smallest.size} different inputs"
        )
    source = "exact orders over the rational numbers" if given["rational"] else "exact orders"
    separating = found.resolved and dict(found.multiplicities) == dict(smallest.orders)
    return dict(found.multiplicities), source, warnings, separating


def _refuse_rational(architecture: Architecture) -> None:
    normalizers = architecture.normalizers or ()
    if architecture.layer_norm or any(phi.name == "softplus" for phi in normalizers):
        raise InputError(
            "--rational needs rational Taylor coefficients, which a LayerNorm and softplus do not "
            "have: leave it out"
        )
    if architecture.space.size > MOST_RATIONAL:
        raise InputError(
            f"--rational is for up to {MOST_RATIONAL} parameters, since numerators grow, and this "
            f"network has {architecture.space.size}: leave it out"
        )


def _distinct(bank: InputBank, architecture: Architecture) -> int:
    """Number of different inputs; without a mask the order of the tokens does not matter."""
    kinds = set()
    for tokens in bank.inputs:
        rows = [tuple(row) for row in tokens.tolist()]
        kinds.add(tuple(rows if architecture.causal else sorted(rows)))
    return len(kinds)


def _fault_of_bank(path: ContactPath, size: int, seed: int) -> bool:
    """Whether a random bank resolves every order along the path that a given bank leaves open."""
    if path.architecture.layer_norm:
        return False
    bank = random_bank(path.architecture, size, np.random.default_rng([seed, 2]))
    return exact_orders(residue_path(path, bank.inputs)).resolved


def _answer(
    architecture: Architecture,
    bank: InputBank,
    points: Mapping[str, Fraction],
    found: PathSpectrum | None,
    orders: Mapping[int, int],
    source: str,
    digits: int,
    noise: Fraction | None,
    separating: bool,
) -> dict[str, Any]:
    answer: dict[str, Any] = {
        "schema": "fiberscope/spectrum/1",
        "family": "deep-attention",
        "architecture": architecture_facts(architecture),
        "parameters": architecture.space.size,
        "inputs": bank.size,
        "distinct_inputs": _distinct(bank, architecture),
        "separates": separating,
    }
    if found is None:
        bands = [
            {"order": order, "multiplicity": size, "slopes": []} for order, size in orders.items()
        ]
        kernel = architecture.space.size - sum(orders.values())
        return {**answer, "bands": bands, "orders_from": source, "kernel_dimension": kernel}
    answer |= {
        "bands": [band.to_dict() for band in found.bands],
        "orders_from": found.orders_from,
        "kernel_dimension": found.kernel_dimension,
        "singular_values": {
            label: found.spectra[t].decimals(digits) for label, t in points.items()
        },
        "relative_error": {label: found.spectra[t].relative_error for label, t in points.items()},
        "bits": {label: found.spectra[t].bits for label, t in points.items()},
        "float64_rank_at_1e-10": {label: found.float64_ranks[t] for label, t in points.items()},
    }
    if noise is not None:
        answer["fisher_information"] = {
            "noise": str(float(noise)),
            "eigenvalues": {
                label: fisher_eigenvalues(found.spectra[t], noise, digits)
                for label, t in points.items()
            },
        }
    return answer


def _print(architecture: Architecture, answer: Mapping[str, Any]) -> None:
    console = Console(width=100)
    console.print(f"Deep attention: {architecture.describe()}; {answer['inputs']} inputs")
    table = Table(title=f"Bands (orders from: {answer['orders_from']})")
    for column in ("order", "multiplicity", "fitted slopes"):
        table.add_column(column)
    for band in answer["bands"]:
        slopes = band["slopes"]
        shown = f"{min(slopes):.6f} to {max(slopes):.6f}" if slopes else "-"
        order = "?" if band["order"] is None else str(band["order"])
        table.add_row(order, str(band["multiplicity"]), shown)
    table.add_row("exact zeros", str(answer["kernel_dimension"]), "")
    console.print(table)
    if "singular_values" not in answer:
        return
    table = Table(title="Singular values")
    columns = ("t", "largest", "smallest positive", "relative error", "bits", "float64 rank")
    for column in columns:
        table.add_column(column)
    for label, values in answer["singular_values"].items():
        table.add_row(
            label,
            values[0][:12],
            _shortened(values[-1]),
            f"{answer['relative_error'][label]:.1e}",
            str(answer["bits"][label]),
            f"{answer['float64_rank_at_1e-10'][label]} of {len(values)}",
        )
    console.print(table)


def _shortened(text: str) -> str:
    mantissa, mark, exponent = text.partition("e")
    return mantissa[:10] + mark + exponent
