"""Benchmarks that run without a name given need nothing else either."""

import importlib
import inspect
import sys

import numpy as np
import pytest
from benchmarks import peers
from benchmarks.__main__ import quick
from benchmarks._peer import PEERS, ranks


@pytest.mark.parametrize("name", quick())
def test_a_quick_benchmark_can_be_called_without_arguments(name):
    inspect.signature(importlib.import_module(f"benchmarks.{name}").main).bind()


@pytest.fixture
def cases(tmp_path):
    rng = np.random.default_rng(0)
    targets = rng.random(200)
    outputs = targets[:, None] + 0.1 * rng.standard_normal((200, 4))
    np.savez(tmp_path / "cases.npz", outputs=outputs, targets=targets, label=(targets > 0.5) * 1)
    return tmp_path / "cases.npz"


def test_a_library_that_is_missing_is_said_to_be(cases, monkeypatch):
    monkeypatch.delenv("TASKUQ_AUTHORS", raising=False)
    found = peers.ask("authors' code", cases, [sys.executable])

    assert "TASKUQ_AUTHORS" in found["missing"]
    assert "cannot be started" in peers.ask("crepes", cases, [str(cases)])["missing"]
    assert peers.cell(found, "ar") == "not measured"


def test_libraries_that_are_here_cover_as_they_promise(cases):
    for name in ("MAPIE", "crepes"):
        pytest.importorskip(name.lower())
        found = peers.ask(name, cases, [sys.executable])
        for score in found["scores"].values():
            # At least three splits of 60 cases to test: 0.95, give or take 0.02.
            assert score.get("why") == "not offered" or score["coverage"] > 0.8
        assert found["asked"] >= found["right"] > 0.9 * found["asked"]


def test_the_table_has_a_column_for_each_and_a_dash_for_what_is_not_offered():
    one = {"scores": {s: {"seconds": 0.001, "summary": 0.001} for s in ("ar", "lwr")}, "glue": 3}
    one["scores"]["cqr"] = {"why": "not offered"}
    lines = peers.table({"ours": one | {"exact": 0.004}, "theirs": {"missing": "x"}}).splitlines()

    assert lines[0] == "| | ours | theirs |"
    assert lines[2] == "| AR: calibrate and predict, ms | 2.0 | not measured |"
    assert "| CQR, ms | – |" in lines[4]
    assert "20 (without –)" in lines[5]


def test_a_wrong_quantile_is_counted_as_wrong():
    def largest(x, score, split, alpha):
        q = x.z[split[0]].max()
        return np.full(2, -q), np.full(2, q)

    found = ranks(largest)
    assert found["right"] < found["asked"]
    assert found["short"].startswith("finite")
    assert set(PEERS) >= {"MAPIE", "crepes", "puncc", "TorchCP", "deepinv"}
