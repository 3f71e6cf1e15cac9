"""A lock refuses whoever comes second, and says where a file system keeps none."""

from __future__ import annotations

import errno
import fcntl

import pytest

from taskuq.errors import InputError
from taskuq.locks import locked


def test_a_second_holder_is_refused(tmp_path):
    refused = pytest.raises(InputError, match="another process is working on it")
    with locked(tmp_path / "l", what="it"), refused, locked(tmp_path / "l", what="it"):
        pass


def test_without_locks_it_warns_and_goes_on(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    done = []
    with pytest.warns(UserWarning, match="keeps no locks"), locked(tmp_path / "l", what="it"):
        done.append(True)
    assert done
