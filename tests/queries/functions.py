"""Functions of token sequences written down independently of the package, in and out of class."""

import hashlib
import math

import ml_dtypes
import numpy as np

WIDTH = 4


def softmax(scores):
    largest = max(scores)
    weights = [math.exp(score - largest) for score in scores]
    return [weight / math.fsum(weights) for weight in weights]


def attention(W, v, X):
    """One head by the definition, with Python loops and exact summation."""
    last = X[-1]
    scores = [
        math.fsum(x[i] * W[i][j] * last[j] for i in range(len(x)) for j in range(len(x))) for x in X
    ]
    values = [math.fsum(a * b for a, b in zip(x, v, strict=True)) for x in X]
    return math.fsum(p * value for p, value in zip(softmax(scores), values, strict=True))


class Functions:
    """In-class and other functions of width 4, with weights from a seed."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.rng = rng
        self.W, self.second = rng.standard_normal((2, WIDTH, WIDTH))
        self.v, self.read = rng.standard_normal((2, WIDTH))
        self.V = rng.standard_normal((3, WIDTH, WIDTH)) / 2
        self.U = rng.standard_normal((6, WIDTH))
        self.out = rng.standard_normal(6)
        self.positions = rng.standard_normal((400, WIDTH))

    # In class.

    def one_head(self, X):
        weights = self._weights(X @ self.W @ X[-1])
        return float(weights @ X @ self.v)

    def zero(self, X):
        return 0.0

    def mean(self, X):
        return float(X.mean(axis=0) @ self.v)

    def last_and_equal_heads(self, X):
        return self.one_head(X) + float(self._weights(X @ self.W @ X[-1]) @ X @ self.read)

    def rounded(self, X):
        return round(self.one_head(X), 7)

    def noisy(self, X):
        return self.one_head(X) + 1e-6 * self.rng.uniform(-1, 1)

    def overflowing(self, X):
        """The softmax without subtracting the largest score: NaN for large tokens."""
        with np.errstate(over="ignore", invalid="ignore"):
            weights = np.exp(X @ self.W @ X[-1])
            return float(weights / weights.sum() @ X @ self.v)

    def coarse_inside(self, X):
        """Attention weights rounded to bfloat16, answers in float64."""
        weights = self._weights(X @ self.W @ X[-1]).astype(ml_dtypes.bfloat16)
        return float(weights.astype(np.float64) @ X @ self.v)

    # Not in class.

    def random(self, X):
        return float(self.rng.standard_normal())

    def hashed(self, X):
        digest = hashlib.sha256(np.ascontiguousarray(X).tobytes()).digest()
        return int.from_bytes(digest[:4], "big") / 2**32 - 0.5

    def constant(self, X):
        return 1.0

    def nan(self, X):
        return math.nan

    def value_bias(self, X):
        return self.one_head(X) + 0.5

    def last_token(self, X):
        return float(X[-1] @ self.read)

    def residual(self, X):
        return self.one_head(X) + self.last_token(X)

    def deep(self, X, residual=False, causal=False):
        for V in self.V[:2]:
            scores = X @ self.W @ X.T
            if causal:
                scores = np.where(np.arange(len(X))[:, None] > np.arange(len(X)), -np.inf, scores)
            mixed = np.stack([self._weights(column) @ X for column in scores.T]) @ V
            X = X + mixed if residual else mixed
        return float(X[-1] @ self.read)

    def deep_residual(self, X):
        return self.deep(X, residual=True)

    def deep_causal(self, X):
        return self.deep(X, causal=True)

    def added_positions(self, X):
        return self.one_head(X + self.positions[: len(X)])

    def rotary(self, X):
        n = len(X)
        keys, query = X @ self.W, X[-1]
        turned = [self._turn(key, i) for i, key in enumerate(keys)]
        scores = np.array([key @ self._turn(query, n - 1) for key in turned])
        return float(self._weights(scores) @ X @ self.v)

    def alibi(self, X):
        scores = X @ self.W @ X[-1] - 0.1 * np.arange(len(X))[::-1]
        return float(self._weights(scores) @ X @ self.v)

    def sliding_window(self, X):
        return self.one_head(X[-16:])

    def wide_window(self, X):
        return self.one_head(X[-100:])

    def layer_norm(self, X):
        Y = X - X.mean(axis=1, keepdims=True)
        Y = Y / np.sqrt(Y.var(axis=1, keepdims=True) + 1e-5)
        return self.one_head(Y)

    def softcap(self, X):
        scores = 30 * np.tanh(X @ self.W @ X[-1] / 30)
        return float(self._weights(scores) @ X @ self.v)

    def sink(self, X):
        weights = self._weights(np.append(X @ self.W @ X[-1], 0.0))[:-1]
        return float(weights @ X @ self.v)

    def sigmoid_attention(self, X):
        return float(1 / (1 + np.exp(-X @ self.W @ X[-1])) @ X @ self.v)

    def linear_attention(self, X):
        return float((X @ self.W @ X[-1]) @ X @ self.v)

    def cosine_scores(self, X):
        norms = np.linalg.norm(X, axis=1)
        return float(self._weights(X @ self.W @ X[-1] / (norms * norms[-1])) @ X @ self.v)

    def query_bias(self, X):
        return float(self._weights(X @ (self.W @ X[-1] + self.read)) @ X @ self.v)

    def tanh_network(self, X):
        return float(self.out @ np.tanh(self.U @ (self._weights(X @ self.W @ X[-1]) @ X)))

    def relu_network(self, X):
        return float(self.out @ np.maximum(self.U @ (self._weights(X @ self.W @ X[-1]) @ X), 0))

    def first_token_leaks(self, X):
        return self.one_head(X) + 1e-3 * math.tanh(X[0] @ self.read)

    @staticmethod
    def _weights(scores):
        weights = np.exp(scores - scores.max())
        return weights / weights.sum()

    @staticmethod
    def _turn(x, position):
        result = x.copy()
        for pair, speed in ((0, 1.0), (2, 0.1)):
            c, s = math.cos(speed * position), math.sin(speed * position)
            result[pair], result[pair + 1] = (
                c * x[pair] - s * x[pair + 1],
                s * x[pair] + c * x[pair + 1],
            )
        return result


IN_CLASS = [
    "one_head", "zero", "mean", "last_and_equal_heads", "rounded", "noisy", "overflowing",
]  # fmt: skip
OUT_OF_CLASS = [
    "random", "hashed", "constant", "nan", "value_bias", "last_token", "residual", "deep",
    "deep_residual", "deep_causal", "added_positions", "rotary", "alibi", "sliding_window",
    "wide_window", "layer_norm", "softcap", "sink", "sigmoid_attention", "linear_attention",
    "cosine_scores", "query_bias", "tanh_network", "relu_network", "first_token_leaks",
]  # fmt: skip
