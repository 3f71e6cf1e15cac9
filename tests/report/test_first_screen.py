"""The first screen holds the answer: sentence, numbers, promise; verdicts link to what they say."""

import json
import math
import re
import shutil

import numpy as np
import pytest
import run_folder

import taskuq as tq
from browsing import on_screen
from taskuq.policy._simulate import simulation_record
from taskuq.report._answer import answer_of
from taskuq.report._records import experiment_record, read_folder
from taskuq.report._report import answer_lines, write_report
from taskuq.report._scan import one_scan, scan_picture
from taskuq.table._table import TaskOutputs
from taskuq.table._terminology import Terminology

SCREENS = {"desktop": (1280, 800), "phone": (390, 844)}
PARTS = ("[data-part=sentence]", "[data-part=tiles]", ".first .promise")


@pytest.mark.parametrize("screen", SCREENS)
def test_sentence_numbers_and_promise_are_on_the_first_screen(open_page, run_dir, keep, screen):
    width, height = SCREENS[screen]
    page = open_page(run_dir / "report.html", width=width, height=height)
    keep(page, f"first-{screen}")

    assert all(on_screen(page, part) for part in PARTS)
    assert on_screen(page, "[data-part=scan]") == (screen == "desktop")
    assert page.locator("[data-part=tiles] li").count() == 3
    assert tq.load_policy(run_dir / "policy.json").sentence in page.locator(PARTS[2]).inner_text()


def test_what_lies_below_is_not_on_the_first_screen(open_page, run_dir):
    page = open_page(run_dir / "report.html", width=1280, height=800)
    assert not on_screen(page, "#h-results")
    page.evaluate("scrollTo({top: 40, behavior: 'instant'})")
    assert not on_screen(page, "[data-part=sentence]")


def test_promise_and_explorer_speak_in_the_runs_own_words(open_page, run_dir, tmp_path):
    words = {"case": "digit", "group": "writer", "measurement": "pixel"}
    shutil.copytree(run_dir, tmp_path / "run")
    run = json.loads((run_dir / "run.json").read_text())
    run_folder.write(tmp_path / "run/run.json", {**run, "words": words})
    page = open_page(write_report(tmp_path / "run"), width=1280)
    said = page.locator(".first").inner_text() + page.locator("[data-part=verdict]").inner_text()

    assert said.count("a random digit of a new writer") == 3
    assert "% of the pixels" in said.replace("\u00a0", " ")
    assert not re.search(r"\b(case|group)s?\b", said)
    assert "a random digit of a new writer" in " ".join(answer_lines(tmp_path / "run"))


@pytest.mark.parametrize("screen", SCREENS)
def test_a_shortage_is_on_the_first_screen_beside_its_promise(open_page, short_run, keep, screen):
    width, height = SCREENS[screen]
    page = open_page(short_run / "report.html", width=width, height=height)
    keep(page, f"first-short-{screen}")

    assert all(on_screen(page, part) for part in PARTS)
    assert "needs at least 99 calibration groups, got 30" in page.locator(PARTS[2]).inner_text()
    assert "at least 99" in page.locator(PARTS[1]).inner_text()


GOAL = run_folder.Goal(max_width=0.1)
PolicyPlan = run_folder.PolicyPlan


def write_simulation(path, table, plans, **asked):
    asked = {"unit": "group", "delta": None, **asked}
    rng = np.random.default_rng(0)
    found = run_folder.simulate(table, plans, splits=5, seed=rng, **asked)
    pairs = [(table.samples, one) for one in found]
    run_folder.write(path, simulation_record(table, plans[0].goal, pairs, asked))


@pytest.fixture(scope="module")
def short_run(run_dir, tmp_path_factory):
    """A run whose 30 groups are too few for what its policy asks."""
    folder = tmp_path_factory.mktemp("short") / "run"
    shutil.copytree(run_dir, folder)
    table = TaskOutputs.load(folder / "table.npz")
    tq.plan(table, alpha=0.01, max_width=0.1).save(folder / "policy.json")
    write_simulation(folder / "simulate-short.json", table, [PolicyPlan("fixed-width", 0.01, GOAL)])
    write_report(folder)
    return folder


def test_the_menu_is_folded_on_a_phone_and_open_beside_a_wide_page(open_page, run_dir):
    phone = open_page(run_dir / "report.html", width=390, height=844)
    wide = open_page(run_dir / "report.html", width=1280, height=800)

    assert not phone.locator("nav ol").is_visible()
    phone.locator("#menu").press(" ")
    assert phone.locator("nav ol").is_visible()
    assert wide.locator("nav ol").is_visible()


def test_every_verdict_leads_to_what_it_says(open_page, run_dir):
    page = open_page(run_dir / "report.html")
    links = page.locator(".verdicts a").evaluate_all("all => all.map(a => a.getAttribute('href'))")

    assert links
    assert all(page.locator(link).count() == 1 for link in links)


def test_the_numbers_are_the_simulations(run_dir):
    contents = build_contents(read_folder(run_dir))
    mine = next(r for r in contents.simulations["simulate"] if r["policy"] == "fixed-width")
    share, coverage, width = answer_of(contents).numbers
    R, error = mine["mean_acceleration"], mine["standard_errors"]["mean_acceleration"]

    assert share.value == f"{100 / R:.1f}\u00a0%"
    assert share.error == f"±\u00a0{100 * error / R**2:.1f}\u00a0%"
    assert coverage.value == f"{100 * mine['coverage']:.1f}\u00a0%"
    assert "at least 90\u00a0%" in coverage.what
    assert width.value == f"{mine['width']:.4g}"


def plans_like(alpha=0.1, width=0.1, **options):
    """A plan that differs from the run's own policy where something is given."""
    return [PolicyPlan("fixed-width", alpha, run_folder.Goal(max_width=width), **options)]


@pytest.mark.parametrize(
    ("other", "asked"),
    [
        ({"statistic": "learned"}, {}),
        ({"alpha": 0.3}, {}),
        ({"width": 0.4}, {}),
        ({"budget": 0.5}, {}),
        ({}, {"unit": "case"}),
        ({}, {"delta": 0.2}),
    ],
    ids=str,
)
def test_numbers_of_another_policy_are_not_joined_to_the_promise(run_dir, tmp_path, other, asked):
    table = TaskOutputs.load(run_dir / "table.npz")
    shutil.copy(run_dir / "policy.json", tmp_path)
    write_simulation(tmp_path / "simulate.json", table, plans_like(**other), **asked)
    answer = answer_of(build_contents(read_folder(tmp_path)))

    assert answer.sentence.startswith("This policy was not simulated")
    assert answer.numbers == ()
    assert answer.verdicts[0].verdict == "not measured"


def test_the_numbers_are_the_policys_own_beside_faster_ones(run_dir, tmp_path):
    shutil.copytree(run_dir, tmp_path / "run")
    table = TaskOutputs.load(run_dir / "table.npz")
    write_simulation(tmp_path / "run/faster.json", table, plans_like(alpha=0.3, width=0.4))

    assert answer_lines(tmp_path / "run") == answer_lines(run_dir)


@pytest.mark.parametrize(
    ("spec", "asked"),
    [
        ({"score": "lwr", "kind": "adaptive"}, {}),
        ({"statistic": "learned", "budget": 0.5}, {}),
        ({}, {"unit": "whole-group"}),
        ({"given": "early"}, {"unit": "case", "delta": 0.2}),
    ],
    ids=str,
)
def test_a_policy_is_found_again_in_its_own_simulation(tmp_path, spec, asked):
    table = run_folder.table_of(volumes=30, samples=4)
    options = {("policy" if key == "kind" else key): value for key, value in spec.items()}
    planned = tq.plan(table, alpha=0.1, max_width=0.1, **options, **asked)
    planned.save(tmp_path / "policy.json")
    plans = [PolicyPlan(**{"kind": "fixed-width", "alpha": 0.1, "goal": GOAL, **spec})]
    write_simulation(tmp_path / "simulate.json", table, plans, **asked)

    assert build_contents(read_folder(tmp_path)).simulated is not None


def test_without_a_policy_none_of_several_is_taken(run_dir, tmp_path):
    shutil.copy(run_dir / "simulate.json", tmp_path)
    answer = answer_of(build_contents(read_folder(tmp_path)))

    assert answer.sentence.startswith("Several policies were simulated and none of them is stored")
    assert answer.numbers == ()


def test_early_reports_that_are_mostly_wrong_are_seen_at_once(open_page, tmp_path, keep):
    rng = np.random.default_rng(0)
    z = rng.random(200)
    x = np.clip(z[:, None] + 0.05 * rng.standard_normal((2, 200, 5)), 0, 1)
    asked = {"alpha": 0.1, "max_width": 0.0005, "trials": 50}
    table = tq.TaskOutputs(x, z, (6, 2), task_range=(0, 1))
    path = tq.make_report(table, tmp_path / "page", **asked)
    answer = answer_of(build_contents(read_folder(tmp_path / "page")))
    mine = build_contents(read_folder(tmp_path / "page")).simulated
    missed = f"{100 * (1 - mine['coverage_early']):.1f}\u00a0%"

    assert mine["coverage_early"] < 0.1 < 0.85 < mine["coverage"]
    assert f"but only {100 * mine['coverage_early']:.1f}\u00a0% where scans" in answer.sentence
    assert f"{100 * mine['early']:.1f}\u00a0% that stopped early" in answer.numbers[1].what
    assert f"stopped early {missed} missed the truth" in answer.promise.shortages[-1]
    for screen, (width, height) in SCREENS.items():
        page = open_page(path, width=width, height=height)
        keep(page, f"first-wrong-{screen}")
        assert all(on_screen(page, part) for part in PARTS)


def test_a_run_that_cannot_stop_does_not_read_as_success(short_run):
    answer = answer_of(build_contents(read_folder(short_run)))

    assert answer.sentence.startswith("No scan could stop early: calibrated on 21 groups")
    assert [n.value for n in answer.numbers] == ["100.0\u00a0%", "–", "–"]
    assert (answer.verdicts[0].verdict, answer.verdicts[0].number) == (
        "not measured", "no scan stopped early")  # fmt: skip


def test_a_number_that_is_missing_is_a_dash(run_dir, tmp_path):
    table = run_folder.table_of(volumes=12, samples=4)
    run_folder.write(tmp_path / "simulate.json", never_stopping(table))
    answer = answer_of(build_contents(read_folder(tmp_path)))
    text = write_report(tmp_path).read_text()

    assert answer.numbers[2].value == "–"
    assert not re.search(r"\bnan\b", " ".join(answer.lines), re.IGNORECASE)
    assert not re.search(r">[^<]*\bnan\b[^<]*<", text.split("<script")[0], re.IGNORECASE)


def never_stopping(table):
    """A simulation in which no scan stops early: 12 groups are too few for this error rate."""
    goal = run_folder.Goal(max_width=0.1)
    plans = [run_folder.PolicyPlan("fixed-width", 0.001, goal)]
    rng = np.random.default_rng(0)
    found = run_folder.simulate(table, plans, splits=5, seed=rng, unit="group")
    assert math.isnan(found[0].width)
    return {
        "schema": "taskuq.simulate/1", "alpha": 0.001, "goal": goal.to_dict(), "unit": "group",
        "results": [{"samples": table.samples, **r.to_dict()} for r in found],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("coverage", "verdict"), [(0.91, "held"), (0.89, "held"), (0.8, "not held")]
)
def test_coverage_below_what_was_asked_for_is_seen(run_dir, coverage, verdict):
    contents = build_contents(read_folder(run_dir))
    for row in contents.simulations["simulate"]:
        row["coverage"] = coverage
        row["standard_errors"]["coverage"] = 0.01
    first = answer_of(contents).verdicts[0]

    assert (first.verdict, first.link) == (verdict, "results")
    assert first.number == f"{coverage:.4f}" + (" ± 0.01" if coverage < 0.9 else "")


def test_claims_that_nobody_looked_at_are_not_measured(tmp_path):
    for name, verdict in (("masks", "held"), ("coverage-law", "not held"), ("odd", "splendid")):
        record = experiment_record(name, name, "", "", {}, [], verdict=verdict, number="1")
        run_folder.write(tmp_path / f"{name}.json", record)
    found = {v.title: v.verdict for v in answer_of(build_contents(read_folder(tmp_path))).verdicts}

    assert found["coverage-law"] == "not held"
    assert found["odd"] == "measured"
    assert found["Multi-round scans"] == "not measured"
    assert sum(v == "not measured" for v in found.values()) == 8


def test_an_empty_run_says_that_nothing_was_measured(tmp_path):
    lines = answer_lines(tmp_path)

    assert lines[0].startswith("Nothing was measured yet")
    assert lines[1].startswith("No calibrated bound or policy is stored")


def test_the_shown_scan_is_what_the_policy_decides(run_dir):
    policy, folder = tq.load_policy(run_dir / "policy.json"), read_folder(run_dir)
    scan = one_scan(policy, folder)
    for k, one in enumerate(scan.rounds):
        decision = policy.decide(k, folder.explorer.outputs[scan.shown, : k + 1])
        assert one.stops == decision.stop == (k == len(scan.rounds) - 1)
        ends = decision.interval.lower, decision.interval.upper
        assert one.report == (ends if decision.stop else None)


@pytest.mark.parametrize("alpha", [0.1, 0.01])
def test_the_shown_scan_is_the_explorers(open_page, run_dir, tmp_path, alpha):
    """Round by round, from one calibration set; at 0.01 there are too few groups to stop at all."""
    shutil.copytree(run_dir, tmp_path / "run")
    explorer, table = read_folder(run_dir).explorer, TaskOutputs.load(run_dir / "table.npz")
    calibration = table.select(cases=np.isin(table.group, np.unique(explorer.calibration_group)))
    policy = tq.plan(calibration, alpha=alpha, max_width=0.1, unit="group")
    policy.save(tmp_path / "run/policy.json")
    run = json.loads((run_dir / "run.json").read_text())
    run_folder.write(tmp_path / "run/run.json", {**run, "alpha": alpha})
    scan = one_scan(policy, read_folder(tmp_path / "run"))
    page = open_page(write_report(tmp_path / "run"), fragment=f"#slice={scan.shown}")
    cells = page.locator("[data-part=numbers] td:nth-child(6)").all_inner_texts()
    reported = [cell if cell != "–" else "no report yet" for cell in cells]
    rows = page.locator("[data-part=scan] ol > li").all()[:-1]

    assert len(rows) == min(int(page.get_attribute("#explorer", "data-stop")) + 1, len(cells))
    assert [row.locator("span").inner_text() for row in rows] == reported[: len(rows)]
    assert [row.locator("rect").count() for row in rows] == [
        int(told != "no report yet") for told in reported[: len(rows)]
    ]
    assert any(told != "no report yet" for told in reported) == (alpha == 0.1)


def test_a_case_that_the_policy_was_calibrated_on_is_called_so(run_dir):
    folder = read_folder(run_dir)
    explorer, table = folder.explorer, folder.table
    rest = np.isin(table.group, np.unique(explorer.calibration_group))
    asked = {"alpha": 0.1, "max_width": 0.1, "unit": "group"}
    own = one_scan(tq.plan(table, **asked), folder)
    others = one_scan(tq.plan(table.select(cases=rest), **asked), folder)
    half = tq.plan(table.select(cases=~np.isin(table.group, table.group[:8])), **asked)
    caption = scan_picture(own, explorer, Terminology(case="scene"))["caption"]

    assert (own.calibrated, own.without) == (table.cases, int(rest.sum()))
    assert f"own {table.cases} calibration scenes; the explorer below" in caption
    assert f"on {rest.sum()}, without it." in caption
    assert (others.calibrated, others.without) == (None, None)
    assert "calibration" not in scan_picture(others, explorer, Terminology())["caption"]
    assert one_scan(half, folder).calibrated is None  # another table, not known to hold it


def test_a_scan_without_pictures_comes_from_the_table(run_dir, tmp_path):
    TaskOutputs.load(run_dir / "table.npz").save(tmp_path / "table.npz")
    (tmp_path / "policy.json").write_bytes((run_dir / "policy.json").read_bytes())
    text = write_report(tmp_path).read_text()

    assert '<figure class="scan card"' in text
    assert "<img" not in text


def test_a_policy_for_other_outputs_is_a_note(run_dir, tmp_path):
    table = TaskOutputs.load(run_dir / "table.npz")
    tq.plan(table.select(samples=4), alpha=0.1, max_width=0.1).save(tmp_path / "policy.json")
    table.save(tmp_path / "table.npz")
    text = write_report(tmp_path).read_text()

    assert "No scan of the policy is shown" in text
    assert '<figure class="scan card"' not in text


def test_of_several_tasks_the_first_is_shown(tmp_path):
    made = run_folder.table_of(volumes=12, samples=4)
    twice = TaskOutputs(
        np.stack([made.outputs, 1 - made.outputs], axis=-1),
        np.stack([made.targets, 1 - made.targets], axis=-1),
        made.accelerations, group=made.group, task_names=("lesion", "health"), task_range=(0, 1),
    )  # fmt: skip
    policy = tq.plan(twice, alpha=0.2, max_width=0.5)
    policy.save(tmp_path / "policy.json")
    twice.save(tmp_path / "table.npz")
    scan = one_scan(policy, read_folder(tmp_path))
    last = policy.decide(len(scan.rounds) - 1, twice.outputs[: len(scan.rounds), int(scan.case)])

    assert scan.task == "lesion"
    assert scan.rounds[-1].report == (last.interval.lower[0], last.interval.upper[0])
    assert "(lesion): measuring stops at" in write_report(tmp_path).read_text()


def test_widths_of_unlike_tasks_are_not_averaged(tmp_path):
    rng = np.random.default_rng(0)
    z = rng.random((80, 2)) * [1, 100]
    x = z[:, None] + 0.05 * rng.standard_normal((2, 80, 5, 2)) * [1, 100]
    names, widths = ("lesion", "area"), {"lesion": 0.4, "area": 60}
    table = TaskOutputs(x, z, (6, 2), task_names=names, task_ranges=((-1, 2), (-100, 200)))
    tq.make_report(table, tmp_path / "page", alpha=0.2, max_width=widths, trials=20)
    width = answer_of(build_contents(read_folder(tmp_path / "page"))).numbers[2]

    assert str(width) == "as asked"
    assert width.what.endswith("lesion 0.4, area 60")
