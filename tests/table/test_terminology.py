"""The page speaks the user's words, and those of a scanner only where one was used."""

import json
import re

import numpy as np
import pytest

from raising import refused
from taskuq._config import from_toml_table
from taskuq._io import write_json
from taskuq.report._explorer import save_explorer
from taskuq.report._report import write_report
from taskuq.table._terminology import MRI, Terminology, as_terminology, round_label


@pytest.fixture
def rng():
    return np.random.default_rng(0)


SCANNER = ("ero-filled", "atient", "slice", "Slice", "k-space")


def page(folder, rng, words=None, **more):
    picture = rng.random((2, 2, 8, 8))
    save_explorer(
        folder / "explorer.npz", case=["one", "two"], group=["a", "b"], accelerations=[8, 4],
        truth=picture[:, 0], estimate=picture, mean=picture, sd=picture,
        outputs=rng.random((2, 2, 4)), targets=[0.4, 0.2],
        calibration_outputs=rng.random((40, 2, 4)), calibration_targets=rng.random(40), **more,
    )  # fmt: skip
    write_json(folder / "run.json", {"schema": "taskuq.run/1", "title": "Mine", "words": words})
    return write_report(folder).read_text()


def stored(text):
    return json.loads(text.partition('id="stored">')[2].partition("</script>")[0])


def visible(text):
    """What a person reads or hears: text, and the labels of what has none."""
    body = text.partition("<body>")[2].partition('<script type="application/json"')[0]
    return " ".join([re.sub("<[^>]*>", " ", body), *re.findall(r'aria-label="([^"]*)"', body)])


def test_a_page_without_mri_speaks_no_mri(tmp_path, rng):
    shown = visible(page(tmp_path, rng))

    assert not [word for word in SCANNER if word in shown]


def test_a_page_speaks_the_words_it_is_given(tmp_path, rng):
    text = page(tmp_path, rng, {"case": "scene", "group": "film"}, round_names=["short", "long"])

    assert "Pick one of the <bdi>scenes</bdi>" in text
    assert "<bdi>Film</bdi> by <bdi>film</bdi>" in text
    assert stored(text)["round_names"] == ["short", "long"]
    assert (
        Terminology(case="scene", group="film").to_dict().items() <= stored(text)["words"].items()
    )


def test_mri_keeps_its_terms(tmp_path, rng):
    text = page(tmp_path, rng, MRI.to_dict())

    assert stored(text)["round_names"] == ["R = 8", "R = 4"]
    assert "<bdi>Patient</bdi> by" in text
    assert "<bdi>zero-filled</bdi>" in text


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ({"image": "x"}, "config.key"),
        ({"case": ""}, "value.invalid"),
        ({"case": 3}, "value.invalid"),
        ({"case": "x" * 61}, "value.invalid"),
        (7, "config.type"),
    ],
)
def test_words_that_are_none_are_refused_and_do_not_end_a_page(tmp_path, rng, words, code):
    with refused(code):
        as_terminology(words)
    said = stored(page(tmp_path, rng, words))["words"]
    assert Terminology().to_dict().items() <= said.items()


def test_names_of_rounds_are_one_for_each(tmp_path, rng):
    with refused("shape.mismatch"):
        page(tmp_path, rng, round_names=["one"])
    assert round_label(np.nan) == "the only round"


def test_a_run_takes_the_words_of_its_system_or_of_its_file():
    run_module = pytest.importorskip("taskuq.experiments._run")
    settings = [{}, {"measure": {"kind": "tomography"}}, {"words": {"case": "head"}}]
    said = [
        run_module._Run(None, None, from_toml_table(run_module.RunConfig, table), None).words
        for table in settings
    ]

    assert said[0] == MRI
    assert said[1].measurement == "view"
    assert said[2] == Terminology(case="head")
