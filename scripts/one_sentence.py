"""What a script says of bad input: one sentence, and exit status 2."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from taskuq.errors import InputError, MachineError


@contextmanager
def one_sentence() -> Iterator[None]:
    """End with what an error says, as the command line does: 2 for bad input, 1 for the machine."""
    try:
        yield
    except (InputError, MachineError) as error:
        print(" ".join(str(error).split()), file=sys.stderr)
        sys.exit(2 if isinstance(error, InputError) else 1)
