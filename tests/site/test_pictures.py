"""The pictures and numbers of the README: small, and made from a run."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scripts import pictures

import taskuq as tq
from taskuq.outputs.synthetic import SyntheticScanner, synthetic_outputs

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["first-screen.png", "scan.png"])
def test_pictures_of_the_readme_are_there_and_small(name):
    path = ROOT / "docs/figures" / name

    assert path.stat().st_size <= pictures.LARGEST
    assert f"docs/figures/{name}" in (ROOT / "README.md").read_text()


def test_a_picture_that_stays_large_is_refused(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (900, 900, 3), dtype=np.uint8)

    with pytest.raises(SystemExit, match="more than"):
        pictures.save_small(Image.fromarray(noise), tmp_path / "noise.png")


def test_the_case_that_is_shown_stops_neither_at_once_nor_never():
    table = synthetic_outputs(SyntheticScanner(), seed=0)
    policy = tq.plan(table, alpha=0.1, max_width=0.2, unit="case")
    case, decisions = pictures.stopping_case(policy, table.outputs[:, :200].transpose(1, 0, 2))

    assert decisions[-1].stop
    assert len(decisions) > 1
    assert not any(decision.stop for decision in decisions[:-1])
    again = policy.decide(round=len(decisions) - 1, outputs=table.outputs[: len(decisions), case])
    assert again.stop


def test_the_headline_shows_every_policy_with_its_errors(tmp_path):
    errors = {"mean_acceleration": 0.1, "coverage": 0.002}
    row = {"policy": "paper", "score": "lwr", "statistic": None, "budget": 1.0, "guaranteed": False,
           "mean_acceleration": 2.5, "coverage": 0.88, "width": 0.1,
           "standard_errors": errors}  # fmt: skip
    record = {"alpha": 0.1, "goal": {"max_width": 0.2}, "trials": 9, "n": 30, "unit": "group",
              "coverage_of": "a random case of a new group", "results": [row]}  # fmt: skip
    (tmp_path / "simulate.json").write_text(json.dumps(record))
    text = pictures.headline(tmp_path)

    assert "| paper lwr | no | 2.50 ± 0.10 | 0.880 ± 0.002 | 0.100 |" in text
    assert "α = 0.1, intervals at most 0.2 wide, 9 random splits" in text


@pytest.mark.parametrize("name", ["headline", "peers"])
def test_the_marked_places_of_the_readme_are_filled(name):
    text = (ROOT / "README.md").read_text()
    (block,) = re.findall(f"<!-- {name} -->\n(.*?)<!-- end of {name} -->", text, re.DOTALL)

    assert block.count("|---") > 3
