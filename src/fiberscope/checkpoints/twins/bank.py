"""The inputs on which a twin is observed."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def balanced_tokens(
    rng: np.random.Generator, identifiers: NDArray[np.int64], sequences: int, length: int
) -> NDArray[np.int64]:
    """Token sequences in which all identifiers occur equally often, up to one.

    A stream of random permutations of the vocabulary, cut into sequences: an absent token would
    leave its embedding row undetermined and look like a symmetry.

    Returns
    -------
    ndarray of int64, shape (sequences, length)
    """
    rounds = -(-sequences * length // identifiers.size)
    stream = np.concatenate([rng.permutation(identifiers) for _ in range(rounds)])
    return stream[: sequences * length].reshape(sequences, length)


def input_bank(
    model: Any, class_name: str, rng: np.random.Generator, sequences: int, length: int
) -> dict[str, NDArray[Any]]:
    """Inputs for the class, as named arrays whose first axis is the sequence.

    Sequences are full (no padding); token types are random where the class has several; T5 gets a
    decoder sequence of `length` and an encoder sequence one longer.
    """
    settings = model.config
    if settings.model_type == "vit":
        shape = (sequences, settings.num_channels, settings.image_size, settings.image_size)
        return {"pixel_values": rng.standard_normal(shape)}
    identifiers = np.arange(settings.vocab_size)
    if settings.model_type == "roberta":  # the padding token would not advance the position
        identifiers = np.delete(identifiers, settings.pad_token_id)
    if settings.model_type == "t5":
        bank = {"input_ids": balanced_tokens(rng, identifiers, sequences, length + 1)}
        if class_name != "T5EncoderModel":
            bank["decoder_input_ids"] = balanced_tokens(rng, identifiers, sequences, length)
        return bank
    bank = {"input_ids": balanced_tokens(rng, identifiers, sequences, length)}
    if getattr(settings, "type_vocab_size", 0) > 0:
        bank["token_type_ids"] = rng.integers(0, settings.type_vocab_size, (sequences, length))
    return bank
