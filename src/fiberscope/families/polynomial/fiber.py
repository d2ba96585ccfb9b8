"""The fiber through given weights: superfluous neurons, symmetries, identifiability, and why."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.families.polynomial.architecture import ActivationKind
from fiberscope.families.polynomial.bounds import upper_bound
from fiberscope.families.polynomial.canonical import DISTINCT, TOLERANCE, distance, negligible
from fiberscope.families.polynomial.jacobian_rank import rank_modulo, usable_prime
from fiberscope.families.polynomial.network import PolynomialNetwork, evaluate
from fiberscope.families.polynomial.rationals import RATIONALS
from fiberscope.families.polynomial.theorems import KOHN, USEVICH, Notion, answers
from fiberscope.families.polynomial.weights import WeightedNetwork
from fiberscope.numbers import PrimeField
from fiberscope.numbers.prime_field import rank as rank_modulo_prime
from fiberscope.symmetry import Kind, Scaling, SignFlip
from fiberscope.verdict import to_plain

MOST_ENTRIES = 300_000_000
"""Largest array of derivatives that float64 weights may need."""

ZERO_BELOW, NONZERO_ABOVE = 1e-13, 1e-11
"""float64: singular values below and above these shares of the largest are zero and not zero.

Weights are only known up to their rounding, which moves singular values by about 1e-15.
"""

MOST_SUBSETS = 20_000
"""Kruskal ranks are searched over at most this many subsets of rows."""


@dataclass(frozen=True)
class Neuron:
    """A neuron that makes the fiber larger than generic.

    ``kind`` is ``inactive`` (zero row or zero outgoing column), ``redundant`` (same row as
    ``like``) or ``collinear`` (row is ``factor`` times that of ``like``).
    """

    layer: int
    index: int
    kind: str
    like: int | None = None
    factor: Any = None


@dataclass(frozen=True)
class Acting:
    """A symmetry group at this point: generators, and rank of its tangents here."""

    name: str
    kind: Kind
    generators: int
    rank: int


@dataclass(frozen=True)
class FiberReport:
    """What is known of all networks with the function of the given one.

    Attributes
    ----------
    neurons
        Inactive, redundant and collinear neurons.
    dependent_features
        Hidden layers whose features are linearly dependent as functions.
    symmetries
        Groups that act and their dimension at this point; ``orbit`` is that of their union,
        rotations of a last quadratic layer included.
    jacobian_rank
        Rank of the Jacobian at these weights (exact weights: modulo a random prime, a certified
        lower bound; float64: singular values, and None where they have no clear gap or contradict
        the exact rank at the stored numbers).
    local_freedom
        Parameters minus Jacobian rank minus orbit: zero proves that near these weights the fiber
        is the orbit.
    identifiable
        Whether the weights are determined up to permutations, signs and rescalings of neurons:
        True, False, or None when no theorem covers these weights or float64 cannot tell; ``why``
        and ``source`` say.
    undecided
        True when only the rounding of float64 stands between these weights and an answer.
    tolerance
        float64: relative distance up to which rows count as equal or proportional; 0 when exact.
    """

    architecture: str
    exact: bool
    tolerance: float
    neurons: tuple[Neuron, ...]
    dependent_features: tuple[int, ...]
    symmetries: tuple[Acting, ...]
    parameters: int
    orbit: int
    jacobian_rank: int | None
    local_freedom: int | None
    identifiable: bool | None
    why: str
    source: str
    undecided: bool = False
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        plain = to_plain(self)
        plain["identifiable"] = self.word
        return plain

    @property
    def word(self) -> str:
        """The answer in a word or two."""
        if self.undecided:
            return "undecided"
        return {True: "yes", False: "no", None: "not covered"}[self.identifiable]


def fiber(network: WeightedNetwork, seed: int = 0) -> FiberReport:
    """Analyse the fiber through the weights of a network.

    Raises
    ------
    InputError
        If float64 overflows, or float weights need too large a Jacobian.
    """
    family, rng = network.family, np.random.default_rng(seed)
    jacobian = _jacobian_rank(network, rng)
    neurons = tuple(superfluous_neurons(network))
    dependent, doubtful = dependent_layers(network, rng)
    doubts = [*close_calls(network)]
    doubts += [f"the features of layer {layer} are close to dependent" for layer in doubtful]
    if jacobian is None:
        doubts.append(
            "the singular values of the Jacobian have no clear gap at the rank that the stored "
            "numbers have exactly"
        )
    try:
        floats = {name: array.astype(np.float64) for name, array in network.parameters.items()}
    except OverflowError:
        raise InputError(
            f"{network.where or 'the network'}: weights beyond float64, in which the tangents of "
            "the symmetries are computed; rescale the neurons"
        ) from None
    acting, rows = [], np.zeros((0, family.space.size))
    for symmetry in family.symmetries():
        own = (
            symmetry.tangents(floats, family.space)
            if symmetry.generators
            else np.zeros((0, family.space.size))
        )
        acting.append(Acting(symmetry.name, symmetry.kind, symmetry.generators, _rank(own)))
        rows = np.concatenate([rows, own])
    orbit = _rank(rows)
    local = None if jacobian is None else family.space.size - jacobian - orbit
    answer, why, source = _identifiable(network, neurons, tuple(dependent), doubts)
    if answer is None and local and jacobian == upper_bound(network.architecture).value:
        # The rank is constant nearby, so the fiber is a manifold.
        answer, source = False, "constant rank theorem"
        why = (
            f"the Jacobian has the largest possible rank {jacobian} here, so near these weights "
            f"the fiber is a manifold with {local} dimensions more than the orbit"
        )
    undecided = answer is None and bool(doubts)
    if undecided:
        why, source = f"float64 cannot tell: {doubts[0]}; rational weights decide", ""
    notes = []
    if any(isinstance(s, Scaling) and not isinstance(s, SignFlip) for s in family.symmetries()):
        notes.append("rescalings by any non-zero real factors, negative ones included")
    if answer is None and local == 0:
        notes.append("near these weights the fiber is the orbit of the symmetries")
    if not network.exact:
        notes.append(
            f"numerical: rows are equal within {TOLERANCE:g} and distinct beyond {DISTINCT:g} of "
            "their size; exact weights give exact answers"
        )
        notes += doubts
    return FiberReport(
        str(family.architecture),
        network.exact,
        0.0 if network.exact else TOLERANCE,
        neurons,
        tuple(dependent),
        tuple(acting),
        family.space.size,
        orbit,
        jacobian,
        local,
        answer,
        why,
        source,
        undecided,
        tuple(notes),
    )


def superfluous_neurons(network: WeightedNetwork) -> list[Neuron]:
    """Inactive, redundant and collinear neurons of every hidden layer."""
    found = []
    for layer in range(1, network.architecture.layers):
        rows, outgoing = _incoming(network, layer), network.parameters[f"W{layer + 1}"]
        alive = []
        for index, row in enumerate(rows):
            weights = row[:-1] if network.architecture.bias else row
            # Without biases a constant neuron does the work of one, unless it is zero.
            folds = (
                network.architecture.bias or network.family.activations[layer - 1].through_origin
            )
            # Only exact zeros: smallness is not invariant under rescalings of the neuron.
            if (folds and not weights.any()) or not outgoing[:, index].any():
                found.append(Neuron(layer, index, "inactive"))
            else:
                alive.append(index)
        for position, index in enumerate(alive):
            for like in alive[:position]:
                factor = _factor(rows[index], rows[like], network.exact)
                if factor is not None:
                    same = factor == 1 or (not network.exact and abs(factor - 1) <= TOLERANCE)
                    kind = "redundant" if same else "collinear"
                    found.append(Neuron(layer, index, kind, like, factor))
                    break
    return found


def close_calls(network: WeightedNetwork) -> list[str]:
    """Neurons of which float64 cannot tell whether they are superfluous."""
    found: list[str] = []
    if network.exact:
        return found
    for layer in range(1, network.architecture.layers):
        rows, sigma = _incoming(network, layer), network.family.activations[layer - 1]
        for index in negligible(sigma, rows, network.parameters[f"W{layer + 1}"]):
            found.append(
                f"neuron {index} of layer {layer} contributes less than {TOLERANCE:g} of what its "
                "layer does"
            )
        if sigma.is_monomial:
            rows = np.array([row / _pivot(row) if row.any() else row for row in rows])
        for index, row in enumerate(rows):
            for like in range(index):
                if TOLERANCE < distance(row, rows[like]) < DISTINCT:
                    kind = "proportional" if sigma.is_monomial else "equal"
                    found.append(
                        f"the rows of neurons {like} and {index} of layer {layer} are almost {kind}"
                    )
    return found


def _pivot(row: NDArray[np.float64]) -> float:
    """The largest entry; of almost equally large ones the first, so that noise does not choose."""
    sizes = np.abs(row)
    return float(row[int(np.argmax(sizes > 0.9 * sizes.max()))])


def _incoming(network: WeightedNetwork, layer: int) -> NDArray[Any]:
    rows = network.parameters[f"W{layer}"]
    if network.architecture.bias:
        return np.concatenate([rows, network.parameters[f"b{layer}"][:, None]], axis=1)
    return rows


def _factor(row: NDArray[Any], like: NDArray[Any], exact: bool) -> Any:
    """Return ``c`` with ``row = c like``, or None; of two rows one of which is zero, only both."""
    empty = [not part.any() for part in (row, like)]
    if any(empty):
        return 1 if all(empty) else None
    pivot = max(range(len(like)), key=lambda column: abs(like[column]))
    factor = row[pivot] / like[pivot]
    if exact:
        return factor if all(a == factor * b for a, b in zip(row, like, strict=True)) else None
    return factor if distance(row, factor * like) <= TOLERANCE else None


def dependent_layers(
    network: WeightedNetwork, rng: np.random.Generator
) -> tuple[list[int], list[int]]:
    """Hidden layers whose features are linearly dependent functions, and doubtful ones (float64).

    With biases the constant function counts as a feature. Exact weights: two random primes, so
    that a wrong answer has a probability of about (degree / 2^30)^2.
    """
    dependent, doubtful = [], []
    for layer in range(1, network.architecture.layers):
        found = _feature_rank(network, layer, rng)
        if found is None:
            doubtful.append(layer)
        elif found < network.architecture.widths[layer] + network.architecture.bias:
            dependent.append(layer)
    return dependent, doubtful


def _feature_rank(network: WeightedNetwork, layer: int, rng: np.random.Generator) -> int | None:
    """Rank of the features of a layer (and the constant one, with biases) as functions.

    float64: None where singular values and the exact rank at the stored numbers do not agree.
    """
    width, inputs = network.architecture.widths[layer], network.architecture.widths[0]
    cut = PolynomialNetwork(network.architecture.part(0, layer))
    sigma = network.family.activations[layer - 1]
    one = 1 if network.architecture.bias else 0
    ranks = []
    for _ in range(2):
        field = PrimeField(usable_prime(network.architecture, rng, network.parameters))
        drawn = field.random_array((width + 3, inputs), rng)
        given = {name: field.array(network.parameters[name]) for name in cut.space.shapes}
        features = evaluate(sigma, cut.values(given, drawn, field), field).values
        ones = np.ones((len(features), one), dtype=np.int64)
        ranks.append(rank_modulo_prime(np.concatenate([features, ones], axis=1), field.prime))
    if network.exact:
        return max(ranks)
    points = rng.standard_normal((4 * width + 4, inputs))
    values = evaluate(sigma, cut.values(network.parameters, points))
    values = np.concatenate([values, np.ones((len(points), one))], axis=1)
    return max(ranks) if _ranks(values.T) == (max(ranks), max(ranks)) else None


def _rank(rows: NDArray[np.float64]) -> int:
    """Numerical rank: singular values that are certainly not zero."""
    return _ranks(rows)[0]


def _ranks(rows: NDArray[np.float64]) -> tuple[int, int]:
    """Numbers of singular values that are certainly not zero, and that may not be.

    Rows and columns are brought to length one first, so that scales of neurons do not matter.
    """
    for axis in (1, 0):
        sizes = np.abs(rows).max(axis=axis, keepdims=True, initial=0.0)
        rows = rows / np.where(sizes > 0, sizes, 1.0)
        sizes = np.linalg.norm(rows, axis=axis, keepdims=True)
        rows = rows / np.where(sizes > 0, sizes, 1.0)
    if not rows.any():
        return 0, 0
    sigma = np.linalg.svd(rows, compute_uv=False)
    return int(np.sum(sigma > NONZERO_ABOVE * sigma[0])), int(np.sum(sigma > ZERO_BELOW * sigma[0]))


def _jacobian_rank(network: WeightedNetwork, rng: np.random.Generator) -> int | None:
    """Rank of the Jacobian at the weights, over all inputs.

    float64: None where singular values have no clear gap, or it is not at the exact rank at the
    stored numbers.
    """
    family = network.family
    bound = upper_bound(network.architecture).value
    trials = [
        rank_modulo(network.architecture, bound, rng, given=network.parameters) for _ in range(2)
    ]
    exact = max(trial.rank for trial in trials)
    if network.exact:
        return exact
    outputs = network.architecture.widths[-1]
    points = bound // outputs + 4
    while True:
        if points * family.space.size * max(network.architecture.widths) > MOST_ENTRIES:
            raise InputError(
                f"{network.where or 'the network'} is too large for a dense Jacobian in float64: "
                "give rational weights, which need none"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            jacobian = family.jacobian(network.parameters, family.design(points, rng))
        if not np.isfinite(jacobian).all():
            raise InputError(
                f"{network.where or 'the network'}: derivatives overflow in float64; scale the "
                "weights, or make them rational"
            )
        sure, possible = _ranks(jacobian)
        if sure == possible == exact:
            return exact
        # One more random input that adds nothing: none ever will.
        if points > bound or _rank(jacobian[:-outputs]) == sure:
            return None
        points = min(2 * points, bound + 1)


def _identifiable(
    network: WeightedNetwork,
    neurons: tuple[Neuron, ...],
    dependent: tuple[int, ...],
    doubts: list[str],
) -> tuple[bool | None, str, str]:
    """Answer for these weights, the reason and its source."""
    architecture = network.architecture
    monomial = architecture.kind is ActivationKind.MONOMIAL
    for neuron in neurons:
        place = f"neuron {neuron.index} of layer {neuron.layer} is {neuron.kind}"
        if neuron.kind != "collinear" or monomial:
            return False, place, f"{USEVICH}, Prop. 33" if monomial else f"{KOHN}, subnetworks"
    if dependent:
        reason = f"the features of layer {dependent[0]} are linearly dependent"
        return False, reason, f"{USEVICH}, Prop. 33" if monomial else "elementary"
    every, finite = (answers(architecture)[notion] for notion in (Notion.EVERY, Notion.FINITE))
    if finite.answer is False:
        # Fibers of a polynomial map have nowhere less than their generic dimension.
        why = "; ".join(text for text, _ in finite.hypotheses)
        return (
            False,
            (
                "over the complex numbers every fiber of this architecture is larger than finitely "
                f"many orbits of permutations and rescalings: {why}"
            ),
            f"fiber dimension theorem; {finite.source}",
        )
    if doubts:
        return None, "", ""
    if every.answer:
        return True, f"no superfluous neuron, and {every.by}", every.source
    if monomial and not architecture.bias and architecture.layers == 2:
        degree, hidden = architecture.degrees[0], architecture.widths[1]
        first = kruskal_rank(network.parameters["W1"], network.exact)
        second = kruskal_rank(network.parameters["W2"].T, network.exact)
        if first >= 2 and second >= 1 and degree * (first - 1) >= 2 * hidden - second:
            reason = (
                f"{degree} >= (2 * {hidden} - {second}) / ({first} - 1) with the Kruskal ranks of "
                "the rows and of the outgoing columns"
            )
            return True, reason, f"{USEVICH}, Prop. 35"
    return None, "no theorem covers these weights", ""


def kruskal_rank(rows: NDArray[Any], exact: bool) -> int:
    """Largest ``k`` such that every ``k`` rows are independent (a lower bound for many rows)."""
    count = len(rows)
    for size in range(1, min(rows.shape) + 1):
        subsets = list(_first(combinations(range(count), size)))
        if len(subsets) > MOST_SUBSETS:
            return size - 1
        for chosen in subsets:
            part = rows[list(chosen)]
            independent = _exact_rank(part) if exact else _rank(part)
            if independent < size:
                return size - 1
    return min(rows.shape)


def _first(subsets: Any) -> Any:
    for number, subset in enumerate(subsets):
        if number > MOST_SUBSETS:
            return
        yield subset


def _exact_rank(rows: NDArray[Any]) -> int:
    """Rank of a few rational rows, by elimination."""
    work = RATIONALS.array(rows).copy()
    rank = 0
    for column in range(work.shape[1]):
        pivot = next((row for row in range(rank, len(work)) if work[row, column] != 0), None)
        if pivot is None:
            continue
        work[[rank, pivot]] = work[[pivot, rank]]
        for row in range(rank + 1, len(work)):
            if work[row, column] != 0:
                work[row] = work[row] - work[row, column] / work[rank, column] * work[rank]
        rank += 1
    return rank
