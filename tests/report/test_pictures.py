import base64
import io

import numpy as np
import pytest
import run_folder
from PIL import Image

import taskuq as tq
from raising import refused
from taskuq.report import _explorer as explorers
from taskuq.report.figures import figure_svg
from taskuq.report.figures._policy import lines_figures, lines_record
from taskuq.table._terminology import Terminology


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"outputs": None}, "option.missing"),
        ({"colour": 1}, "option.missing"),
        ({"mean": np.zeros((3, 4, 5, 5))}, "shape.mismatch"),
        ({"targets": np.full(2, np.nan)}, "value.nonfinite"),
        ({"accelerations": [2, 4, 8, 16]}, "rounds.invalid"),
        ({"masks": np.zeros(5)}, "shape.mismatch"),
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
    explorers._check_explorer(arrays)
    with refused(code):
        explorers._check_explorer(arrays | change)


def test_the_explorers_file_comes_back_as_it_was(tmp_path):
    table = run_folder.table_of(volumes=12, samples=4)
    path = run_folder.write_explorer(tmp_path, table, slices=2, size=16, samples=2)
    first = explorers.load_explorer(path)
    again = explorers.load_explorer(explorers.save_explorer(tmp_path / "again.npz", **vars(first)))
    for name, value in vars(first).items():
        assert np.array_equal(value, getattr(again, name)), name


def test_pictures_give_way_before_the_page_grows_too_large(tmp_path):
    table = run_folder.table_of(volumes=12, samples=4)
    path = run_folder.write_explorer(tmp_path, table, slices=2, size=66, samples=2)
    explorer = explorers.load_explorer(path)
    whole, small = (
        explorers._slice_pictures(explorer),
        explorers._slice_pictures(explorer, budget=9_000),
    )
    length = [sum(len(sheet) for row in p.rounds for sheet in row) for p in (whole, small)]
    assert (whole.shrink, whole.height, whole.width) == (1, 66, 66)
    assert (small.shrink, small.height, small.width) == (4, 17, 17)
    assert length[1] < length[0] / 4


@pytest.mark.parametrize("size", [64, 66])
def test_tiles_are_the_pictures_they_say(tmp_path, size):
    table = run_folder.table_of(volumes=12, samples=4)
    explorer = explorers.load_explorer(
        run_folder.write_explorer(tmp_path, table, slices=2, size=size, samples=2)
    )
    made = explorers._slice_pictures(explorer)
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
    explorer = explorers._check_explorer(stored(colours=colours))
    made = explorers._slice_pictures(explorer)
    sheet = decoded(made.rounds[1][0])
    np.testing.assert_array_equal(decoded(made.truth[1])[:8, :8], explorer.truth[1])
    at = 8 * made.tiles.index("mean")
    np.testing.assert_array_equal(sheet[:8, at : at + 8], explorer.mean[1, 0])
    grey = sheet[:8, 8 * made.tiles.index("sd") :][:, :8]
    assert grey.ndim == 2 or (grey == grey[..., :1]).all(), "a spread has no colour"


def test_large_colours_stay_colours_and_tiles_keep_to_themselves():
    size = (72, 72)
    red, blue = (np.broadcast_to(c, (2, 2, *size, 3)) for c in ([255.0, 0, 0], [0, 0, 255.0]))
    made = explorers._slice_pictures(
        explorers._check_explorer(stored(size, (3,), estimate=red, mean=blue))
    )
    sheet = decoded(made.rounds[0][0]).astype(int)
    # The two tiles beside each other, to their very edges.
    assert np.abs(sheet[:, :72] - [255, 0, 0]).max() < 24
    assert np.abs(sheet[:, 72:144] - [0, 0, 255]).max() < 24


def test_lines_of_each_slice_are_those_that_rounds_add():
    masks = np.sort(np.random.default_rng(0).random((3, 2, 8)), axis=1) > 0.5
    for s, slice_masks in enumerate(masks):
        first, second = explorers._lines(masks, s)["new"]
        assert first == np.flatnonzero(slice_masks[0]).tolist()
        assert second == np.flatnonzero(slice_masks[1] & ~slice_masks[0]).tolist()
    assert explorers._lines(masks) is None
    with refused("shape.mismatch"):
        explorers._check_explorer(stored(masks=masks))  # of three slices, not two


def test_maps_of_lines_are_those_of_the_table():
    rng = np.random.default_rng(0)
    lines = np.sort(rng.random((2, 12, 8)), axis=0) > 0.5
    table = tq.TaskOutputs(rng.random((2, 12, 4)), rng.random(12), (4, 2), sampled_lines=lines)
    by_round, by_case = lines_figures(lines_record(table, Terminology()))
    assert np.allclose([s.y for s in by_round.series], lines.mean(axis=1))
    shades = np.array([s.y for s in by_case.series])
    assert np.array_equal(shades == 1, lines[0])
    assert np.array_equal(shades == 0.5, lines[1] & ~lines[0])
    assert "opacity:0." in str(figure_svg(by_round))


@pytest.mark.parametrize("darkest", [0.0, -1000.0])
def test_the_picture_of_a_scan_is_the_image_itself_and_not_a_blur(darkest):
    image = np.full((5, 7), darkest)
    image[2, 3] = darkest + 255
    shown = decoded(explorers.thumbnail(image, *explorers.brightness(image)))
    np.testing.assert_array_equal(shown, image - darkest)
