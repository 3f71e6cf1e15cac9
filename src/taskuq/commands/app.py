"""The command line: parse, call one function, print a path.

Commands are loaded when they are called, so that help is quick and nobody waits for torch.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

import cyclopts

from taskuq.disk import ended_by_sigterm
from taskuq.errors import InputError, MachineError, UncheckedWarning

# Each command, the module of the function of its name, and what it does.
COMMANDS = """
demo             | demo        | Run the embedded experiment and print the paper's comparison.
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
report           | report      | Rebuild a run's page from its stored results; export them.
plan-size        | bounds      | Say how many calibration cases are needed.
data check       | data        | Tell what a folder holds, what would be skipped, and why.
data prepare     | data        | Prepare fastMRI volumes: crop, compress, normalise.
data atlas       | data        | Make slices of synthetic patients of the embedded atlas.
data atlas-base  | data        | Store the anatomy the atlas is made from.
data sheet       | data        | Draw a contact sheet of a data set.
train            | train       | Train networks from their configuration files.
"""
# Commands whose names begin alike.
FOLDERS = {"data": "Look at data, make the atlas, prepare fastMRI."}

app = cyclopts.App(
    name="taskuq",
    help="Intervals with a guarantee for what a task network would have said about the true image.",
    version=lambda: __import__("taskuq").__version__,
    exit_on_error=False,
    print_error=False,
    help_on_error=False,
    help_format="plaintext",
    # A command says what it has to say itself; what it returns is for Python callers.
    result_action="return_value",
)
# What to install for a package that a light installation does not have.
EXTRAS = dict.fromkeys(("torch", "pytorch_lightning", "monai", "h5py", "safetensors"), "mri")
EXTRAS |= {"nilearn": "demo", "nibabel": "nifti", "pydicom": "dicom"}

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

    In each case there is one sentence on stderr.
    """
    try:
        with ended_by_sigterm(), warnings.catch_warnings():
            _say_warnings()
            app(arguments)
    except InputError as error:
        _refuse(str(error))
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        _refuse(
            f"this command needs {error.name}, which is not installed; run pip install "
            f"'taskuq[{extra}]'"
        )
    except cyclopts.CycloptsError as error:
        _refuse(f"{str(error).rstrip('.')}; see taskuq --help")
    except MachineError as error:
        _say(" ".join(str(error).split()))
        sys.exit(1)
    except KeyboardInterrupt as stopped:
        _say(_kept(stopped))
        sys.exit(130)
    except SystemExit as stopped:
        if stopped.code == TERMINATED:
            _say(_kept(stopped))
        raise
    except BrokenPipeError:
        sys.exit(0)


def _say_warnings() -> None:
    """Let a file that carries no checksum be said in one sentence, like everything else."""
    show = warnings.showwarning

    def say(message: Any, category: Any, *where: Any, **more: Any) -> None:
        if issubclass(category, UncheckedWarning):
            _say(str(message))
        else:
            show(message, category, *where, **more)

    warnings.showwarning = say


def _kept(stopped: BaseException) -> str:
    """What an interruption leaves, in the words of whoever was interrupted."""
    notes = getattr(stopped, "__notes__", ())
    return "; ".join(notes) or "stopped; nothing half-written is left, what was there is untouched"


def _refuse(sentence: str) -> None:
    _say(" ".join(sentence.split()))
    sys.exit(2)


def _say(sentence: str) -> None:
    sys.stderr.write(f"taskuq: {sentence}\n")


if __name__ == "__main__":
    main()
