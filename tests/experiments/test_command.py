"""taskuq experiment: records in the run's folder, one sentence where inputs are missing."""

import json

import numpy as np
import pytest

import taskuq as tq
from taskuq.cli.app import main
from taskuq.experiments._claims import ClaimInputs
from taskuq.table._table import replace_arrays
from taskuq.table._terminology import MRI


def run(*arguments):
    try:
        main(["experiment", *map(str, arguments)])
    except SystemExit as stop:
        return stop.code
    return 0


def test_a_record_lands_in_the_runs_folder_twice_the_same(table, tmp_path, capsys):
    path = table.save(tmp_path / "table.npz")
    texts = []
    for folder in ("one", "two"):
        options = ("--range", "0,1", "--splits", "50", "-o", tmp_path / folder)
        assert run("coverage-law", "--table", path, *options) == 0
        texts.append((tmp_path / folder / "records/coverage-law.json").read_bytes())

    assert texts[0] == texts[1]
    assert "coverage-law.json" in capsys.readouterr().out


def test_widths_bins_and_scores_are_the_users(tmp_path, capsys):
    rng = np.random.default_rng(0)
    z = 100 * rng.random(120)
    x = z[:, None] + np.array([30, 10])[:, None, None] * rng.standard_normal((2, 120, 6))
    path = tq.TaskOutputs(x, z, (8, 2), round_names=["one", "two"]).save(tmp_path / "areas.npz")
    options = ("--alpha", "0.2", "--max-width", "40,80", "--size-bins", "0,30,60,inf",
               "--score", "lwr,mlwr", "--splits", "40", "-o", tmp_path)  # fmt: skip
    assert run("all", "--table", path, *options) == 0
    found = {p.stem: json.loads(p.read_text()) for p in (tmp_path / "records").glob("*.json")}

    assert "masks" not in found, "nobody measured k-space"
    assert "masks is left out" in capsys.readouterr().err
    assert found["multi-round"]["settings"]["goals"] == [[0.2, 40], [0.2, 80]]
    strata = json.dumps(found["conditional-coverage"])
    assert "[30, 60)" in strata
    assert '"cqr"' not in json.dumps(found["interval-length"]["tables"])


def test_masks_are_shown_for_a_table_of_mri(table, few):
    of_mri = replace_arrays(table, provenance={"words": MRI.to_dict()})

    assert ClaimInputs(of_mri).lacks(("masks",)) is None
    assert "not of MRI" in ClaimInputs(table).lacks(("masks",))


def test_masks_need_no_table(tmp_path):
    masks = np.eye(2, 8, dtype=bool).cumsum(axis=0).astype(bool)
    np.savez(tmp_path / "masks.npz", masks=masks, accelerations=[8.0, 4.0])
    assert run("masks", "--masks", tmp_path / "masks.npz", "-o", tmp_path) == 0
    record = json.loads((tmp_path / "records/masks.json").read_text())

    assert record["settings"]["width"] == 8


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("multi-round",), "it needs a table of posterior samples"),
        (("recovery-quality",), "it needs a quality record"),
        (("masks", "--masks", "absent.npz"), "absent.npz"),
        (("interval-length", "--table", "absent.npz"), "there is no table"),
        (("masks", "--splits", "0"), "must be at least 1"),
        (("telepathy",), "telepathy"),
    ],
)
def test_bad_input_is_one_sentence(arguments, sentence, tmp_path, capsys):
    assert run(*arguments, "-o", tmp_path) == 2
    assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
