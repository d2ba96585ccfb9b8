"""The catalogue of mechanisms: each symmetry in plain words, in mathematics, and its source.

Notation: d model width, H query heads, G key/value groups, r and s head widths of queries/keys and
values, f MLP neurons; W_q, W_k, W_v map the stream to a head, W_o back; gamma and beta are a norm's
gain and bias, 1 the vector of ones, eps a norm's epsilon.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fiberscope.checkpoints.ledger.rules import (
    constants,
    discrete,
    heads,
    mlp,
    norms,
    outputs,
    stream,
)

ELEMENTARY = "elementary; checked against twins"


@dataclass(frozen=True)
class Explanation:
    """One mechanism for readers.

    Attributes
    ----------
    plain
        What is free, in one sentence without formulas; short enough for a table.
    mathematics
        The move, in one line.
    source
        Where it is stated or proved.
    """

    plain: str
    mathematics: str
    source: str


CATALOGUE: Mapping[str, Explanation] = {
    heads.QUERY_KEY: Explanation(
        "Only products of queries and keys are seen: a head's basis for both is free.",
        "(W_q, W_k) -> (S W_q, S^-T W_k): S any invertible r x r matrix; on rotary rows one scaled "
        "rotation a plane",
        "Tran et al., arXiv 2410.04209; rotary: Tran et al., arXiv 2606.17830, and Morrow, "
        "arXiv 2609.01231, Prop. 4.8",
    ),
    heads.QUERY_KEY_GAIN: Explanation(
        "Of the gains on normalised queries and keys only the products are seen.",
        "(gamma_q, gamma_k) -> (c gamma_q, gamma_k / c), one c a rotary plane",
        ELEMENTARY,
    ),
    heads.QUERY_KEY_SCALE: Explanation(
        "Normalising a head's queries or keys undoes their scale.",
        "W_q -> c W_q for each query head, W_k -> c W_k for each key head, c > 0",
        ELEMENTARY,
    ),
    heads.VALUE_OUTPUT: Explanation(
        "Values are seen only through the output map: a head's basis for them is free.",
        "(W_v, W_o) -> (S W_v, W_o S^-1), S any invertible s x s matrix for each key/value group",
        "Tran et al., arXiv 2410.04209; Morrow, arXiv 2609.01231",
    ),
    constants.KEY_BIAS: Explanation(
        "It adds the same score to every key, and softmax cancels that: no effect at all.",
        "b_k -> b_k + c on rows without position: q . c is equal for all keys",
        "Morrow, arXiv 2609.01231",
    ),
    constants.VALUE_BIAS: Explanation(
        "Attention weights sum to one, so it is a constant that the output bias can hold.",
        "(b_v, b_o) -> (b_v + c, b_o - W_o c); without b_o only c in the kernel of W_o",
        "Morrow, arXiv 2609.01231",
    ),
    constants.NORM_BIAS: Explanation(
        "Every map that reads the norm has a bias that can take it over.",
        "beta -> beta + c, b -> b - W c in every reader W, b",
        ELEMENTARY,
    ),
    constants.INPUT_DIRECTION: Explanation(
        "A LayerNorm never produces one direction: what a map reads there is only a constant.",
        "W -> W + c u^T, b -> b - c (u . beta), u = 1/gamma: normalised vectors are "
        "orthogonal to 1",
        ELEMENTARY,
    ),
    constants.PARALLEL_BIAS: Explanation(
        "Attention and MLP are added together: only the sum of their output biases is seen.",
        "(b_1, b_2) -> (b_1 + c, b_2 - c)",
        ELEMENTARY,
    ),
    constants.ALONG_ONES: Explanation(
        "Every reader subtracts the mean, so what is written equally to all features is lost.",
        "w -> w + c 1 for every vector w added to the stream",
        "van Nierop, arXiv 2412.14543",
    ),
    norms.NORM_GAIN: Explanation(
        "Only linear maps read the norm, so its gains can be moved into them.",
        "gamma_i -> c_i gamma_i, column i of every reader divided by c_i",
        "Ashkboos et al., arXiv 2401.15024, section 3",
    ),
    mlp.GATED: Explanation(
        "A gated neuron is linear in its up row: its scale can move to the down column.",
        "(up row, down column) -> (c up, down / c), c != 0, for each neuron",
        ELEMENTARY,
    ),
    mlp.HOMOGENEOUS: Explanation(
        "ReLU commutes with positive scaling: a neuron's scale can move to its output.",
        "(row and bias, down column) -> (c row, down / c), c > 0 (squared ReLU: down / c^2)",
        "Neyshabur et al., arXiv 1506.02617, section 2",
    ),
    mlp.HEAD_SCALE: Explanation(
        "ReLU passes a common scale on to the head's norm, which undoes it.",
        "(W, b) -> (c W, c b) for the dense layer in front of the head's norm, c > 0",
        ELEMENTARY,
    ),
    stream.ROTATION: Explanation(
        "All writers and readers of the residual stream can be rotated together.",
        "writers -> R w, readers (gains folded in) -> W R^T, R in O(d); LayerNorm: R 1 = 1",
        "Ashkboos et al., arXiv 2401.15024, Theorem 1; van Nierop, arXiv 2412.14543 (LayerNorm)",
    ),
    stream.EMBEDDING_SHIFT: Explanation(
        "Tables that are always added: a constant can move from one to the other.",
        "(E, P) -> (E + 1 c^T, P - 1 c^T)",
        ELEMENTARY,
    ),
    stream.STREAM_SCALE: Explanation(
        "Norms undo the scale of the sum that they read.",
        "all vectors added to the sum -> c times themselves, c > 0",
        ELEMENTARY,
    ),
    outputs.UNEMBEDDING_SHIFT: Explanation(
        "Softmax cancels what is added to all logits alike.",
        "every unembedding row -> row + c, every unembedding bias -> bias + c_0",
        ELEMENTARY,
    ),
    outputs.SCORE_SHIFT: Explanation(
        "A constant over all distances adds the same score to every key; softmax cancels it.",
        "column of a head in the table -> column + c",
        ELEMENTARY,
    ),
    outputs.UNREAD: Explanation(
        "The observed function never reads them.",
        "theta_i -> anything",
        "By the wiring of the class",
    ),
    discrete.GROUP_PERMUTATION: Explanation(
        "Heads (with their key/value group) can be renamed.",
        "S_G on the key/value groups, queries and outputs along",
        "Tran et al., arXiv 2410.04209",
    ),
    discrete.HEAD_PERMUTATION: Explanation(
        "Query heads that share keys and values can be renamed.",
        "S_(H/G) inside each group: with the group permutations a wreath product",
        ELEMENTARY,
    ),
    discrete.NEURON_PERMUTATION: Explanation(
        "Neurons of an MLP can be renamed.",
        "S_f on up rows, biases and down columns",
        ELEMENTARY,
    ),
    discrete.COMPONENTS: Explanation(
        "Reflections and signs that no continuous move reaches.",
        "GL(n) and O(n) have two components, every nonzero factor two signs",
        ELEMENTARY,
    ),
    discrete.ODD_SIGNS: Explanation(
        "An odd activation passes the sign of its argument on.",
        "(row and bias, down column) -> (-row, -down)",
        "Sussmann, Neural Networks 5 (1992)",
    ),
    discrete.ROW_SIGNS: Explanation(
        "Behind their norm, a row of all queries (or keys) and its gain can change sign together.",
        "(row r of every query, gain r) -> minus themselves; keys by themselves",
        ELEMENTARY,
    ),
    discrete.QUARTER_TURNS: Explanation(
        "A plane of normalised queries and keys can turn by a quarter; its gains change places.",
        "(x, y) -> (-y, x) in all queries and keys, gains (a, b) -> (b, a)",
        ELEMENTARY,
    ),
    discrete.HALF_TURNS: Explanation(
        "In one key/value group a plane of normalised queries and keys can turn by a half.",
        "(x, y) -> (-x, -y) in the group's queries and key; a row without position alike",
        ELEMENTARY,
    ),
    discrete.COORDINATE_PERMUTATION: Explanation(
        "Features of the residual stream can be renamed.",
        "S_d on the stream's axis of every tensor",
        ELEMENTARY,
    ),
    discrete.COORDINATE_SIGNS: Explanation(
        "Each feature of an RMSNorm stream can change its sign.",
        "w_i -> -w_i in every writer and reader of the stream",
        ELEMENTARY,
    ),
    discrete.GLOBAL_SIGN: Explanation(
        "The whole residual stream can change its sign.",
        "all writers and readers (and norm biases) -> minus themselves",
        ELEMENTARY,
    ),
}
"""Mechanism name, as the ledger's rules state it -> its explanation."""
