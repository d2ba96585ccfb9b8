r"""What is recovered of attention followed by a bias-free ReLU network.

With ``c_h(X) = sum_i softmax_i(x_i^T W_h x_N) x_i`` and ``c`` all of them stacked, a network
``f(X) = w^T ReLU(U sum_h V_h c_h)`` is

    f(X) = 1/2 sum_h v_h^T c_h + 1/2 sum_k s_k |b_k^T c|,    v_h = V_h^T U^T w,    s_k = sign(w_k),

with ``b_k = |w_k| (V_h^T U_k)_h``. The kinks ``b_k`` are determined up to sign, parallel ones as
one; the linear part is determined. Which of ``ReLU(b^T c)`` and ``ReLU(-b^T c)`` a neuron is,
follows from ``v`` only if the ``b_k`` are independent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fiberscope.queries.heads import AttentionHeads
from fiberscope.verdict import to_plain

Floats = NDArray[np.float64]

AMBIGUITY = (
    "Neurons are determined up to their order and positive factors, parallel ones only in sum; "
    "the sign inside a neuron only where the signs are stated. The network returned has as many "
    "neurons as kinks, and two more for the linear part: it is the same function, not the same "
    "weights."
)


def averages(W: Floats, tokens: Floats) -> Floats:
    """``c`` for sequences ``(n, N, d)``: attention averages of all heads, shape ``(n, H d)``."""
    parts = []
    for matrix in W:
        scores = np.einsum("nid,nd->ni", tokens, tokens[:, -1] @ matrix.T)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        parts.append(np.einsum("ni,nid->nd", weights, tokens))
    return np.concatenate(parts, axis=1) if parts else np.zeros((len(tokens), 0))


@dataclass(frozen=True)
class ReluRecovery:
    """A function equivalent to the oracle, as far as fresh queries tell.

    Attributes
    ----------
    heads
        ``W_h`` with ``v_h = V_h^T U^T w`` (the odd part), canonical.
    kinks
        ``b_k``, shape ``(K, H d)``, each up to sign.
    outer_signs
        ``s_k``, shape ``(K,)``: signs of the outer weights, determined.
    inner_signs
        Signs that turn the kinks into the neurons ``s_k ReLU(sign_k b_k^T c)``, or None where they
        are not determined (dependent kinks).
    agreement_bits
        ``-log2`` of the largest deviation on fresh sequences relative to the root mean square of
        the answers to sequences of the same length and size; sampled, no bound.
    fresh_queries
        How many fresh sequences were compared.
    notes
        What the reader should know.
    network_bits
        The same relative to what the attention alone leaves of the answers.
    """

    heads: AttentionHeads
    kinks: Floats
    outer_signs: Floats
    inner_signs: Floats | None
    agreement_bits: float
    fresh_queries: int
    notes: tuple[str, ...] = ()
    ambiguity: str = AMBIGUITY
    network_bits: float = 0.0

    def __call__(self, tokens: Floats) -> Floats:
        """Values at sequences ``(n, N, d)``, shape ``(n,)``."""
        c = averages(self.heads.W, tokens)
        linear = c @ self.heads.v.reshape(-1)
        return np.asarray(0.5 * linear + 0.5 * np.abs(c @ self.kinks.T) @ self.outer_signs)

    def neurons(self) -> tuple[Floats, Floats]:
        """Inner rows ``(M, H d)`` and outer weights ``(M,)`` of ReLU neurons that give it.

        ``M = K`` if the inner signs are determined, else ``K + 2``: the kinks as they stand, and
        the rest of the linear part as the difference of two neurons.
        """
        if self.inner_signs is not None:
            return self.kinks * self.inner_signs[:, None], self.outer_signs.copy()
        rest = 0.5 * (self.heads.v.reshape(-1) - self.outer_signs @ self.kinks)
        inner = np.concatenate([self.kinks, rest[None], -rest[None]])
        return inner, np.concatenate([self.outer_signs, [1.0, -1.0]])

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        inner, outer = self.neurons()
        return {
            "heads": self.heads.count,
            "width": self.heads.width,
            "kinks": len(self.kinks),
            "W": to_plain(self.heads.W),
            "v": to_plain(self.heads.v),
            "inner": to_plain(inner),
            "outer": to_plain(outer),
            "inner_signs_determined": self.inner_signs is not None,
            "agreement_bits": to_plain(self.agreement_bits),
            "network_bits": to_plain(self.network_bits),
            "fresh_queries": self.fresh_queries,
            "ambiguity": self.ambiguity,
            "notes": list(self.notes),
        }
