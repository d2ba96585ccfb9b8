"""Every combination of options either changes what happens or is refused in one sentence."""

import functools
import itertools

import numpy as np
import pytest

from fiberscope.errors import InputError
from fiberscope.queries.heads import AttentionHeads
from fiberscope.queries.options import refuse_idle_options
from fiberscope.queries.oracle import Arithmetic
from fiberscope.queries.recover import Request, recover_attention, recover_attention_and_relu
from fiberscope.queries.result import NotOfThisFormError, NotRecoveredError
from fiberscope.queries.session import QuerySession
from fiberscope.queries.weights_oracle import HeadsOracle

WIDTH = 3
CHOICES = {
    "heads": (1, 2),
    "heads_at_most": (1, 2),
    "rank": (1, WIDTH),
    "noise": (1e-6,),
    "token_bound": (3.0,),
    "full": (False,),
    "shorter": (True,),
    "relu": (True,),
}
"""Values of each option, besides leaving it out."""
KINDS = (Arithmetic.FLOAT64, Arithmetic.FLOAT32, Arithmetic.BALLS)


def combinations():
    for values in itertools.product(*((None, *given) for given in CHOICES.values())):
        yield {k: v for k, v in zip(CHOICES, values, strict=True) if v is not None}


def accepted(options, arithmetic, width=WIDTH):
    """Whether a combination is refused before anything is asked; the refusal is one sentence."""
    try:
        rest = {k: v for k, v in options.items() if k != "relu"}
        refuse_idle_options(Request(**rest), arithmetic, width, "relu" in options)
    except InputError as error:
        said = str(error)
        assert "\n" not in said and not said.endswith(".") and said.startswith(("--", "give --"))
        return False
    return True


@functools.cache
def outcome(options, arithmetic, heads):
    """All that a run shows: queries, how it ended, what came back."""
    if arithmetic is Arithmetic.BALLS:
        pytest.importorskip("flint")
    rng = np.random.default_rng(heads)
    W, v = rng.standard_normal((heads, WIDTH, WIDTH)), rng.standard_normal((heads, WIDTH))
    W[:, 2] = W[:, 0]  # rank two: a stated rank of one is wrong
    session = QuerySession(HeadsOracle(AttentionHeads(W, v), arithmetic))
    asked = []
    ask = session.oracle.answer
    session.oracle.answer = lambda sequences, bits=128: (
        asked.extend(str(np.asarray(each).tolist()) for each in sequences),
        ask(sequences, bits),
    )[1]
    options = dict(options)
    relu = options.pop("relu", False)
    try:
        found = (recover_attention_and_relu if relu else recover_attention)(
            session, Request(**options), 1
        )
    except (NotOfThisFormError, NotRecoveredError) as error:
        return frozenset(asked), type(error).__name__, str(error)
    shown = found[0].to_dict() if relu else found.to_dict()
    return frozenset(asked), "recovered", str(shown)


@pytest.mark.parametrize("arithmetic", KINDS)
def test_every_option_of_an_accepted_request_changes_something(arithmetic):
    given = 0
    for options in combinations():
        if not accepted(options, arithmetic):
            continue
        given += 1
        for name in options:
            if name in ("heads", "heads_at_most") and {"rank", "noise"} & options.keys():
                continue  # one head said twice: they promise it as well
            # A tight bound ends the run before the others matter; a wide one lets them.
            wide = (
                {"token_bound": 1e3} if "token_bound" in options and name != "token_bound" else {}
            )
            whole = options | wide
            rest = {k: v for k, v in whole.items() if k != name}
            if not accepted(rest, arithmetic):
                continue  # it makes the others possible
            changed = any(
                outcome(tuple(whole.items()), arithmetic, heads)
                != outcome(tuple(rest.items()), arithmetic, heads)
                for heads in (3, 1)
            )
            assert changed, (name, options)
    assert given > 10


@pytest.mark.parametrize(
    ("options", "kinds", "refused"),
    [
        ({}, KINDS, False),
        ({"heads": 1}, KINDS, False),
        ({"heads_at_most": 2}, KINDS, False),
        ({"rank": 2}, KINDS, False),
        ({"rank": 1, "heads_at_most": 1}, KINDS, False),
        ({"rank": WIDTH}, KINDS, True),
        ({"rank": 1, "heads": 2}, KINDS[:2], False),
        ({"rank": 1, "heads": 2}, KINDS[2:], True),
        ({"rank": 1, "heads_at_most": 2, "full": False}, KINDS, True),
        ({"heads": 1, "heads_at_most": 1}, KINDS, True),
        ({"noise": 0.1}, KINDS[:2], False),
        ({"noise": 0.1}, KINDS[2:], True),
        ({"noise": 0.1, "heads": 2}, KINDS, True),
        ({"noise": 0.1, "rank": 1}, KINDS, True),
        ({"full": False}, KINDS[:2], False),
        ({"full": False}, KINDS[2:], True),
        ({"full": False, "heads": 1}, KINDS, True),
        ({"full": False, "noise": 0.1}, KINDS, True),
        ({"shorter": True}, KINDS[2:], False),
        ({"shorter": True}, KINDS[:2], True),
        ({"shorter": True, "heads": 1}, KINDS, True),
        ({"shorter": True, "rank": 1}, KINDS, True),
        ({"relu": True}, KINDS[:2], False),
        ({"relu": True, "heads": 2, "token_bound": 9.0}, KINDS[:2], False),
        ({"relu": True}, KINDS[2:], True),
        ({"relu": True, "rank": 1}, KINDS, True),
        ({"relu": True, "noise": 0.1}, KINDS, True),
        ({"relu": True, "shorter": True}, KINDS, True),
        ({"relu": True, "full": False}, KINDS, True),
    ],
)
def test_table_of_combinations(options, kinds, refused):
    for arithmetic in kinds:
        assert accepted(options, arithmetic) is not refused


@pytest.mark.parametrize(
    ("options", "kinds", "refused"),
    [
        ({"heads": 2}, KINDS, False),
        ({"heads": 2, "shorter": True}, KINDS[2:], True),
        ({"heads_at_most": 3, "shorter": True}, KINDS[2:], True),
        ({"heads": 2, "full": False}, KINDS[:2], True),
        ({"full": False}, KINDS[:2], True),
        ({"rank": 1}, KINDS, True),
    ],
)
def test_table_of_combinations_at_width_one(options, kinds, refused):
    for arithmetic in kinds:
        assert accepted(options, arithmetic, width=1) is not refused


def test_token_bounds_that_no_token_can_keep_are_refused():
    for bound in (1e-320, 1e-300, 1e-200):
        for arithmetic in KINDS:
            assert not accepted({"token_bound": bound}, arithmetic)
    for arithmetic in KINDS:
        assert accepted({"token_bound": 1e-3}, arithmetic)


def test_a_hopeless_number_of_heads_is_refused_at_once():
    pytest.importorskip("flint")
    heads = AttentionHeads(np.ones((1, 2, 2)), np.ones((1, 2)))
    session = QuerySession(HeadsOracle(heads, Arithmetic.BALLS))
    for request in (Request(heads_at_most=10**6), Request(heads=10**6), Request(heads_at_most=60)):
        with pytest.raises(InputError, match="hours of ball arithmetic"):
            recover_attention(session, request)
    assert session.queries == 0
    assert accepted({"heads": 16}, Arithmetic.BALLS, width=32)
