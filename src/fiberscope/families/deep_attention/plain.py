"""Canonical representatives and comparison, where a theorem gives the whole fiber."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.errors import InputError
from fiberscope.families.deep_attention.architecture import Architecture
from fiberscope.families.deep_attention.family import DeepAttention
from fiberscope.family import Comparison, Design, HasCanonicalForm, HasComparison
from fiberscope.parameters import Parameters
from fiberscope.symmetry import Element, Symmetry
from fiberscope.verdict import Outcome

TOLERANCE = 1e-8
"""Relative deviation up to which effective parameters count as equal in float64."""

SMALLEST_SHARE = 1e-9
"""Singular values below this share of the largest make a point exceptional here."""


class PlainDeepAttention(DeepAttention, HasCanonicalForm, HasComparison):
    """The network of the theorems with one width: generic fibers are the symmetries' orbits.

    Covers serial, single-head normalized attention with trainable values of one width, at points
    with invertible values, scores of full rank and (as Theorem 1 asks) nonzero symmetric parts.
    """

    def __init__(self, architecture: Architecture) -> None:
        super().__init__(architecture)
        if not self.complete or len(set(architecture.widths)) > 1:
            raise InputError(
                "canonical forms are given for serial single-head normalized attention of one "
                f"width with all tokens observed, not: {architecture.describe()}"
            )

    def canonical(self, parameters: Parameters, design: Design) -> dict[str, NDArray[np.float64]]:
        """Values ``1, ..., 1, L``; queries and keys balanced by the scores' singular values.

        With ``M = U S W^T`` the queries are ``U S^(1/2)`` and the keys ``W S^(1/2)``; in every
        column the largest entry of ``U`` is positive, and at an even normalizer the sign of ``M``
        makes its largest symmetric entry positive. Not unique where singular values of a score
        coincide, or entries tie.

        Raises
        ------
        InputError
            At exceptional points: a singular value or a score below full rank.
        """
        products, scores = self._effective(parameters)
        width = self.architecture.widths[0]
        form: dict[str, NDArray[np.float64]] = {}
        for i, score in enumerate(scores, start=1):
            rank = self.architecture.ranks[i - 1]
            if self._even(i):
                symmetric = score + score.T
                score = score * np.sign(symmetric.flat[np.argmax(np.abs(symmetric))])
            left, sigma, right = np.linalg.svd(score)
            self._require(sigma[rank - 1], sigma[0], f"score {i} has rank below {rank}")
            left, right = left[:, :rank], right[:rank].T
            signs = np.sign(left[np.argmax(np.abs(left), axis=0), np.arange(rank)])
            root = np.sqrt(sigma[:rank])
            form[f"Q{i}"], form[f"K{i}"] = (left * signs * root)[None], (right * signs * root)[None]
            last = i == self.architecture.depth
            form[f"V{i}"] = (products[-1] if last else np.eye(width))[None]
        return {name: form[name] for name in self.space.shapes}

    def compare(self, first: Parameters, second: Parameters, design: Design) -> Comparison:
        """Compare effective parameters; SAME comes with the moves that carry one to the other.

        ``L`` and every score must agree (up to sign at even normalizers). The moves are a sign,
        one interface element a hidden width, then one factor element a layer.
        """
        products, scores = self._effective(first)
        products_2, scores_2 = self._effective(second)
        if self._apart(products[-1], products_2[-1]):
            return Comparison(Outcome.DIFFERENT, reason="the combined value maps L differ")
        moves = {symmetry.name: symmetry for symmetry in self.symmetries(design)}
        witness: list[tuple[Symmetry, Element]] = []
        for i, (a, b) in enumerate(zip(scores, scores_2, strict=True), start=1):
            if not self._apart(a, b):
                continue
            if not (self._even(i) and not self._apart(-a, b)):
                hidden = [j for j, score in enumerate(scores[: i - 1], 1) if self._near_skew(score)]
                if hidden or (self._near_skew(a) and not self._sloped(i)):
                    at = hidden[0] if hidden else i
                    reason = f"score {at} is skew to rounding, so layer {i} need not be observable"
                    return Comparison(Outcome.UNDECIDED, reason=reason)
                return Comparison(Outcome.DIFFERENT, reason=f"the scores of layer {i} differ")
            witness.append((moves[f"sign {i}"], np.array([-1.0])))
        for i in range(1, self.architecture.depth):
            # V_i ... V_1 must become the second point's product.
            change = products_2[i - 1] @ np.linalg.inv(products[i - 1])
            witness.append((moves[f"interface {i}"], change[None]))
        moved = Comparison(Outcome.SAME, tuple(witness)).carry(first)
        for i in range(1, self.architecture.depth + 1):
            q, target = moved[f"Q{i}"][0], np.asarray(second[f"Q{i}"])[0]
            change = np.linalg.lstsq(q, target, rcond=None)[0]
            witness.append((moves[f"factor {i}"], change.T[None]))
        return Comparison(Outcome.SAME, tuple(witness))

    def _even(self, layer: int) -> bool:
        assert self.architecture.normalizers is not None
        return self.architecture.normalizers[layer - 1].even

    def _sloped(self, layer: int) -> bool:
        assert self.architecture.normalizers is not None
        return self.architecture.normalizers[layer - 1].has_slope

    def _effective(
        self, parameters: Parameters
    ) -> tuple[list[NDArray[np.float64]], list[NDArray[np.float64]]]:
        """Value products ``P_1, ..., P_D`` and scores ``M_1, ..., M_D`` in float64."""
        product: NDArray[Any] = np.eye(self.architecture.widths[0])
        products, scores = [], []
        for i in range(1, self.architecture.depth + 1):
            q, k, v = (np.asarray(parameters[f"{kind}{i}"], np.float64)[0] for kind in "QKV")
            scores.append(product.T @ q @ k.T @ product)
            sigma = np.linalg.svd(v, compute_uv=False)
            if i < self.architecture.depth:
                self._require(sigma[-1], sigma[0], f"value matrix {i} is singular")
            product = v @ product
            products.append(product)
        return products, scores

    def _require(self, smallest: float, largest: float, what: str) -> None:
        if smallest <= SMALLEST_SHARE * largest or largest == 0:
            raise InputError(f"{what} (to rounding): the fiber at this point is not generic")

    @staticmethod
    def _apart(a: NDArray[np.float64], b: NDArray[np.float64]) -> bool:
        scale = max(float(np.abs(a).max()), float(np.abs(b).max()))
        return bool(np.abs(a - b).max() > TOLERANCE * scale)

    @staticmethod
    def _near_skew(score: NDArray[np.float64]) -> bool:
        return bool(np.abs(score + score.T).max() <= TOLERANCE * np.abs(score).max())
