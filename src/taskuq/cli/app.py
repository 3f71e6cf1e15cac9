"""Entry point of the command line, and parsing and printing shared by its commands."""

from __future__ import annotations

import functools
import os
import re
import shutil
import sys
import textwrap
import tomllib
import traceback
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from inspect import isclass, signature
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_args

import cyclopts
from cyclopts import Parameter

from taskuq._io import json_text, sigterm_as_exit, write_json
from taskuq.errors import (
    ChecksumWarning,
    Code,
    GuaranteeWarning,
    InputError,
    MachineError,
    first_line,
    is_out_of_memory,
)

if TYPE_CHECKING:
    from taskuq.table._table import TaskOutputs

T = TypeVar("T", bound=Callable[..., Any])

# Summary, example and module of each command, and the help of its options.
COMMANDS: dict[str, dict[str, str]] = tomllib.loads(
    Path(__file__).with_name("help.toml").read_text("utf-8")
)
OPTIONS, GOAL, GROUPS = (COMMANDS.pop(name) for name in ("options", "goal", "groups"))
# Extra that installs an optional package.
EXTRAS = dict.fromkeys(("torch", "pytorch_lightning", "h5py", "safetensors"), "mri") | {
    "nilearn": "demo",
    "nibabel": "nifti",
    "pydicom": "dicom",
    "highdicom": "dicom",
    "ismrmrd": "mrd",
}
TRACEBACK = "--traceback"
# Options that name what is written.
OUTPUTS = ("output", "json", "remainder", "figure", "figures", "vectors", "change_control")
# Whole numbers are at least 1, or 0 for these, and at most a million, or these limits.
FROM_ZERO = ("seed", "first_patient", "keep_images", "port", "health_port")
MOST = {"seed": 2**63 - 1, "splits": 10**8, "size": 2**13, "coils": 2**12, "port": 2**16 - 1,
        "health_port": 2**16 - 1}  # fmt: skip


def command(name: str) -> Callable[[T], T]:
    """Return a decorator that adds help texts and argument checks to the command ``name``."""

    def document(function: T) -> T:
        texts = OPTIONS | (GOAL if name == "goal" else COMMANDS[name])
        options = [f"    {p}: {texts[p]}" for p in signature(function).parameters if p in texts]
        function.__doc__ = "\n".join([texts.get("help", name), "", "Args:", *options])
        return function if isclass(function) else _checked(function)

    return document


def _checked(function: Any) -> Any:
    """Return a command that refuses integers out of range and output files that are also inputs."""

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        bound = signature(function).bind(*args, **kwargs)
        bound.apply_defaults()
        for name, value in bound.arguments.items():
            if type(value) is int:
                low, high = int(name not in FROM_ZERO), MOST.get(name, 10**6)
                if not low <= value <= high:
                    raise _invalid(name.replace("_", "-"), f"in [{low}, {high}]", value)
        _refuse_own_input(bound.arguments)
        return function(*args, **kwargs)

    return checked


def _refuse_own_input(arguments: Mapping[str, Any]) -> None:
    for name in OUTPUTS:
        target = arguments.get(name)
        if target in (None, "-"):
            continue
        for other, source in arguments.items():
            is_input = isinstance(source, Path) and other not in OUTPUTS
            if is_input and os.path.realpath(source) == os.path.realpath(target):
                text = f"--{name} {target} is the input itself; use another name"
                raise InputError(text, code="option.conflict")


def _convert(type_: Any, tokens: Sequence[cyclopts.Token]) -> Any:
    """Convert command-line tokens to a type like cyclopts, but refuse fractions for integers."""
    if int in (type_, *get_args(type_)):
        for token in tokens:
            if re.search(r"\.\d*[1-9]", token.value):
                raise ValueError(f"must be a whole number, got {token.value}")
    return cyclopts.convert(type_, tokens)


app = cyclopts.App(
    name="taskuq",
    help="Prediction intervals with a guarantee for image-based measurements, and scans that stop "
    "when the answer is certain. --traceback prints the traceback of an error.",
    version=lambda: __import__("taskuq").__version__,
    exit_on_error=False,
    print_error=False,
    help_on_error=False,
    help_format="plaintext",
    # An interrupted command prints which results are kept.
    suppress_keyboard_interrupt=False,
    result_action="return_value",
    default_parameter=Parameter(converter=_convert),
)
_groups = {
    name: cyclopts.Group(title, sort_key=k) for k, (name, title) in enumerate(GROUPS.items())
}
_data = cyclopts.App(
    name="data", help="Check, prepare and generate data.", group=_groups["experiments"]
)
for _path, _texts in COMMANDS.items():
    _parent, _, _name = _path.rpartition(" ")
    (_data if _parent else app).command(
        f"taskuq.cli.{_texts['module']}:{_name.replace('-', '_')}",
        name=_name,
        help=f"{_texts['help']}\n\nExample: {_texts['example']}",
        group=None if _parent else _groups[_texts["for"]],
    )
app.command(_data)
app.register_install_completion_command()
_flags = cyclopts.Group("Options", sort_key=len(_groups))
for _name in ("--help", "--version", "--install-completion"):
    app[_name].group = (_flags,)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; exit with 0 on success, 2 on bad input, 1 on other failures."""
    # Spinning threads make torch up to 17 times slower on a busy core; it reads this on import.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    words = list(sys.argv[1:] if arguments is None else arguments)
    is_traced = TRACEBACK in words
    words = [word for word in words if word != TRACEBACK]
    try:
        with sigterm_as_exit(), warnings.catch_warnings():
            _print_warnings()
            if sys.stdout is None:
                raise MachineError("standard output is closed; redirect it to a file")
            app(words)
            sys.stdout.flush()
    except BrokenPipeError:
        _release_stdout()
        sys.exit(0)
    except (KeyboardInterrupt, SystemExit) as stopped:
        code = stopped.code if isinstance(stopped, SystemExit) else 130
        # After Ctrl-C and SIGTERM.
        if code in (130, 143):
            notes = "; ".join(getattr(stopped, "__notes__", ()))
            print_message(f"taskuq: {notes or 'interrupted; no partial output was written'}")
        sys.exit(code)
    except Exception as error:
        if is_traced:
            traceback.print_exc()
        if isinstance(error, OSError):
            _release_stdout()
        status, sentence = _describe(error, words)
        print_message(f"taskuq: {' '.join(sentence.split())}")
        sys.exit(status)


def _release_stdout() -> None:
    """Flush stdout, or discard the pending output if it cannot be written."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _describe(error: Exception, words: Sequence[str]) -> tuple[int, str]:
    """Return the exit status and the message of an error."""
    match error:
        case InputError():
            return 2, _name_options(str(error), words)
        case MachineError():
            return 1, str(error)
        case cyclopts.UnknownCommandError():
            depth = int(words[0] in ("data", "train"))
            names = [name.split() for name in COMMANDS if name.startswith("data " * depth)]
            choices = dict.fromkeys(name[depth] for name in names)
            if words[0] == "train":
                from taskuq.training._networks import NETWORKS

                choices = dict.fromkeys(NETWORKS)
            return 2, f"unknown command {words[depth]!r}; choose one of {', '.join(choices)}"
        case cyclopts.CycloptsError():
            place = " ".join(filter(None, ("taskuq", _command(words), "--help")))
            return 2, f"{str(error).rstrip('.?')}; see {place}"
        case ModuleNotFoundError() if (name := (error.name or "").partition(".")[0]) in EXTRAS:
            extra = "demo" if words[:1] == ["demo"] else EXTRAS[name]
            return 2, f"{error.name} is not installed; run pip install 'taskuq[{extra}]'"
        case _ if is_out_of_memory(error):
            why = "" if isinstance(error, MemoryError) else f" ({first_line(error):.120})"
            return 1, f"out of memory{why}; reduce --batch or free memory"
        case OSError():
            place = f" at {error.filename}" if error.filename else ""
            return 1, f"I/O error{place} ({error.strerror or error}); rerun the command"
        case zipfile.BadZipFile() | zlib.error() | UnicodeError() | EOFError():
            return 2, f"a file is damaged ({first_line(error)}); restore or rebuild it"
    what = f"{type(error).__name__}: {first_line(error):.160}"
    return 1, f"internal error ({what}); rerun with {TRACEBACK} and report the output"


def _name_options(sentence: str, words: Sequence[str]) -> str:
    """Replace Python arguments in a message by options, e.g. max_width=0.1 by --max-width 0.1."""
    if (name := _command(words)) is None:
        return sentence
    goal = GOAL if name in ("plan", "simulate") else {}
    for option in OPTIONS | goal | COMMANDS[name]:
        flag = f"--{option.replace('_', '-')}"
        sentence = re.sub(rf"(?<![\w.-]){option}=(?=[\w'(.-])", f"{flag} ", sentence)
        sentence = re.sub(rf"(?<![\w.-]){option}=(?=[,; ]|$)", flag, sentence)
        sentence = re.sub(
            rf"^(unknown |){option}(?= (?:must|is|needs|')\b)", rf"\1{flag}", sentence
        )
    return sentence


def _command(words: Sequence[str]) -> str | None:
    return next((" ".join(words[:k]) for k in (2, 1) if " ".join(words[:k]) in COMMANDS), None)


def _print_warnings() -> None:
    """Make Python print each checksum or guarantee warning once, without its source line."""
    show, printed = warnings.showwarning, set()

    def print_warning(message: Any, category: Any, *where: Any, **more: Any) -> None:
        if issubclass(category, ChecksumWarning | GuaranteeWarning):
            if str(message) not in printed:
                print_message(f"taskuq: {message}")
            printed.add(str(message))
        else:
            show(message, category, *where, **more)

    warnings.showwarning = print_warning


TableFile = Annotated[Path, Parameter(name="TABLE")]
Range = Annotated[str | None, Parameter(name="--range", allow_leading_hyphen=True)]
Json = Annotated[str | None, Parameter(name="--json", allow_leading_hyphen=True)]
Output = Annotated[Path, Parameter(name=["--output", "-o"])]
Slurm = Annotated[list[str] | None, Parameter(name="--slurm", negative=())]
# Default score, and default scores of comparisons.
SCORE = "mlwr"
SCORES = f"ar,lwr,cqr,{SCORE}"


def parse_floats(text: str | None, name: str) -> tuple[float, ...] | None:
    """Parse comma-separated numbers."""
    try:
        return None if text is None else tuple(float(part) for part in text.split(","))
    except ValueError:
        raise _invalid(name, "comma-separated numbers", text) from None


def _invalid(name: str, needed: str, text: object, code: Code = "value.invalid") -> InputError:
    return InputError(f"--{name} must be {needed}, got {text!r}", code=code)


def parse_ints(text: str | None, name: str) -> tuple[int, ...] | None:
    """Parse comma-separated positive integers."""
    values = parse_floats(text, name)
    if not all(1 <= v < 1e15 and v == int(v) for v in values or ()):
        raise _invalid(name, "positive whole numbers", text)
    return None if values is None else tuple(int(v) for v in values)


def parse_per_task(
    text: str | None,
    name: str,
    read: Callable[[str], Any] = float,
    needed: str = "a number, or one per task as in lesion=0.1,area=20",
    code: Code = "value.invalid",
) -> Any:
    """Parse one value for all tasks, or TASK=VALUE pairs into a dictionary."""
    try:
        if text is None or "=" not in text:
            return None if text is None else read(text)
        pairs = [part.rpartition("=") for part in text.split(",")]
        return {task.strip(): read(value) for task, _, value in pairs}
    except ValueError:
        raise _invalid(name, needed, text, code) from None


def _ends(text: str) -> tuple[float, float]:
    low, high = re.split("[,:]", text)
    return float(low), float(high)


def parse_list(text: str) -> tuple[str, ...]:
    """Parse a comma-separated list."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def parse_number_or_name(text: str) -> float | str:
    """Parse a number, such as an acceleration; return any other text as a name."""
    try:
        return float(text)
    except ValueError:
        return text.strip()


def parse_mapping(text: str | None, name: str) -> dict[str, str] | None:
    """Parse NAME=VALUE pairs into a dictionary."""
    if text is None:
        return None
    pairs = [part.partition("=") for part in parse_list(text)]
    if not all(key and is_given and word for key, is_given, word in pairs):
        raise _invalid(name, "NAME=VALUE pairs, as in case=slice", text)
    return {key.strip(): word.strip() for key, _, word in pairs}


def load_table(path: Path, range_: str | None, task: str | None = None) -> TaskOutputs:
    """Load a table, with the task ranges of --range and only the tasks of --task."""
    from taskuq.table._table import TaskOutputs

    needed = "low,high, or as in lesion=0:1,area=0:inf"
    ends = parse_per_task(range_, "range", _ends, needed, "range.invalid")
    table = TaskOutputs.load(path, task_range=ends)
    if task is None:
        return table
    chosen = parse_list(task)
    return table.select(task=chosen[0] if len(chosen) == 1 else chosen)


# Largest line width of messages.
WIDEST = 100


def print_message(sentence: str) -> None:
    """Print a message to stderr."""
    sys.stderr.write(f"{sentence}\n")


def print_wrapped(lines: Sequence[str]) -> None:
    """Print wrapped messages to stderr."""
    terminal = min(shutil.get_terminal_size().columns, WIDEST)
    columns = terminal if sys.stderr.isatty() else sys.maxsize
    for line in lines:
        indent = "    " if line.startswith(" ") else ""
        print_message(textwrap.fill(line, columns, subsequent_indent=indent))


def print_table_notes(table: TaskOutputs) -> None:
    """Print a note on incomplete cases and on an undeclared range of a table."""
    from taskuq.table._table import suggest_range

    if count := len(table.missing_cases):
        cases = "1 case is" if count == 1 else f"{count} cases are"
        print_message(f"taskuq: {cases} incomplete and skipped")
    if undeclared := suggest_range(table):
        print_message(f"taskuq: {undeclared}")


def format_number(value: float, digits: int) -> str:
    return "-" if value != value else f"{value:.{digits}f}"


def print_result(text: str) -> None:
    """Print a result to stdout."""
    sys.stdout.write(f"{text}\n")


# Cells of a table, each after the name of its column.
Row = Sequence[tuple[str, str]]


def show_table(title: str, rows: Sequence[Row], *, to_stderr: bool = False) -> None:
    """Print rows of (column, text) pairs as a table; all rows must have the same columns."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table, width = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD), 0
    for k, cells in enumerate(zip(*rows, strict=True)):
        table.add_column(cells[0][0], justify="right" if k else "left", no_wrap=True)
        width += 4 + max(len(text) for cell in cells for text in cell)
    for row in rows:
        table.add_row(*(text for _, text in row))
    Console(stderr=to_stderr, width=max(100, width), highlight=False).print(table)


MARKED = "Worst coverages are measured; ! marks those more than two standard errors below {:g}."


def mark_coverage(part: Any, *, is_below: bool) -> str:
    """Format the coverage and the name of a class or site, with a mark if coverage is too low."""
    return f"{part.coverage:.3f} ({part.name}){' !' * is_below}"


def print_json(record: Mapping[str, Any], path: str | None, *, private: bool = False) -> None:
    """Write JSON to a file, or to stdout if the path is '-'; without a path, do nothing."""
    if path == "-":
        print_result(json_text(record))
    elif path is not None:
        print_result(str(write_json(Path(path), record, private=private)))


if __name__ == "__main__":
    main()
