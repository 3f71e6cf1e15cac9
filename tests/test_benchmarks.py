"""Benchmarks that run without a name given need nothing else either."""

import importlib
import inspect
import sys

import numpy as np
import pytest
from benchmarks import peers
from benchmarks.__main__ import quick
from benchmarks._peer import ALPHA, PEERS, Cases, lines_of, ranks


@pytest.mark.parametrize("name", quick())
def test_a_quick_benchmark_can_be_called_without_arguments(name):
    inspect.signature(importlib.import_module(f"benchmarks.{name}").main).bind()


@pytest.fixture
def cases(tmp_path):
    rng = np.random.default_rng(0)
    targets = rng.random(200)
    outputs = targets[:, None] + 0.1 * rng.standard_normal((200, 4))
    np.savez(tmp_path / "cases.npz", outputs=outputs, targets=targets)
    return tmp_path / "cases.npz"


def test_a_library_that_is_missing_is_said_to_be(cases, monkeypatch):
    monkeypatch.delenv("TASKUQ_AUTHORS", raising=False)
    found = peers.ask("authors' code", cases, [sys.executable])

    assert "TASKUQ_AUTHORS" in found["missing"]
    assert "cannot be started" in peers.ask("crepes", cases, [str(cases)])["missing"]
    assert peers.cell(found, "ar") == "not measured"


@pytest.mark.parametrize("name", ["MAPIE", "crepes"])
def test_libraries_that_are_here_are_asked_for_what_we_give(name, cases):
    package, peer, offered = PEERS[name]
    pytest.importorskip(package)
    given = np.load(cases)
    x, split = Cases(given["outputs"], given["targets"]), (np.arange(140), np.arange(140, 200))
    for score in offered:
        theirs, ours = (f(x, score, split, ALPHA) for f in (peer, peers.ours))
        np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-12, err_msg=score)
    found = peers.ask(name, cases, [sys.executable])
    assert [score for score, one in found["scores"].items() if "seconds" in one] == list(offered)
    assert found["asked"] >= found["right"] > 0.9 * found["asked"]
    assert found["narrow"] == 0


def test_the_table_has_a_column_for_each_and_a_dash_for_what_is_not_offered():
    one = {"scores": {s: {"seconds": 0.001, "summary": 0.001} for s in ("ar", "lwr")}, "glue": 3}
    one["scores"]["cqr"] = {"why": "not offered"}
    lines = peers.table({"ours": one | {"exact": 0.004}, "theirs": {"missing": "x"}}).splitlines()

    assert lines[0] == "| | ours | theirs |"
    assert lines[2] == "| AR: calibrate and predict, ms | 2.0 | not measured |"
    assert "| CQR, ms | – |" in lines[4]
    # 10000 splits of a millisecond each for two scores, and the two summaries once.
    assert "| 20 (no CQR) |" in lines[5]
    one["scores"]["ar"]["summary"] = 5.0
    assert peers.cell(one, "many") == "25 (no CQR)"


def test_lines_are_counted_alike_for_all():
    def theirs(x):
        """Words.

        More words.
        """
        import math  # to be counted

        # not to be counted

        y = math.floor(
            x,
        )
        if y:
            return y
        return x

    assert lines_of(theirs) == 5
    assert lines_of(peers.ours) == 5


def test_a_wrong_quantile_is_counted_as_wrong():
    def largest(x, score, split, alpha):
        q = x.z[split[0]].max()
        return np.full(2, -q), np.full(2, q)

    found = ranks(largest)
    assert found["right"] < found["asked"]
    assert found["short"].startswith("finite")
    assert set(PEERS) >= {"MAPIE", "crepes", "puncc", "TorchCP", "deepinv"}
