"""Errors with a code."""

import ast
import pickle
from pathlib import Path
from typing import get_args

import pytest

import taskuq as tq
from taskuq.errors import Code, InputError, MachineError, TableMismatchError
from taskuq.service._mrd import StreamError
from taskuq.training._fit import _worker_error

SOURCE = Path(tq.__file__).parent
ERRORS = {"InputError", "TableMismatchError", "StreamError"}


def unknown_codes(source):
    """Return the calls that name a code which is not listed, or none."""
    found = []
    for node in ast.walk(ast.parse(source)):
        function = getattr(node, "func", None)
        name = getattr(function, "id", getattr(function, "attr", None))
        if name not in ERRORS:
            continue
        given = [keyword.value for keyword in node.keywords if keyword.arg == "code"]
        # A code that is computed holds its choices as constants.
        constants = {getattr(c, "value", None) for g in given for c in ast.walk(g)}
        codes = {code for code in constants if isinstance(code, str)}
        if codes - {*get_args(Code)} or (name == "InputError" and not given):
            found.append(node.lineno)
    return found


def test_every_code_is_listed():
    found = {str(path): unknown_codes(path.read_text()) for path in SOURCE.rglob("*.py")}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "fault", ["raise InputError('a')", "InputError('a', code='value.wrong')",
              "StreamError('a', code='file.format' if x else 'file.wrong')"],
)  # fmt: skip
def test_planted_code_is_found(fault):
    assert unknown_codes(fault) == [1]


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
