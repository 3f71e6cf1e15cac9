import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import python_truth
import run_folder

import taskuq as tq
from taskuq.report._explorer import RULES, TITLES, load_explorer
from taskuq.report._page import ASSETS
from taskuq.report._report import write_report
from taskuq.table._table import TaskOutputs

ALPHA, TAU = 0.1, 0.1
# Enough to find every planted fault.
SETTINGS = 60


def difficult(table):
    """Make a table hard: identical samples, ties between cases, saturated outputs."""
    outputs, targets = table.outputs.copy(), table.targets.copy()
    outputs[:, 5::11] = outputs[:, 5::11, :1]
    outputs[:, 3::7] = np.round(outputs[:, 3::7], 1)
    targets[3::7] = np.round(targets[3::7], 1)
    outputs[:, 2::13], outputs[:, 8::13] = 0.0, 1.0
    outputs[:, 20:24] = outputs[:, 20:21]
    targets[20:24] = targets[20]
    return TaskOutputs(
        outputs, targets, table.accelerations, group=table.group, label=table.label,
        case=table.case, task_range=table.task_range,
    )  # fmt: skip


def sprawling(seed):
    """A sampler that is far too unsure, except in every fifth case: CQR's intervals cross there."""
    rng = np.random.default_rng(seed)
    z = rng.uniform(0.3, 0.7, 60)
    spread = np.where(np.arange(60) % 5 == 0, 0.004, 0.1) / np.arange(1, 5)[:, None]
    outputs = np.clip(z[:, None] + spread[..., None] * rng.standard_normal((4, 60, 9)), 0, 1)
    return TaskOutputs(
        outputs, z, run_folder.RATES, group=[f"g{i // 5}" for i in range(60)],
        label=np.arange(60) % 2, case=np.arange(60), task_range=(0.0, 1.0),
    )  # fmt: skip


@dataclass
class Stored:
    """A page, what Python knows of its explorer, and the size of each task's outputs."""

    page: Path
    truth: python_truth.Truth
    scales: tuple[float, ...]


KINDS = ("by group", "unbounded", "tied and crossing", "two tasks")


@pytest.fixture(scope="module")
def make_stored(tmp_path_factory):
    @cache
    def make(kind):
        return write_stored(kind, tmp_path_factory.mktemp("explorer"))

    return make


@pytest.fixture(params=KINDS)
def stored(request, make_stored):
    return make_stored(request.param)


@pytest.fixture
def stored_everywhere(make_stored):
    return [make_stored(KINDS[2]), make_stored(KINDS[0])]


def two_tasks(table):
    """A second task between 10 and 30: surer than the first, and often about something else."""
    rng = np.random.default_rng(3)
    shown = np.arange(table.cases)[-64::8]
    rest = np.flatnonzero(~np.isin(table.group, table.group[shown]))
    z = np.clip(0.6 * table.targets + 0.4 * rng.random(table.cases), 0, 1)
    noise = rng.standard_normal(table.outputs.shape) * 0.1 / np.arange(1, 5)[:, None, None]
    second, z = 10 + 20 * np.clip(z[:, None] + noise, 0, 1), 10 + 20 * z
    outputs = np.moveaxis(np.stack([table.outputs, second], axis=-1), 0, 1)
    targets = np.stack([table.targets, z], axis=-1)
    return {"outputs": outputs[shown], "targets": targets[shown],
            "point_outputs": outputs[shown].mean(axis=2),
            "calibration_outputs": outputs[rest], "calibration_targets": targets[rest],
            "task_names": ["lesion", "area"], "task_ranges": [[0, 1], [10, 30]]}  # fmt: skip


def write_stored(kind, folder):
    table = difficult(run_folder.table_of(volumes=32, samples=9, seed=5))
    unit, range_, scales, changes = "group", (0.0, 1.0), (1.0,), {}
    if kind == "unbounded":
        unit, range_, scales = "case", None, (20.0,)
        table = TaskOutputs(
            25 + 20 * table.outputs.astype(float), 25 + 20 * table.targets, table.accelerations,
            group=table.group, label=table.label, case=table.case,
        )  # fmt: skip
    if kind == "tied and crossing":
        # Shown slices are calibration cases, so that thresholds and slices meet exactly.
        unit, table = "case", sprawling(7)
        outputs = np.moveaxis(table.outputs, 0, 1)
        changes = {"outputs": outputs[:8], "targets": table.targets[:8],
                   "calibration_outputs": outputs, "calibration_targets": table.targets,
                   "calibration_group": table.group, "calibration_label": table.label}  # fmt: skip
    if kind == "two tasks":
        scales, changes = (1.0, 20.0), two_tasks(table)
    run_folder.write_explorer(
        folder, table, slices=8, size=16, samples=2, task_range=range_, **changes
    )
    run = {"schema": "taskuq.run/1", "title": "t", "alpha": ALPHA, "max_width": TAU, "unit": unit}
    run_folder.write(folder / "run.json", run)
    explorer = load_explorer(folder / "explorer.npz")
    truth = python_truth.Truth(explorer, ALPHA, unit, range_)
    return Stored(write_report(folder), truth, scales)


def random_settings(count, stored, seed):
    """Settings a reader could choose: alpha down to where no rank exists, tau of every size."""
    rng = np.random.default_rng(seed)
    learned = "learned" in stored.truth.bases
    scores = [name for name in TITLES if learned or name != "learned"]
    policies = [name for name in RULES if learned or name != "fixed-width-learned"]
    for i in range(count):
        alpha = (
            rng.choice([0.0005, 0.001, 0.002, 0.03125, 0.05, 0.1, 0.2, 0.25, 0.5])
            if i % 2
            else round(float(rng.uniform(0.002, 0.6)), int(rng.integers(3, 8)))
        )
        widths = np.exp(rng.uniform(np.log(0.004), np.log(1.2), len(stored.scales)))
        taus = [float(tau) for tau in widths * stored.scales]
        yield {
            "alpha": repr(float(alpha)),
            "tau": ",".join(repr(round(tau, 4) if i % 3 else tau) for tau in taus),
            "score": scores[i % len(scores)],
            "policy": policies[int(rng.integers(len(policies)))],
            "unit": ["case", "group"][int(rng.integers(2))],
            "within": ["all", "class"][int(rng.integers(2))],
            "slice": int(rng.integers(8)),
            "task": int(rng.integers(stored.truth.tasks)),
        }


ASK = "settings => settings.map(s => window.taskuqExplorer.at(s).rounds)"


def disagreements(stored, page, settings):
    """Settings at which browser and Python differ, and what the browser said of all of them."""
    answers = page.evaluate(ASK, settings)
    found = {
        json.dumps(setting): wrong
        for setting, rounds in zip(settings, answers, strict=True)
        if (wrong := python_truth.differences(rounds, stored.truth.at(setting)))
    }
    return found, [r for rounds in answers for r in rounds]


def test_random_settings_give_what_python_gives(stored, open_page):
    settings = list(random_settings(SETTINGS, stored, seed=1))
    crossing = [s | {"score": "cqr", "policy": "adaptive", "unit": "case"} for s in settings[:20]]
    found, rounds = disagreements(stored, open_page(stored.page), [*settings, *crossing])
    assert found == {}
    # The settings are worth something only if they meet the edges.
    assert sum(r["quantile"] == np.inf for r in rounds) >= 10
    crossed = [r["interval"][0] > r["interval"][1] for r in rounds]
    assert any(crossed) or len(stored.truth.z) != 60
    assert not any(r["stops"] and r["report"][0] > r["report"][1] for r in rounds)
    assert min(sum(r["stops"] for r in rounds), sum(not r["stops"] for r in rounds)) >= 50


FAULTS = [
    ("BigInt(n + 1), level.bottom", "BigInt(n), level.bottom"),
    ("* bottom <= limit)", "* bottom < limit - level.bottom)"),
    ("level.top * (sum(all) + common)", "level.top * sum(all)"),
    ("if (!outliers.length) return eager", "return eager"),
    ("return Math.max(...classes.map(", "return Math.min(...classes.map("),
    ("threshold < seen.largest", "threshold <= seen.largest"),
    ("const ROUNDING = 4 *", "const ROUNDING = 4e8 *"),
    ("share < 0.5 ? below", "share < 2.5 ? above"),
    ("if (top > lowest[k])", "if (k > 0)"),
    ("residual <= 0 ? 0 : Infinity", "0"),
    ("j / 2 - 5 +", "j / 2 - 4 +"),
    ("if (missed < best.missed)", "if (!best.lower)"),
]


# The scripts of a report with a fault, run on the data of an open page.
FAULTY = """([scripts, settings]) => {
    const stored = JSON.parse(document.getElementById("stored").textContent);
    const at = new Function("stored", scripts + "; return model(stored);")(stored).at;
    const state = window.taskuqExplorer.state();
    return settings.map(s => at({...state, ...s}).rounds);
}"""
SCRIPTS = "".join((ASSETS / name).read_text() for name in ("statistics.js", "model.js"))


@pytest.mark.parametrize(("right", "wrong"), FAULTS)
def test_a_planted_fault_is_found(right, wrong, open_page, stored_everywhere):
    assert SCRIPTS.count(right) == 1
    scripts = SCRIPTS.replace(right, wrong)

    def found_in(stored):
        settings = list(random_settings(SETTINGS, stored, seed=1))
        rounds = open_page(stored.page, bypass_csp=True).evaluate(FAULTY, [scripts, settings])
        pairs = zip(rounds, map(stored.truth.at, settings), strict=True)
        return any(python_truth.differences(mine, yours) for mine, yours in pairs)

    assert any(map(found_in, stored_everywhere))


def test_at_the_runs_own_setting_it_is_what_plan_makes(stored, open_page):
    truth, page = stored.truth, open_page(stored.page)
    table = truth.table()
    unit = page.evaluate("window.taskuqExplorer.state().unit")
    for key, kind, extra in [
        ("fixed-width", "fixed-width", {}),
        ("fixed-width-learned", "fixed-width", {"statistic": "learned"}),
        ("adaptive", "adaptive", {"score": "lwr"}),
        ("anytime", "anytime", {"score": "mlwr"}),
        ("paper", "paper", {"score": "cqr"}),
    ]:
        if "learned" in key and "learned" not in truth.bases:
            continue
        tau = page.evaluate("window.taskuqExplorer.state().tau")
        widths = [float(width) for width in tau.split(",")]
        planned = tq.plan(table, alpha=ALPHA, max_width=widths, policy=kind, unit=unit, **extra)
        setting = {"alpha": repr(ALPHA), "tau": tau, "policy": key, "unit": unit, "slice": 0,
                   "score": extra.get("score", "ar")}  # fmt: skip
        (rounds,) = page.evaluate(ASK, [setting])
        assert [r["threshold"] for r in rounds] == pytest.approx(planned.thresholds, rel=1e-9)


def test_a_policy_by_class_opens_by_class(tmp_path, open_page):
    table = run_folder.table_of(volumes=32, samples=9, seed=5)
    run_folder.write_explorer(tmp_path, table, slices=2, size=16, samples=2)
    explorer = load_explorer(tmp_path / "explorer.npz")
    rest = table.select(cases=np.isin(table.group, explorer.calibration_group))
    policy = tq.plan(rest, alpha=0.25, max_width=TAU, label="label")
    policy.save(tmp_path / "policy.json")
    page = open_page(write_report(tmp_path))
    assert page.locator("[data-part=within]").input_value() == "class"
    assert "within each class" in page.locator("[data-part=guarantee]").inner_text()
    (rounds,) = page.evaluate(ASK, [{}])
    assert [r["threshold"] for r in rounds] == pytest.approx(policy.thresholds, rel=1e-9)
    page.locator("[data-part=within]").select_option("all")
    (rounds,) = page.evaluate(ASK, [{}])
    pooled = tq.plan(rest, alpha=0.25, max_width=TAU)
    assert [r["threshold"] for r in rounds] == pytest.approx(pooled.thresholds, rel=1e-9)
    assert pooled.thresholds != policy.thresholds


def test_the_sliders_and_the_table_show_what_python_says(stored, open_page):
    truth, page = stored.truth, open_page(stored.page)
    page.locator("[data-part=policy]").select_option("adaptive")
    page.locator("[data-part=score]").select_option("cqr")
    for setting in random_settings(3, stored, seed=3):
        page.locator("[data-part=alpha-exact]").fill(setting["alpha"])
        for task in range(truth.tasks):
            if truth.tasks > 1:
                page.locator("[data-part=task]").select_option(str(task))
            page.locator("[data-part=tau-exact]").fill(setting["tau"].split(",")[task])
        compare_table(page, truth)
    for part, key in (("alpha", "ArrowLeft"), ("tau", "ArrowRight"), ("alpha", "Home")):
        before = page.evaluate("window.taskuqExplorer.state()")[part]
        page.locator(f"input[type=range][data-part={part}]").press(key)
        assert page.evaluate("window.taskuqExplorer.state()")[part] != before
        compare_table(page, truth)
    # At the smallest error rate there are too few cases, and the page says how many it takes.
    assert "needs at least 999 calibration" in page.locator("[data-part=guarantee]").inner_text()


def compare_table(page, truth):
    """The numbers in the page's table against Python's at the page's own setting."""
    setting = page.evaluate("window.taskuqExplorer.state()")
    rows = page.locator("[data-part=numbers] tr").evaluate_all(
        "rows => rows.map(r => ({...r.dataset}))"
    )
    told = [
        {
            "quantile": number(row["quantile"]),
            "interval": [number(row["lower"]), number(row["upper"])],
            "threshold": number(row["threshold"]),
            "report": [number(row["reportLower"]), number(row["reportUpper"])],
            "stops": row["stops"] == "true",
        }
        for row in rows
    ]
    expected = truth.at(setting)
    assert python_truth.differences(told, expected) == []
    first = next((k for k, r in enumerate(expected) if r["stops"]), len(expected))
    assert page.locator("#explorer").get_attribute("data-stop") == str(first)


def number(text):
    return float(text.replace("Infinity", "inf"))
