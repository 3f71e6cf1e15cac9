"""The command line: parse, call one function, print a path.

Commands are loaded when they are called, so that help is quick and nobody waits for torch.
"""

from __future__ import annotations

import sys

import cyclopts

from taskuq.errors import InputError

COMMANDS = {
    "demo": ("demo:demo", "Run the embedded experiment and print the paper's comparison."),
    "calibrate": ("bounds:calibrate", "Calibrate intervals on a table of task outputs."),
    "predict": ("bounds:predict", "Write the intervals of a table's cases to a CSV file."),
    "evaluate": ("evaluate:evaluate", "Judge scores over random or all splits of a table."),
    "plan": ("policies:plan", "Plan when to stop scanning, with a guarantee."),
    "simulate": ("policies:simulate", "Replay policies on a table over random splits."),
    "experiment": ("experiments:experiment", "Look at the paper's claims on stored tables."),
    "run": ("run:run", "Fill a table: measure, recover and read every image."),
    "table": ("table:table", "Make a table of task outputs that were made elsewhere."),
    "status": ("run:status", "Tell how far a run is and what failed."),
    "masks": ("masks:masks", "Make nested sampling masks, with a picture."),
    "quality": ("quality:quality", "Measure the image quality of recoveries."),
    "report": ("report:report", "Rebuild a run's page from its stored results; export them."),
    "plan-size": ("planning:plan_size", "Say how many calibration cases are needed."),
}

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
FOLDERS = {
    "data": (
        "Look at data, make the atlas, prepare fastMRI.",
        {
            "check": ("data:check", "Tell what a folder holds, what would be skipped, and why."),
            "prepare": ("data:prepare", "Prepare fastMRI volumes: crop, compress, normalise."),
            "atlas": ("data:atlas", "Make slices of synthetic patients of the embedded atlas."),
            "atlas-base": ("data:atlas_base", "Store the anatomy the atlas is made from."),
            "sheet": ("data:sheet", "Draw a contact sheet of a data set."),
        },
    ),
    "train": (
        "Train networks from their configuration files.",
        {
            "varnet": ("train:varnet", "Train the variational network, a point estimate."),
            "flow": ("train:flow", "Train the conditional flow, a posterior sampler."),
            "simclr": ("train:simclr", "Pre-train the classifier's backbone without labels."),
            "classifier": (
                "train:classifier",
                "Train the task network, adversarially where configured.",
            ),
        },
    ),
}

# What to install for a package that a light installation does not have.
EXTRAS = {
    "torch": "mri",
    "pytorch_lightning": "mri",
    "monai": "mri",
    "h5py": "mri",
    "safetensors": "mri",
    "nilearn": "demo",
    "nibabel": "nifti",
    "pydicom": "dicom",
}

for _name, (_where, _help) in COMMANDS.items():
    app.command(f"taskuq.commands.{_where}", name=_name, help=_help)
for _folder, (_about, _commands) in FOLDERS.items():
    _sub = cyclopts.App(name=_folder, help=_about)
    for _name, (_where, _help) in _commands.items():
        _sub.command(f"taskuq.commands.{_where}", name=_name, help=_help)
    app.command(_sub)
app.register_install_completion_command()


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; exit 0 when done, 2 on bad input with one sentence, 1 on our fault."""
    try:
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
    except KeyboardInterrupt:
        _say("stopped; nothing half-written is left behind")
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(0)


def _refuse(sentence: str) -> None:
    _say(" ".join(sentence.split()))
    sys.exit(2)


def _say(sentence: str) -> None:
    sys.stderr.write(f"taskuq: {sentence}\n")


if __name__ == "__main__":
    main()
