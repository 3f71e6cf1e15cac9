"""Errors and warnings, with stable codes."""

from __future__ import annotations

import importlib
import sys
from functools import partial
from typing import Any, Literal

# Stable names of mistakes: tests and callers match these, never the wording.
Code = Literal[
    "alpha.invalid", "range.invalid", "range.outside", "shape.axes", "shape.mismatch",
    "dtype.invalid", "value.nonfinite", "value.invalid", "choice.unknown", "option.conflict",
    "option.missing", "option.unused", "config.key", "config.type", "config.missing",
    "file.missing", "file.format", "file.damaged", "file.schema", "file.exists", "table.column",
    "table.duplicate", "table.incomplete", "targets.missing", "groups.missing", "rounds.invalid",
    "samples.mismatch", "units.few", "data.leak", "policy.mismatch", "resume.mismatch",
    "component.invalid", "dependency.missing", "weights.mismatch",
]  # fmt: skip


class InputError(ValueError):
    """Error in the input: a sentence that says what to change, and a stable code.

    The command line prints the message and exits with status 2.

    Args:
        message: One sentence with what was received and what is needed.
        code: Stable name of the kind of error, such as ``"range.outside"``.

    Example:
        >>> error = InputError("alpha must be in (0, 1), got 2", code="alpha.invalid")
        >>> str(error), error.code
        ('alpha must be in (0, 1), got 2', 'alpha.invalid')
    """

    def __init__(self, message: str = "", *, code: Code) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> Any:
        # Workers and processes send errors by pickle, which passes no keyword.
        return partial(type(self), code=self.code), self.args, self.__dict__


class TableMismatchError(InputError):
    """Error for a folder that holds the table of a different run."""

    def __init__(self, message: str = "", *, code: Code = "resume.mismatch") -> None:
        super().__init__(message, code=code)


class MachineError(RuntimeError):
    """Failure of the machine, such as a full disk or a missing permission.

    The command line prints the message and exits with status 1.
    """


class GuaranteeWarning(UserWarning):
    """Warning that a guarantee does not apply to this use; the message gives the reason."""


class ChecksumWarning(UserWarning):
    """Warning that a file has no checksum, so that damage to it cannot be detected."""


def describe_error(error: BaseException, most: int = 300) -> str:
    """Return the name, message (at most ``most`` characters) and notes of an error on one line."""
    message = " ".join(str(error).split())[:most]
    notes = "; ".join(getattr(error, "__notes__", ()))
    # The name of our own error adds nothing to its sentence.
    name = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
    return f"{name}{message}" + (f" ({notes})" if notes else "")


def import_extra(module: str, install: str) -> Any:
    """Import an optional library; if it is missing, raise InputError with its install command."""
    try:
        return importlib.import_module(module)
    except ImportError:
        message = f"{module.partition('.')[0]} is not installed; run pip install '{install}'"
        raise InputError(message, code="dependency.missing") from None


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message; if it is empty, the name of the error."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if the GPU or the host ran out of memory."""
    torch = sys.modules.get("torch")
    kinds = (MemoryError,) if torch is None else (MemoryError, torch.OutOfMemoryError)
    # On a CPU torch raises a bare RuntimeError.
    on_cpu = type(error) is RuntimeError and "allocate memory" in str(error)
    return isinstance(error, kinds) or on_cpu
