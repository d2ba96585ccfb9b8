"""Coordinates of shifts and scalings follow the action, and matching them all leads to the goal."""

import numpy as np
import pytest

pytest.importorskip("torch").set_num_threads(1)
pytest.importorskip("transformers")
pytestmark = pytest.mark.torch

from fiberscope.checkpoints.architecture.program import Observable  # noqa: E402
from fiberscope.checkpoints.architecture.registry import architecture  # noqa: E402
from fiberscope.checkpoints.canonical import (  # noqa: E402
    coordinate,
    has_coordinate,
    in_order,
    neutral,
    step_to,
)
from fiberscope.checkpoints.ledger import ledger  # noqa: E402
from fiberscope.checkpoints.ledger.rules.norms import NORM_GAIN  # noqa: E402
from fiberscope.checkpoints.ledger.wiring import wire  # noqa: E402
from fiberscope.checkpoints.twins import build_twin  # noqa: E402
from fiberscope.symmetry import Kind, Scaling, Translation  # noqa: E402
from tests.checkpoints.ledger.toys import CASES, gpt2  # noqa: E402


def case_name(case):
    config, observable = case
    return f"{config['architectures'][0]}-{observable}"


def set_up(case, seed=0):
    config, observable = case
    found = ledger(architecture(dict(config)), Observable(observable))
    twin = build_twin(config, observable, seed, inputs=6)
    return found, wire(found.architecture, found.observable), twin


@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_coordinates_follow_the_action_and_steps_keep_the_function(case):
    found, wiring, twin = set_up(case)
    rng = np.random.default_rng(3)
    reference = twin.observe(twin.parameters)
    covered = 0
    for item in found.items:
        symmetry = item.build() if item.build is not None else None
        if item.dimension and isinstance(symmetry, Translation | Scaling):
            assert has_coordinate(item), item.mechanism
        if not has_coordinate(item):
            continue
        covered += 1
        element = symmetry.random(rng)
        before = coordinate(item, wiring, twin.parameters)
        moved = symmetry.act(element, twin.parameters)
        after = coordinate(item, wiring, moved)
        expected = before + element if isinstance(symmetry, Translation) else before * element
        np.testing.assert_allclose(after, expected, rtol=1e-10, atol=1e-10)
        back = step_to(item, wiring, moved, before)
        np.testing.assert_allclose(back, symmetry.inverse(element), rtol=1e-9, atol=1e-9)
        if item.kind is Kind.EXACT:
            target = neutral(item, wiring, twin.parameters)
            moved = symmetry.act(step_to(item, wiring, twin.parameters, target), twin.parameters)
            deviation = np.abs(twin.observe(moved) - reference).max()
            assert deviation < 1e-9 * np.abs(reference).max(), item.mechanism
    assert covered


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_matching_all_coordinates_in_order_leads_to_the_other_point(case, seed):
    found, wiring, twin = set_up(case, seed)
    rng = np.random.default_rng(seed)
    items = in_order(item for item in found.items if item.kind is Kind.EXACT)
    goal = dict(twin.parameters)
    for _ in range(2):
        for place in rng.permutation(len(items)):
            symmetry = items[place].build()
            goal = symmetry.act(symmetry.random(rng), goal)
    current = dict(twin.parameters)
    for item in items:
        target = coordinate(item, wiring, goal)
        current = item.build().act(step_to(item, wiring, current, target), current)
    for name, value in goal.items():
        scale = 1 + np.abs(value).max()
        np.testing.assert_allclose(current[name], value, rtol=0, atol=1e-8 * scale, err_msg=name)


def test_a_zero_gain_is_left_alone():
    found, wiring, twin = set_up((gpt2(), "logits"))
    item = next(item for item in found.items if item.mechanism == NORM_GAIN)
    name = item.build().touches[0]
    parameters = {**twin.parameters, name: twin.parameters[name] * [0.0, 1.0, 1.0, 1.0]}
    step = step_to(item, wiring, parameters, np.ones(4))
    assert step[0] == 1.0
    np.testing.assert_allclose(step[1:] * parameters[name][1:], 1.0, rtol=1e-14)
