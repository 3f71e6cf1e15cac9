"""Pictures of some cases beside a run's numbers, and errors of a user's own code that say where."""

from pathlib import Path

import numpy as np
import pytest

import taskuq as tq
from raising import refused
from taskuq._io import open_npz
from taskuq._seeds import case_seed
from taskuq.pipeline._local import RunLog, as_display_image

RATES = (8, 2)


def measure(image, acceleration):
    return np.repeat(image[::2], 2, axis=0) / acceleration


def recover(measurement, *, samples, seed):
    noise = np.random.default_rng(seed).standard_normal((samples, *measurement.shape))
    return measurement + 0.1 * noise


def task(images):
    return images.reshape(len(images), -1).mean(axis=1)


PIPELINE = tq.Pipeline(measure, recover, task)
IMAGES = np.random.default_rng(0).random((40, 12, 10)) * np.linspace(0, 1, 40)[:, None, None]
ASKED = {"accelerations": RATES, "samples": 3, "seed": 5, "progress": False}


def pictures(path):
    with open_npz(path, "pictures") as archive:
        return {name: archive[name] for name in archive}


def test_pictures_are_of_the_draws_whose_numbers_the_table_holds(tmp_path):
    table = PIPELINE.run(IMAGES, **ASKED, store=tmp_path, keep_images=6)
    kept = pictures(table.images_path)

    assert kept["samples"].shape == (6, 2, 3, 12, 10)
    assert sorted(kept) == ["case", "estimate", "mean", "samples", "sd", "truth"]
    for s, case in enumerate(kept["case"]):
        at = table.case.tolist().index(case)
        np.testing.assert_allclose(task(kept["samples"][s, 1]), table.outputs[1, at], rtol=1e-5)
        drawn = recover(measure(IMAGES[at], 2), samples=3, seed=case_seed(5, case, 2.0))
        np.testing.assert_allclose(kept["sd"][s, 1], drawn.std(0), rtol=1e-5)
    targets = task(kept["truth"])
    assert np.ptp(targets) > 0.8 * np.ptp(table.targets), "they are spread over the outcomes"


def test_the_choice_does_not_depend_on_recoveries(tmp_path):
    worse = tq.Pipeline(measure, lambda y, *, samples, seed: np.stack([0 * y] * samples), task)
    one = PIPELINE.run(IMAGES, **ASKED, store=tmp_path / "a", keep_images=5)
    other = worse.run(IMAGES, **ASKED, store=tmp_path / "b", keep_images=5)

    assert (
        pictures(one.images_path)["case"].tolist() == pictures(other.images_path)["case"].tolist()
    )


def test_a_run_that_goes_on_keeps_its_pictures_and_fresh_removes_them(tmp_path):
    first = PIPELINE.run(IMAGES, **ASKED, store=tmp_path, keep_images=4)
    before = first.images_path.stat().st_mtime_ns
    again = PIPELINE.run(IMAGES, **ASKED, store=tmp_path, keep_images=4)

    assert again.images_path.stat().st_mtime_ns == before
    assert tq.TaskOutputs.load(tmp_path).images_path == first.images_path
    assert PIPELINE.run(IMAGES, **ASKED, store=tmp_path, overwrite=True).images_path is None


def test_signals_and_colours_are_shown_and_volumes_refused(tmp_path):
    signals = tq.Pipeline(measure, recover, task).run(
        IMAGES[:, 0], **ASKED, store=tmp_path / "signals", keep_images=2
    )
    colours = np.random.default_rng(0).random((5, 6, 8, 3))
    seen = PIPELINE.run(colours, **ASKED, store=tmp_path / "colours", keep_images=2)

    assert pictures(signals.images_path)["truth"].shape == (2, 1, 10)
    assert pictures(seen.images_path)["mean"].shape == (2, 2, 6, 8, 3)
    assert pictures(seen.images_path)["sd"].shape == (2, 2, 6, 8)
    with refused("shape.axes"):
        PIPELINE.run(np.zeros((2, 4, 4, 4, 4)), **ASKED, store=tmp_path / "volumes", keep_images=2)
    assert not (tmp_path / "volumes").exists()


@pytest.mark.parametrize("wrapped", [lambda y: (y, 3), lambda y: {"y": y}, lambda y: [y, "seen"]])
def test_a_measurement_that_is_no_picture_leaves_the_others(wrapped, tmp_path):
    def inside(y):
        return y["y"] if isinstance(y, dict) else y[0]

    table = tq.Pipeline(
        lambda image, R: wrapped(measure(image, R)),
        lambda y, *, samples, seed: recover(inside(y), samples=samples, seed=seed),
        task,
    ).run(IMAGES, **ASKED, store=tmp_path, keep_images=3)

    assert sorted(pictures(table.images_path)) == ["case", "mean", "samples", "sd", "truth"]


def test_pixels_that_a_measurement_marks_as_missing_are_black(tmp_path):
    table = tq.Pipeline(
        lambda image, R: np.where(image > 0.5, np.nan, image),
        lambda y, *, samples, seed: recover(np.nan_to_num(y), samples=samples, seed=seed),
        task,
    ).run(IMAGES, **ASKED, store=tmp_path, keep_images=3)
    seen = pictures(table.images_path)

    unseen = seen["truth"] > 0.5
    assert unseen.any()
    assert (seen["estimate"][:, 0][unseen] == 0).all()
    assert tq.make_report(table, tmp_path / "page", alpha=0.2, splits=5).exists()


def test_pictures_that_cannot_be_kept_are_spoken_of(tmp_path):
    calls = []

    def forgetful(measurement, *, samples, seed):
        calls.append(seed)
        if len(calls) > len(IMAGES) * len(RATES):
            raise RuntimeError("no film is left")
        return recover(measurement, samples=samples, seed=seed)

    with refused("component.invalid"):
        tq.Pipeline(measure, forgetful, task).run(IMAGES, **ASKED, store=tmp_path, keep_images=3)

    events = [event["event"] for event in RunLog(tmp_path).events()]
    assert events.count("no picture") == 3
    assert tq.TaskOutputs.load(tmp_path).cases == 40, "the numbers are kept"


def test_pictures_need_a_place():
    with refused("option.missing"):
        PIPELINE.run(IMAGES, **ASKED, keep_images=2)


def test_complex_images_are_seen_by_their_magnitude():
    assert as_display_image(np.full((4, 4), 3j)).tolist() == np.full((4, 4), 3.0).tolist()


def failing(images, part, when, tmp_path):
    """Run with a part that divides by zero for one image."""

    def broken(function):
        def call(x, *arguments, **keywords):
            if when(x):
                return 1 / 0  # the user's line
            return function(x, *arguments, **keywords)

        return call

    parts = {"measure": measure, "recover": recover, "task": task}
    parts[part] = broken(parts[part])
    table = tq.Pipeline(**parts).run(images, **ASKED, store=tmp_path, round_names=["short", "long"])
    return table, RunLog(tmp_path).failures()


@pytest.mark.parametrize(
    ("part", "when", "where"),
    [
        ("measure", lambda x: x.max() > 5, "case 3 at short"),
        ("recover", lambda x: x.max() > 5 / 3, "case 3 at long"),
        ("task", lambda x: x.max() > 5, "case 3, the true image"),
    ],
)
def test_an_error_of_a_users_part_names_case_round_and_line(tmp_path, part, when, where):
    images = IMAGES.copy()[:8]
    images[3] *= 100
    images[3] = np.minimum(images[3], 6)
    # At the first round the measurement is an eighth of that: too small for the recovery to fail.
    table, failures = failing(images, part, when, tmp_path)
    here = Path(__file__)
    lines = here.read_text().splitlines()
    line = next(k for k, text in enumerate(lines, 1) if text.endswith("# the user's line"))

    assert table.missing_cases == ("3",)
    assert failures == {
        "3": f"ZeroDivisionError: division by zero (in {part}, {here.name} line {line}, {where})"
    }


def test_an_error_in_every_case_is_raised_with_case_round_and_line(tmp_path):
    with refused("component.invalid"):
        failing(IMAGES[:3], "recover", lambda x: True, tmp_path)


def test_words_lie_with_the_table_and_may_change(tmp_path):
    table = PIPELINE.run(IMAGES, **ASKED, store=tmp_path, terminology={"case": "scene"})

    assert table.provenance["words"]["case"] == "scene"
    assert PIPELINE.run(IMAGES, **ASKED, store=tmp_path, terminology={"case": "frame"}).cases == 40
