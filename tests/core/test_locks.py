"""Locks refuse a second holder, and warn where a file system has none."""

from __future__ import annotations

import errno
import fcntl

import pytest

from raising import refused
from taskuq.locks import locked


def test_a_second_holder_is_refused(tmp_path):
    path = tmp_path / "l"
    with locked(path, what="it"), refused("file.exists", "it"), locked(path, what="it"):
        pass
    with locked(path):
        pass


def test_a_missing_lock_is_a_warning(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    done = []
    with pytest.warns(UserWarning, match="has no locks"), locked(tmp_path / "l", what="it"):
        done.append(True)
    assert done
