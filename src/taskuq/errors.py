"""Errors a user can act on: what we got, what is needed, what to do."""


class InputError(ValueError):
    """Something handed to us is not usable; the message is one sentence that says what to do.

    The command line prints the sentence and exits with status 2.
    """


class MachineError(RuntimeError):
    """The machine failed: a full disk, no permission, no memory; the message is one sentence.

    The command line prints the sentence and exits with status 1.
    """


class TakenError(Exception):
    """A file that must be new is there already; whoever asked for it looks who made it."""


class UncheckedWarning(UserWarning):
    """A file carries no checksum, so that damage to it would not be seen."""


def first_line(error: BaseException) -> str:
    r"""Return the first line of what somebody else's error says, or its name where it says nothing.

    Example:
        >>> first_line(OSError("no such file\nor directory")), first_line(KeyError())
        ('no such file', 'KeyError')
    """
    return (str(error).splitlines() or [type(error).__name__])[0]
