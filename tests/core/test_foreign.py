"""Task outputs made elsewhere: rows with named columns become the same table."""

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import taskuq as tq
from taskuq.cli.app import main


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    return tq.TaskOutputs(
        rng.random((2, 6, 3)), rng.random(6), (8.0, 4.0),
        case=["007", "b", "c", "a", "e", "f"], group=list("xxyyzz"), label=[0, 1, 0, 1, 0, 1],
    )  # fmt: skip


def same(a, b):
    names = ("outputs", "targets", "accelerations", "case", "group", "label")
    return all(np.array_equal(getattr(a, n), getattr(b, n)) for n in names)


def wide(table):
    """One row for each case and round, in the order of the table."""
    rounds, n = table.rounds, table.cases
    return {
        "case": np.tile(table.case, rounds),
        "acceleration": np.repeat(table.accelerations, n),
        "target": np.tile(table.targets, rounds),
        "group": np.tile(table.group, rounds),
        "label": np.tile(table.label, rounds),
        **{f"output_{k}": table.outputs[:, :, k].ravel() for k in range(table.samples)},
    }


def long(table):
    """One row for each sample."""
    rows = wide(table)
    samples = [rows.pop(f"output_{k}") for k in range(table.samples)]
    rows = {name: np.repeat(values, table.samples) for name, values in rows.items()}
    rows["sample"] = np.tile(np.arange(table.samples), table.rounds * table.cases)
    return rows | {"output": np.stack(samples, axis=1).ravel()}


def lists(table):
    rows = wide(table)
    samples = np.stack([rows.pop(f"output_{k}") for k in range(table.samples)], axis=1)
    return rows | {"outputs": pa.array(list(samples))}


def write(columns, path):
    columns = {n: v if isinstance(v, pa.Array) else pa.array(v) for n, v in columns.items()}
    writer = pa.csv.write_csv if path.suffix == ".csv" else pq.write_table
    writer(pa.table(columns), path)
    return path


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
@pytest.mark.parametrize("layout", [wide, long])
def test_rows_become_the_table_they_are_of(table, tmp_path, layout, ending):
    assert same(tq.TaskOutputs.load(write(layout(table), tmp_path / f"t{ending}")), table)


def test_lists_become_the_table_they_are_of(table, tmp_path):
    assert same(tq.TaskOutputs.load(write(lists(table), tmp_path / "t.parquet")), table)


@pytest.mark.parametrize("layout", [wide, long])
def test_the_order_of_rows_changes_only_the_order_of_cases(table, tmp_path, layout):
    columns = layout(table)
    shuffled = np.random.default_rng(1).permutation(len(columns["case"]))
    path = write({n: v[shuffled] for n, v in columns.items()}, tmp_path / "t.parquet")
    found = tq.TaskOutputs.load(path)
    order = np.argsort(found.case)[np.argsort(np.argsort(table.case))]

    assert np.array_equal(found.outputs[:, order], table.outputs)
    assert np.array_equal(found.targets[order], table.targets)


def test_the_command_writes_a_table_that_others_read(table, tmp_path, capsys):
    source = write(wide(table), tmp_path / "t.csv")
    main(["table", str(source), "-o", str(tmp_path / "native"), "--range", "0,1"])
    found = tq.TaskOutputs.load(tmp_path / "native")

    assert capsys.readouterr().out.strip() == str(tmp_path / "native")
    assert found.task_range == (0, 1)
    # A native table keeps outputs in float32.
    assert np.array_equal(found.outputs, table.outputs.astype(np.float32))


def test_one_round_and_unknown_targets_may_be_left_out(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("case,output\na,0.1\nb,0.2\n")
    found = tq.TaskOutputs.load(path)

    assert found.outputs.tolist() == [[[0.1], [0.2]]]
    assert not found.has_targets


def test_targets_may_depend_on_the_round(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("case,acceleration,target,output\na,8,0.1,0\na,4,0.2,0\nb,8,1,0\nb,4,1,0\n")

    assert tq.TaskOutputs.load(path).targets.tolist() == [[0.1, 1.0], [0.2, 1.0]]


def test_a_case_without_a_round_is_missing(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("case,acceleration,target,output\na,8,1,0\na,4,1,0\nb,8,1,0\n")
    found = tq.TaskOutputs.load(path)

    assert found.missing_cases == ("b",)
    assert found.case.tolist() == ["a"]


REFUSED = {
    "no case": ("name,output\na,1\n", "no column case"),
    "no outputs": ("case,result\na,1\n", "no outputs"),
    "no rows": ("case,output\n", "no rows"),
    "nothing": ("", "cannot be read"),
    "text as output": ("case,output\na,high\n", "not a number"),
    "an empty cell": ("case,output\na,\nb,1\n", "not a number"),
    "NaN": ("case,output\na,nan\nb,1\n", "not a number"),
    "a row twice": ("case,output\na,1\na,2\n", "two rows"),
    "a sample twice": ("case,sample,output\na,0,1\na,0,2\n", "twice"),
    "two targets": ("case,sample,output,target\na,0,1,3\na,1,2,4\n", "entries in target"),
    "two groups of samples": ("case,sample,output,group\na,0,1,x\na,1,2,y\n", "entries in group"),
    "unequal samples": ("case,sample,output\na,0,1\na,1,2\nb,0,1\n", "1 to 2 samples"),
    "two groups": ("case,acceleration,group,output\na,8,x,1\na,4,y,1\n", "two different entries"),
    "two columns of a name": ("case,output,output\na,1,2\n", "two columns"),
    "rows of different length": ("case,output\na,1,2\n", "cannot be read"),
    "no whole case": ("case,acceleration,output\na,8,1\nb,4,1\n", "has all 2 rounds"),
    "an acceleration below 1": ("case,acceleration,output\na,0.5,1\n", "stay above 1"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_table_is_refused_in_one_sentence(tmp_path, kind):
    text, sentence = REFUSED[kind]
    path = tmp_path / "t.csv"
    path.write_text(text)

    with pytest.raises(tq.InputError, match=sentence):
        tq.TaskOutputs.load(path)


def test_lists_of_unequal_length_are_refused(tmp_path):
    path = write(
        {"case": ["a", "b"], "outputs": pa.array([[1.0, 2.0], [1.0]])}, tmp_path / "t.parquet"
    )

    with pytest.raises(tq.InputError, match="lists of 1 to 2 outputs"):
        tq.TaskOutputs.load(path)
