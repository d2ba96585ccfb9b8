from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "train_examples.py"


@pytest.fixture(scope="session")
def train_examples() -> ModuleType:
    """The training script as a module; it is no part of the package."""
    spec = importlib.util.spec_from_file_location("train_examples", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    return module
