"""Locks refuse a second holder, and warn where a file system has none."""

from __future__ import annotations

import errno
import fcntl

import pytest

from raising import refused
from taskuq._io import file_lock, to_json_value


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


def test_keys_of_a_record_are_text_or_numbers():
    assert to_json_value({2: {0.5: float("inf")}}) == {"2": {"0.5": "inf"}}
    for key in (True, None):
        with refused("dtype.invalid", str(key)):
            to_json_value([{"a": {key: 1.0}}])
