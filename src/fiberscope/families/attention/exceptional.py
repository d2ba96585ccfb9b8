"""Points of attention with a larger fiber than generic ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fiberscope.families.attention.configuration import AttentionConfiguration, QueryKeyNorm

Point = dict[str, NDArray[np.float64]]


def exceptional_points(c: AttentionConfiguration, generic: Point) -> dict[str, Point]:
    """Degenerate versions of a generic point, in the first layer, by a label in words."""

    def copy() -> Point:
        return {name: value.copy() for name, value in generic.items()}

    def of(point: Point, role: str) -> NDArray[np.float64]:
        return point[c.name(0, role)]

    points = {"the first head writes nothing": (silent := copy())}
    of(silent, "output")[0] = 0.0
    points["the first value group is zero"] = (empty := copy())
    of(empty, "value")[0] = 0.0
    if c.norm is QueryKeyNorm.NONE:
        points["the first head's queries are zero"] = (blind := copy())
        of(blind, "query")[0] = 0.0
        points["all parameters are zero"] = {n: np.zeros_like(v) for n, v in generic.items()}
    # A normalised query of rank one keeps only a sign: no point of a smooth family.
    if c.query_width > (1 if c.norm is QueryKeyNorm.NONE else 2):
        points["the first head's queries have one dimension less"] = (flat := copy())
        of(flat, "query")[0, -1] = of(flat, "query")[0, 0]
    if c.heads > 1:
        points["the first two heads score equally"] = (equal := copy())
        query = [r for r in ("query", "query_bias", "query_gain") if r in c.roles]
        key = [r for r in ("key", "key_bias", "key_gain") if r in c.roles]
        for role in query + (key if c.heads_per_group == 1 else []):
            if len(c.shape(role)) > 1 or not role.endswith("_gain"):
                of(equal, role)[1] = of(equal, role)[0]
    return points
