"""taskuq plan and taskuq simulate: files, exit statuses, and the figures of a simulation."""

import json

import numpy as np
import pytest

import taskuq as tq
from raising import refused
from taskuq.cli.app import main
from taskuq.errors import GuaranteeWarning
from taskuq.table._examples import SyntheticTable, synthetic_outputs

SMALL = synthetic_outputs(SyntheticTable(volumes=12, samples=4), seed=0)


@pytest.fixture
def path(tmp_path):
    return str(SMALL.save(tmp_path / "table.npz"))


def test_plan_command_writes_the_policy(path, tmp_path, capsys):
    out = tmp_path / "policy.json"
    main(["plan", path, "--max-width", "0.3", "--alpha", "0.1", "--unit", "case", "-o", str(out)])
    assert capsys.readouterr().out.strip() == str(out)
    expected = tq.plan(SMALL, alpha=0.1, max_width=0.3, unit="case")
    assert tq.load_policy(out).to_dict() == expected.to_dict()


def test_simulate_command_prints_json_and_draws(path, tmp_path, capsys):
    figures = tmp_path / "figures"
    main(
        ["simulate", path, "--max-width", "0.3", "--splits", "20", "--alpha", "0.2", "--json", "-"]
    )
    record = json.loads(capsys.readouterr().out)
    main(["simulate", path, "--max-width", "0.3", "--splits", "20", "--alpha", "0.2",
          "--policy", "fixed-width", "--figures", str(figures)])  # fmt: skip
    assert record["schema"] == "taskuq.simulate/1"
    assert {r["policy"]: r["guaranteed"] for r in record["results"]} == {
        "paper": False, "fixed-width": True, "adaptive": True, "anytime": True,
    }  # fmt: skip
    assert len(list(figures.glob("*.svg"))) == len(list(figures.glob("*.png"))) == 3


def test_policy_that_cannot_be_simulated_is_left_out(tmp_path, capsys):
    rng = np.random.default_rng(0)
    table = tq.TaskOutputs(rng.random((2, 18, 4)), rng.random(18), (4.0, 2.0))
    path = str(table.save(tmp_path / "t.npz"))
    asked = ["simulate", path, "--policy", "paper", "--alpha", "0.2", "--max-width", "0.5"]
    main([*asked, "--splits", "5", "--score", "lwr,cqr"])
    assert "left out" not in capsys.readouterr().err
    main([*asked, "--splits", "5", "--score", "lwr,learned"])
    assert "paper:learned is skipped" in capsys.readouterr().err
    how: dict = {"alpha": 0.2, "max_width": 0.5, "splits": 5}
    with pytest.warns(GuaranteeWarning, match="paper:learned is skipped"):
        (found,) = tq.simulate(table, ["paper:lwr", "paper:learned"], **how)
    assert found.score == "lwr"
    with refused("units.few"):
        tq.simulate(table, ["paper:learned"], **how)
