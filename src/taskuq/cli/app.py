"""Command line, arguments, output."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import traceback
import warnings
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import cyclopts
from cyclopts import Parameter, validators

from taskuq._io import json_text, sigterm_as_exit, write_json
from taskuq.errors import (
    ChecksumWarning,
    GuaranteeWarning,
    InputError,
    MachineError,
    first_line,
    is_out_of_memory,
)

if TYPE_CHECKING:
    from taskuq.table._table import TaskOutputs


# Each command, the module of the function of its name, and what it does.
COMMANDS = """
demo             | run        | Run the embedded experiment, make its page and print its answer.
calibrate        | calibrate      | Calibrate intervals on a table of task outputs.
predict          | calibrate      | Write the intervals of a table's cases to a CSV file.
evaluate         | calibrate    | Judge scores over random or all splits of a table.
plan             | plan    | Plan when to stop scanning, with a guarantee.
simulate         | plan    | Replay policies on a table over random splits.
experiment       | experiments | Look at the paper's claims on stored tables.
run              | run         | Fill a table: measure, recover and read every image.
table            | run         | Make a table of task outputs that were made elsewhere.
status           | run         | Tell how far a run is and what failed.
masks            | data       | Make nested sampling masks, with a picture.
quality          | experiments     | Measure the image quality of recoveries.
monitor          | service     | Look for evidence that new cases are not like a policy's old ones.
audit            | service       | Check an audit trail and tell the story of each scan.
serve            | service         | Decide about scans that arrive as MRD streams.
export           | service         | Write recovery and task as programs that a service runs from.
replay           | service         | Play scans against a service as a scanner would.
specify          | plan     | Write a policy's decisions as numbers, for other languages.
interval         | service    | Write the interval of a stored scan as JSON or as a DICOM report.
report           | run      | Rebuild a run's page from its stored results; export them.
plan-size        | calibrate      | Say how many calibration cases are needed.
data check       | data        | Tell what a folder holds, what would be skipped, and why.
data prepare     | data        | Keep fastMRI slices compressed, cropped and scaled.
data atlas       | data        | Make slices of synthetic patients of the embedded atlas.
data atlas-base  | data        | Store the anatomy the atlas is made from.
data sheet       | data        | Draw a contact sheet of a data set.
train            | run       | Train networks from their configuration files.
rehearse         | experiments    | Try every command of docs/fastmri.md at its real size.
"""
# Commands whose names begin alike.
FOLDERS = {"data": "Look at data, make the atlas, prepare fastMRI."}

app = cyclopts.App(
    name="taskuq",
    help="Intervals with a guarantee for what a task network would have said about the true image. "
    "With --traceback every command shows where an error happened.",
    version=lambda: __import__("taskuq").__version__,
    exit_on_error=False,
    print_error=False,
    help_on_error=False,
    help_format="plaintext",
    # It would end without a word, and what is kept is ours to say.
    suppress_keyboard_interrupt=False,
    # A command says what it has to say itself; what it returns is for Python callers.
    result_action="return_value",
)
# What to install for a package that a light installation does not have.
EXTRAS = dict.fromkeys(("torch", "pytorch_lightning", "h5py", "safetensors"), "mri")
EXTRAS |= {
    "nilearn": "demo",
    "nibabel": "nifti",
    "pydicom": "dicom",
    "highdicom": "dicom",
    "ismrmrd": "mrd",
}

TRACEBACK = "--traceback"
OURS = "taskuq made a mistake"
# The status of a command that was asked to end, by SIGTERM.
TERMINATED = 143

_apps = {"": app} | {name: cyclopts.App(name=name, help=about) for name, about in FOLDERS.items()}
for _line in COMMANDS.strip().splitlines():
    _words, _module, _help = (part.strip() for part in _line.split(" | "))
    _folder, _, _name = _words.rpartition(" ")
    _where = f"taskuq.cli.{_module}:{_name.replace('-', '_')}"
    _apps[_folder].command(_where, name=_name, help=_help)
for _folder in FOLDERS:
    app.command(_apps[_folder])
app.register_install_completion_command()


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; exit 0 when done, 2 on bad input, 1 where the machine or we failed."""
    # Two threads spinning for one free core make torch 17 times slower; it asks when it is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    words = list(sys.argv[1:] if arguments is None else arguments)
    is_traced = TRACEBACK in words
    try:
        with sigterm_as_exit(), warnings.catch_warnings():
            _say_warnings()
            app([word for word in words if word != TRACEBACK])
            sys.stdout.flush()
    except BrokenPipeError:
        _let_go_of_stdout()
        sys.exit(0)
    except (KeyboardInterrupt, SystemExit) as stopped:
        if isinstance(stopped, KeyboardInterrupt) or stopped.code == TERMINATED:
            _say(_kept(stopped))
        sys.exit(130 if isinstance(stopped, KeyboardInterrupt) else stopped.code)
    except Exception as error:
        if is_traced:
            traceback.print_exc()
        if isinstance(error, OSError):
            _let_go_of_stdout()
        status, sentence = _ending(error)
        _say(" ".join(sentence.split()))
        sys.exit(status)


def _let_go_of_stdout() -> None:
    """Whoever read us has seen enough, or has no room: nothing is to be written on the way out."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _ending(error: Exception) -> tuple[int, str]:
    """The exit status of an error and its sentence: 2 for bad input, 1 for the machine and us."""
    match error:
        case InputError():
            return 2, _own_words(error)
        case MachineError():
            return 1, _own_words(error)
        case cyclopts.CycloptsError():
            return 2, f"{str(error).rstrip('.')}; see taskuq --help"
        case ModuleNotFoundError() if (name := (error.name or "").partition(".")[0]) in EXTRAS:
            return 2, (
                f"this command needs {error.name}, which is not installed; run pip install "
                f"'taskuq[{EXTRAS[name]}]'"
            )
        case _ if is_out_of_memory(error):
            why = "" if isinstance(error, MemoryError) else f" ({first_line(error):.120})"
            return 1, f"memory ran out{why}; free some, or ask for less at a time"
        case OSError():
            place = f" at {error.filename}" if error.filename else ""
            return 1, f"the machine failed{place} ({error.strerror or error}); start again"
        case zipfile.BadZipFile() | zlib.error() | UnicodeError() | EOFError():
            return 2, f"a file is damaged ({first_line(error)}); check what was given"
    return 1, (
        f"{OURS} ({type(error).__name__}: {first_line(error):.160}); run the command again with "
        f"{TRACEBACK} and report what it prints"
    )


def _own_words(error: Exception) -> str:
    text = str(error)
    return text.rpartition(f"{type(error).__name__}: ")[2] if text.startswith("Caught ") else text


def _say_warnings() -> None:
    show = warnings.showwarning

    def say(message: Any, category: Any, *where: Any, **more: Any) -> None:
        if issubclass(category, ChecksumWarning | GuaranteeWarning):
            _say(str(message))
        else:
            show(message, category, *where, **more)

    warnings.showwarning = say


def _kept(stopped: BaseException) -> str:
    notes = getattr(stopped, "__notes__", ())
    return "; ".join(notes) or "stopped; nothing half-written is left, what was there is untouched"


def _say(sentence: str) -> None:
    sys.stderr.write(f"taskuq: {sentence}\n")


if __name__ == "__main__":
    main()

# What every command that reads a table reads.
FORMATS = "a folder that taskuq run wrote, or a file .npz, .csv or .parquet"
TableFile = Annotated[
    Path,
    Parameter(
        help=f"A table of task outputs: {FORMATS}; or atlas-sampler or atlas-varnet, which travel "
        "with the package."
    ),
]
TableOption = Annotated[Path | None, Parameter(help=f"A table of posterior samples: {FORMATS}.")]
# The score of what is calibrated and planned, and the scores that are compared.
SCORE = "mlwr"
SCORES = f"ar,lwr,cqr,{SCORE}"
# NumPy takes no seed below 0.
Seed = Annotated[int, Parameter(validator=validators.Number(gte=0))]


def parse_floats(text: str | None, name: str) -> tuple[float, ...] | None:
    """Parse comma-separated numbers."""
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--{name} takes numbers separated by commas, got {text!r}") from None


def parse_ints(text: str | None, name: str) -> tuple[int, ...] | None:
    """Parse comma-separated positive integers."""
    values = parse_floats(text, name)
    if values is None:
        return None
    if not all(1 <= v < 1e15 and v == int(v) for v in values):
        raise InputError(f"--{name} takes positive whole numbers, got {text!r}")
    return tuple(int(v) for v in values)


def parse_per_task(text: str | None, name: str) -> float | dict[str, float] | None:
    """Parse one number, or one per task."""
    if text is None:
        return None
    try:
        if "=" not in text:
            return float(text)
        pairs = [part.rpartition("=") for part in text.split(",")]
        return {task.strip(): float(value) for task, _, value in pairs}
    except ValueError:
        raise InputError(
            f"--{name} takes a number, or one for each task as in lesion=0.1,area=20, got {text!r}"
        ) from None


def ranges(text: str | None) -> tuple[float, ...] | dict[str, tuple[float, ...]] | None:
    """Read the range of all tasks, or that of some by their names."""
    if text is None or "=" not in text:
        declared = parse_floats(text, "range")
        if declared is not None and len(declared) != 2:
            raise InputError(f"--range takes two numbers, low,high, got {text!r}")
        return declared
    found: dict[str, tuple[float, ...]] = {}
    for part in text.split(","):
        task, _, ends = part.rpartition("=")
        try:
            low, high = (float(end) for end in ends.split(":"))
        except ValueError:
            raise InputError(
                f"--range takes low,high, or one for each task as in lesion=0:1,area=0:inf, got "
                f"{text!r}"
            ) from None
        found[task.strip()] = (low, high)
    return found


def parse_list(text: str) -> tuple[str, ...]:
    """Parse a comma-separated list."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def parse_round(text: str) -> float | str:
    """Parse an acceleration or a round name."""
    try:
        return float(text)
    except ValueError:
        return text.strip()


def parse_mapping(text: str | None, name: str) -> dict[str, str] | None:
    """Parse NAME=VALUE pairs."""
    if text is None:
        return None
    pairs = [part.partition("=") for part in parse_list(text)]
    if not all(key and is_given and word for key, is_given, word in pairs):
        raise InputError(f"--{name} takes words by name, as in case=slice, got {text!r}")
    return {key.strip(): word.strip() for key, _, word in pairs}


def parse_coverage_mode(text: str) -> float | str:
    """Parse --cases: random, all or a fraction."""
    try:
        return float(text)
    except ValueError:
        return text


def load_table(path: Path, range_: str | None, task: str | None = None) -> TaskOutputs:
    """Read a table with the declared range, and one or some of its tasks if asked."""
    from taskuq.table._examples import FOLDER, stored
    from taskuq.table._table import TaskOutputs

    if not path.exists() and str(path) in stored():
        path = FOLDER / f"{path}.npz"
    table = TaskOutputs.load(path, task_range=ranges(range_))
    if task is None:
        return table
    chosen = parse_list(task)
    return table.select(task=chosen[0] if len(chosen) == 1 else chosen)


# Columns beyond which a sentence is hard to read, however wide the terminal is.
WIDEST = 100


def print_message(sentence: str) -> None:
    """Print a message to stderr."""
    sys.stderr.write(f"{sentence}\n")


def print_wrapped(lines: Sequence[str]) -> None:
    """Print wrapped messages to stderr."""
    if not sys.stderr.isatty():
        columns = sys.maxsize
    else:
        columns = min(shutil.get_terminal_size().columns, WIDEST)
    for line in lines:
        indent = "    " if line.startswith(" ") else ""
        print_message(textwrap.fill(line, columns, subsequent_indent=indent))


def print_table_notes(table: TaskOutputs) -> None:
    """Print warnings about a table."""
    from taskuq.table._table import suggest_range

    if count := len(table.missing_cases):
        cases = "1 case of the table is" if count == 1 else f"{count} cases of the table are"
        print_message(f"taskuq: {cases} unfinished and left out")
    if undeclared := suggest_range(table):
        print_message(f"taskuq: {undeclared}")


def print_result(text: str) -> None:
    """Print a result to stdout."""
    sys.stdout.write(f"{text}\n")


def show_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, to_stderr: bool = False
) -> None:
    """Print a table; numbers are strings already, with the digits that matter."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for k, column in enumerate(columns):
        table.add_column(column, justify="left" if k == 0 else "right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    width = max(100, sum(max(len(r[k]) for r in [columns, *rows]) + 4 for k in range(len(columns))))
    console = Console(stderr=to_stderr, width=width, highlight=False)
    console.print(table)


def print_json(record: Mapping[str, Any], path: str | None) -> None:
    """Write JSON to a file or stdout."""
    if path == "-":
        print_result(json_text(record))
    elif path is not None:
        print_result(str(write_json(Path(path), record)))
