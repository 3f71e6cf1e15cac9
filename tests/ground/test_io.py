"""Locks refuse a second holder, and warn where a file system has none."""

from __future__ import annotations

import errno
import fcntl

import pytest

from raising import refused
from taskuq._io import file_lock


def test_a_second_holder_is_refused(tmp_path):
    path = tmp_path / "l"
    with file_lock(path, what="it"), refused("file.exists", "it"), file_lock(path, what="it"):
        pass
    with file_lock(path):
        pass


def test_a_missing_lock_is_a_warning(tmp_path, monkeypatch):
    def none(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    done = []
    with pytest.warns(UserWarning, match="has no locks"), file_lock(tmp_path / "l", what="it"):
        done.append(True)
    assert done
