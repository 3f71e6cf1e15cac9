"""Errors with a code."""

import pickle

import pytest

from taskuq.errors import InputError, MachineError, TableMismatchError
from taskuq.service._mrd import StreamError
from taskuq.training._fit import _worker_error


def test_code_is_required():
    with pytest.raises(TypeError, match="code"):
        InputError("a")


@pytest.mark.parametrize("kind", [InputError, TableMismatchError, StreamError])
def test_errors_survive_pickling(kind):
    error = kind("a sentence", code="file.format")
    error.add_note("a note")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.code) == (kind, "a sentence", "file.format")
    assert again.__notes__ == ["a note"]


@pytest.mark.parametrize("error", [InputError("a: b", code="value.invalid"), MachineError("a: b")])
def test_error_of_a_data_loader_process_is_its_sentence(error):
    from torch._utils import ExceptionWrapper

    def caught():
        try:
            raise error
        except (InputError, MachineError):
            return ExceptionWrapper(where="in DataLoader worker process 0")

    with pytest.raises(Exception, match="Original Traceback") as wrapped:
        caught().reraise()
    again = _worker_error(wrapped.value)
    assert (type(again), str(again)) == (type(error), "a: b")
    assert _worker_error(ValueError("a")).args == ("a",)
