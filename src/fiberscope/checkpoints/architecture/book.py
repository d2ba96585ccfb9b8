"""Collects the stored tensors of an architecture while its roles are laid out."""

from __future__ import annotations

from fiberscope.checkpoints.architecture.program import Norm, NormKind
from fiberscope.parameters import View


class TensorBook:
    """Every stored tensor is entered once; asking for it again returns the same whole view."""

    def __init__(self) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}

    def tensor(self, name: str, *shape: int, offset: float = 0.0) -> View:
        """Enter (or look up) a stored tensor and return the view of all of it."""
        known = self.shapes.setdefault(name, shape)
        if known != shape:
            raise ValueError(f"{name} is entered with shapes {known} and {shape}")
        return View.whole(name, shape, offset=offset)

    def optional(self, present: bool, name: str, *shape: int) -> View | None:
        """Enter a tensor only when it is present."""
        return self.tensor(name, *shape) if present else None

    def layer_norm(self, label: str, prefix: str, width: int, epsilon: float) -> Norm:
        """LayerNorm with ``.weight`` and ``.bias``."""
        gain = self.tensor(f"{prefix}.weight", width)
        bias = self.tensor(f"{prefix}.bias", width)
        return Norm(label, NormKind.LAYER, gain, bias, epsilon)

    def rms_norm(
        self, label: str, name: str, width: int, epsilon: float, *, offset: float = 0.0
    ) -> Norm:
        """RMSNorm with one gain tensor; ``offset`` 1 for gains stored as ``w``, used as ``1+w``."""
        gain = self.tensor(name, width, offset=offset)
        return Norm(label, NormKind.RMS, gain, None, epsilon)
