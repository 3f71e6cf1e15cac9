"""Errors a user can act on: what we got, what is needed, what to do."""


class InputError(ValueError):
    """Something handed to us is not usable; the message is one sentence that says what to do.

    The command line prints the sentence and exits with status 2. Everything else that is raised is
    a fault of ours and exits with status 1.
    """
