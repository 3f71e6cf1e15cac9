"""A report of a table whose lines a rule chose."""

import numpy as np
import pytest

import taskuq as tq
from raising import refused
from taskuq.report._explorer import _check_explorer, explorer_payload, load_explorer
from taskuq.report.figures import figure_svg
from taskuq.report.figures._policy import _lines_figures, lines_record
from taskuq.table._terminology import Terminology

RATES, LINES = (4.0, 2.0), 8


def chosen(case, count):
    """Lines that differ from case to case, nested."""
    order = [4, *((case + 3 * k) % LINES for k in range(LINES))]
    return np.isin(np.arange(LINES), list(dict.fromkeys(order))[:count])


class Rule:
    """Chooses by the brightness of the image."""

    def initial_lines(self):
        return chosen(0, 2)

    def __call__(self, image, acceleration):
        raise AssertionError("rounds are chosen")

    def measure_lines(self, image, acceleration, lines):
        return image, lines

    def next_lines(self, round, measurement, recoveries, task, lines):
        free = np.flatnonzero(~lines)
        more = np.roll(free, int(7 * float(measurement[0].mean())))[: 4 - lines.sum()]
        return lines | np.isin(np.arange(LINES), more)

    def fallback_lines(self, round, lines):
        raise AssertionError("it can choose")


def recover(measurement, *, samples, seed):
    noise = np.random.default_rng(seed).normal(size=(samples, LINES, LINES))
    return measurement[0] + 0.1 * noise * ~measurement[1]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chosen")
    images = np.random.default_rng(0).random((40, LINES, LINES))
    table = tq.Pipeline(Rule(), recover, lambda x: x[:, 2].mean(axis=1)).run(
        images,
        accelerations=RATES,
        samples=4,
        seed=0,
        store=folder / "t",
        keep_images=3,
        progress=False,
    )
    return table, tq.make_report(table, folder / "run", alpha=0.2, max_width=0.1, splits=20)


def test_the_player_has_the_lines_of_each_slice(made):
    table, page = made
    explorer = load_explorer(page.parent / "explorer.npz")
    payload = explorer_payload(explorer, {}, Terminology())
    names = [str(c) for c in table.case]
    assert payload["lines"] is None
    for one in payload["slices"]:
        lines = table.sampled_lines[:, names.index(one["case"])]
        assert one["lines"]["all"] == LINES
        assert one["lines"]["new"][0] == np.flatnonzero(lines[0]).tolist()
        assert one["lines"]["new"][1] == np.flatnonzero(lines[1] & ~lines[0]).tolist()


def test_masks_of_another_number_of_slices_are_refused(made):
    explorer = load_explorer(made[1].parent / "explorer.npz")
    arrays = {**vars(explorer), "masks": explorer.masks[:-1]}
    with refused("shape.axes"):
        _check_explorer(arrays)


def test_shares_and_rounds_are_those_of_the_table(made):
    table, _ = made
    by_round, by_case = _lines_figures(lines_record(table, Terminology()))
    for k, series in enumerate(by_round.series):
        assert np.allclose(series.y, table.sampled_lines[k].mean(axis=0))
    names = [str(c) for c in table.case]
    for series in by_case.series:
        lines = table.sampled_lines[:, names.index(series.name.removeprefix("case "))]
        assert np.array_equal(np.array(series.y) == 1, lines[0])
        assert np.array_equal(np.array(series.y) == 0.5, lines[1] & ~lines[0])


def test_shades_follow_shares(made):
    drawn = str(figure_svg(_lines_figures(lines_record(made[0], Terminology()))[0]))
    assert "opacity:0." in drawn
