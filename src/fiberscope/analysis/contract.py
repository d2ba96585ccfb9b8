"""Whether a family keeps the contract; public, to test families of one's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.analysis.deviation import Point, Worst, distance, relative_deviation
from fiberscope.analysis.dimension import dimension
from fiberscope.analysis.report import Check, CheckOutcome, ContractError, ContractReport
from fiberscope.analysis.symmetries import symmetry_rank
from fiberscope.family import Design, Family, HasCanonicalForm, HasComparison
from fiberscope.numbers import FLOAT64, NumberSystem, UnsupportedError
from fiberscope.symmetry import Kind, Symmetry
from fiberscope.verdict import Outcome

EXACT_TOLERANCE = 1e-10
"""Relative deviation allowed where exact arithmetic would give zero (float64)."""

DIFFERENCE_TOLERANCE = 1e-6
"""Relative deviation allowed between a derivative and a central difference."""

_STEP = 1e-5
_MOST_GENERATORS = 48


def check_family(
    family: Family,
    seed: int = 0,
    *,
    systems: Sequence[NumberSystem] = (),
    throw: bool = True,
) -> ContractReport:
    """Check a family against the contract, at a generic point and at its exceptional points.

    1. Every symmetry element preserves the observation; its group laws hold (identity, inverse,
       composition) and it moves only what it says it touches.
    2. Its tangent directions are the derivative of its action and lie in the Jacobian's kernel.
       The Jacobian itself agrees with central differences and with dual numbers.
    3. At the generic point, nullity minus rank of the union of the tangents is stated as
       `unexplained`; it must not be negative, and must be zero where the family claims to be
       complete. The family's sufficient design size must saturate the rank.
    4. ``canonical`` is idempotent, constant on orbits, and stays in the fiber.
    5. ``compare`` says SAME with a witness that reproduces the moved point, and DIFFERENT for
       another generic point.
    6. Parameters to vector to parameters is the identity.

    And every other number system the family declares agrees with float64. What a family does not
    offer is reported as `not provided`, never as passed.

    Parameters
    ----------
    family
        The family to check; its size should be small (the Jacobian is dense).
    seed
        Seeds every random draw.
    systems
        Number systems to evaluate in, for the declared ones other than float64.
    throw
        Raise on failure; with False the report is returned whatever it says.

    Raises
    ------
    ContractError
        If a check fails, with every failed check and its numbers.
    """
    run = _Run(family, seed)
    run.parameters()
    run.observation()
    run.symmetries()
    run.fiber()
    run.canonical()
    run.comparison()
    run.number_systems(systems)
    report = run.report()
    if throw and report.failed:
        raise ContractError(report)
    return report


@dataclass
class _Run:
    """One pass over a family; collects the checks."""

    family: Family
    seed: int
    checks: list[Check] = field(default_factory=list)
    dimension: int = 0
    nullity: int = 0
    unexplained: int = 0

    def __post_init__(self) -> None:
        family = self.family
        self.rng = np.random.default_rng([self.seed, 2])
        self.generic = family.generic(np.random.default_rng([self.seed, 0]))
        self.points: dict[str, Point] = {"generic": self.generic}
        self.points.update(family.exceptional(np.random.default_rng([self.seed, 3])))
        self.design: Design = family.design(
            family.sufficient_size, np.random.default_rng([self.seed, 1])
        )
        self.acting: Sequence[Symmetry] = family.symmetries(self.design)
        self.scale = float(np.abs(self.observed(self.generic)).max(initial=0.0))

    def observed(self, point: Point) -> NDArray[np.float64]:
        return np.asarray(self.family.observe(point, self.design))

    def record(self, name: str, passed: bool, claim: str, **statistics: Any) -> None:
        outcome = CheckOutcome.PASSED if passed else CheckOutcome.FAILED
        self.checks.append(Check(name, outcome, claim, statistics))

    def bound(self, name: str, worst: Worst, claim: str, limit: float = EXACT_TOLERANCE) -> None:
        self.record(
            name, worst.value <= limit, claim, deviation=worst.value, at=worst.where, limit=limit
        )

    def missing(self, name: str, claim: str) -> None:
        self.checks.append(Check(name, CheckOutcome.NOT_PROVIDED, claim))

    def report(self) -> ContractReport:
        return ContractReport(
            self.family.name,
            self.seed,
            tuple(self.checks),
            self.dimension,
            self.nullity,
            self.unexplained,
        )

    def parameters(self) -> None:
        """Point 6, and that draws are seeded."""
        space = self.family.space
        exact = True
        for point in self.points.values():
            space.check(point)
            again = space.parameters(space.vector(point))
            exact &= all(np.array_equal(again[name], point[name]) for name in space.shapes)
        self.record(
            "parameters", exact, "arrays to vector to arrays is the identity", size=space.size
        )
        again = self.family.generic(np.random.default_rng([self.seed, 0]))
        repeats = all(np.array_equal(again[name], self.generic[name]) for name in space.shapes)
        self.record("seeds", repeats, "the same seed draws the same generic point")

    def observation(self) -> None:
        """Shape of the observation and its derivative."""
        observed = self.observed(self.generic)
        sound = observed.ndim == 1 and observed.dtype == np.float64
        self.record(
            "observation",
            sound and bool(np.isfinite(observed).all()),
            "a finite flat float64 array",
            shape=observed.shape,
            dtype=str(observed.dtype),
        )
        space = self.family.space
        differences = Worst()
        for label, point in self.points.items():
            direction = self.rng.standard_normal(space.size)
            vector = space.vector(point)
            # Five points: where the observation bends sharply, three are not accurate enough.
            far, near = (
                self.observed(space.parameters(vector + steps * _STEP * direction))
                - self.observed(space.parameters(vector - steps * _STEP * direction))
                for steps in (2, 1)
            )
            derivative = self.family.jacobian(point, self.design) @ direction
            difference = (8 * near - far) / (12 * _STEP)
            differences.see(relative_deviation(derivative, difference, 1e-3), label)
        self.bound(
            "jacobian against differences",
            differences,
            "the Jacobian is the derivative of the observation",
            DIFFERENCE_TOLERANCE,
        )
        if type(self.family).jacobian is Family.jacobian:
            return
        duals = Worst()
        for label, point in self.points.items():
            own = self.family.jacobian(point, self.design)
            duals.see(
                relative_deviation(own, Family.jacobian(self.family, point, self.design)), label
            )
        self.bound(
            "jacobian against duals", duals, "the closed-form Jacobian agrees with dual numbers"
        )

    def symmetries(self) -> None:
        """Points 1 and 2, for every symmetry."""
        names = [symmetry.name for symmetry in self.acting]
        self.record(
            "symmetry names", len(set(names)) == len(names), "every symmetry has a name of its own"
        )
        kernels = {
            label: symmetry_rank(
                self.acting,
                point,
                self.family.space,
                self.family.jacobian(point, self.design),
            )
            for label, point in self.points.items()
        }
        for position, symmetry in enumerate(self.acting):
            exact = symmetry.kind is not Kind.APPROXIMATE
            self._group_laws(symmetry)
            self._invariance(symmetry, exact)
            self._derivative(symmetry)
            if not exact:
                continue
            kernel = Worst()
            for label, union in kernels.items():
                kernel.see(union.shares[position].residual or 0.0, label)
            self.bound(
                f"{symmetry.name}: kernel",
                kernel,
                "tangent directions lie in the Jacobian's kernel",
            )

    def _group_laws(self, symmetry: Symmetry) -> None:
        laws, outside = Worst(), True
        for label, point in self.points.items():
            before = {name: np.array(value) for name, value in point.items()}
            first, second = symmetry.random(self.rng), symmetry.random(self.rng)
            moved = symmetry.act(first, point)
            outside &= all(np.array_equal(before[name], point[name]) for name in point)
            outside &= all(
                np.array_equal(moved[name], point[name])
                for name in point
                if name not in symmetry.touches
            )
            laws.see(distance(symmetry.act(symmetry.identity(), point), point), f"1, {label}")
            back = symmetry.act(symmetry.inverse(first), moved)
            laws.see(distance(back, point), f"inverse, {label}")
            composed = symmetry.act(symmetry.compose(first, second), point)
            laws.see(distance(composed, symmetry.act(second, moved)), f"composition, {label}")
        self.bound(
            f"{symmetry.name}: group laws", laws, "identity, inverse and composition act as such"
        )
        self.record(
            f"{symmetry.name}: touches",
            outside,
            "acting changes only the stated parameters, on a copy",
            touches=symmetry.touches,
        )

    def _invariance(self, symmetry: Symmetry, exact: bool) -> None:
        worst = Worst()
        for label, point in self.points.items():
            observed = self.observed(point)
            for _ in range(2):
                moved = symmetry.act(symmetry.random(self.rng), point)
                worst.see(relative_deviation(self.observed(moved), observed, self.scale), label)
        name = f"{symmetry.name}: invariance"
        if exact:
            self.bound(name, worst, "random elements preserve the observation")
            return
        self.record(
            name,
            bool(symmetry.broken_by),
            "an approximate symmetry states what breaks it",
            broken_by=symmetry.broken_by,
            deviation=worst.value,
        )

    def _derivative(self, symmetry: Symmetry) -> None:
        if not symmetry.generators:
            return
        space, worst = self.family.space, Worst()
        chosen = self.rng.permutation(symmetry.generators)[:_MOST_GENERATORS]
        for label, point in self.points.items():
            tangents = symmetry.tangents(point, space)
            if tangents.shape != (symmetry.generators, space.size):
                worst.see(float("inf"), f"shape {tangents.shape}")
                continue
            for generator in chosen:
                ahead, behind = (
                    space.vector(symmetry.act(symmetry.along(int(generator), step), point)).real
                    for step in (_STEP, -_STEP)
                )
                difference = (ahead - behind) / (2 * _STEP)
                worst.see(relative_deviation(tangents[generator], difference, 1e-3), label)
        self.bound(
            f"{symmetry.name}: tangents",
            worst,
            "tangents are the derivative of the action",
            DIFFERENCE_TOLERANCE,
        )

    def fiber(self) -> None:
        """Point 3: what the symmetries leave of the nullity."""
        family = self.family
        found = dimension(family, self.generic, self.seed)
        ranks = dict(found.saturation)
        self.record(
            "sufficient design",
            found.saturated and ranks[family.sufficient_size] == found.value,
            "twice the sufficient design size adds nothing to the rank",
            ranks=found.saturation,
        )
        self.record(
            "spectrum",
            found.decided,
            "a clear gap separates the rank from rounding",
            gap=found.gap,
            smallest=float(found.spectrum[found.value - 1]) if found.value else 0.0,
        )
        union = symmetry_rank(self.acting, self.generic, family.space)
        self.dimension, self.nullity = found.value, found.nullity
        self.unexplained = found.nullity - union.value
        passed = self.unexplained == 0 if family.complete else self.unexplained >= 0
        claim = (
            "the symmetries are the whole fiber, as the family claims"
            if family.complete
            else "the symmetries are part of the fiber (completeness is not claimed)"
        )
        self.record(
            "unexplained nullity",
            passed and union.verdict.decided,
            claim,
            nullity=found.nullity,
            symmetries=union.value,
            unexplained=self.unexplained,
            gap=union.verdict.gap,
        )

    def canonical(self) -> None:
        """Point 4."""
        family = self.family
        if not isinstance(family, HasCanonicalForm):
            self.missing("canonical form", "idempotent, constant on orbits, in the fiber")
            return
        idempotent, constant, inside = Worst(), Worst(), Worst()
        form = family.canonical(self.generic, self.design)
        idempotent.see(distance(family.canonical(form, self.design), form), "generic")
        inside.see(
            relative_deviation(self.observed(form), self.observed(self.generic), self.scale),
            "generic",
        )
        for symmetry in self._exact():
            moved = symmetry.act(symmetry.random(self.rng), self.generic)
            constant.see(distance(family.canonical(moved, self.design), form), symmetry.name)
        self.bound("canonical form: idempotent", idempotent, "applying it twice is once")
        self.bound("canonical form: constant", constant, "moved points have the same form")
        self.bound("canonical form: in the fiber", inside, "it preserves the observation")

    def comparison(self) -> None:
        """Point 5."""
        family = self.family
        if not isinstance(family, HasComparison):
            self.missing("comparison", "SAME with a witness, DIFFERENT for another point")
            return
        same, wrong = Worst(), []
        for symmetry in self._exact():
            moved = symmetry.act(symmetry.random(self.rng), self.generic)
            answer = family.compare(self.generic, moved, self.design)
            if answer.outcome is not Outcome.SAME:
                wrong.append(f"{symmetry.name}: {answer.outcome.name}")
                continue
            same.see(distance(answer.carry(self.generic), moved), symmetry.name)
        self.record("comparison: same", not wrong, "moved points are SAME", wrong=wrong)
        self.bound("comparison: witness", same, "the witness reproduces the moved point")
        other = family.generic(np.random.default_rng([self.seed, 4]))
        answer = family.compare(self.generic, other, self.design)
        self.record(
            "comparison: different",
            answer.outcome is Outcome.DIFFERENT,
            "another generic point is DIFFERENT",
            outcome=answer.outcome.name,
        )

    def _exact(self) -> list[Symmetry]:
        return [s for s in self.acting if s.kind is not Kind.APPROXIMATE]

    def number_systems(self, systems: Sequence[NumberSystem]) -> None:
        """Declared number systems agree with float64."""
        family = self.family
        self.record(
            "number systems",
            FLOAT64.name in family.number_systems,
            "float64 is declared",
            declared=sorted(family.number_systems),
        )
        given = {system.name: system for system in systems}
        for name in sorted(family.number_systems - {FLOAT64.name}):
            claim = "the observation agrees with float64"
            if name not in given:
                self.missing(f"number system {name}", f"{claim}; pass it in `systems`")
                continue
            system = given[name]
            point = {key: system.array(value) for key, value in self.generic.items()}
            try:
                observed = family.observe(point, self.design, system)
            except UnsupportedError as error:
                self.record(f"number system {name}", False, claim, error=str(error))
                continue
            try:
                values = system.to_float64(observed)
            except UnsupportedError as error:
                self.missing(f"number system {name}", f"{claim}; {error}")
                continue
            worst = Worst()
            worst.see(
                relative_deviation(values, self.observed(self.generic), self.scale), "generic"
            )
            self.bound(f"number system {name}", worst, claim)
