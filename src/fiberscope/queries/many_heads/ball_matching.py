"""Which head of one probe is which head of another: enclosures that meet in exactly one way.

Scores are linear in the direction and in the last token, heights are linear in the direction and
do not depend on the last token. So for the right pairing, and generically for no other,

    log a_h(y, z + z') = log a_h(y, z) + log a_h(y, z'),    r_h(z + z') = r_h(z) + r_h(z'),
    log a_h(y + y', z) = log a_h(y, z) + log a_h(y', z),    r_h alike in all three.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fiberscope.queries.many_heads.ball_probe import Contradiction, Probe


class Coincidence(Exception):  # noqa: N818 - an accident of the draw
    """The draw of probes does not tell the heads apart: draw again."""


def match_directions(first: Probe, second: Probe, both: Probe) -> tuple[int, ...]:
    """Indices into ``second`` of the heads of ``first``, from the probe of the sum direction."""

    def agree(h: int, k: int, m: int) -> bool:
        return bool(
            (first.logarithms[h] + second.logarithms[k]).overlaps(both.logarithms[m])
            and (first.heights[h] + second.heights[k]).overlaps(both.heights[m])
        )

    return _through(first, second, both, agree)


def match_tokens(first: Probe, second: Probe, both: Probe) -> tuple[int, ...]:
    """Indices into ``second`` of the heads of ``first``, from the probe of the sum token."""

    def agree(h: int, k: int, m: int) -> bool:
        return bool(
            (first.logarithms[h] + second.logarithms[k]).overlaps(both.logarithms[m])
            and first.heights[h].overlaps(second.heights[k])
            and first.heights[h].overlaps(both.heights[m])
        )

    return _through(first, second, both, agree)


def match_heights(first: Probe, second: Probe) -> tuple[int, ...]:
    """Indices into ``second`` of the heads of ``first``: same direction, so the same heights."""
    return _permutation(
        [
            {k for k in range(second.count) if first.heights[h].overlaps(second.heights[k])}
            for h in range(first.count)
        ]
    )


def _through(
    first: Probe, second: Probe, both: Probe, agree: Callable[[int, int, int], bool]
) -> tuple[int, ...]:
    heads: list[set[int]] = []
    used: list[set[int]] = []
    for h in range(first.count):
        pairs = [(k, m) for k in range(second.count) for m in range(both.count) if agree(h, k, m)]
        heads.append({k for k, _ in pairs})
        used.append({m for _, m in pairs})
    permutation = _permutation(heads)
    _permutation(used)
    return permutation


def _permutation(candidates: list[set[Any]]) -> tuple[int, ...]:
    if any(not choice for choice in candidates):
        raise Contradiction("the scores of two probes do not add up to those of their sum")
    if any(len(choice) > 1 for choice in candidates):
        raise Coincidence
    permutation = tuple(next(iter(choice)) for choice in candidates)
    if len(set(permutation)) != len(permutation):
        raise Contradiction("two heads of one probe continue as one head of another")
    return permutation
