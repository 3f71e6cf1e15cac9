"""Figures and numbers of the README, from a run."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from studies import pictures

from taskuq.report._explorer import method_colour

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", ["first-screen.png", "scan.png"])
def test_figures_of_the_readme_exist_and_are_small(name):
    path = ROOT / "docs/figures" / name

    assert path.stat().st_size <= pictures.LARGEST
    assert f"docs/figures/{name}" in (ROOT / "README.md").read_text()


def test_a_figure_that_stays_large_is_refused(tmp_path):
    noise = np.random.default_rng(0).integers(0, 256, (900, 900, 3), dtype=np.uint8)

    with pytest.raises(SystemExit, match="more than"):
        pictures.save_small(Image.fromarray(noise), tmp_path / "noise.png")


def test_the_scan_has_the_colours_of_the_report():
    style = (ROOT / "src/taskuq/report/assets/report.css").read_text()
    policy = f"c{method_colour('fixed-width spread')}"
    colours = {"ink": pictures.SAMPLES, policy: pictures.REPORT, "truth": pictures.TRUTH}

    for name, colour in colours.items():
        assert re.search(rf"--{name}: (#\w+)", style)[1] == colour
    for part, name in (("dot", "ink"), ("report", "policy"), ("target", "truth")):
        assert re.search(rf"\.scan.* \.{part} {{ (fill|stroke): var\(--{name}\)", style)


def test_a_short_run_is_refused_first(tmp_path, monkeypatch):
    (tmp_path / "simulate.json").write_text(json.dumps({"trials": 9_999}))
    monkeypatch.setattr(pictures, "first_screen", pytest.fail)

    with pytest.raises(SystemExit, match="9999 random splits"):
        pictures.main([str(tmp_path)])


def test_the_headline_shows_every_policy_with_its_errors(tmp_path):
    errors = {"mean_acceleration": 0.1, "coverage": 0.002}
    row = {"policy": "paper", "score": "lwr", "statistic": None, "budget": 1.0, "guaranteed": False,
           "mean_acceleration": 2.5, "coverage": 0.88, "width": 0.1,
           "standard_errors": errors}  # fmt: skip
    record = {"alpha": 0.1, "goal": {"max_width": 0.2}, "trials": 10_000, "n": 30, "unit": "group",
              "coverage_of": "a random case of a new group", "results": [row]}  # fmt: skip
    (tmp_path / "simulate.json").write_text(json.dumps(record))
    text = pictures.headline(tmp_path)

    assert "| paper lwr | no | 2.50 ± 0.10 | 0.880 ± 0.002 | 0.100 |" in text
    assert "α = 0.1, intervals at most 0.2 wide, 10000 random splits" in text
