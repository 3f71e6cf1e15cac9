"""taskuq experiment: records in the run's folder, one sentence where inputs are missing."""

import json

import numpy as np
import pytest

import taskuq as tq
from taskuq.cli.app import main


def run(*arguments):
    try:
        main(["experiment", *map(str, arguments)])
    except SystemExit as stop:
        return stop.code
    return 0


def test_widths_bins_and_scores_are_options(tmp_path, capsys):
    rng = np.random.default_rng(0)
    z = 100 * rng.random(120)
    x = z[:, None] + np.array([30, 10])[:, None, None] * rng.standard_normal((2, 120, 6))
    path = tq.TaskOutputs(x, z, (8, 2), round_names=["one", "two"]).save(tmp_path / "areas.npz")
    options = ("--alpha", "0.2", "--max-width", "40,80", "--size-bins", "0,30,60,inf",
               "--score", "lwr,mlwr", "--splits", "4", "-o", tmp_path)  # fmt: skip
    assert run("all", "--table", path, *options) == 0
    found = {p.stem: json.loads(p.read_text()) for p in (tmp_path / "records").glob("*.json")}
    assert "masks" not in found
    assert "masks is left out" in capsys.readouterr().err
    assert found["multi-round"]["settings"]["goals"] == [[0.2, 40], [0.2, 80]]
    strata = json.dumps(found["conditional-coverage"])
    assert "[30, 60)" in strata
    assert '"cqr"' not in json.dumps(found["interval-length"]["tables"])
    assert run("interval-length", "--table", path, "--score", "learned", "-o", tmp_path) == 0
    assert "no score of the paper was chosen" in capsys.readouterr().err
    assert run("interval-length", "--table", path, "--score", "", "-o", tmp_path) == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("multi-round",), "it needs a table of posterior samples"),
        (("recovery-quality",), "it needs a quality record"),
        (("masks", "--masks", "absent.npz"), "absent.npz"),
        (("interval-length", "--table", "absent.npz"), "there is no table"),
        (("masks", "--splits", "0"), "--splits must be in"),
        (("telepathy",), "telepathy"),
    ],
)
def test_bad_input_exits_2(arguments, sentence, tmp_path, capsys):
    assert run(*arguments, "-o", tmp_path) == 2
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
