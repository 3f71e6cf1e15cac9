"""Comparison with the paper's results, from records."""

import json
import shutil

import pytest
from studies.paper import ENTRIES, MISSING, put
from studies.paper import table as markdown
from studies.real_data import NETWORKS, TABLES
from studies.real_data import main as collect

from taskuq.experiments._claims import EXPERIMENTS, run_all


def test_every_entry_names_an_experiment():
    assert {entry.experiment for entry in ENTRIES} == set(EXPERIMENTS)


@pytest.fixture(scope="module")
def folder(table, few, quality, tmp_path_factory):
    """Records of every experiment."""
    folder = tmp_path_factory.mktemp("records")
    for record in run_all(table, None, few, published=True, quality=quality):
        (folder / f"{record['name']}.json").write_text(json.dumps(record))
    return folder


def test_records_fill_every_row(folder, tmp_path):
    assert markdown(tmp_path).count(MISSING) == len(ENTRIES)
    assert MISSING not in markdown(folder)
    assert len(markdown(folder).splitlines()) == 2 + len(ENTRIES)


def test_only_the_named_block_is_replaced(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- x -->\nold\n<!-- end of x -->\nb\n")
    put("new", page, "x")
    assert page.read_text() == "a\n<!-- x -->\n\nnew\n\n<!-- end of x -->\nb\n"
    with pytest.raises(SystemExit):
        put("new", page, "y")


def test_tables_of_real_data_come_from_two_runs(folder, table, few, tmp_path, capsys):
    for network in NETWORKS:
        shutil.copytree(folder, tmp_path / f"lgg-{network}" / "records")
    collect([str(tmp_path)])
    printed = capsys.readouterr().out.strip().split("\n\n")
    rounds = len(table.accelerations)
    assert [len(one.splitlines()) - 2 for one in printed] == [
        2 * 2 * rounds,
        2,
        2 * 2 * len(few.goals),
    ]
    page = tmp_path / "page.md"
    page.write_text("\n".join(f"<!-- {name} -->\n<!-- end of {name} -->" for name in TABLES))
    collect([str(tmp_path), "--into", str(page)])
    assert all(one in page.read_text() for one in printed)
    collect()
    assert "RUNS" in capsys.readouterr().out
