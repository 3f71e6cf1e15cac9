"""The paper's table beside ours is made from records alone."""

import json

import pytest
from studies.paper import ENTRIES, MISSING, put
from studies.paper import table as markdown
from studies.real_data import NETWORKS, TABLES
from studies.real_data import main as collect

from taskuq.experiments._claims import EXPERIMENTS, run_all


def test_every_entry_names_an_experiment():
    assert {entry.experiment for entry in ENTRIES} == set(EXPERIMENTS)


def test_records_fill_every_row_and_none_fill_none(table, few, quality, tmp_path):
    assert markdown(tmp_path).count(MISSING) == len(ENTRIES)
    for record in run_all(table, None, few, published=True, quality=quality):
        (tmp_path / f"{record['name']}.json").write_text(json.dumps(record))

    assert MISSING not in markdown(tmp_path)
    assert len(markdown(tmp_path).splitlines()) == 2 + len(ENTRIES)


def test_only_the_named_block_is_replaced(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- x -->\nold\n<!-- end of x -->\nb\n")
    put("new", page, "x")

    assert page.read_text() == "a\n<!-- x -->\n\nnew\n\n<!-- end of x -->\nb\n"
    with pytest.raises(SystemExit):
        put("new", page, "y")


def test_the_tables_of_real_data_come_from_two_runs(table, few, tmp_path, capsys):
    for network in NETWORKS:
        folder = f"lgg-{network}"
        (tmp_path / folder / "records").mkdir(parents=True)
        for record in run_all(table, None, few):
            path = tmp_path / folder / "records" / f"{record['name']}.json"
            path.write_text(json.dumps(record))
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
