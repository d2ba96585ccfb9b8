"""A classifier with one label: its probability is constant, its logit is not."""

import pytest

from fiberscope.checkpoints.architecture.program import Observable
from fiberscope.checkpoints.architecture.registry import architecture
from fiberscope.checkpoints.ledger import ledger
from fiberscope.errors import InputError
from tests.checkpoints.architecture import toy_configurations as toys


def classifier(labels):
    config = {**toys.BERT, "architectures": ["BertForSequenceClassification"]}
    return architecture({**config, "num_labels": labels})


def test_the_probability_of_the_only_label_is_refused():
    with pytest.raises(InputError, match=r"one label.*use --observable logits") as caught:
        ledger(classifier(1), Observable.PROBABILITIES)
    assert "\n" not in str(caught.value)


def test_its_logit_and_two_probabilities_are_observed():
    assert ledger(classifier(1), Observable.LOGITS).is_exact
    assert ledger(classifier(2), Observable.PROBABILITIES).is_exact
