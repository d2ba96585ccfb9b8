"""The function of a checkpoint in float64, streamed layer by layer, from its architecture alone.

Used to state how far a moved, canonical or compared checkpoint's outputs are from the original's.
It needs no model library; agreement with the published classes is tested for every class.
"""

from fiberscope.checkpoints.forward.deviation import Deviation, deviation, deviation_of
from fiberscope.checkpoints.forward.evaluate import output_width, outputs
from fiberscope.checkpoints.forward.probe import Probe, probe_inputs, readable_tokens
from fiberscope.checkpoints.forward.reading import Read, stored_numbers

__all__ = [
    "Deviation",
    "Probe",
    "Read",
    "deviation",
    "deviation_of",
    "output_width",
    "outputs",
    "probe_inputs",
    "readable_tokens",
    "stored_numbers",
]
