import json
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from browsing import unfold, violations
from taskuq.experiments._claims import ClaimSettings
from taskuq.experiments._demo import ALPHA, FIRST, MAX_WIDTH, SEED, DemoSettings, run_demo
from taskuq.experiments._run import open_run, read_run
from taskuq.policy._plan import plan
from taskuq.report._explorer import load_explorer
from taskuq.table._table import TaskOutputs

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "atlas"
SMALL = DemoSettings(patients=1, slices=2, shown=2, trials=8, simulations=6, replays=6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    few = partial(
        ClaimSettings, samples=(2, 32), goals=((0.05, 0.1), (0.1, 0.2)), widths=(0.1, 0.2)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("taskuq.experiments._demo.ClaimSettings", few)
        run_demo(SMALL, folder)
    return folder


def records(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*.json"))}


def test_stored_tables_have_the_same_slices():
    samples, point = TaskOutputs.load("atlas-sampler"), TaskOutputs.load("atlas-varnet")
    assert samples.samples == 32
    assert point.samples == 1
    assert samples.accelerations.tolist() == point.accelerations.tolist() == [16, 8, 4, 2]
    assert np.array_equal(samples.case, point.case)
    assert np.array_equal(samples.group, point.group)
    assert np.allclose(samples.targets, point.targets, atol=1e-4)
    assert samples.cases >= 2000
    assert len(np.unique(samples.group)) >= 100
    assert set(np.unique(samples.label)) == {0, 1}
    assert samples.task_range == (0.0, 1.0)


TOLERANCES = {"sampler": 2e-3, "varnet": 1e-3}


@pytest.mark.parametrize("name", TOLERANCES)
def test_stored_row_is_reproduced(name):
    """One slice, from the atlas to its outputs, against the bundled table."""
    run, tolerance = open_run(read_run(CONFIGS / f"run-{name}.toml"), "cpu"), TOLERANCES[name]
    table, index = TaskOutputs.load(f"atlas-{name}"), 11
    item = run.images[index]
    asked = {"samples": run.config.samples, "seed": run.config.seed, "progress": False}
    found = run.pipeline.run([item.image], case=[item.case], accelerations=(8, 2), **asked)
    assert item.case == table.case[index]
    assert found.targets[0] == pytest.approx(table.targets[index], abs=tolerance)
    stored = table.select(accelerations=[8, 2]).outputs[:, index]
    assert np.abs(found.outputs[:, 0] - stored).max() < tolerance


def test_scanned_patients_are_not_in_the_table():
    scanned = {f"patient-{FIRST + k}" for k in range(DemoSettings().patients)}
    assert not scanned & set(TaskOutputs.load("atlas-sampler").group.tolist())
    for name in TOLERANCES:
        assert read_run(CONFIGS / f"run-{name}.toml").data.seed == SEED


def test_demo_leaves_records_table_and_report(folder):
    assert (folder / "report.html").stat().st_size > 100_000
    assert TaskOutputs.load(folder / "table.npz").samples == 32
    page = (folder / "report.html").read_text(encoding="utf-8")
    verdicts = page[page.index('class="verdicts"') : page.index('id="explore"')]
    leading = re.findall(r'href="#(experiment-[^"]+)"', verdicts)
    assert len(leading) == len(list((folder / "records").glob("*.json")))
    assert all(page.count(f'id="{name}"') == 1 for name in leading)
    explorer = load_explorer(folder / "explorer.npz")
    assert explorer.slices == 2
    assert explorer.samples.shape[2] == 2
    names = {json.loads(text).get("name") for text in records(folder).values()}
    assert {"live", "interval-length", "multi-round", "coverage-law"} <= names


def test_demo_stops_where_the_policy_stops(folder):
    explorer = load_explorer(folder / "explorer.npz")
    live = json.loads((folder / "records" / "live.json").read_text())
    table = TaskOutputs.load("atlas-sampler")
    policy = plan(table, alpha=ALPHA, max_width=MAX_WIDTH, unit="group")
    for k, row in enumerate(live["tables"][0]["rows"]):
        _, stopped, low, high, truth, held = row
        for t, R in enumerate(explorer.accelerations):
            decision = policy.decide(t, explorer.outputs[k, : t + 1])
            assert decision.stop == (stopped >= R)
            if decision.stop:
                assert (decision.interval.lower, decision.interval.upper) == pytest.approx(
                    (low, high), abs=1e-5
                )
                break
        assert truth == pytest.approx(explorer.targets[k], abs=1e-6)
        assert held == ("yes" if low <= truth <= high else "no")


def test_report_is_accessible_and_nothing_is_nan(folder, open_page, axe):
    page = open_page(folder / "report.html", width=1280, height=800, bypass_csp=True)
    unfold(page)
    assert violations(page, axe) == []
    assert not re.search(r"\bnan\b", page.locator("body").inner_text(), re.IGNORECASE)
