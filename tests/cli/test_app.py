"""The command line: exit status, records, and one sentence for bad input."""

import csv
import io
import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from importlib import import_module
from inspect import Parameter, signature

import numpy as np
import pytest
import torch

import taskuq as tq
from taskuq import protocols
from taskuq.cli import app
from taskuq.cli import calibrate as bounds
from taskuq.cli.app import WIDEST, main, print_wrapped
from taskuq.cli.calibrate import calibrate, evaluate
from taskuq.cli.plan import simulate
from taskuq.errors import InputError, MachineError
from taskuq.policy._kinds import PolicySpec
from taskuq.protocols import Score
from taskuq.scan._audit import SCHEMA, append_entries
from taskuq.service._interval import write_interval
from taskuq.table._examples import SyntheticTable, synthetic_outputs


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    made = synthetic_outputs(SyntheticTable(volumes=30, samples=8), seed=0)
    return str(made.save(tmp_path_factory.mktemp("table") / "table.npz"))


def run(*arguments):
    """Run a command in this process and return its exit status."""
    try:
        main([*map(str, arguments)])
    except SystemExit as ended:
        return ended.code
    return 0


def refusal(capsys, *arguments):
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("taskuq: ")
    assert captured.err.count("\n") == 1
    return captured.err


def test_evaluate_prints_record_and_draws_figures(table, tmp_path, capsys):
    figures = tmp_path / "figures"
    run("evaluate", table, "--score", "ar,lwr", "--exact", "--json", "-", "--figures", figures)
    record = json.JSONDecoder().raw_decode(capsys.readouterr().out)[0]
    assert record["schema"] == "taskuq.evaluate/1"
    assert record["n"] == record["n_calibration"] + record["n_test"]
    assert [r["score"] for r in record["results"][:2]] == ["ar", "lwr"]
    assert {r["acceleration"] for r in record["results"]} == {16, 8, 4, 2}
    assert (figures / "width-against-acceleration.svg").stat().st_size > 1000


def test_same_seed_gives_same_record(table, tmp_path, capsys):
    for name in ("a.json", "b.json"):
        run("evaluate", table, "--splits", "50", "--seed", "4", "--json", tmp_path / name)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_calibrate_then_predict(table, tmp_path, capsys):
    bound, intervals = tmp_path / "bound.json", tmp_path / "intervals.csv"
    loaded = tq.TaskOutputs.load(table)
    sites = replace(loaded, site=np.zeros(loaded.cases)).save(tmp_path / "sites.npz")
    assert run("calibrate", sites, "--acceleration", "8", "--alpha", "0.1", "-o", bound) == 0
    assert run("predict", bound, table, "-o", intervals) == 0
    with intervals.open() as file:
        rows = list(csv.DictReader(file))
    interval = tq.load_bound(bound)(loaded.outputs[1])
    assert [float(row["lower"]) for row in rows] == list(interval.lower)
    assert np.mean([int(row["covered"]) for row in rows]) > 0.85


def test_sample_size_record(capsys):
    assert run("sample-size", "--json", "-") == 0
    assert json.loads(capsys.readouterr().out)["n_calibration"] == 442


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("evaluate", "absent.npz"), "no table"),
        (("evaluate", "{table}", "--alpha", "2"), "alpha"),
        (("evaluate", "{table}", "--score", "best"), "unknown --score"),
        (("evaluate", "{table}", "--acceleration", "3"), "3"),
        (("evaluate", "{table}", "--samples", "99"), "--samples"),
        (("evaluate", "{table}", "--samples", "two"), "--samples must be"),
        (("evaluate", "{table}", "--range", "0.4,0.5"), "0.4, 0.5"),
        (("evaluate", "{table}", "--exact", "--unit", "group"), "splits by case"),
        (("evaluate", "{table}", "--no-such-flag"), "no-such-flag"),
        (("evaluate",), "TABLE"),
        (("calibrate", "{table}"), "--acceleration"),
        (("calibrate", "{table}", "--acceleration", "8", "--joint", "scale"), "several tasks"),
        (("plan", "{table}"), "--max-width"),
        (("plan", "{table}", "--max-width", "0.1", "--alpha", "2"), "alpha"),
        (("simulate", "{table}", "--max-width", "-1"), "positive"),
        (("simulate", "{table}", "--max-width", "0.1", "--policy", ""), "--policy"),
        (("simulate", "{table}", "--max-width", "0.1", "--budget", "most"), "most"),
        (("simulate", "{table}", "--max-width", "0.1", "--samples", "0"), "--samples"),
        (("sample-size", "--epsilon", "0"), "epsilon"),
        (("run", "absent.toml", "-o", "x"), "absent.toml"),
        (("status", "absent"), "table"),
    ],
)
def test_bad_input_is_one_sentence_and_status_2(arguments, word, table, tmp_path, capsys,
                                                  monkeypatch):  # fmt: skip
    monkeypatch.chdir(tmp_path)
    said = refusal(capsys, *(a.format(table=table) for a in arguments))
    assert word in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("asked", [("--alpha", "0.2"), ("--score", "ar"), ("--acceleration", "4")])
def test_bound_of_another_kind_is_refused(asked, table, tmp_path, capsys):
    bound = tmp_path / "bound.json"
    run("calibrate", table, "--acceleration", "8", "--score", "lwr", "-o", bound)
    capsys.readouterr()
    assert "was calibrated" in refusal(capsys, "predict", bound, table, *asked)


def test_help_imports_neither_numpy_nor_torch():
    code = (
        "import sys; from taskuq.cli.app import app\n"
        "app(['--help']); app(['evaluate', '--help'])\n"
        "sys.exit(sum(name in sys.modules for name in ('numpy', 'torch', 'matplotlib')))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def test_missing_extra_is_named(monkeypatch, capsys, tmp_path):
    (tmp_path / "scan.h5").touch()
    monkeypatch.setitem(sys.modules, "h5py", None)
    monkeypatch.delitem(sys.modules, "taskuq.data._fastmri", raising=False)
    monkeypatch.delitem(sys.modules, "taskuq.data._volume", raising=False)
    monkeypatch.delitem(sys.modules, "taskuq.data._readers", raising=False)
    assert "taskuq[mri]" in refusal(capsys, "data", "check", tmp_path)


@pytest.mark.parametrize("command", ["calibrate", "plan", "simulate", "evaluate"])
def test_cases_need_groups(table, capsys, command):
    more = {"calibrate": ("--acceleration", 8), "evaluate": ()}.get(command, ("--max-width", 0.2))
    said = refusal(capsys, command, table, "--unit", "case", "--cases", "all", *more)
    assert "--cases" in said


def test_within_case_or_group_is_recorded(table, capsys, tmp_path):
    path = tmp_path / "bound.json"
    for within in ("case", "group"):
        flags = ("--acceleration", "8", "--alpha", "0.3", "--by-label", "--within", within)
        assert run("calibrate", table, *flags, "-o", path) == 0
        assert json.loads(path.read_text())["guarantee"]["within"] == within
    capsys.readouterr()
    refusal(capsys, "calibrate", table, *flags[:2], "--within", "case")


def test_table_is_split_by_groups(tmp_path):
    whole = synthetic_outputs(SyntheticTable(volumes=10), seed=0)
    whole.save(tmp_path / "table.npz")
    part, rest = tmp_path / "part.npz", tmp_path / "rest.npz"
    main(f"table {tmp_path}/table.npz --fraction 0.3 -o {part} --remainder {rest}".split())
    part, rest = tq.TaskOutputs.load(part), tq.TaskOutputs.load(rest)
    assert len(set(part.group)) == 3
    assert not set(part.group) & set(rest.group)
    assert part.cases + rest.cases == whole.cases
    assert sorted([*part.targets, *rest.targets]) == sorted(whole.targets)


def test_default_scores_agree():
    defaults = {
        command.__name__: signature(command).parameters["score"].default
        for command in (calibrate, evaluate, simulate)
    }
    assert defaults["calibrate"] == PolicySpec.score
    assert defaults["evaluate"] == defaults["simulate"]
    assert defaults["calibrate"] in defaults["simulate"].split(",")


LINES = ["One sentence that is longer than a narrow terminal is wide.", "  0.2 ± 0  is the width"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("columns", [12, 40, 1000])
def test_lines_fit_the_terminal(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stderr", Terminal())
    print_wrapped([*LINES, "word " * 50])
    said = sys.stderr.getvalue()
    assert max(map(len, said.splitlines())) <= min(columns, WIDEST)
    assert said.split() == " ".join([*LINES, "word " * 50]).split()


RNG = np.random.default_rng(3)
TRUTH = RNG.random((60, 2))
OUTPUTS = np.clip(TRUTH[:, None] + 0.1 * RNG.standard_normal((60, 4, 2)), 0, 1)
HEAD = ["case", "group", "acceleration", "task", "lower", "upper", "width", "center", "target"]


@pytest.fixture
def files(tmp_path):
    table, bound = tmp_path / "table.npz", tmp_path / "bound.json"
    tq.TaskOutputs(
        OUTPUTS[None], TRUTH, (8,), group=np.arange(60) // 5, task_names=("tear", "fluid")
    ).save(table)
    main(["calibrate", str(table), "--joint", "scale", "--alpha", "0.2", "-o", str(bound)])
    return bound, table, tmp_path / "intervals.csv"


def predict(files):
    bound, table, output = files
    main(["predict", str(bound), str(table), "-o", str(output)])
    return output.read_bytes()


def expected(bound, table):
    """One line at a time, each from its own case and task."""
    loaded, interval = tq.TaskOutputs.load(table), bounds._load(bound)(OUTPUTS)
    yield [*HEAD, "covered"]
    for i, k in np.ndindex(60, 2):
        one, z = interval[i, k], float(TRUTH[i, k])
        numbers = (one.lower, one.upper, one.width, one.center, z)
        yield [str(i), str(loaded.group[i]), "8", loaded.task_names[k],
               *(repr(float(v)) for v in numbers), str(int(one.contains(z)))]  # fmt: skip


@pytest.mark.parametrize("cases", [7, 65536])
def test_intervals_are_those_of_case_and_task(files, monkeypatch, cases):
    monkeypatch.setattr(bounds, "CASES", cases)
    lines = predict(files).decode().splitlines()
    assert list(csv.reader(lines)) == list(expected(*files[:2]))


def test_bound_of_one_task_needs_the_task(files, capsys):
    bound, table, output = map(str, files)
    main(["calibrate", table, "--task", "fluid", "--alpha", "0.2", "-o", bound])
    with pytest.raises(SystemExit):
        main(["predict", bound, table, "-o", output])
    assert "tear, fluid; use --task" in capsys.readouterr().err
    main(["predict", bound, table, "--task", "fluid", "-o", output])
    assert {row["task"] for row in csv.DictReader(files[2].read_text().splitlines())} == {"fluid"}


def test_every_option_has_one_help_text():
    used = set()
    for name, texts in app.COMMANDS.items():
        module = import_module(f"taskuq.cli.{texts['module']}")
        command = module.train_command("varnet") if name == "train" else getattr(
            module, name.split()[-1].replace("-", "_")
        )  # fmt: skip
        options = set(signature(command).parameters) - {"goal"}
        assert options <= texts.keys() | app.OPTIONS.keys(), name
        assert texts.keys() - options <= {"help", "module", "example", "for"}, name
        used |= options
    assert app.OPTIONS.keys() <= used


@pytest.mark.parametrize(("words", "last"), [(["foo"], "data"), (["data", "foo"], "atlas-base")])
def test_unknown_command_lists_commands(words, last, capsys):
    error = refusal(capsys, *words)
    depth = len(words) - 1
    commands = [name.split() for name in app.COMMANDS if name.startswith("data " * depth)]
    assert error.rstrip().endswith(last)
    assert all(name[depth] in error for name in commands)


def test_predict_writes_no_formulas(tmp_path):
    rng = np.random.default_rng(0)
    names = ['=HYPERLINK("x")', "+1", "-1", "@a", "\tb", "plain", *map(str, range(14))]
    table = tq.TaskOutputs(rng.random((1, 20, 3)), rng.random(20), (8.0,), case=names,
                           group=["=1+1"] * 20, task_names=["-t"])  # fmt: skip
    table.save(tmp_path / "t.npz")
    tq.calibrate(table.outputs[0], table.targets_at(0), alpha=0.2).save(tmp_path / "b.json")
    main(["predict", str(tmp_path / "b.json"), str(tmp_path / "t.npz"), "-o",
          str(tmp_path / "i.csv")])  # fmt: skip
    with open(tmp_path / "i.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    texts = [row[name] for row in rows for name in ("case", "group", "task")]
    assert not [text for text in texts if text.startswith(("=", "+", "-", "@", "\t"))]
    assert rows[0]["case"] == '\'=HYPERLINK("x")'
    assert rows[5]["case"] == "plain"


def test_threads_sleep_before_torch_is_loaded():
    script = (
        "import os, sys\nfrom taskuq.cli import app\n"
        "def look(words):\n"
        "    print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)\n"
        "app.app = look\napp.main([])\n"
    )
    for said, expected in ((None, "PASSIVE"), ("ACTIVE", "ACTIVE")):
        environment = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
        environment |= {} if said is None else {"OMP_WAIT_POLICY": said}
        ran = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True
        )
        assert ran.stdout == f"{expected} False\n", ran.stderr


@pytest.mark.parametrize(("kind", "code"), [(KeyboardInterrupt, 130), (SystemExit, 143)])
def test_stop_prints_what_is_kept(monkeypatch, capsys, kind, code):
    def stop(arguments):
        stopped = kind(143)
        stopped.add_note("stopped; 3 of 9 cases are finished")
        raise stopped

    monkeypatch.setattr(app, "app", stop)
    with pytest.raises(SystemExit) as ended:
        app.main(["run"])
    assert ended.value.code == code
    assert capsys.readouterr().err == "taskuq: stopped; 3 of 9 cases are finished\n"


ERRORS = {
    OSError(28, "No space left on device", "a.json"): (1, "a.json"),
    MemoryError(): (1, "out of memory"),
    torch.OutOfMemoryError("CUDA out of memory. Tried\nmore"): (1, "(CUDA out of memory. Tried)"),
    MachineError("the disk is full"): (1, "the disk is full"),
    InputError("alpha is 2", code="alpha.invalid"): (2, "alpha is 2"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"): (2, "invalid start byte"),
    zipfile.BadZipFile("no zip"): (2, "no zip"),
    KeyError("schema"): (1, "--traceback"),
}


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_error_is_one_sentence_and_a_traceback_on_request(monkeypatch, capsys, error):
    def fail(arguments):
        assert arguments == ["run"]
        raise error

    monkeypatch.setattr(app, "app", fail)
    for flags in ((), ("--traceback",)):
        status, word = ERRORS[error]
        assert run("run", *flags) == status
        printed = capsys.readouterr().err.splitlines()
        assert word in printed[-1]
        assert printed[-1].startswith("taskuq: ")
        assert (len(printed) > 1) == bool(flags)


FLAGS = {
    "data atlas --first-patient -5": "--first-patient",
    "data atlas --slices -1": "--slices",
    "data atlas --patients 1.5": "--patients",
    "masks --size 0": "--size",
    "data preview atlas --cases 0": "--cases",
    "data preview atlas --cases 1e-320": "--cases",
    "train flow a.toml --nodes 0": "--nodes",
    "train flow a.toml --nodes 1.5": "--nodes",
    "evaluate t.npz --splits 2.5": "--splits",
    "masks --seed -1": "--seed",
    "evaluate t.npz --seed -1": "--seed",
    "simulate t.npz --seed -1": "--seed",
    "evaluate t.npz --range 0,1e308": "1e+308",
}


@pytest.mark.parametrize("words", FLAGS)
def test_invalid_flags_are_refused(tmp_path, monkeypatch, capsys, words):
    monkeypatch.chdir(tmp_path)
    tq.TaskOutputs(np.zeros((1, 20, 2)), np.zeros(20)).save("t.npz")
    assert run(*words.split()) == 2
    assert FLAGS[words] in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", ["calibrate t.npz -o {}", "evaluate t.npz --json {}", "table t.npz -o {}"]
)
@pytest.mark.parametrize("name", ["t.npz", "./t.npz", "link-t.npz"])
def test_command_does_not_write_over_its_input(tmp_path, monkeypatch, capsys, words, name):
    monkeypatch.chdir(tmp_path)
    tq.TaskOutputs(np.zeros((1, 20, 2)), np.zeros(20)).save("t.npz")
    os.symlink("t.npz", "link-t.npz")
    before = (tmp_path / "t.npz").read_bytes()
    assert "t.npz" in refusal(capsys, *words.format(name).split())
    assert (tmp_path / "t.npz").read_bytes() == before


def test_unknown_scan_of_an_audit_log_is_refused(tmp_path, capsys):
    append_entries(tmp_path / "log", [{"schema": SCHEMA, "scan_id": "one"}])
    assert "'nope'" in refusal(capsys, "audit", tmp_path / "log", "--scan", "nope")


@pytest.mark.parametrize("output", [">&-", ">/dev/full"])
def test_closed_or_full_output_is_one_sentence(output):
    words = [sys.executable, "-m", "taskuq", "sample-size", "--alpha", "0.1", "--json", "-"]
    command = ["sh", "-c", f'exec "$@" {output}', "sh", *words]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr.startswith("taskuq: ")
    assert ended.stderr.count("\n") == 1


def test_plain_callables_implement_the_protocols():
    """Names of a user's arguments are free: those of the protocols are positional only."""
    users = [c for n, c in vars(protocols).items() if getattr(c, "_is_protocol", False)]
    users = [c for c in users if not issubclass(c, Score) and "Fit" not in c.__name__]
    kinds = {
        (c.__name__, name, p.name): p.kind
        for c in users
        for name, method in vars(c).items()
        if callable(method) and (name == "__call__" or not name.startswith("_"))
        for p in list(signature(method).parameters.values())[1:]
    }
    assert len(kinds) > 20
    assert {k for k, kind in kinds.items() if kind is Parameter.POSITIONAL_OR_KEYWORD} == set()


def test_files_with_names_of_patients_are_private(tmp_path):
    write_interval({"case": "patient-1"}, tmp_path / "interval.json")
    app.print_json({"scans": ["patient-1"]}, str(tmp_path / "replay.json"), private=True)
    assert {p.stat().st_mode & 0o777 for p in tmp_path.iterdir()} == {0o600}
