"""Canonical forms of random sparse rational networks under random moves: no failure allowed.

Each network has small rational weights, many of them zero, so that inactive, redundant, collinear
and constant neurons are common. It is moved by random exact elements of all its symmetries and,
half of the time, widened by splitting a neuron; the canonical forms must agree entry by entry,
applying one twice must change nothing, and the function must be kept at random points.

Run: python benchmarks/polynomial_canonical.py [--count 10000] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from fiberscope.families.polynomial.architecture import Architecture
from fiberscope.families.polynomial.canonical import CanonicalForm, canonical_form
from fiberscope.families.polynomial.moves import QuadricRotation
from fiberscope.families.polynomial.network import PolynomialNetwork
from fiberscope.families.polynomial.rationals import RATIONALS
from fiberscope.symmetry import Permutation, SignFlip, Symmetry

ACTIVATIONS = ("monomial", "monomial", "z^3+z^2", "z^3+z", "z^4+z^2+1", "(z-1)^3+2", "z^2+z+1")

Point = dict[str, Any]


def rational(rng: np.random.Generator, zeros: float = 0.0) -> Fraction:
    if rng.random() < zeros:
        return Fraction(0)
    return Fraction(int(rng.choice([-3, -2, -1, 1, 2, 3])), int(rng.integers(1, 4)))


def rationals(rng: np.random.Generator, shape: tuple[int, ...], zeros: float = 0.0) -> Any:
    array = np.empty(shape, dtype=object)
    for index in np.ndindex(*shape):
        array[index] = rational(rng, zeros)
    return array


def random_network(rng: np.random.Generator) -> tuple[PolynomialNetwork, Point]:
    layers = int(rng.integers(2, 5))
    widths = [int(d) for d in rng.integers(1, 5, layers + 1)]
    if rng.random() < 0.3:
        widths[-1] = 1
    activation = str(rng.choice(ACTIVATIONS))
    degrees = [int(r) for r in rng.integers(2, 4, layers - 1)] if activation == "monomial" else None
    architecture = Architecture.build(
        widths, degrees, activation=activation, bias=bool(rng.random() < 0.4)
    )
    family = PolynomialNetwork(architecture)
    zeros = float(rng.choice([0.2, 0.5, 0.7]))
    return family, {n: rationals(rng, s, zeros) for n, s in family.space.shapes.items()}


def random_element(symmetry: Symmetry, rng: np.random.Generator) -> Any:
    if isinstance(symmetry, Permutation):
        return symmetry.random(rng)
    if isinstance(symmetry, QuadricRotation):
        upper = np.triu(rationals(rng, (symmetry.size, symmetry.size)), 1)
        return (upper - upper.T,)
    size = len(symmetry.identity())
    if isinstance(symmetry, SignFlip):
        return np.array([Fraction(int(s)) for s in rng.choice([-1, 1], size)], dtype=object)
    return rationals(rng, (size,))


def moved(family: PolynomialNetwork, point: Point, rng: np.random.Generator) -> Point:
    acting = family.symmetries()
    for symmetry in rng.permutation(np.array([*acting, None], dtype=object))[: len(acting) + 1]:
        if symmetry is not None:
            try:
                point = symmetry.act(random_element(symmetry, rng), point)
            except ZeroDivisionError:
                # This skew matrix has no Cayley transform at these weights: leave it out.
                continue
    return point


def widened(
    family: PolynomialNetwork, point: Point, rng: np.random.Generator
) -> tuple[PolynomialNetwork, Point]:
    """Split a neuron in two with the same row, sharing its outgoing column."""
    architecture = family.architecture
    layer = int(rng.integers(1, architecture.layers))
    neuron = int(rng.integers(architecture.widths[layer]))
    widths = list(architecture.widths)
    widths[layer] += 1
    wide = PolynomialNetwork(
        Architecture(
            tuple(widths),
            architecture.degrees,
            architecture.kind,
            architecture.named,
            architecture.bias,
        )
    )
    share = rational(rng)
    grown = dict(point)
    rows, columns = point[f"W{layer}"], point[f"W{layer + 1}"].copy()
    grown[f"W{layer}"] = np.concatenate([rows, rows[neuron : neuron + 1]])
    extra = columns[:, neuron : neuron + 1] * share
    columns[:, neuron] = columns[:, neuron] - extra[:, 0]
    grown[f"W{layer + 1}"] = np.concatenate([columns, extra], axis=1)
    if architecture.bias:
        biases = point[f"b{layer}"]
        grown[f"b{layer}"] = np.concatenate([biases, biases[neuron : neuron + 1]])
    return wide, grown


def trimmed(family: PolynomialNetwork, form: CanonicalForm) -> dict[str, Any]:
    """Canonical weights without the zero neurons."""
    found = {}
    for name in family.space.shapes:
        layer = int(name[1:])
        sizes = (form.widths[layer], form.widths[layer - 1])
        window = tuple(slice(size) for size in (sizes if name[0] == "W" else sizes[:1]))
        found[name] = form.parameters[name][window].tolist()
    return found


def failure(rng: np.random.Generator) -> str:
    """Test one random network; an empty string when all holds."""
    family, point = random_network(rng)
    form = canonical_form(family, point)
    other, there = family, moved(family, point, rng)
    if rng.random() < 0.5:
        other, there = widened(family, there, rng)
        there = moved(other, there, rng)
    again = canonical_form(other, there)
    if trimmed(family, form) != trimmed(other, again):
        return f"{family.architecture}: forms differ"
    twice = canonical_form(family, form.parameters)
    if trimmed(family, twice) != trimmed(family, form):
        return f"{family.architecture}: applying it twice changes it"
    points = RATIONALS.array(rng.integers(-3, 4, (2, family.architecture.widths[0])))
    values = [
        family.values(point, points, RATIONALS),
        family.values(form.parameters, points, RATIONALS),
        other.values(there, points, RATIONALS),
    ]
    if not all((value == values[0]).all() for value in values):
        return f"{family.architecture}: the function changes"
    return ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    start, failures = time.perf_counter(), []
    for number in range(given.count):
        found = failure(np.random.default_rng([given.seed, number]))
        if found:
            failures.append(f"seed {number}: {found}")
        if (number + 1) % 1000 == 0:
            print(f"{number + 1}, {len(failures)} failures", file=sys.stderr)
    seconds = time.perf_counter() - start
    print("\n".join(failures[:20]))
    print(f"{given.count} networks, {len(failures)} failures, {seconds:.1f} s")
    if given.json:
        result = {"networks": given.count, "failures": failures, "wall_seconds": seconds}
        given.json.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
