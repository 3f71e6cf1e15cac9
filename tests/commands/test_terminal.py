"""Sentences on a terminal: broken between words, nothing lost; whole lines in a file."""

import io
import sys

import pytest

from taskuq.cli.app import WIDEST, print_wrapped

LINES = ["One sentence that is longer than a narrow terminal is wide.", "  0.2 ± 0  is the width"]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("columns", [12, 40, 1000])
def test_a_terminal_gets_no_line_that_is_too_long_and_every_word(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("sys.stderr", Terminal())
    print_wrapped([*LINES, "word " * 50])

    said = sys.stderr.getvalue()
    assert max(map(len, said.splitlines())) <= min(columns, WIDEST)
    assert said.split() == " ".join([*LINES, "word " * 50]).split()


def test_a_file_gets_one_line_for_each(capsys):
    print_wrapped(LINES)

    assert capsys.readouterr().err.splitlines() == LINES
