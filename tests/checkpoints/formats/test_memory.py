"""Reading tensor by tensor must not grow with the file."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checkpoints.formats.writers import CONFIG

COUNT, SIDE = 30, 2_240  # 30 tensors of 20 MB: a file of 602 MB

PROBE = """
import sys
from fiberscope.checkpoints.formats import open_checkpoint
weights = open_checkpoint(sys.argv[1]).weights
for name in weights.tensors:
    weights.read_float64(name)
for line in open("/proc/self/status"):
    if line.startswith("VmHWM"):
        print(int(line.split()[1]) * 1024)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/status")
def test_peak_memory_is_bounded_by_the_largest_tensor(tmp_path: Path) -> None:
    size = SIDE * SIDE * 4
    entries = {
        f"layer.{number}": {
            "dtype": "F32",
            "shape": [SIDE, SIDE],
            "data_offsets": [number * size, (number + 1) * size],
        }
        for number in range(COUNT)
    }
    header = json.dumps(entries).encode()
    path = tmp_path / "model.safetensors"
    with path.open("wb") as stream:
        stream.write(len(header).to_bytes(8, "little") + header)
        stream.truncate(8 + len(header) + COUNT * size)  # sparse: zeros that take no disk
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    # Not getrusage: across a fork it also remembers how large the parent was.
    finished = subprocess.run(
        [sys.executable, "-c", PROBE, str(tmp_path)], capture_output=True, text=True, check=True
    )
    path.unlink()
    largest_in_float64 = SIDE * SIDE * 8
    limit = 2 * largest_in_float64 + 300_000_000
    assert limit < COUNT * size
    assert int(finished.stdout) < limit
