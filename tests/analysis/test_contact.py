import pytest

from fiberscope.analysis.contact import Band, bands_from_orders, bands_from_slopes


def test_bands_from_orders() -> None:
    bands = bands_from_orders({5: 1, 0: 2}, [0.01, -0.01, 5.2])
    assert bands == [Band(0, 2, (0.01, -0.01)), Band(5, 1, (5.2,))]
    assert bands_from_orders({1: 3}, []) == [Band(1, 3, ())]
    with pytest.raises(ValueError, match="2 slopes for 3"):
        bands_from_orders({1: 3}, [1.0, 1.0])


def test_bands_from_slopes() -> None:
    bands = bands_from_slopes([0.001, 0.99, 1.02, 5.4])
    assert [(band.order, band.multiplicity) for band in bands] == [(0, 1), (1, 2), (None, 1)]
