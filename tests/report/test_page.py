"""The page as text: its numbers are the records', names stay names, missing results are noted."""

import base64
import io
import json
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
import run_folder
from benchmarks.page import MEGABYTES, SECONDS, measure
from PIL import Image

import taskuq as tq
from taskuq.errors import InputError
from taskuq.report._explorer import _check_explorer, _slice_pictures, load_explorer, save_explorer
from taskuq.report._report import write_report
from taskuq.table._table import TaskOutputs


class Tables(HTMLParser):
    """The tables of a page, by name, as rows of text."""

    def __init__(self, text):
        super().__init__()
        self.found, self.rows, self.cell = {}, None, None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag == "table":
            self.rows = self.found.setdefault(dict(attributes).get("data-table", "?"), [])
        elif tag == "tr" and self.rows is not None:
            self.rows.append([])
        elif tag in ("td", "th") and self.rows is not None:
            self.cell = ""

    def handle_endtag(self, tag):
        if tag in ("td", "th") and self.cell is not None:
            self.rows[-1].append(self.cell)
            self.cell = None

    def handle_data(self, data):
        if self.cell is not None:
            self.cell += data


@pytest.fixture(scope="module")
def tables(run_dir):
    return Tables((run_dir / "report.html").read_text()).found


def close(text, value):
    """Whether a cell shows a number to the four digits it shows."""
    return float(text) == pytest.approx(value, rel=6e-4, abs=1e-12)


def test_the_table_of_scores_holds_the_records_numbers(run_dir, tables):
    record = json.loads((run_dir / "evaluate-by-case.json").read_text())
    head, *rows = tables["evaluate-by-case"]
    at = {name: k for k, name in enumerate(head)}

    assert len(rows) == len(record["results"])
    for row, result in zip(rows, record["results"], strict=True):
        assert row[at["score"]] == result["score"]
        assert close(row[at["R"]], result["acceleration"])
        for name in ("coverage", "width"):
            assert close(row[at[name]], result[name]["mean"])
            assert close(row[at[f"{name} sd"]], result[name]["sd"])


def test_the_table_of_policies_holds_the_records_numbers(run_dir, tables):
    record = json.loads((run_dir / "simulate.json").read_text())
    head, *rows = tables["simulate"]
    at = {name: k for k, name in enumerate(head)}

    for row, result in zip(rows, record["results"], strict=True):
        assert row[at["promise"]] == ("guaranteed" if result["guaranteed"] else "measured")
        assert close(row[at["average R"]], result["mean_acceleration"])
        assert close(row[at["coverage"]], result["coverage"])
        assert close(row[at["coverage of cases"]], result["case_coverage"])
        assert close(row[at["average R by case"]], result["mean_acceleration_of_cases"])
        for name, error in (("R", "mean_acceleration"), ("coverage", "coverage")):
            assert close(row[at[f"± {name}"]], result["standard_errors"][error])
        assert close(row[at["stopped at R = 8"]], result["stops"][1]["fraction"])


def test_the_numbers_of_a_figure_are_the_records(run_dir, tables):
    record = json.loads((run_dir / "evaluate-by-group.json").read_text())
    rows = tables["evaluate-by-group-width-against-acceleration"][1:]
    shown = {(score, float(R)): width for score, R, width, _ in rows}

    assert len(shown) == len(record["results"])
    for result in record["results"]:
        assert close(shown[result["score"], result["acceleration"]], result["width"]["mean"])


def test_a_patients_row_is_what_the_policy_decides(run_dir, tables):
    policy = tq.load_policy(run_dir / "policy.json")
    table = TaskOutputs.load(run_dir / "table.npz").select(group="patient-03")
    stops = np.array([policy.decide(round=k, outputs=table.outputs[: k + 1]).stops
                      for k in range(4)])  # fmt: skip
    rates = np.append(table.accelerations, 1.0)[np.vstack([stops, np.ones(table.cases)]).argmax(0)]
    head, *rows = tables["groups"]
    row = dict(zip(head, next(r for r in rows if r[0] == "patient-03"), strict=True))

    assert int(row["cases"]) == table.cases
    assert int(row["stopped early"]) == (rates > 1).sum()
    assert close(row["average R"], 1 / np.mean(1 / rates))


def test_it_says_guaranteed_only_where_something_is(run_dir, tmp_path):
    whole = (run_dir / "report.html").read_text()
    run_folder.write(tmp_path / "run.json", {"schema": "taskuq.run/1", "title": "t"})
    bare = write_report(tmp_path).read_text()

    assert tq.load_policy(run_dir / "policy.json").sentence in whole
    assert "This page promises nothing" not in whole
    assert "Guaranteed" not in bare
    assert "promises nothing" in bare


def test_failures_and_unknown_records_are_listed(run_dir):
    text = (run_dir / "report.html").read_text()

    assert "ran out of memory" in text
    assert "slice-9001" in text
    assert "later.json is taskuq.later/7" in text


@pytest.mark.parametrize(
    "name",
    ["run.json", "table.npz", "explorer.npz", "policy.json", "bound-8.json", "simulate.json",
     "evaluate-by-case.json", "evaluate-by-group.json", "quality.json", "task.json",
     "experiments/samples.json"],
)  # fmt: skip
def test_a_missing_result_makes_a_shorter_page(run_dir, tmp_path, name):
    whole = (run_dir / "report.html").read_text()
    for path in run_dir.rglob("*"):
        inside = path.relative_to(run_dir)
        if path.is_file() and inside.as_posix() != name and path.name != "report.html":
            (tmp_path / inside).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / inside).symlink_to(path)
    text = write_report(tmp_path).read_text()

    assert len(text) < len(whole)
    assert "<svg" in text
    assert "undefined" not in text.split("<script")[0].lower()


def test_an_empty_folder_makes_a_page_of_notes_without_figures(tmp_path):
    text = write_report(tmp_path).read_text()

    assert "<svg" not in text
    assert text.count('class="note"') >= 4


@pytest.mark.parametrize(
    "damage",
    ["{", "[]", '{"schema": "taskuq.evaluate/1"}', '{"schema": "taskuq.simulate/1", "results": 3}',
     '{"schema": "taskuq.experiment/1", "name": "x", "title": "t", "figures": [{"name": 1}]}',
     '{"schema": "taskuq.quality/1", "results": [{"psnr": null}]}', '{"schema": ["list"]}',
     '{"schema": "taskuq.policy/1"}', '{"schema": "taskuq.run/1", "networks": [3], "what": 5}',
     '{"schema": "taskuq.task/1", "parts": {"judge": 7}}', "\x00\xff"],
)  # fmt: skip
def test_a_damaged_record_is_a_note_not_an_error(tmp_path, damage):
    (tmp_path / "damaged.json").write_bytes(damage.encode("latin-1"))
    (tmp_path / "explorer.npz").write_bytes(b"PK\x03\x04 no zip")
    text = write_report(tmp_path).read_text()

    assert "explorer.npz could not be read" in text
    assert "damaged.json" in text or "taskuq.run/1" in damage


def test_a_record_with_nan_is_no_json_here_either(tmp_path):
    (tmp_path / "other.json").write_text('{"schema": "taskuq.later/7", "width": NaN}')

    assert "other.json could not be read" in write_report(tmp_path).read_text()


def test_hostile_names_are_escaped(hostile_run):
    text = (hostile_run / "report.html").read_text()
    body = text.split("<body>")[1].split('<script type="application/json"')[0]

    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert "<script" not in body
    assert "{{ 7 * 7 }} ${7 * 7}" in body
    # Everything of the payload is inside its element, whatever its names say.
    payload = text.split('id="stored">')[1].split("</script>")[0]
    assert {s["case"] for s in json.loads(payload)["slices"]} <= set(run_folder.HOSTILE)


def test_a_page_of_five_hundred_patients_is_small_and_quick():
    # In processor seconds: a busy machine must not fail it.
    busy, megabytes = measure(500)

    assert busy <= SECONDS == 5
    assert megabytes <= MEGABYTES == 25


def test_building_a_page_needs_no_torch(run_dir):
    code = (
        "import sys; from taskuq.report import write_report; "
        f"write_report({str(run_dir)!r}); "
        "print(*sorted({m.split('.')[0] for m in sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())

    assert loaded & {"torch", "matplotlib"} == set()
    assert {"jinja2", "numpy"} <= loaded


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"outputs": None}, "needs outputs"),
        ({"colour": 1}, "does not know 'colour'"),
        ({"mean": np.zeros((3, 4, 5, 5))}, "mean has shape"),
        ({"targets": np.full(2, np.nan)}, "NaN"),
        ({"accelerations": [2, 4, 8, 16]}, "must decrease"),
        ({"masks": np.zeros(5)}, "masks must be"),
        ({"outputs": np.zeros((2, 4, 3, 2))}, "targets has shape"),
        ({"task_names": ["a", "b"]}, "task_names"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(change, sentence):
    arrays = run_folder.pictures(2, size=16, samples=2) | {
        "case": ["a", "b"], "group": ["g", "g"], "outputs": np.zeros((2, 4, 3)),
        "targets": np.zeros(2), "calibration_outputs": np.zeros((9, 4, 3)),
        "calibration_targets": np.zeros(9),
    }  # fmt: skip
    _check_explorer(arrays)
    with pytest.raises(InputError, match=sentence):
        _check_explorer(arrays | change)


def test_the_explorers_file_comes_back_as_it_was(tmp_path):
    table = run_folder.table_of(volumes=12, samples=4)
    path = run_folder.write_explorer(tmp_path, table, slices=2, size=16, samples=2)
    first = load_explorer(path)
    again = load_explorer(save_explorer(tmp_path / "again.npz", **vars(first)))

    for name, value in vars(first).items():
        assert np.array_equal(value, getattr(again, name)), name


def test_pictures_give_way_before_the_page_grows_too_large(tmp_path):
    table = run_folder.table_of(volumes=12, samples=4)
    path = run_folder.write_explorer(tmp_path, table, slices=2, size=66, samples=2)
    explorer = load_explorer(path)
    whole, small = _slice_pictures(explorer), _slice_pictures(explorer, budget=9_000)
    length = [sum(len(sheet) for row in p.rounds for sheet in row) for p in (whole, small)]

    assert (whole.shrink, whole.height, whole.width) == (1, 66, 66)
    assert (small.shrink, small.height, small.width) == (4, 17, 17)
    assert length[1] < length[0] / 4


@pytest.mark.parametrize("size", [64, 66])
def test_tiles_are_the_pictures_they_say(tmp_path, size):
    table = run_folder.table_of(volumes=12, samples=4)
    explorer = load_explorer(
        run_folder.write_explorer(tmp_path, table, slices=2, size=size, samples=2)
    )
    made = _slice_pictures(explorer)
    sheet = np.asarray(Image.open(io.BytesIO(base64.b64decode(made.rounds[1][2].split(",")[1]))))
    stride = -(-size // 8) * 8
    wanted = explorer.samples[1, 2, 1].astype(float) / explorer.truth[1].max() * 255

    assert sheet.shape == (stride, stride * len(made.tiles))
    tiles = [sheet[:size, k * stride : k * stride + size] for k in range(len(made.tiles))]
    error = [np.abs(tile - np.clip(wanted, 0, 255)).mean() for tile in tiles]
    assert made.tiles[int(np.argmin(error))] == "sample-2"
