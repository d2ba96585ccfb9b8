"""An oracle that counts what it is asked, independent of the session's own count."""

import numpy as np


class CountingOracle:
    """Pass queries on to another oracle; remember how many there were, and their lengths."""

    def __init__(self, oracle):
        self.oracle, self.width, self.arithmetic = oracle, oracle.width, oracle.arithmetic
        self.identity = oracle.identity
        self.lengths, self.seen = [], []

    def answer(self, sequences, bits=128):
        for each in sequences:
            tokens = np.asarray(each)
            assert tokens.ndim == 2 and tokens.shape[1] == self.width
            self.lengths.append(len(tokens))
            self.seen.append(tuple(tokens.reshape(-1).tolist()))
        return self.oracle.answer(sequences, bits)
