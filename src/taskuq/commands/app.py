"""The command line: parse, call one function, print a path.

Commands are loaded when they are called, so that help is quick and nobody waits for torch.
"""

from __future__ import annotations

import os
import sys
import traceback
import warnings
import zipfile
import zlib
from typing import Any

import cyclopts

from taskuq.disk import ended_by_sigterm
from taskuq.errors import (
    InputError,
    MachineError,
    UncheckedWarning,
    VoidWarning,
    first_line,
    is_out_of_memory,
)

# Each command, the module of the function of its name, and what it does.
COMMANDS = """
demo             | demo        | Run the embedded experiment, make its page and print its answer.
calibrate        | bounds      | Calibrate intervals on a table of task outputs.
predict          | bounds      | Write the intervals of a table's cases to a CSV file.
evaluate         | evaluate    | Judge scores over random or all splits of a table.
plan             | policies    | Plan when to stop scanning, with a guarantee.
simulate         | policies    | Replay policies on a table over random splits.
experiment       | experiments | Look at the paper's claims on stored tables.
run              | run         | Fill a table: measure, recover and read every image.
table            | run         | Make a table of task outputs that were made elsewhere.
status           | run         | Tell how far a run is and what failed.
masks            | masks       | Make nested sampling masks, with a picture.
quality          | quality     | Measure the image quality of recoveries.
monitor          | monitor     | Look for evidence that new cases are not like a policy's old ones.
audit            | audit       | Check an audit trail and tell the story of each scan.
serve            | mrd         | Decide about scans that arrive as MRD streams.
export           | mrd         | Write recovery and task as programs that a service runs from.
replay           | mrd         | Play scans against a service as a scanner would.
specify          | specify     | Write a policy's decisions as numbers, for other languages.
interval         | interval    | Write the interval of a stored scan as JSON or as a DICOM report.
report           | report      | Rebuild a run's page from its stored results; export them.
plan-size        | bounds      | Say how many calibration cases are needed.
data check       | data        | Tell what a folder holds, what would be skipped, and why.
data prepare     | data        | Keep fastMRI slices compressed, cropped and scaled.
data atlas       | data        | Make slices of synthetic patients of the embedded atlas.
data atlas-base  | data        | Store the anatomy the atlas is made from.
data sheet       | data        | Draw a contact sheet of a data set.
train            | train       | Train networks from their configuration files.
rehearse         | rehearse    | Try every command of docs/fastmri.md at its real size.
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
    _where = f"taskuq.commands.{_module}:{_name.replace('-', '_')}"
    _apps[_folder].command(_where, name=_name, help=_help)
for _folder in FOLDERS:
    app.command(_apps[_folder])
app.register_install_completion_command()


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; exit 0 when done, 2 on bad input, 1 where the machine or we failed.

    In each case there is one sentence on stderr, and with ``--traceback`` where it happened.
    """
    # Two threads spinning for one free core make torch 17 times slower; it asks when it is loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    words = list(sys.argv[1:] if arguments is None else arguments)
    is_traced = TRACEBACK in words
    try:
        with ended_by_sigterm(), warnings.catch_warnings():
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
    """What an error says; one of a process that reads data comes with that process's traceback."""
    text = str(error)
    return text.rpartition(f"{type(error).__name__}: ")[2] if text.startswith("Caught ") else text


def _say_warnings() -> None:
    """Let what a person should know be said in one sentence, like everything else."""
    show = warnings.showwarning

    def say(message: Any, category: Any, *where: Any, **more: Any) -> None:
        if issubclass(category, UncheckedWarning | VoidWarning):
            _say(str(message))
        else:
            show(message, category, *where, **more)

    warnings.showwarning = say


def _kept(stopped: BaseException) -> str:
    """What an interruption leaves, in the words of whoever was interrupted."""
    notes = getattr(stopped, "__notes__", ())
    return "; ".join(notes) or "stopped; nothing half-written is left, what was there is untouched"


def _say(sentence: str) -> None:
    sys.stderr.write(f"taskuq: {sentence}\n")


if __name__ == "__main__":
    main()
