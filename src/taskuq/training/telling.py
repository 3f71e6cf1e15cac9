"""Notes about a training: a warm-up that is too long, the state after an interruption."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from taskuq.training.config import TrainingConfig

if TYPE_CHECKING:
    from taskuq.training.keep import Keep


@contextmanager
def telling_what_is_kept(keep: Keep | None) -> Iterator[None]:
    """Note on an interruption from which state the same command resumes."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stopped:
        # Lightning turns Ctrl-C into an exit and ignores a second one.
        is_pressed = isinstance(stopped.__context__, KeyboardInterrupt)
        if is_pressed and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)
        ended = KeyboardInterrupt() if is_pressed else stopped
        if keep is not None:
            ended.add_note(keep.left())
        raise ended from None


def late_rate(config: TrainingConfig, cases: int) -> str | None:
    """Return a warning where a training ends within its warm-up."""
    steps = config.epochs * max(1, cases // config.batch // config.accumulate)
    if config.warmup <= steps:
        return None
    return (
        f"the rate rises for {config.warmup} steps (training.warmup), and the training has "
        f"{steps}: it hardly learns; lower warmup, or train longer"
    )
