"""Benchmarks that run without a name given need nothing else either."""

import importlib
import inspect

import pytest
from benchmarks.__main__ import quick


@pytest.mark.parametrize("name", quick())
def test_a_quick_benchmark_can_be_called_without_arguments(name):
    inspect.signature(importlib.import_module(f"benchmarks.{name}").main).bind()
