"""Draw the inputs and factors of the 768 x 96 matrix case with PyTorch's generator, seed 21.

Run with torch installed; writes the numbers that ship with the package, so that nobody else needs
torch. All draws are float64 ``randn``, in the order inputs, U_1, U_2, U_3, noise of W_1, W_2, W_3:

    X = 0.6 randn(48, 4, 4),  U_i = randn(4, 2) / 2,  W_i = U_i + 0.3 randn(4, 2) / 2.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

TARGET = Path(__file__).parents[1] / "src/fiberscope/families/deep_attention/data/matrix_case.json"


def main() -> None:
    """Draw and write."""
    generator = torch.Generator().manual_seed(21)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    inputs = 0.6 * randn(48, 4, 4)
    u = [randn(4, 2) / 2 for _ in range(3)]
    w = [part + 0.3 * randn(4, 2) / 2 for part in u]
    content = {
        "drawn_with": f"torch {torch.__version__}, generator seed 21, float64",
        "inputs": inputs.tolist(),
        "U": [part.tolist() for part in u],
        "W": [part.tolist() for part in w],
    }
    TARGET.write_text(json.dumps(content, separators=(",", ":")) + "\n")
    print(f"wrote {TARGET.name}: {TARGET.stat().st_size} bytes")


if __name__ == "__main__":
    main()
