"""The embedded experiment: what it stores, what it repeats, what a person finds in the end."""

from __future__ import annotations

import io
import json
import re
import shutil
from contextlib import redirect_stderr
from pathlib import Path

import numpy as np
import pytest

from browsing import on_screen, unfold, violations
from taskuq.experiments._claims import EXPERIMENTS
from taskuq.experiments._demo import ALPHA, FIRST, MAX_WIDTH, SEED, DemoSettings, run_demo
from taskuq.experiments._run import open_run, read_run
from taskuq.policy._plan import plan
from taskuq.report._explorer import load_explorer, save_explorer
from taskuq.report._report import answer_lines, write_report
from taskuq.table._examples import stored, stored_table
from taskuq.table._table import TaskOutputs

CONFIGS = Path(__file__).resolve().parents[2] / "configs" / "atlas"
SMALL = DemoSettings(patients=1, slices=2, shown=2, trials=40)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str], str]:
    """The folder of a small demo, the sentences before its stages, and what else was on stderr."""
    folder, stages = tmp_path_factory.mktemp("demo"), []
    with redirect_stderr(io.StringIO()) as counted:
        run_demo(SMALL, folder, stage=stages.append, quiet=False)
    return folder, stages, counted.getvalue()


@pytest.fixture(scope="module")
def folder(ran: tuple[Path, list[str], str]) -> Path:
    return ran[0]


def test_every_stage_says_how_far_it_is(ran):
    _, stages, counted = ran
    assert [stage[:3] for stage in stages] == ["1/4", "2/4", "3/4", "4/4"]
    assert "2/2 slices" in counted
    claims = 1 + len(list(EXPERIMENTS))
    assert f"{claims}/{claims} claims" in counted
    assert len(counted.splitlines()) < 12


def records(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*.json"))}


def test_the_stored_tables_are_of_the_same_slices():
    samples, point = stored_table("atlas-sampler"), stored_table("atlas-varnet")
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


@pytest.mark.parametrize("name", [name.removeprefix("atlas-") for name in stored()])
def test_a_stored_row_comes_out_again(name):
    """One patient's slice, from the atlas to the number, against the table of the package."""
    run, tolerance = open_run(read_run(CONFIGS / f"run-{name}.toml"), "cpu"), TOLERANCES[name]
    table, index = stored_table(f"atlas-{name}"), 11
    item = run.images[index]
    found = run.pipeline.run(
        [item.image],
        case=[item.case],
        accelerations=(8, 2),
        samples=run.config.samples,
        seed=run.config.seed,
        progress=False,
    )
    assert item.case == table.case[index]
    assert found.targets[0] == pytest.approx(table.targets[index], abs=tolerance)
    stored = table.select(accelerations=[8, 2]).outputs[:, index]
    assert np.abs(found.outputs[:, 0] - stored).max() < tolerance


def test_scanned_patients_are_not_in_the_table():
    scanned = {f"patient-{FIRST + k}" for k in range(DemoSettings().patients)}
    assert not scanned & set(stored_table("atlas-sampler").group.tolist())
    for name in TOLERANCES:
        assert read_run(CONFIGS / f"run-{name}.toml").data.seed == SEED


def test_everything_a_report_needs_is_there(folder):
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


def test_the_report_at_the_stop_is_what_the_policy_says_of_the_stored_outputs(folder):
    explorer = load_explorer(folder / "explorer.npz")
    live = json.loads((folder / "records" / "live.json").read_text())
    table = stored_table("atlas-sampler")
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


def test_samples_agree_with_the_scan_and_their_mean_and_spread(folder):
    explorer = load_explorer(folder / "explorer.npz")
    error = np.abs(explorer.mean - explorer.truth[:, None]).mean((0, 2, 3))
    blind = np.abs(explorer.estimate - explorer.truth[:, None]).mean((0, 2, 3))
    assert (error < blind).all()
    assert (np.diff(error) < 0).all()  # more lines, smaller errors
    assert (np.diff(explorer.sd.mean((0, 2, 3))) < 0).all()


@pytest.mark.parametrize(("screen", "size"), [("desktop", (1280, 800)), ("phone", (390, 844))])
def test_the_page_leads_with_the_answer(folder, open_page, keep, screen, size):
    page = open_page(folder / "report.html", width=size[0], height=size[1])
    keep(page, f"demo-first-{screen}")

    assert page.locator("[data-part=tiles] li").count() == 3
    assert "Guaranteed" in page.locator(".first .promise").inner_text()
    for part in ("[data-part=sentence]", "[data-part=tiles]", ".first .promise"):
        assert on_screen(page, part)
    # One scan that stops, and what held of each claim: beside and below it where there is room.
    for part in ("[data-part=scan]", "[data-part=verdicts]"):
        assert on_screen(page, part) == (screen == "desktop")


def test_the_page_is_short_until_it_is_unfolded_and_has_no_nan(folder, open_page, keep):
    page = open_page(folder / "report.html", width=1280, height=800)
    keep(page, "demo", full_page=True)
    shown = page.locator("body").inner_text()
    words = len(shown.split())
    screens = page.evaluate("document.documentElement.scrollHeight") / 800
    unfold(page)
    text = page.locator("body").inner_text()

    # A whole demo lists ten more slices, in a box that scrolls: a quarter of a screen, 60 words.
    assert screens <= 12 - 0.25
    assert words <= 3500 - 60 < len(text.split())
    assert not re.search(r"\bnan\b", text, re.IGNORECASE)
    # Slices and patients, as the run calls them, wherever a person reads.
    assert not re.search(r"(?<![\w-])(case|group)s?(?![\w-])", shown)


def test_the_page_of_a_whole_demo_is_at_most_eight_megabytes(folder, tmp_path):
    """As many pictures as a whole demo shows, from those of a few slices again and again."""
    whole, few = DemoSettings(), load_explorer(folder / "explorer.npz")
    again = np.resize(np.arange(few.slices), whole.patients * whole.slices)
    of_slices = ("group", "label", "truth", "targets", "estimate", "mean", "sd", "outputs", "point",
                 "point_outputs")  # fmt: skip
    arrays = {name: getattr(few, name)[again] for name in of_slices}
    arrays["samples"] = np.repeat(few.samples[again], whole.shown // SMALL.shown, axis=2)
    others = ("accelerations", "masks", "calibration_outputs", "calibration_targets",
              "calibration_group", "task_range")  # fmt: skip
    arrays |= {name: getattr(few, name) for name in others}
    shutil.copytree(folder, tmp_path / "demo")
    save_explorer(tmp_path / "demo/explorer.npz", case=np.arange(len(again)), **arrays)

    assert 5_000_000 < write_report(tmp_path / "demo").stat().st_size <= 8_000_000


def test_appendices_numbers_and_settings_are_folded(folder, open_page):
    page = open_page(folder / "report.html")
    for title in ("Sampling masks", "Data splits", "Figures", "What was run", "Glossary"):
        assert page.locator("details.fold:not([open]) > summary", has_text=title).count() == 1
    for hidden in ("figure.plate table", ".experiment dl.facts"):  # numbers, settings
        parts = page.locator(hidden).all()
        assert parts
        assert not any(part.is_visible() for part in parts)


def test_it_says_what_it_is_for_and_explains_its_letters(folder, open_page):
    page = open_page(folder / "report.html")
    card = page.locator("#guarantee dl").first.inner_text()
    assert all(term in card for term in ("Intended use", "Not for", "Assumed", "Data", "Networks"))
    shown = page.locator("#guarantee").inner_text()
    assert "Exchangeability is assumed" in shown
    assert "synthetic" in shown
    hovered = page.locator("abbr").evaluate_all("all => all.map(a => [a.textContent, a.title])")
    page.locator("#glossary summary").click()
    glossary = page.locator("#glossary").inner_text()
    for letters in ("AR", "LWR", "CQR", "MLWR", "τ", "R̄"):
        assert any(text == letters and said in glossary for text, said in hovered), letters


def test_axe_finds_nothing_serious_in_all_of_it(folder, open_page, axe):
    page = open_page(folder / "report.html", width=1280, height=800, bypass_csp=True)
    unfold(page)
    assert violations(page, axe) == []


def test_the_terminal_says_what_the_first_screen_says(folder, open_page):
    lines = answer_lines(folder)
    page = open_page(folder / "report.html")
    first = " ".join(page.locator("#answer").inner_text().split())
    values = [line.split("  ")[1].strip() for line in lines if line.startswith("  ")]

    assert " ".join(lines[0].split()) in first
    assert len(values) == 3
    assert all(" ".join(value.split()) in first for value in values)
    assert len(lines) <= 8


def test_one_seed_gives_the_same_records(folder, tmp_path):
    run_demo(SMALL, tmp_path)
    assert records(tmp_path) == records(folder)
