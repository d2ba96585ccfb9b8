"""Reading config.json strictly: every key is used, known to be harmless, or refused by name.

A flag that changes the function but is not understood would make every later verdict wrong, so an
unknown key is an error, never a guess. Missing keys mean the class's default, which each
architecture table states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, overload

from fiberscope.checkpoints.architecture.program import Activation
from fiberscope.errors import InputError

T = TypeVar("T")

HARMLESS = frozenset(
    """
    _attn_implementation _attn_implementation_autoset _commit_hash _name_or_path _num_labels
    activation_dropout adapters architectures attention_dropout attention_probs_dropout_prob
    attn_implementation attn_pdrop auto_map bad_words_ids begin_suppress_tokens bos_token_id
    classifier_dropout cls_token_id custom_pipelines decoder_start_token_id diversity_penalty
    do_sample dropout dropout_rate dtype early_stopping embd_pdrop encoder_no_repeat_ngram_size
    encoder_stride eos_token_id exponential_decay_length_penalty finetuning_task forced_bos_token_id
    forced_eos_token_id gradient_checkpointing gradient_checkpointing_kwargs hidden_dropout
    hidden_dropout_prob id2label init_std initializer_factor initializer_range intermediate_dropout
    is_llama_config label2id language layerdrop length_penalty license mask_token_id max_length
    max_sequence_length max_window_layers min_length model_max_length model_type n_ctx n_special
    no_repeat_ngram_size num_beam_groups num_beams num_labels num_return_sequences output_attentions
    output_hidden_states output_past output_scores pad_token_id predict_special_tokens prefix
    pretraining_tp problem_type qa_dropout remove_invalid_values repetition_penalty resid_pdrop
    return_dict return_dict_in_generate sep_token_id seq_classif_dropout summary_activation
    summary_first_dropout summary_proj_to_labels summary_type summary_use_proj suppress_tokens
    task_specific_params temperature tf_legacy_loss tokenizer_class top_k top_p torch_dtype
    torchscript transformers.js_config transformers_version typical_p unk_token_id unsloth_fixed
    unsloth_version use_bfloat16 use_cache vocab_file
    """.split()
)
"""Keys that never change the function of the classes supported here."""

INACTIVE: Mapping[str, tuple[Any, ...]] = {
    "add_cross_attention": (False, None),
    "adapter_config": (None,),
    "chunk_size_feed_forward": (0,),
    "cross_attention_hidden_size": (None,),
    "is_decoder": (False, None),
    "is_encoder_decoder": (False, None),
    "pruned_heads": (None, {}),
    "quantization_config": (None,),
    "sparse": (None, False),
    "tie_encoder_decoder": (False, None),
    "use_bidirectional_attention": (None, False),
    "use_mrope": (False,),
}
"""Keys understood only at the values at which they change nothing."""

LARGEST_SIZE = 2**32
"""Bound on every size: a larger one is a damaged file, not a model."""

LARGEST_DEPTH = 1_000
"""Bound on the number of layers: a deeper one is a damaged file, not a model."""


class ConfigReader:
    """Typed access to a raw configuration that remembers which keys were understood.

    Parameters
    ----------
    config
        The parsed config.json, unchanged.
    where
        What to call it in messages.
    assumed_harmless
        Further keys that the user vouches for.
    tied
        What the weights say about tying, whatever the configuration says; None when unknown.

    Attributes
    ----------
    sizes
        Every integer read so far by its key, defaults included.
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        where: str,
        assumed_harmless: Iterable[str] = (),
        *,
        tied: bool | None = None,
    ) -> None:
        self.config, self.where = config, where
        self.assumed = frozenset(assumed_harmless)
        self.sizes: dict[str, int] = {}
        self._tied = tied
        self.understood: set[str] = set()

    def fail(self, problem: str) -> InputError:
        """An error about this configuration, to be raised."""
        return InputError(f"{self.where}: {problem}")

    def has(self, key: str) -> bool:
        """Whether the key is present with a value other than null."""
        return self.config.get(key) is not None

    def raw(self, key: str) -> Any:
        """The raw value (None when missing), marked as understood."""
        self.understood.add(key)
        return self.config.get(key)

    @overload
    def integer(self, key: str, default: int) -> int: ...
    @overload
    def integer(self, key: str, default: None) -> int | None: ...
    def integer(self, key: str, default: int | None) -> int | None:
        """A positive integer; a missing or null key means the class default."""
        value = self.raw(key)
        size: int | None = default if value is None else value
        if size is None:
            return None
        if isinstance(size, bool) or not isinstance(size, int) or size <= 0:
            raise self.fail(f"{key!r} is {value!r}, but a positive integer is needed")
        if size > LARGEST_SIZE:
            raise self.fail(f"{key!r} is {value!r}, but at most {LARGEST_SIZE} is believable")
        self.sizes[key] = size
        return size

    def layers(self, key: str, default: int) -> int:
        """A number of layers."""
        count = self.integer(key, default)
        if count > LARGEST_DEPTH:
            raise self.fail(
                f"{key!r} is {count}, but at most {LARGEST_DEPTH:,} layers are supported"
            )
        return count

    def number(self, key: str, default: float) -> float:
        """A finite nonnegative number."""
        value = self.raw(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e300:
            raise self.fail(f"{key!r} is {value!r}, but a nonnegative number is needed")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fail(f"{key!r} is {value!r}, but true or false is needed")
        return value

    def tied(self, default: bool) -> bool:
        """Whether the output embedding is the input embedding; the weights outvote the key."""
        flag = self.flag("tie_word_embeddings", default)
        return flag if self._tied is None else self._tied

    def text(self, key: str, default: str) -> str:
        """A string."""
        value = self.raw(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.fail(f"{key!r} is {value!r}, but a string is needed")
        return value

    def only(self, key: str, *allowed: Any) -> None:
        """Refuse the key unless it is missing or has one of the understood values."""
        value = self.raw(key)
        if key in self.config and not any(value == a and type(value) is type(a) for a in allowed):
            understood = " or ".join(repr(a) for a in allowed)
            raise self.fail(
                f"{key!r} is {value!r}, which changes the architecture in a way that the "
                f"{self.config.get('model_type', '?')} table does not understand "
                f"(only {understood} is supported)"
            )

    def activation(self, key: str, default: str) -> tuple[Activation, str]:
        """An activation function, by what matters of it."""
        name = self.text(key, default)
        return activation_kind(key, name, self), name

    def finish(self) -> None:
        """Refuse every key that was neither used nor is known to be harmless."""
        for key, values in INACTIVE.items():
            if key in self.config and key not in self.understood:
                self.only(key, *values)
        unknown = [
            key
            for key in self.config
            if key not in self.understood and key not in HARMLESS and key not in self.assumed
        ]
        if unknown:
            raise self.fail(
                f"the key {unknown[0]!r} is not understood by the "
                f"{self.config.get('model_type', '?')} table and might change the architecture; "
                f"if it does not, pass --assume-harmless {unknown[0]}"
            )


GENERIC_ACTIVATIONS = frozenset(
    """gelu gelu_10 gelu_fast gelu_new gelu_python gelu_pytorch_tanh gelu_python_tanh gelu_accurate
    quick_gelu silu swish mish sigmoid hardswish laplace relu6""".split()
)
HOMOGENEOUS_ACTIVATIONS = frozenset({"relu", "relu2", "leaky_relu"})
ODD_ACTIVATIONS = frozenset({"tanh"})


def activation_kind(key: str, name: str, config: ConfigReader) -> Activation:
    """Classify an activation by name; a linear or unknown one is refused."""
    if name in GENERIC_ACTIVATIONS:
        return Activation.GENERIC
    if name in HOMOGENEOUS_ACTIVATIONS:
        return Activation.HOMOGENEOUS
    if name in ODD_ACTIVATIONS:
        return Activation.ODD
    known = sorted(GENERIC_ACTIVATIONS | HOMOGENEOUS_ACTIVATIONS | ODD_ACTIVATIONS)
    raise config.fail(
        f"{key!r} asks for the activation {name!r}, which is not known, nor are its symmetries "
        f"(known: {', '.join(known)})"
    )
