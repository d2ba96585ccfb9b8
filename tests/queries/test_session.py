import json
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from fiberscope.errors import InputError
from fiberscope.queries.heads import AttentionHeads
from fiberscope.queries.oracle import Arithmetic, FunctionOracle, ball_oracle
from fiberscope.queries.session import Purpose, QueryLimitError, QuerySession
from fiberscope.queries.transcript import Transcript
from fiberscope.queries.weights_oracle import HeadsOracle
from tests.queries.counting import CountingOracle
from tests.queries.functions import WIDTH, Functions


def counting(seed=0):
    return CountingOracle(FunctionOracle(Functions(seed).one_head, WIDTH))


def some(seed, n, length=3):
    return np.random.default_rng(seed).standard_normal((n, length, WIDTH))


def test_answers_counts_and_lengths():
    oracle = counting()
    session = QuerySession(oracle)
    X = some(0, 5)
    values = session.ask(X, Purpose.RECOVERY)
    assert values.tolist() == [Functions(0).one_head(each) for each in X]
    session.ask([X[0], X[1][:1]], Purpose.FINAL_CHECK)
    assert session.counts[Purpose.RECOVERY].queries == 5
    assert session.counts[Purpose.FINAL_CHECK].queries == 1
    assert session.counts[Purpose.RECOVERY].longest == 3
    assert session.counts[Purpose.FINAL_CHECK].longest == 1
    assert session.queries == session.asked == len(oracle.lengths) == 6


def test_nothing_is_asked_twice_but_repetitions():
    oracle = counting()
    session = QuerySession(oracle)
    X = some(1, 2)
    session.ask([X[0], X[0], X[1]], Purpose.RECOVERY)
    session.ask(X, Purpose.RETRIES)
    assert len(oracle.lengths) == 2
    session.ask(X, Purpose.CLASS_TESTS, repetition=1)
    assert len(oracle.lengths) == 4
    assert session.counts[Purpose.RETRIES].queries == 0


def test_negative_zero_is_the_same_query():
    oracle = counting()
    session = QuerySession(oracle)
    session.ask([np.zeros((1, WIDTH)), -np.zeros((1, WIDTH))], Purpose.RECOVERY)
    assert len(oracle.lengths) == 1


def test_budget_stops_before_asking():
    oracle = counting()
    session = QuerySession(oracle, max_queries=6)
    session.ask(some(2, 4), Purpose.RECOVERY)
    with pytest.raises(QueryLimitError, match="--max-queries 6"):
        session.ask(some(3, 3), Purpose.RECOVERY)
    assert len(oracle.lengths) == 4
    session.ask(some(2, 4), Purpose.RECOVERY)


@pytest.mark.parametrize(
    ("arithmetic", "kind"),
    [(Arithmetic.FLOAT32, np.float32), (Arithmetic.BFLOAT16, ml_dtypes.bfloat16)],
)
def test_tokens_sent_are_representable(arithmetic, kind):
    oracle = CountingOracle(FunctionOracle(Functions(0).one_head, WIDTH, arithmetic))
    session = QuerySession(oracle)
    X = some(4, 3)
    session.ask(X, Purpose.RECOVERY)
    sent = np.array(oracle.seen)
    assert np.array_equal(sent, sent.astype(kind).astype(np.float64))
    assert np.array_equal(sent.reshape(X.shape), session.representable(X))
    assert not np.array_equal(sent.reshape(X.shape), X)


def test_wrong_shapes_and_answers_are_refused():
    session = QuerySession(counting())
    with pytest.raises(InputError, match=r"\(tokens, 4\)"):
        session.ask([np.zeros((2, 5))], Purpose.RECOVERY)
    with pytest.raises(InputError, match=r"\(tokens, 4\)"):
        session.ask([np.zeros((0, 4))], Purpose.RECOVERY)
    vector = QuerySession(FunctionOracle(lambda X: X[0], WIDTH))
    with pytest.raises(InputError, match="one number"):
        vector.ask(some(0, 1), Purpose.RECOVERY)
    broken = QuerySession(FunctionOracle(lambda X: 1 / 0, WIDTH))
    with pytest.raises(InputError, match="ZeroDivisionError"):
        broken.ask(some(0, 1), Purpose.RECOVERY)


def test_nonfinite_answers_are_kept_and_counted():
    session = QuerySession(FunctionOracle(lambda X: float("nan") if X[0, 0] > 0 else 1.0, WIDTH))
    X = np.ones((2, 1, WIDTH)) * np.array([1.0, -1.0])[:, None, None]
    values = session.ask(X, Purpose.RECOVERY)
    assert np.isnan(values[0]) and values[1] == 1.0
    assert session.nonfinite == 1


def test_transcript_resumes_and_replays(tmp_path):
    path = tmp_path / "queries.jsonl"
    X, Y = some(5, 6), some(6, 4)
    first = counting()
    with Transcript(path) as record:
        session = QuerySession(first, transcript=record)
        values = session.ask(X, Purpose.RECOVERY)
        repeated = session.ask(X[:1], Purpose.CLASS_TESTS, repetition=1)
    second = counting()
    with Transcript(path) as record:
        session = QuerySession(second, transcript=record)
        again = session.ask(X, Purpose.RECOVERY)
        assert np.array_equal(session.ask(X[:1], Purpose.CLASS_TESTS, repetition=1), repeated)
        assert not second.lengths
        assert session.replayed == session.queries == 7
        session.ask(Y, Purpose.FINAL_CHECK)
    assert np.array_equal(values, again)
    assert len(second.lengths) == 4
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert lines[0]["schema"] == "fiberscope/transcript/1"
    assert len(lines) == 1 + 7 + 4
    tokens = np.array([[float.fromhex(x) for x in row] for row in lines[1]["tokens"]])
    assert np.array_equal(tokens, X[0])
    assert float.fromhex(lines[1]["answer"]) == values[0]
    assert {line["purpose"] for line in lines[1:]} == {"recovery", "class_tests", "final_check"}


def test_interruption_keeps_what_was_answered(tmp_path):
    path = tmp_path / "queries.jsonl"
    calls = []

    def dies(X):
        calls.append(1)
        if len(calls) == 8:
            raise KeyboardInterrupt
        return float(X.sum())

    X = some(7, 12)
    oracle = FunctionOracle(dies, WIDTH, identity="sums")
    with Transcript(path) as record:
        session = QuerySession(oracle, transcript=record, batch=3)
        with pytest.raises(KeyboardInterrupt):
            session.ask(X, Purpose.RECOVERY)
    with path.open("a") as stream:
        stream.write('{"purpose": "recov')  # half a line, as a crash leaves it
    oracle = CountingOracle(FunctionOracle(lambda X: float(X.sum()), WIDTH, identity="sums"))
    with Transcript(path) as record:
        values = QuerySession(oracle, transcript=record).ask(X, Purpose.RECOVERY)
    assert len(oracle.lengths) == 12 - 7
    assert np.array_equal(values, [each.sum() for each in X])
    assert len(path.read_text().splitlines()) == 13


def test_a_function_that_raises_loses_none_of_its_answers(tmp_path):
    asked = []

    def breaks(X):
        asked.append(X.tobytes())
        if len(asked) == 100:
            raise KeyboardInterrupt
        return float(X.sum())

    queries = np.random.default_rng(0).standard_normal((200, 3, 2))
    for _ in range(2):
        with Transcript(tmp_path / "kept.jsonl") as record:
            session = QuerySession(FunctionOracle(breaks, 2), transcript=record)
            try:
                answers = session.ask(queries, Purpose.RECOVERY)
            except KeyboardInterrupt:
                continue
    assert np.allclose(answers, queries.sum(axis=(1, 2)))
    # Once each, and the one that was never answered again.
    assert len(asked) == 201 and len(set(asked)) == 200


def test_transcript_of_another_oracle_is_refused(tmp_path):
    path = tmp_path / "queries.jsonl"
    with Transcript(path) as record:
        QuerySession(counting(), transcript=record).ask(some(0, 1), Purpose.RECOVERY)
    other = FunctionOracle(lambda X: 0.0, WIDTH, identity="other")
    with Transcript(path) as record, pytest.raises(InputError, match="another oracle"):
        QuerySession(other, transcript=record)
    path.write_text("hello\n")
    with Transcript(path) as record, pytest.raises(InputError, match="no transcript"):
        QuerySession(other, transcript=record)


def test_workers_keep_order(tmp_path):
    oracle = counting()
    X = some(8, 40)
    with Transcript(tmp_path / "t.jsonl") as record:
        session = QuerySession(oracle, transcript=record, batch=3, workers=4)
        values = session.ask(X, Purpose.RECOVERY)
    assert values.tolist() == [Functions(0).one_head(each) for each in X]
    assert len(oracle.lengths) == 40


def test_failure_in_a_worker_is_raised_once_all_are_back():
    def function(X):
        if X[0, 0] > 1.5:
            raise ValueError("no")
        return 0.0

    session = QuerySession(FunctionOracle(function, WIDTH), batch=2, workers=3)
    with pytest.raises(InputError, match="ValueError"):
        session.ask(some(9, 40), Purpose.RECOVERY)


def test_balls_are_stored_exactly_and_refined(tmp_path):
    flint = pytest.importorskip("flint")
    asked = []

    @ball_oracle
    def third(X, bits):
        assert all(type(x) is Fraction for x in X.reshape(-1))
        asked.append(bits)
        return flint.arb(sum(X.reshape(-1).tolist()).numerator) / 3

    def session(record):
        return QuerySession(FunctionOracle(third, 1), transcript=record)

    path = tmp_path / "balls.jsonl"
    X = np.array([[[1]], [[Fraction(7)]]], dtype=object)
    with Transcript(path) as record:
        before = session(record).ask(X, Purpose.RECOVERY, bits=100)
    with Transcript(path) as record:
        later = session(record)
        again = later.ask(X, Purpose.RECOVERY, bits=60)
        assert len(asked) == 2
        later.ask(X[:1], Purpose.RECOVERY, bits=200)
        assert asked[2:] == [200]
        assert (later.queries, later.asked, later.refined) == (2, 1, 1)
    for old, new in zip(before, again, strict=True):
        assert old.mid() == new.mid() and old.rad() == new.rad()


def test_ball_oracle_may_not_return_floats():
    pytest.importorskip("flint")
    session = QuerySession(FunctionOracle(ball_oracle(lambda X, bits: 0.5), 1))
    with pytest.raises(InputError, match=r"return a flint\.arb"):
        session.ask([np.array([[1]])], Purpose.RECOVERY)


@pytest.mark.parametrize("arithmetic", [Arithmetic.FLOAT32, Arithmetic.FLOAT64])
def test_batched_weights_oracle_answers_like_one_by_one(arithmetic):
    rng = np.random.default_rng(3)
    heads = AttentionHeads(rng.standard_normal((2, 3, 3)), rng.standard_normal((2, 3)))
    oracle = HeadsOracle(heads, arithmetic)
    X = rng.standard_normal((5, 4, 3)).astype(np.float32).astype(np.float64)
    mixed = [X[0], X[1][:2], X[2]]
    assert np.allclose(
        oracle.answer(mixed), [oracle.answer(each[None])[0] for each in mixed], rtol=1e-6
    )
    assert np.allclose(oracle.answer(X), heads.evaluate_many(list(X)), rtol=1e-5)
