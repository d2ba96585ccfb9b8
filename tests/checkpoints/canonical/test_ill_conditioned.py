"""Ill-conditioned moves and gains of very different sizes: one form, or a place that is listed."""

import numpy as np
import pytest

from fiberscope.checkpoints.architecture.program import Observable
from fiberscope.checkpoints.architecture.registry import architecture
from fiberscope.checkpoints.canonical import canonical_parameters
from fiberscope.checkpoints.canonical.balancing import balance
from fiberscope.checkpoints.canonical.cancelling import CANCELLING
from fiberscope.checkpoints.canonical.workspace import dot_squares
from fiberscope.checkpoints.forward import outputs, probe_inputs
from fiberscope.checkpoints.ledger.wiring import Role, wire
from fiberscope.checkpoints.moves import Catalogue, RandomMove
from fiberscope.checkpoints.writing import FORMATS, rounded
from tests.checkpoints.ledger.toys import CASES, bert, distilbert, gpt2, opt, vit

LIMITS = {"float64": 1e-8, "float32": 1e-3}


def case_name(case):
    config, observable = case
    return f"{config['architectures'][0]}-{observable}"


def drawn(found, wiring, seed, spread=0.0):
    """Ordinary weights; norm gains spread over ``10^-spread`` to ``10^spread``."""
    rng = np.random.default_rng(seed)
    parameters = {
        name: rng.standard_normal(shape) * (0.2 if len(shape) == 1 else shape[-1] ** -0.5)
        for name, shape in found.tensors.items()
    }
    for point in wiring.points:
        if point.norm.gain is not None:
            size = point.norm.gain.shape
            gain = (1 + 0.3 * rng.standard_normal(size)) * 10.0 ** rng.uniform(
                -spread, spread, size
            )
            point.norm.gain.write(parameters, gain)
    for attention in wiring.attentions:
        for norm in (attention.query_norm, attention.key_norm):
            if norm is not None and norm.gain is not None:
                norm.gain.write(parameters, 1 + 0.3 * rng.standard_normal(norm.gain.shape))
    return parameters


def stored(parameters, dtype):
    return {name: rounded(value, FORMATS[dtype]) for name, value in parameters.items()}


def is_finite(parameters):
    return all(np.isfinite(value.astype(np.float64)).all() for value in parameters.values())


def moved(found, observable, parameters, seed, condition):
    move = RandomMove(Catalogue(found, observable), seed, condition=condition)
    read = {name: value.astype(np.float64) for name, value in parameters.items()}
    with np.errstate(all="ignore"):
        return {**read, **dict(move.tensors(lambda name: read[name].copy()))}


def set_up(case, seed=0, spread=0.0):
    config, observable = case
    found, observable = architecture(dict(config)), Observable(observable)
    wiring = wire(found, observable)
    return found, observable, wiring, drawn(found, wiring, seed, spread)


def apart(first, second):
    return max(
        np.abs(first[name] - second[name]).max() / max(np.abs(first[name]).max(), 1e-300)
        for name in first
        if first[name].any() or second[name].any()
    )


def is_settled(found, observable, form, dtype):
    narrow = stored(form, dtype)
    if not is_finite(narrow):
        return True
    _, computed = canonical_parameters(found, narrow, observable)
    return computed.work.moved == set()


@pytest.mark.parametrize("condition", [30.0, 1000.0])
@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_moved_copies_have_one_form_that_is_settled(case, condition):
    found, observable, _, parameters = set_up(case)
    for dtype in FORMATS:
        first = stored(parameters, dtype)
        second = stored(moved(found, observable, first, 3, condition), dtype)
        form, _ = canonical_parameters(found, first, observable)
        other, computed = canonical_parameters(found, second, observable)
        assert is_settled(found, observable, other, dtype), dtype
        if dtype in LIMITS and not computed.places.found:
            assert apart(form, other) < LIMITS[dtype], dtype


@pytest.mark.parametrize("spread", [1.5, 3.0])
@pytest.mark.parametrize("case", CASES, ids=case_name)
def test_gains_of_very_different_sizes(case, spread):
    """Settled in every format, and one form except where a place is listed."""
    found, observable, _, parameters = set_up(case, 1, spread)
    for dtype in FORMATS:
        first = stored(parameters, dtype)
        form, before = canonical_parameters(found, first, observable)
        assert is_settled(found, observable, form, dtype), dtype
        for condition in (1.0, 1000.0):
            second = stored(moved(found, observable, first, 5, condition), dtype)
            if not is_finite(second):
                continue
            other, after = canonical_parameters(found, second, observable)
            assert is_settled(found, observable, other, dtype), (dtype, condition)
            if dtype in LIMITS and not (before.places.found or after.places.found):
                assert apart(form, other) < LIMITS[dtype], (dtype, condition)


@pytest.mark.parametrize(
    "case",
    [
        (bert(cls="BertForMaskedLM"), "logits"),
        (
            bert("roberta", "RobertaForMaskedLM", max_position_embeddings=10, pad_token_id=3),
            "logits",
        ),
        (distilbert("DistilBertForMaskedLM"), "logits"),
    ],
    ids=case_name,
)
@pytest.mark.parametrize("seed", range(3))
def test_a_tied_table_moves_no_further_than_it_must(case, seed):
    """All rows can move along 1/gain together: the form has the shortest mean row of them.

    Its rounding is then a rounding of the table, where the row with ``mean . gain = 0`` multiplies
    the largest gain's by the inverse of the smallest.
    """
    found, observable, wiring, parameters = set_up(case, seed, 3.0)
    form, _ = canonical_parameters(found, stored(parameters, "float32"), observable)
    head, point = wiring.head, wiring.tied_point
    direction = 1.0 / point.norm.gain.read(form)
    table = head.output.read(form)
    mean = table[: found.tensors[head.output.tensor][0]].mean(axis=0)
    unread = [u.view for u in wiring.unread if u.view.tensor == head.output.tensor]
    if not unread and not wiring.output_only:
        along = mean @ direction / np.linalg.norm(direction)
        assert abs(along) < 1e-12 * np.linalg.norm(table)
    assert np.abs(table).max() < 20 * np.abs(parameters[head.output.tensor]).max()
    assert is_settled(found, observable, form, "float32")


@pytest.mark.parametrize("condition", [1.0, 1000.0])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("heads", [2, 4])
def test_constant_values_without_a_bias_have_one_form(heads, seed, condition):
    """OPT without biases: of the constants of all groups one direction cancels in the output."""
    case = (
        opt(
            tie_word_embeddings=False,
            enable_bias=False,
            hidden_size=8,
            word_embed_proj_dim=8,
            num_attention_heads=heads,
        ),
        "logits",
    )
    found, observable, wiring, parameters = set_up(case, seed)
    copy = moved(found, observable, parameters, seed, condition)
    form, _ = canonical_parameters(found, parameters, observable)
    other, computed = canonical_parameters(found, copy, observable)
    assert apart(form, other) < 1e-8
    assert condition > 1 or computed.places.found == []
    # The rule itself: of all constants with this sum the ones that write least in squares.
    attention = wiring.attentions[0]
    norm = wiring.point_of(attention, Role.VALUE).norm
    constant = attention.value.read(form) @ norm.bias.read(form)
    writes = attention.output.read(form)[:, 0]
    writes = writes - writes.mean(axis=-1, keepdims=True)
    blocks = np.concatenate([w.T for w in writes], axis=1)
    kernel = np.linalg.svd(blocks)[2][-1].reshape(constant.shape)
    product = sum((c @ w) @ (k @ w) for c, k, w in zip(constant, kernel, writes, strict=True))
    size = sum(np.sum((c @ w) ** 2) for c, w in zip(constant, writes, strict=True))
    assert abs(product) < 1e-9 * max(size, 1e-3)


def test_constants_that_cancel_are_listed():
    """A norm bias of size 1e4 whose constants the biases take back to a part in 1e5."""
    case = (gpt2(tie_word_embeddings=False), "logits")
    found, observable, wiring, parameters = set_up(case, 2)
    first = stored(parameters, "float32")
    _, computed = canonical_parameters(found, first, observable)
    assert computed.places.found == []
    mlp = wiring.mlps[0]
    norm = wiring.point_reading(mlp.up).norm
    shift = 1e4 * np.random.default_rng(0).standard_normal(norm.bias.shape)
    wide = {name: value.astype(np.float64) for name, value in first.items()}
    norm.bias.write(wide, norm.bias.read(wide) + shift)
    mlp.up_bias.write(wide, mlp.up_bias.read(wide) - mlp.up.read(wide) @ shift)
    forms = []
    for seed in range(2):
        rng = np.random.default_rng(seed)
        # Two files that both round the same numbers.
        copy = {n: v * (1 + 2.0**-25 * rng.uniform(-1, 1, v.shape)) for n, v in wide.items()}
        form, computed = canonical_parameters(found, stored(copy, "float32"), observable)
        forms.append(mlp.up_bias.read(form))
        listed = [p for p in computed.places.found if p.mechanism == CANCELLING]
        assert [place.where for place in listed] == ["layer 0 MLP up"]
        assert listed[0].count > 0
    assert np.abs(forms[0] - forms[1]).max() > 1e-4 * np.abs(forms[0]).max()


@pytest.mark.parametrize("condition", [1.0, 1e2, 1e4])
@pytest.mark.parametrize("seed", range(5))
def test_the_rounding_of_balanced_factors_is_estimated(condition, seed):
    """Against the spread of the form over roundings of the same factors, drawn here."""
    rng = np.random.default_rng(seed)
    first, second = rng.standard_normal((1, 6, 20)), rng.standard_normal((1, 6, 30))
    left = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    right = np.linalg.qr(rng.standard_normal((6, 6)))[0]
    basis = (left * np.geomspace(1, condition, 6)) @ right
    first, second = basis @ first, np.linalg.inv(basis).T @ second
    spacing = 2.0**-23
    exact = balance(first, second, spacing)
    worst = []
    for _ in range(8):
        near = [x * (1 + spacing * rng.uniform(-0.5, 0.5, x.shape)) for x in (first, second)]
        found = balance(*near, spacing)
        for one, other in ((exact.first, found.first), (exact.second, found.second)):
            rows = np.linalg.norm(one[0], axis=1).max()
            worst.append(np.linalg.norm(one[0] - other[0], axis=1).max() / rows)
    estimate = float(exact.uncertain[0])
    assert (
        np.sqrt(np.mean(np.square(worst))) / 3 < estimate < 30 * np.sqrt(np.mean(np.square(worst)))
    )


@pytest.mark.parametrize("shape", [(5,), (4, 7), (300, 400), (3, 2, 50, 300)])
def test_products_of_squares(shape):
    rng = np.random.default_rng(0)
    array, weights = rng.standard_normal(shape), rng.standard_normal(shape[-1])
    transposed = np.moveaxis(np.ascontiguousarray(np.moveaxis(array, -1, 0)), 0, -1)
    for layout in (array, np.asfortranarray(array), transposed):
        expected = np.einsum("...i,...i,i->...", array, array, weights)
        np.testing.assert_allclose(dot_squares(layout, weights), expected, atol=1e-11)


@pytest.mark.parametrize("seed", range(2))
def test_the_function_stays_when_gains_are_spread(seed):
    case = (vit("ViTForImageClassification", num_hidden_layers=2, num_labels=6), "logits")
    found, observable, _, parameters = set_up(case, seed, 3.0)
    form, _ = canonical_parameters(found, parameters, observable)
    probe = probe_inputs(found, 0, 2, 4)
    before, after = (
        outputs(found, lambda view, p=p: view.read(p), probe, observable)
        for p in (parameters, form)
    )
    assert np.abs(before - after).max() < 1e-9 * np.abs(before).max()
