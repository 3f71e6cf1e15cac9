"""Pictures and arrays of the explorer."""

import base64
import io
import json

import numpy as np
import pytest
import run_folder
from PIL import Image

import taskuq as tq
from raising import refused
from taskuq.report._explorer import (
    _check_explorer,
    _slice_pictures,
    brightness,
    load_explorer,
    save_explorer,
    thumbnail,
)
from taskuq.report._report import write_report


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"outputs": None}, "option.missing"),
        ({"colour": 1}, "option.missing"),
        ({"mean": np.zeros((3, 4, 5, 5))}, "shape.mismatch"),
        ({"targets": np.full(2, np.nan)}, "value.nonfinite"),
        ({"accelerations": [2, 4, 8, 16]}, "rounds.invalid"),
        ({"masks": np.zeros(5)}, "shape.axes"),
        ({"outputs": np.zeros((2, 4, 3, 2))}, "shape.mismatch"),
        ({"task_names": ["a", "b"]}, "shape.mismatch"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(change, code):
    arrays = run_folder.pictures(2, size=16, samples=2) | {
        "case": ["a", "b"], "group": ["g", "g"], "outputs": np.zeros((2, 4, 3)),
        "targets": np.zeros(2), "calibration_outputs": np.zeros((9, 4, 3)),
        "calibration_targets": np.zeros(9),
    }  # fmt: skip
    _check_explorer(arrays)
    with refused(code):
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


def stored(size=(8, 8), colours=(), tasks=(), **changes):
    rng = np.random.default_rng(0)
    # Whole greys, with white among them, so that nothing is rounded.
    truth = rng.integers(0, 256, (2, *size, *colours)).astype(float)
    truth[:, 0, 0] = 255
    mean = rng.integers(0, 256, (2, 2, *size, *colours)).astype(float)
    arrays = {
        "case": ["one", "two"], "group": ["a", "b"], "accelerations": [8, 4], "truth": truth,
        "mean": mean, "sd": rng.random((2, 2, *size)), "estimate": mean[::-1],
        "outputs": rng.random((2, 2, 4, *tasks)), "targets": rng.random((2, *tasks)),
        "calibration_outputs": rng.random((40, 2, 4, *tasks)),
        "calibration_targets": rng.random((40, *tasks)),
    }  # fmt: skip
    return arrays | changes


def decoded(uri):
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))))


@pytest.mark.parametrize("colours", [(), (3,)])
def test_small_pictures_lose_nothing(colours):
    explorer = _check_explorer(stored(colours=colours))
    made = _slice_pictures(explorer)
    sheet = decoded(made.rounds[1][0])

    np.testing.assert_array_equal(decoded(made.truth[1])[:8, :8], explorer.truth[1])
    at = 8 * made.tiles.index("mean")
    np.testing.assert_array_equal(sheet[:8, at : at + 8], explorer.mean[1, 0])
    grey = sheet[:8, 8 * made.tiles.index("sd") :][:, :8]
    assert grey.ndim == 2 or (grey == grey[..., :1]).all(), "a spread has no colour"


def test_large_colours_stay_colours_and_tiles_keep_to_themselves():
    size = (72, 72)
    red, blue = (np.broadcast_to(c, (2, 2, *size, 3)) for c in ([255.0, 0, 0], [0, 0, 255.0]))
    made = _slice_pictures(_check_explorer(stored(size, (3,), estimate=red, mean=blue)))
    sheet = decoded(made.rounds[0][0]).astype(int)

    # The two tiles beside each other, to their very edges.
    assert np.abs(sheet[:, :72] - [255, 0, 0]).max() < 24
    assert np.abs(sheet[:, 72:144] - [0, 0, 255]).max() < 24


def test_signals_below_zero_are_not_cut_off():
    truth = np.linspace(-1, 1, 64).reshape(1, 8, 8).repeat(2, axis=0)
    made = _slice_pictures(_check_explorer(stored(truth=truth)))

    shown = decoded(made.truth[0])[:8, :8].ravel()
    assert shown[0] == 0
    assert shown[-1] == 255
    assert (np.diff(shown.astype(int)) > 0).all()


def test_an_estimate_is_shown_where_there_is_one(tmp_path):
    arrays = stored()
    del arrays["estimate"]
    save_explorer(tmp_path / "explorer.npz", **arrays)
    text = write_report(tmp_path).read_text()
    payload = json.loads(text.partition('id="stored">')[2].partition("</script>")[0])

    assert payload["tiles"] == ["mean", "sd", "error"]
    assert "<kbd>z</kbd>" not in text


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"truth": np.zeros((2, 8, 8, 4))}, "shape.axes"),
        ({"sd": np.zeros((2, 2, 8, 8, 3))}, "shape.mismatch"),
        ({"mean": np.zeros((2, 2))}, "shape.mismatch"),
    ],
)
def test_pictures_that_do_not_fit_are_refused(changes, code):
    with refused(code):
        _check_explorer(stored(colours=(3,)) | changes)


def test_colours_and_three_tasks_go_from_a_pipeline_to_the_page(tmp_path):
    images = np.random.default_rng(0).random((40, 6, 5, 3))

    def recover(y, *, samples, seed):
        return y + np.random.default_rng(seed).standard_normal((samples, *y.shape)) / 10

    pipeline = tq.Pipeline(lambda x, R: x, recover, lambda x: x.mean((1, 2)))
    table = pipeline.run(
        images, accelerations=(4, 2), samples=3, seed=0, store=tmp_path / "table", keep_images=3,
        task_names=["red", "green", "blue"], progress=False,
    )  # fmt: skip
    widths = {"red": 0.5, "green": 0.6, "blue": 0.7}
    page = tq.make_report(table, tmp_path / "page", alpha=0.2, max_width=widths, splits=20)
    text = page.read_text()
    payload = json.loads(text.partition('id="stored">')[2].partition("</script>")[0])

    assert [task["name"] for task in payload["tasks"]] == ["red", "green", "blue"]
    assert payload["tau"] == "0.5,0.6,0.7"
    assert decoded(payload["slices"][0]["truth"]).shape == (6, 5, 3)


@pytest.mark.parametrize("darkest", [0.0, -1000.0])
def test_the_picture_of_a_scan_is_the_image_itself_and_not_a_blur(darkest):
    image = np.full((5, 7), darkest)
    image[2, 3] = darkest + 255
    shown = decoded(thumbnail(image, *brightness(image)))

    np.testing.assert_array_equal(shown, image - darkest)


def test_a_browser_shows_small_pictures_pixel_by_pixel(open_page, tmp_path, keep):
    for name, size in (("small", (8, 8)), ("large", (80, 80))):
        save_explorer(tmp_path / name / "explorer.npz", **stored(size, (3,), (2,)))
        page = open_page(write_report(tmp_path / name))
        canvas = page.locator("[data-part=picture]")
        page.wait_for_function("document.querySelector('[data-part=picture]').dataset.shown")
        keep(page, f"pictures-{name}")
        rendering = canvas.evaluate("c => getComputedStyle(c).imageRendering")

        assert page.heard.messages == []
        assert rendering == ("pixelated" if name == "small" else "auto")
