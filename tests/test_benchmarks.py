import importlib
import inspect
import sys

import numpy as np
import pytest
from benchmarks import peers
from benchmarks.__main__ import quick
from benchmarks._peer import ALPHA, PEERS, Cases, lines_of, mistakes, ranks


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
def test_peers_give_the_same_intervals_in_no_fewer_lines(name, cases):
    package, recipes = PEERS[name]
    pytest.importorskip(package)
    given, fold = np.load(cases), np.arange(200) < 140
    x = Cases(given["outputs"], given["targets"])
    for score, recipe in recipes.items():
        own = PEERS["taskuq"][1][score]
        theirs, ours = (list(f(x, fold, ~fold, ALPHA)) for f in (recipe, own))
        np.testing.assert_allclose(theirs, ours, rtol=0, atol=1e-12, err_msg=score)
        assert lines_of(own) <= lines_of(recipe)
    found = peers.ask(name, cases, [sys.executable])
    assert list(found["scores"]) == list(recipes)
    assert found["asked"] >= found["right"] > 0.9 * found["asked"]
    assert found["narrow"] == 0


def test_mistakes_are_refused():
    found = mistakes(PEERS["taskuq"][1]["ar"])
    assert set(found.values()) == {"refused (InputError)"}


def test_wrong_quantile_is_counted():
    def largest(x, fold, test, alpha):
        q = x.z[fold].max()
        return np.full(2, -q), np.full(2, q)

    found = ranks(largest)
    assert found["right"] < found["asked"]
    assert found["short"].startswith("finite")
    assert set(PEERS) >= {"MAPIE", "crepes", "puncc", "TorchCP"}
