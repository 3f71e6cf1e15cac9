import importlib
import inspect
import sys

import numpy as np
import pytest
from benchmarks import peers
from benchmarks.__main__ import quick
from benchmarks._peer import ALPHA, PEERS, Cases, ranks


@pytest.mark.parametrize("name", quick())
def test_quick_benchmarks_need_no_arguments(name):
    inspect.signature(importlib.import_module(f"benchmarks.{name}").main).bind()


@pytest.fixture
def cases(tmp_path):
    rng = np.random.default_rng(0)
    targets = rng.random(200)
    outputs = targets[:, None] + 0.1 * rng.standard_normal((200, 4))
    np.savez(tmp_path / "cases.npz", outputs=outputs, targets=targets)
    return tmp_path / "cases.npz"


@pytest.mark.parametrize("name", ["MAPIE", "crepes"])
def test_peers_give_the_same_intervals(name, cases):
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


def test_wrong_quantile_is_counted():
    def largest(x, score, split, alpha):
        q = x.z[split[0]].max()
        return np.full(2, -q), np.full(2, q)

    found = ranks(largest)
    assert found["right"] < found["asked"]
    assert found["short"].startswith("finite")
    assert set(PEERS) >= {"MAPIE", "crepes", "puncc", "TorchCP", "deepinv"}
