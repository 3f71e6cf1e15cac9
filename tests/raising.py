"""Match errors by their code, not by their wording."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from taskuq.errors import Code, InputError


@contextmanager
def refused(code: Code, *names: str) -> Iterator[pytest.ExceptionInfo[InputError]]:
    """Expect an :class:`InputError` of this code, with one sentence that names these values.

    Args:
        code: The code.
        names: Values that the sentence must contain: an argument, a path, a number.
    """
    with pytest.raises(InputError) as caught:
        yield caught
    assert caught.value.code == code, f"{caught.value.code}: {caught.value}"
    assert "\n" not in str(caught.value)
    for name in names:
        assert name in str(caught.value)
