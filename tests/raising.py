"""Match errors by their code, not by their wording."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

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


def refuses(load: Callable[[Path], object], path: Path, *codes: Code) -> None:
    """Require that reading a file is refused with one of these codes, in a short sentence."""
    with pytest.raises(InputError) as caught:
        load(path)
    assert caught.value.code in codes
    assert len(str(caught.value).replace(str(path), "")) < 300
