"""Tables of the results pages, from records."""

import json
import shutil

import pytest
from studies.paper import CLAIMS, TABLES, put, read_records, tables, write_csv
from studies.real_data import NETWORKS
from studies.real_data import TABLES as REAL_TABLES
from studies.real_data import main as collect

from taskuq.experiments._claims import EXPERIMENTS


def test_every_claim_names_an_experiment():
    # Examples show cases; they test no claim.
    assert {experiment for *_, experiment in CLAIMS} == set(EXPERIMENTS) - {"examples"}


@pytest.fixture(scope="module")
def folder(records, tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    for record in records:
        (folder / f"{record['name']}.json").write_text(json.dumps(record))
    return folder


def test_records_and_their_csv_files_give_the_same_tables(folder, tmp_path):
    records = read_records(folder)
    write_csv(records, tmp_path)
    assert set(records) == set(EXPERIMENTS) - {"examples"}
    assert set(tables(records)) == set(TABLES)
    assert tables(read_records(tmp_path)) == tables(records)


def test_without_records_nothing_is_tested(tmp_path):
    assert tables(read_records(tmp_path))["claims"].count("not tested") == len(CLAIMS)


def test_only_the_named_block_is_replaced(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- x -->\nold\n<!-- end of x -->\nb\n")
    put("new", page, "x")
    assert page.read_text() == "a\n<!-- x -->\n\nnew\n\n<!-- end of x -->\nb\n"
    with pytest.raises(SystemExit):
        put("new", page, "y")


def test_tables_of_real_data_come_from_two_runs(folder, table, few, tmp_path, capsys):
    for network in NETWORKS:
        shutil.copytree(folder, tmp_path / network / "records")
    collect([str(tmp_path)])
    printed = capsys.readouterr().out.strip().split("\n\n")
    rounds = len(table.accelerations)
    assert [len(one.splitlines()) - 2 for one in printed] == [2 * rounds, 2, 2 * 2 * len(few.goals)]
    page = tmp_path / "page.md"
    page.write_text("\n".join(f"<!-- {name} -->\n<!-- end of {name} -->" for name in REAL_TABLES))
    collect([str(tmp_path), "--into", str(page)])
    assert all(one in page.read_text() for one in printed)
    collect()
    assert "RUNS" in capsys.readouterr().out
