import pytest

from tests.checkpoints.ledger.routes import assert_routes_agree
from tests.checkpoints.ledger.toys import CASES

pytest.importorskip("torch")
pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("config", "observable"),
    CASES,
    ids=lambda value: value if isinstance(value, str) else value["architectures"][0],
)
def test_union_of_symmetries_effective_coordinates_and_twin_agree(config, observable):
    assert_routes_agree(config, observable)
