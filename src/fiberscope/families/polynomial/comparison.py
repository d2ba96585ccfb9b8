"""Whether two polynomial networks have the same function, and what relates them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from itertools import combinations_with_replacement
from math import comb, isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.families.polynomial.canonical import CanonicalForm, Moves, canonical_form
from fiberscope.families.polynomial.moves import solve
from fiberscope.families.polynomial.network import PolynomialNetwork
from fiberscope.families.polynomial.rationals import RATIONALS
from fiberscope.families.polynomial.weights import WeightedNetwork
from fiberscope.family import Comparison
from fiberscope.numbers import FLOAT64
from fiberscope.parameters import Parameters
from fiberscope.symmetry import Scaling
from fiberscope.verdict import Outcome

MOST_GRID_POINTS = 3000
"""Up to this many unisolvent points an identity of exact polynomials is proved, not sampled."""

SAME_WITHIN, DIFFERENT_BEYOND = 1e-11, 1e-8
"""float64: differences of values relative to the same network with absolute values everywhere, and
of weights relative to the largest entry of their row and of their column, the smaller of the two.
"""

_POINTS = 8


class Relation(Enum):
    """Why two networks have the same function; each value is a sentence."""

    SYMMETRY = "A symmetry carries one to the other: the witness."
    REDUCTION = "Both reduce to the same canonical form when superfluous neurons are removed."
    IDENTITY = "The functions are the same polynomials, but no symmetry of the family relates them."
    NONE = "No relation was found."


@dataclass(frozen=True)
class PolynomialComparison(Comparison):
    """Comparison of two polynomial networks.

    Attributes
    ----------
    relation
        How two networks with the same function are related.
    certainty
        In words: proved, with an error probability, or numerical with its tolerance.
    point, first_value, second_value
        For DIFFERENT, an input at which the outputs differ.
    """

    relation: Relation = Relation.NONE
    certainty: str = ""
    point: tuple[Any, ...] = ()
    first_value: tuple[Any, ...] = ()
    second_value: tuple[Any, ...] = ()


def compare_networks(
    first: WeightedNetwork, second: WeightedNetwork, seed: int = 0
) -> PolynomialComparison:
    """Compare two networks with the same numbers of inputs and outputs.

    First the functions: at random points, in exact arithmetic when all weights are rational. A
    point with different values settles it. Then canonical forms and a witness; and for equal
    functions without one, a proof of the polynomial identity or its error probability.

    In float64 equal values at some points prove nothing: SAME needs a witness or one canonical
    form, every weight within :data:`SAME_WITHIN` at the scale of its own neuron, or the identity of
    the polynomials whose coefficients are the stored numbers as they are. Else UNDECIDED.

    Raises
    ------
    InputError
        If inputs or outputs differ in number, or values overflow in float64.
    """
    one, two = first.architecture, second.architecture
    if (one.widths[0], one.widths[-1]) != (two.widths[0], two.widths[-1]):
        raise InputError(
            f"the networks {one} and {two} have different numbers of inputs or outputs: "
            "only networks of the same shape can be compared"
        )
    rng = np.random.default_rng(seed)
    exact = first.exact and second.exact
    if exact:
        difference = _exact_difference(first, second, rng)
        certainty, doubt = "exact arithmetic", False
    else:
        difference, doubt = _float_difference(first, second, rng)
        certainty = f"numerical: differences beyond {DIFFERENT_BEYOND:g} count"
    if difference is not None:
        point, left, right = difference
        return PolynomialComparison(
            Outcome.DIFFERENT,
            reason="the values differ at the stated point",
            certainty=certainty,
            point=point,
            first_value=left,
            second_value=right,
        )
    if doubt:
        return PolynomialComparison(
            Outcome.UNDECIDED,
            reason=f"the values differ by more than {SAME_WITHIN:g} and less than "
            f"{DIFFERENT_BEYOND:g} of their size, which rounding may or may not explain",
            certainty=certainty,
        )
    forms = [canonical_form(n.family, _common(n, exact)) for n in (first, second)]
    numerical = f"numerical: weights agree within {SAME_WITHIN:g} at the scale of their neurons"
    if one == two:
        witness = find_witness(first.family, _common(first, exact), _common(second, exact))
        if witness is not None:
            return PolynomialComparison(
                Outcome.SAME,
                witness,
                Relation.SYMMETRY.value,
                relation=Relation.SYMMETRY,
                certainty="the witness was re-applied" + ("" if exact else f"; {numerical}"),
            )
    relation = Relation.REDUCTION if _same_form(forms[0], forms[1], exact) else Relation.IDENTITY
    if relation is Relation.REDUCTION and (one.degrees, one.kind, one.named, one.bias) != (
        two.degrees,
        two.kind,
        two.named,
        two.bias,
    ):
        relation = Relation.IDENTITY
    reason = relation.value
    if exact:
        certainty = _exact_identity(first, second, rng)
    elif relation is Relation.REDUCTION and not any(form.lossy for form in forms):
        certainty = numerical
    else:
        # Every float is a rational number: the stored numbers can be compared exactly.
        stored = [_as_rationals(network) for network in (first, second)]
        if _exact_difference(stored[0], stored[1], rng) is not None:
            return PolynomialComparison(
                Outcome.UNDECIDED,
                reason="as exact rationals the stored numbers give different functions, but at no "
                f"point that was tried do the values differ by more than {SAME_WITHIN:g} of their "
                "size, and no symmetry was found in float64: make the weights rational",
                certainty=f"numerical: differences beyond {DIFFERENT_BEYOND:g} count",
            )
        relation = Relation.IDENTITY
        reason = "The stored numbers give the same polynomials; no symmetry was found in float64."
        certainty = "as exact rationals, " + _exact_identity(stored[0], stored[1], rng)
    return PolynomialComparison(Outcome.SAME, (), reason, relation=relation, certainty=certainty)


def _as_rationals(network: WeightedNetwork) -> WeightedNetwork:
    """The same numbers, exactly."""
    parameters = {name: RATIONALS.array(array) for name, array in network.parameters.items()}
    return WeightedNetwork(network.family, parameters, True, network.where)


def _common(network: WeightedNetwork, exact: bool) -> dict[str, NDArray[Any]]:
    """Weights in the arithmetic of the comparison."""
    if exact:
        return network.parameters
    return {name: array.astype(np.float64) for name, array in network.parameters.items()}


def _exact_values(network: WeightedNetwork, points: NDArray[Any]) -> NDArray[Any]:
    values: NDArray[Any] = network.family.values(network.parameters, points, RATIONALS)
    return values


def _exact_difference(
    first: WeightedNetwork, second: WeightedNetwork, rng: np.random.Generator
) -> tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]] | None:
    """A small point with different values, if one of a few random ones has them."""
    inputs = first.architecture.widths[0]
    for size in (3, 10, 1000):
        points = RATIONALS.array(rng.integers(-size, size + 1, (3, inputs)))
        left, right = _exact_values(first, points), _exact_values(second, points)
        for point, a, b in zip(points, left, right, strict=True):
            if any(x != y for x, y in zip(a, b, strict=True)):
                return tuple(point), tuple(a), tuple(b)
    return None


def _exact_identity(
    first: WeightedNetwork, second: WeightedNetwork, rng: np.random.Generator
) -> str:
    """Prove that two exact functions agree, or say with which probability they do not.

    Raises
    ------
    InputError
        Never for networks that agree at random points, except with the stated probability.
    """
    degree = max(n.architecture.total_degree for n in (first, second))
    inputs = first.architecture.widths[0]
    if comb(inputs + degree, degree) <= MOST_GRID_POINTS:
        # Whole points of a simplex determine a polynomial of this degree.
        grid = [
            [chosen.count(axis) for axis in range(inputs)]
            for chosen in combinations_with_replacement(range(inputs + 1), degree)
        ]
        points = RATIONALS.array(np.array(grid).reshape(len(grid), inputs))
        if (_exact_values(first, points) == _exact_values(second, points)).all():
            return f"proved: equal at {len(grid)} points that determine the polynomials"
        raise InputError("the functions agree at random points only: repeat with another --seed")
    bits = 62
    points = RATIONALS.array(rng.integers(0, 1 << bits, (4, inputs)))
    if (_exact_values(first, points) == _exact_values(second, points)).all():
        odds = (degree / 2.0**bits) ** 4
        return f"equal at 4 random points of {bits} bits: wrong with probability below {odds:.0e}"
    raise InputError("the functions agree at small points only: repeat with another --seed")


def _float_difference(
    first: WeightedNetwork, second: WeightedNetwork, rng: np.random.Generator
) -> tuple[tuple[tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]] | None, bool]:
    """The largest difference at random points, and whether rounding leaves a doubt."""
    points = _points(first, second, rng)
    with np.errstate(over="ignore", invalid="ignore"):
        left, right = (n.family.values(_common(n, False), points, FLOAT64) for n in (first, second))
        size = np.maximum(*(_absolute_values(n, np.abs(points)) for n in (first, second)))
    finite = np.isfinite(size).all(axis=1)
    if not finite[:_POINTS].all():
        raise InputError("the values overflow in float64: scale the weights, or make them rational")
    points, left, right, size = points[finite], left[finite], right[finite], size[finite]
    share = np.abs(left - right) / np.where(size > 0, size, 1.0)
    worst = int(np.argmax(share.max(axis=1)))
    if share.max() > DIFFERENT_BEYOND:
        found = tuple(points[worst].tolist()), tuple(left[worst].tolist())
        return (*found, tuple(right[worst].tolist())), False
    return None, bool(share.max() > SAME_WITHIN)


def _points(
    first: WeightedNetwork, second: WeightedNetwork, rng: np.random.Generator
) -> NDArray[np.float64]:
    """Inputs of size one, inputs at the scale of each coordinate, and of each neuron alone."""
    inputs = first.architecture.widths[0]
    found = [rng.standard_normal((_POINTS, inputs))]
    for network in (first, second):
        rows = np.abs(_common(network, False)["W1"])
        heights = rows.max(axis=0)
        if not heights.any() or heights[heights > 0].min() < np.finfo(np.float64).tiny:
            continue
        scale = 1 / np.where(heights > 0, heights, heights.max())
        found.append(rng.standard_normal((_POINTS, inputs)) * scale)
        # Where one coordinate is large, neurons that only it feeds are seen.
        found.append(np.diag(scale))
        alone = np.linalg.pinv(_common(network, False)["W1"] * scale).T * scale
        found.append(alone)
    points = np.concatenate(found)
    kept: NDArray[np.float64] = points[np.isfinite(points).all(axis=1)]
    return kept


def _absolute_values(network: WeightedNetwork, stream: NDArray[Any]) -> NDArray[Any]:
    """Evaluate with absolute values of all numbers: the scale of rounding errors."""
    family, parameters = network.family, _common(network, False)
    for layer in range(1, family.architecture.layers + 1):
        stream = stream @ np.abs(parameters[f"W{layer}"]).T
        if family.architecture.bias:
            stream = stream + np.abs(parameters[f"b{layer}"])
        if layer < family.architecture.layers:
            sizes = [abs(float(c)) for c in family.activations[layer - 1].coefficients]
            stream = np.polynomial.polynomial.polyval(stream, np.array(sizes))
    return stream


def _same_form(first: CanonicalForm, second: CanonicalForm, exact: bool) -> bool:
    if first.widths != second.widths:
        return False
    for name in first.parameters:
        a, b = first.parameters[name], second.parameters[name]
        window = tuple(slice(min(m, n)) for m, n in zip(a.shape, b.shape, strict=True))
        if not _agree(a[window], b[window], exact):
            return False
    return True


def _agree(
    first: NDArray[Any], second: NDArray[Any], exact: bool, within: float = SAME_WITHIN
) -> bool:
    """Equality; in float64 every entry at the scale of its own row and its own column."""
    if exact:
        return bool((first == second).all())
    sizes = np.maximum(np.abs(first), np.abs(second))
    if sizes.ndim == 2:
        sizes = np.minimum(
            sizes.max(axis=1, keepdims=True, initial=0.0),
            sizes.max(axis=0, keepdims=True, initial=0.0),
        )
    return bool((np.abs(first - second) <= within * sizes).all())


def find_witness(family: PolynomialNetwork, first: Parameters, second: Parameters) -> Moves | None:
    """Group elements that carry one network to the other, checked by applying them."""
    plain = [canonical_form(family, point, decompose=False) for point in (first, second)]
    if any(form.moves is None for form in plain):
        return None
    head, tail = plain[0].moves or (), _undo(plain[1].moves or ())
    candidates: list[Moves] = []
    exact = bool(np.asarray(first["W1"]).dtype == object)
    if _same_form(plain[0], plain[1], exact):
        candidates.append((*head, *tail))
    elif family.rotates:
        middle = _rotation(family, plain[0].parameters, plain[1].parameters, exact)
        if middle is not None:
            candidates.append((*head, *middle, *tail))
    for witness in candidates:
        # Both ways: a rotation can hide a small neuron among large ones. On the way back the
        # rounding of the way there counts as well.
        if _carries(family, witness, first, second, exact, SAME_WITHIN) and (
            exact or _carries(family, _undo(witness), second, first, exact, DIFFERENT_BEYOND)
        ):
            return witness
    return None


def _carries(
    family: PolynomialNetwork,
    moves: Moves,
    first: Parameters,
    second: Parameters,
    exact: bool,
    within: float,
) -> bool:
    with np.errstate(all="ignore"):
        moved = Comparison(Outcome.SAME, moves).carry(first)
    return all(_agree(moved[name], second[name], exact, within) for name in family.space.shapes)


def _undo(moves: Moves) -> Moves:
    return tuple((symmetry, symmetry.inverse(element)) for symmetry, element in reversed(moves))


def _rotation(
    family: PolynomialNetwork,
    first: dict[str, NDArray[Any]],
    second: dict[str, NDArray[Any]],
    exact: bool,
) -> Moves | None:
    """Scalings, permutations and one rotation between two last quadratic layers.

    Both layers are scaled so that their weights agree; then ``R' = A R`` determines ``A`` when
    the rows are independent, and signs are chosen so that ``A`` is a Cayley transform.
    """
    layer = family.architecture.layers - 1
    acting = {symmetry.name: symmetry for symmetry in family.symmetries()}
    scaling = acting[f"neuron rescalings of layer {layer}"]
    permutation = acting[f"neuron permutations of layer {layer}"]
    rotation = acting[f"rotations of layer {layer}"]
    assert isinstance(scaling, Scaling)
    balanced = []
    target: NDArray[Any] | None = None
    for point in (first, second):
        weights = point[f"W{layer + 1}"][0]
        factors, order = _matched(weights, target, exact)
        if factors is None:
            return None
        moves: Moves = ((scaling, factors), (permutation, np.array([order])))
        moved = Comparison(Outcome.SAME, moves).carry(point)
        rows = moved[f"W{layer}"]
        if family.architecture.bias:
            rows = np.concatenate([rows, moved[f"b{layer}"][:, None]], axis=1)
        target = moved[f"W{layer + 1}"][0]
        balanced.append((moves, rows))
    assert target is not None
    (head, before), (tail, after) = balanced
    if len(before) > before.shape[1]:
        return None
    try:
        turn = solve(before @ before.T, before @ after.T).T
    except (np.linalg.LinAlgError, ZeroDivisionError):
        return None
    one = np.eye(len(turn), dtype=np.int64)
    rng = np.random.default_rng(0)
    best: tuple[float, NDArray[Any]] | None = None
    for attempt in range(32):
        signs = rng.choice([-1, 1], len(turn)) if attempt else np.ones(len(turn), dtype=np.int64)
        margin = float(
            np.linalg.svd((signs[:, None] * turn + one).astype(np.float64), compute_uv=False)[-1]
        )
        if best is None or margin > 2 * best[0]:
            best = margin, signs
    assert best is not None
    signs = best[1]
    flipped = signs[:, None] * turn
    try:
        # X = (A - 1)(A + 1)^-1, as the transposed system.
        cayley = solve((flipped + one).T, (flipped - one).T).T
    except (np.linalg.LinAlgError, ZeroDivisionError):
        return None
    skew = target[:, None] * cayley
    skew = (skew - skew.T) / 2
    sign_element = np.array([Fraction(int(s)) for s in signs]) if exact else signs.astype(float)
    return (*head, (rotation, (skew,)), (scaling, sign_element), *_undo(tail))


def _matched(
    weights: NDArray[Any], target: NDArray[Any] | None, exact: bool
) -> tuple[NDArray[Any] | None, list[int]]:
    """Factors and order that bring output weights to ``target`` (``w -> w / factor^2``).

    In float64 the target is signs, positive ones first. Exactly, the first network's weights are
    the target, and ratios must be squares of rationals.
    """
    count = len(weights)
    if not exact:
        order = sorted(range(count), key=lambda i: weights[i] < 0)
        return np.sqrt(np.abs(weights)), order
    if target is None:
        return np.array([Fraction(1)] * count), list(range(count))
    factors: list[Any] = [None] * count
    order = []
    for wanted in target:
        for i in range(count):
            root = _square_root(weights[i] / wanted) if factors[i] is None else None
            if root is not None:
                factors[i] = root
                order.append(i)
                break
        else:
            return None, []
    return np.array(factors, dtype=object), order


def _square_root(value: Fraction) -> Fraction | None:
    if value <= 0:
        return None
    numerator, denominator = isqrt(value.numerator), isqrt(value.denominator)
    root = Fraction(numerator, denominator)
    return root if root * root == value else None
