"""Signals instead of images, from pipeline to report: no term of MRI appears."""

import json
import re

import numpy as np
import pytest

import taskuq as tq
from raising import refused
from taskuq.cli.app import main

SECONDS, FULL = {"1 s": 1, "2 s": 2, "4 s": 4}, 16
RANGES = {"mean": (0, 1), "height": (0, np.inf)}
WIDTHS = {"mean": 0.2, "height": 1.5}
SCANNER = re.compile(r"\b(slices?|patients?|k-space|zero-filled|MRI|lines? of|masks?)\b", re.I)


def blurred(signal, acceleration):
    noise = np.random.default_rng(int(1e6 * signal.sum())).standard_normal((16, signal.size))
    seen = round(FULL / acceleration)
    return np.convolve(signal, np.ones(3) / 3, "same") + 0.3 * noise[:seen].mean(0)


def sharpened(measurement, *, samples, seed):
    noise = np.random.default_rng(seed).standard_normal((samples, measurement.size))
    return measurement + 0.2 * noise


def read(signals):
    return np.stack([signals.mean(-1).clip(0, 1), signals.max(-1).clip(0)], axis=-1)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("signals")
    rng = np.random.default_rng(0)
    signals = rng.random((80, 1)) * (rng.random((80, 24)) < 0.7)
    table = tq.Pipeline(blurred, sharpened, read).run(
        signals, costs=SECONDS, full_cost=FULL, samples=4, seed=0, store=folder / "table",
        task_names=list(RANGES), task_range=RANGES, keep_images=4, progress=False,
        terminology={"case": "signal", "estimate": "blurred", "measurement": "second"},
    )  # fmt: skip
    return folder, table


def test_rounds_have_names_and_costs(run):
    _, table = run
    assert table.round_names == tuple(SECONDS)
    assert table.accelerations.tolist() == [16, 8, 4]
    assert tq.calibrate(table, acceleration="2 s", task="mean", alpha=0.1).acceleration == 8


def test_experiments_take_widths_and_need_no_masks(run, tmp_path):
    folder, _ = run
    main([
        "experiment", "all", "--table", str(folder / "table"), "--task", "mean", "--alpha", "0.2",
        "--max-width", "0.15,0.3", "--splits", "10", "-o", str(tmp_path),
    ])  # fmt: skip
    records = {p.stem: json.loads(p.read_text()) for p in tmp_path.rglob("records/*.json")}
    assert "masks" not in records
    rows = next(t for t in records["multi-round"]["tables"] if "case" in t["name"])["rows"]
    assert {row[1] for row in rows} == {0.15, 0.3}


def test_tasks_have_widths_and_ranges(run, tmp_path):
    _, table = run
    again = tq.TaskOutputs.load(table.save(tmp_path / "rows.csv"), task_range=RANGES)
    assert np.allclose(again.outputs, table.outputs)
    assert again.task_ranges == table.task_ranges == ((0, 1), (0, np.inf))
    one, other = (tq.plan(t, alpha=0.2, max_width=WIDTHS) for t in (table, again))
    assert one.goal == other.goal
    assert one.goal.statement.count("wide") == 2


def test_report_has_no_terms_of_mri(run, tmp_path):
    _, table = run
    page = tq.make_report(table, tmp_path / "page", alpha=0.2, max_width=WIDTHS, splits=20)
    # Scripts and styles speak to the browser; the glossary explains the paper.
    text = re.sub(r"<(script|style)\b.*?</\1>", " ", page.read_text(), flags=re.DOTALL)
    shown = re.sub(r"<[^>]*>", "", text.partition('id="glossary"')[0])
    assert (tmp_path / "page" / "explorer.npz").exists()
    assert "signal" in shown
    assert SCANNER.findall(shown) == []


def too_few(measurement, *, samples, seed):
    return sharpened(measurement, samples=samples - 2, seed=seed)


def without_height(signals):
    return read(signals)[:, : 2 if len(signals) == 1 else 1]


def unreadable(signals):
    return np.full(len(signals), np.nan)


@pytest.mark.parametrize(
    ("recover", "task"), [(too_few, read), (sharpened, without_height), (sharpened, unreadable)]
)
def test_error_names_case_and_round(tmp_path, recover, task):
    asked = {"costs": SECONDS, "full_cost": FULL, "samples": 4, "seed": 0, "progress": False}
    with refused("component.invalid", "north"):
        tq.Pipeline(blurred, recover, task).run(
            np.ones((1, 24)), case=["north"], store=tmp_path / "table", **asked
        )
