"""Notebooks are made from their scripts; the site runs them all but deepinv's."""

import pytest
from extensions import notebooks

SCRIPTS = {script.stem: script for script in notebooks.scripts()}


def test_notebooks_are_those_of_the_scripts():
    assert len(SCRIPTS) >= 7
    for script in SCRIPTS.values():
        assert script.with_suffix(".ipynb").read_text() == notebooks.notebook(script)
        kind, last = notebooks.cells(script)[-1]
        assert kind == "code"
        assert last.splitlines()[-1].startswith("tq.plot.")


@pytest.mark.parametrize("name", ["deepinv"])
def test_example_runs(name, tmp_path, deepinv):
    notebooks.run(SCRIPTS[name], tmp_path)
    assert list(tmp_path.glob("*.svg"))
