"""Reading the small languages of flags: lists and ranges."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter, validators

from taskuq.errors import InputError

if TYPE_CHECKING:
    from taskuq.outputs import TaskOutputs

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


def numbers(text: str | None, name: str) -> tuple[float, ...] | None:
    """Read numbers separated by commas.

    Example:
        >>> numbers("16,8", "acceleration")
        (16.0, 8.0)
    """
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InputError(f"--{name} takes numbers separated by commas, got {text!r}") from None


def counts(text: str | None, name: str) -> tuple[int, ...] | None:
    """Read positive whole numbers separated by commas.

    Example:
        >>> counts("2,32", "samples")
        (2, 32)
    """
    values = numbers(text, name)
    if values is None:
        return None
    if not all(1 <= v < 1e15 and v == int(v) for v in values):
        raise InputError(f"--{name} takes positive whole numbers, got {text!r}")
    return tuple(int(v) for v in values)


def by_task(text: str | None, name: str) -> float | dict[str, float] | None:
    """Read one number for all tasks, or one for each by its name.

    Example:
        >>> by_task("0.2", "max-width"), by_task("lesion=0.1,area=20", "max-width")
        (0.2, {'lesion': 0.1, 'area': 20.0})
    """
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
    """Read the range of all tasks, or that of some by their names.

    Example:
        >>> ranges("0,1"), ranges("lesion=0:1,area=0:inf")
        ((0.0, 1.0), {'lesion': (0.0, 1.0), 'area': (0.0, inf)})
    """
    if text is None or "=" not in text:
        declared = numbers(text, "range")
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


def words(text: str) -> tuple[str, ...]:
    """Read words separated by commas.

    Example:
        >>> words("ar, lwr")
        ('ar', 'lwr')
    """
    return tuple(part.strip() for part in text.split(",") if part.strip())


def round_asked(text: str) -> float | str:
    """Read which round is meant: an acceleration, or else a round's name.

    Example:
        >>> round_asked("8"), round_asked("24 views")
        (8.0, '24 views')
    """
    try:
        return float(text)
    except ValueError:
        return text.strip()


def names(text: str | None, name: str) -> dict[str, str] | None:
    """Read words by name.

    Example:
        >>> names("case=slice, group=patient", "words")
        {'case': 'slice', 'group': 'patient'}
    """
    if text is None:
        return None
    pairs = [part.partition("=") for part in words(text)]
    if not all(key and is_given and word for key, is_given, word in pairs):
        raise InputError(f"--{name} takes words by name, as in case=slice, got {text!r}")
    return {key.strip(): word.strip() for key, _, word in pairs}


def share(text: str) -> float | str:
    """Read whom a promise about groups is for: 'random', 'all' or a share.

    Example:
        >>> share("0.9"), share("all")
        (0.9, 'all')
    """
    try:
        return float(text)
    except ValueError:
        return text


def load_table(path: Path, range_: str | None, task: str | None = None) -> TaskOutputs:
    """Read a table with the declared range, and one or some of its tasks if asked."""
    from taskuq.outputs import TaskOutputs
    from taskuq.runs.stored import FOLDER, stored

    if not path.exists() and str(path) in stored():
        path = FOLDER / f"{path}.npz"
    table = TaskOutputs.load(path, task_range=ranges(range_))
    if task is None:
        return table
    chosen = words(task)
    return table.select(task=chosen[0] if len(chosen) == 1 else chosen)
