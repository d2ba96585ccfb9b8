"""What is observed of a model, as a torch module from an input bank to outputs."""

from __future__ import annotations

from functools import cache
from typing import Any

from fiberscope.checkpoints.twins.precision import float64_evaluation
from fiberscope.errors import InputError

OBSERVABLES = ("logits", "probabilities", "hidden")
# A ReLU neuron must be on for a share of the tokens between these.
_ON_SHARE = (0.2, 0.8)


@cache
def _module_class() -> type[Any]:
    import torch

    class Observation(torch.nn.Module):  # type: ignore[misc]
        """Holds the model as `model`, so that parameters are called by their names below it."""

        def __init__(self, model: Any, observable: str) -> None:
            super().__init__()
            self.model = model
            self.observable = observable

        def forward(self, inputs: dict[str, Any]) -> Any:
            if self.observable == "hidden":
                return _hidden(self.model, inputs)
            outputs = self.model(**inputs)
            # With a second head beside it, the token scores go by a longer name.
            logits = outputs.get("prediction_logits", outputs.get("logits"))
            if self.observable == "probabilities":
                return torch.log_softmax(logits, dim=-1)
            return logits

    return Observation


def observation_module(model: Any, observable: str) -> Any:
    """The module from named inputs to the observed outputs (sequence first).

    Raises
    ------
    InputError
        If the observable is unknown, or the class has no logits.
    """
    if observable not in OBSERVABLES:
        raise InputError(
            f"Observable {observable!r} is unknown: use one of {', '.join(OBSERVABLES)}."
        )
    name = type(model).__name__
    if observable != "hidden" and (name.endswith("Model") and not name.endswith("LMHeadModel")):
        raise InputError(
            f"{name} has no {observable}: observe 'hidden', or use a class with a head."
        )
    return _module_class()(model, observable)


def _hidden(model: Any, inputs: dict[str, Any]) -> Any:
    """The last hidden state after the final norm; for encoder-decoders the decoder's."""
    if type(model).__name__ == "T5ForConditionalGeneration":
        memory = model.encoder(input_ids=inputs["input_ids"]).last_hidden_state
        decoded = model.decoder(input_ids=inputs["decoder_input_ids"], encoder_hidden_states=memory)
        return decoded.last_hidden_state
    body = getattr(model, model.base_model_prefix, model)
    return body(**inputs).last_hidden_state


def is_generic(module: Any, inputs: dict[str, Any]) -> bool:
    """Whether the parameters avoid two accidents on these inputs.

    A ReLU neuron that is on (or off) nearly everywhere has freedom of its own; and with epsilon 0 a
    norm that reads a constant vector (all ReLU outputs zero, say) returns nothing finite.
    """
    import torch

    shares: list[Any] = []

    def record(part: Any, _: Any, output: Any) -> None:
        if type(part).__name__ in ("ReLU", "ReLUSquaredActivation"):
            shares.append((output.reshape(-1, output.shape[-1]) > 0).double().mean(dim=0))

    # A global hook, because some classes build their activation anew in every forward pass.
    handle = torch.nn.modules.module.register_module_forward_hook(record)
    try:
        with torch.no_grad(), float64_evaluation():
            outputs = module(inputs)
    finally:
        handle.remove()
    least, most = _ON_SHARE
    switching = all(float(on.min()) >= least and float(on.max()) <= most for on in shares)
    return switching and bool(torch.isfinite(outputs).all())
