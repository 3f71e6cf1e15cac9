"""What a training says to whoever looks at it: that it hardly learns, what a stop leaves."""

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
    """Note on an interruption from where the same command goes on.

    Arguments:
        keep: What leaves files; None where nothing is kept.
    """
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stopped:
        # Lightning makes an exit of Ctrl-C, and lets nobody press it again.
        is_pressed = isinstance(stopped.__context__, KeyboardInterrupt)
        if is_pressed and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)
        ended = KeyboardInterrupt() if is_pressed else stopped
        if keep is not None:
            ended.add_note(keep.left())
        raise ended from None


def late_rate(config: TrainingConfig, cases: int) -> str | None:
    """Say where a training ends before its rate has risen.

    Arguments:
        config: How to train.
        cases: How many cases an epoch has.

    Example:
        >>> late_rate(TrainingConfig(epochs=3, batch=4, warmup=12), cases=16) is None
        True
        >>> late_rate(TrainingConfig(epochs=3, batch=4, warmup=13), cases=16)
        'the rate rises for 13 steps (training.warmup), and the training has 12: ...'
    """
    steps = config.epochs * max(1, cases // config.batch // config.accumulate)
    if config.warmup <= steps:
        return None
    return (
        f"the rate rises for {config.warmup} steps (training.warmup), and the training has "
        f"{steps}: it hardly learns; lower warmup, or train longer"
    )
