"""The toy scanner, which also runs as a process of its own."""

import importlib.util
import sys
from pathlib import Path

import pytest

# The scanners and populations that several tests share lie beside them.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def toy():
    path = Path(__file__).with_name("toy_scanner.py")
    spec = importlib.util.spec_from_file_location("toy_scanner", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def toy_policy(toy):
    return toy.policy()
