"""Errors a user can act on: what we got, what is needed, what to do."""

import sys


class InputError(ValueError):
    """Something handed to us is not usable; the message is one sentence that says what to do.

    The command line prints the sentence and exits with status 2.
    """


class OtherTableError(InputError):
    """A folder holds the table of another run; whoever may throw it away begins again."""


class MachineError(RuntimeError):
    """The machine failed: a full disk, no permission, no memory; the message is one sentence.

    The command line prints the sentence and exits with status 1.
    """


class TakenError(Exception):
    """A file that must be new is there already; whoever asked for it looks who made it."""


class VoidWarning(UserWarning):
    """A policy promises nothing about what is being done; the message says why."""


class UncheckedWarning(UserWarning):
    """A file carries no checksum, so that damage to it would not be seen."""


def whole_sentence(error: BaseException, most: int = 300) -> str:
    r"""Return what an error is called and says, on one line, with where in a user's code it arose.

    Arguments:
        error: The error; notes that were added to it say where it arose.
        most: How much of what it says is kept.

    Example:
        >>> error = ZeroDivisionError("division\nby zero")
        >>> error.add_note("in recover, mine.py line 3, case a at R = 8")
        >>> whole_sentence(error)
        'ZeroDivisionError: division by zero (in recover, mine.py line 3, case a at R = 8)'
    """
    said = " ".join(str(error).split())[:most]
    notes = "; ".join(getattr(error, "__notes__", ()))
    # Ours says what is wrong and what to do; what it is called adds nothing.
    name = "" if isinstance(error, InputError) else f"{type(error).__name__}: "
    return f"{name}{said}" + (f" ({notes})" if notes else "")


def first_line(error: BaseException) -> str:
    r"""Return the first line of what somebody else's error says, or its name where it says nothing.

    Example:
        >>> first_line(OSError("no such file\nor directory")), first_line(KeyError())
        ('no such file', 'KeyError')
    """
    return (str(error).splitlines() or [type(error).__name__])[0]


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory has run out, on a GPU or beside it.

    Example:
        >>> is_out_of_memory(MemoryError()), is_out_of_memory(ValueError("memory"))
        (True, False)
    """
    torch = sys.modules.get("torch")
    kinds = (MemoryError,) if torch is None else (MemoryError, torch.OutOfMemoryError)
    # On a CPU torch raises a bare RuntimeError.
    on_cpu = type(error) is RuntimeError and "allocate memory" in str(error)
    return isinstance(error, kinds) or on_cpu
