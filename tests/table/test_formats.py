import warnings

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

import taskuq as tq
from raising import refused
from taskuq.cli.app import main
from taskuq.table._table import as_rounds


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    return tq.TaskOutputs(
        rng.random((2, 6, 3)), rng.random(6), (8.0, 4.0),
        case=["007", "b", "c", "a", "e", "f"], group=list("xxyyzz"), site=list("hhhhkk"),
        label=[0, 1, 0, 1, 0, 1],
    )  # fmt: skip


def same(a, b):
    names = ("outputs", "targets", "accelerations", "case", "group", "site", "label")
    every = (*names, "task_names", "round_names")
    return all(np.array_equal(getattr(a, n), getattr(b, n)) for n in every)


def wide(table):
    """One row for each case and round, in the order of the table."""
    rounds, n = table.rounds, table.cases
    return {
        "case": np.tile(table.case, rounds),
        "acceleration": np.repeat(table.accelerations, n),
        "target": np.tile(table.targets, rounds),
        "group": np.tile(table.group, rounds),
        "site": np.tile(table.site, rounds),
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


@pytest.mark.parametrize(
    ("layout", "ending"),
    [(wide, ".csv"), (wide, ".parquet"), (long, ".csv"), (long, ".parquet"), (lists, ".parquet")],
)
def test_rows_become_a_table(table, tmp_path, layout, ending):
    assert same(tq.TaskOutputs.load(write(layout(table), tmp_path / f"t{ending}")), table)


@pytest.mark.parametrize("layout", [wide, long])
def test_order_of_rows_changes_only_the_order_of_cases(table, tmp_path, layout):
    columns = layout(table)
    shuffled = np.random.default_rng(1).permutation(len(columns["case"]))
    path = write({n: v[shuffled] for n, v in columns.items()}, tmp_path / "t.parquet")
    found = tq.TaskOutputs.load(path)
    order = np.argsort(found.case)[np.argsort(np.argsort(table.case))]
    assert np.array_equal(found.outputs[:, order], table.outputs)
    assert np.array_equal(found.targets[order], table.targets)


def test_command_converts_a_table(table, tmp_path, capsys):
    source = write(wide(table), tmp_path / "t.csv")
    main(["table", str(source), "-o", str(tmp_path / "native"), "--range", "0,1"])
    found = tq.TaskOutputs.load(tmp_path / "native")
    assert capsys.readouterr().out.strip() == str(tmp_path / "native")
    assert found.task_range == (0, 1)
    assert same(found, table)
    assert found.outputs.dtype == np.float64


def test_rounds_and_targets_are_optional(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("case,output\na,0.1\nb,0.2\n")
    found = tq.TaskOutputs.load(path)
    assert found.outputs.tolist() == [[[0.1], [0.2]]]
    assert not found.has_targets


def test_targets_may_depend_on_the_round(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("case,acceleration,target,output\na,8,0.1,0\na,4,0.2,0\nb,8,1,0\nb,4,1,0\n")
    assert tq.TaskOutputs.load(path).targets.tolist() == [[0.1, 1.0], [0.2, 1.0]]


def test_case_without_a_round_is_missing(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("case,acceleration,target,output\na,8,1,0\na,4,1,0\nb,8,1,0\n")
    found = tq.TaskOutputs.load(path)
    assert found.missing_cases == ("b",)
    assert found.case.tolist() == ["a"]


REFUSED = {
    "no case": ("name,output\na,1\n", "table.column"),
    "table.column": ("case,result\na,1\n", "table.column"),
    "table.incomplete": ("case,output\n", "table.incomplete"),
    "nothing": ("", "file.format"),
    "text as output": ("case,output\na,high\n", "table.column"),
    "an empty cell": ("case,output\na,\nb,1\n", "table.column"),
    "NaN": ("case,output\na,nan\nb,1\n", "table.column"),
    "a row twice": ("case,output\na,1\na,2\n", "table.duplicate"),
    "a sample twice": ("case,sample,output\na,0,1\na,0,2\n", "table.duplicate"),
    "two targets": ("case,sample,output,target\na,0,1,3\na,1,2,4\n", "table.duplicate"),
    "two groups of samples": ("case,sample,output,group\na,0,1,x\na,1,2,y\n", "table.duplicate"),
    "unequal samples": ("case,sample,output\na,0,1\na,1,2\nb,0,1\n", "samples.mismatch"),
    "two groups": ("case,acceleration,group,output\na,8,x,1\na,4,y,1\n", "table.duplicate"),
    "two columns of a name": ("case,output,output\na,1,2\n", "table.duplicate"),
    "rows of different length": ("case,output\na,1,2\n", "file.format"),
    "no whole case": ("case,acceleration,output\na,8,1\nb,4,1\n", "table.incomplete"),
    "an acceleration below 1": ("case,acceleration,output\na,0.5,1\n", "rounds.invalid"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_invalid_csv_is_refused(tmp_path, kind):
    text, code = REFUSED[kind]
    path = tmp_path / "t.csv"
    path.write_text(text)
    with refused(code):
        tq.TaskOutputs.load(path)


NAMES = ("12 views", "24 views")


def made(**changes):
    rng = np.random.default_rng(0)
    parts = {
        "case": ["007", "b", "c", "a"], "group": list("xxyy"), "label": ["no", "yes", "no", "yes"],
        "task_names": ["lesion", "area", "volume"], "round_names": NAMES,
        "task_range": {"lesion": (0, 1), "area": (0, np.inf)},
    }  # fmt: skip
    scale = np.array([1, 40, 300]) / 256
    # Numbers that float32 and decimals hold exactly.
    outputs, targets = rng.integers(257, size=(2, 4, 3, 3)), rng.integers(257, size=(4, 3))
    return tq.TaskOutputs(outputs * scale, targets * scale, (16, 8), **parts | changes)


@pytest.mark.parametrize(
    "name", ["table.csv", "table.parquet", "table.npz", "table", "xarray", "netcdf", "arviz"]
)
def test_three_tasks_survive_every_format(tmp_path, name):
    table, path = made(), tmp_path / name
    if name in ("xarray", "netcdf"):
        xarray, path = pytest.importorskip("xarray"), table.to_xarray()
        if name == "netcdf":
            pytest.importorskip("h5netcdf")
            path.to_netcdf(tmp_path / "table.nc")
            path = xarray.load_dataset(tmp_path / "table.nc")
    elif name == "arviz":
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its announcement of version 1
            pytest.importorskip("arviz")
        path = table.to_arviz()
    else:
        table.save(path)
    loaded = tq.TaskOutputs.load(path)
    assert same(loaded, table)
    if "." not in name or name == "table.npz":
        assert loaded.task_ranges == ((0.0, 1.0), (0.0, np.inf), None)
        assert loaded.select(task="area").task_range == (0.0, np.inf)
        with refused("range.invalid"):
            _ = loaded.task_range


def test_case_without_a_task_is_missing(tmp_path):
    frame = pd.read_parquet(made().save(tmp_path / "table.parquet"))
    table = tq.TaskOutputs.load(frame[(frame.case != "c") | (frame.task != "area")])
    assert table.missing_cases == ("c",)
    assert table.case.tolist() == ["007", "b", "a"]


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda f: f.assign(group=np.where(f.task == "area", "z", f.group)), "table.duplicate"),
        (lambda f: f[(f.task != "area") | (f.acceleration != 8)], "samples.mismatch"),
        (lambda f: f.assign(round=f.case), "table.duplicate"),
        (lambda f: f.assign(task=None), "table.column"),
        (lambda f: pd.concat([f, f]), "table.duplicate"),
        (lambda f: f.assign(case=f.case + f.task), "table.incomplete"),
    ],
)
def test_inconsistent_rows_are_refused(tmp_path, spoil, code):
    frame = pd.read_parquet(made().save(tmp_path / "table.parquet"))
    with refused(code):
        tq.TaskOutputs.load(spoil(frame))


@pytest.mark.parametrize("thing", [3, None, object(), [1, 2]])
def test_other_types_are_refused(thing):
    with refused("dtype.invalid"):
        tq.TaskOutputs.load(thing)


def test_formula_in_a_csv_is_refused(tmp_path):
    table = made(case=["=1+1", "b", "c", "a"])
    with refused("value.invalid"):
        table.save(tmp_path / "table.csv")
    assert same(tq.TaskOutputs.load(table.save(tmp_path / "table.parquet")), table)


def test_rounds_are_found_by_name():
    table = made()
    assert table.round_index("24 views") == table.round_index(8) == 1
    assert table.select(accelerations=["24 views"]).round_labels == ("24 views",)
    assert repr(table).startswith("TaskOutputs(2 rounds (12 views, 24 views)")
    with refused("choice.unknown"):
        table.round_index("13 views")


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"accelerations": (8, 4), "costs": (1, 2)}, "option.conflict"),
        ({}, "option.conflict"),
        ({"costs": (12, 24)}, "option.missing"),
        ({"costs": (24, 12), "full_cost": 192}, "rounds.invalid"),
        ({"costs": (12, 192), "full_cost": 192}, "rounds.invalid"),
        ({"accelerations": {"a": 8}, "names": ["b"]}, "option.unused"),
        ({"accelerations": (8, 4), "names": ["a", "a"]}, "rounds.invalid"),
        ({"accelerations": (8, 4), "names": "ab"}, "dtype.invalid"),
    ],
)
def test_invalid_rounds_are_refused(given, code):
    asked = {"accelerations": None, "costs": None, "full_cost": None, "names": None}
    with refused(code):
        as_rounds(**asked | given)


@pytest.mark.parametrize(
    ("range_", "code"),
    [
        ({"lesoin": (0, 1)}, "choice.unknown"),
        ([(0, 1), (0, 50)], "shape.mismatch"),
        ((1, 0), "range.invalid"),
        ({"area": (0, 1)}, "range.outside"),
        ("0,1", "range.invalid"),
    ],
)
def test_invalid_ranges_are_refused(range_, code):
    with refused(code):
        made(task_range=range_)
