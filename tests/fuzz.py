"""Damaged files and odd arguments by the thousand: each ends in one sentence, or in a result.

Every kind of file that the command line reads is changed at random, byte by byte and part by part,
and given to a command that reads it; options with odd values are added to commands. An input is a
fault where the command ends in a traceback, computes for more than 10 seconds, waits for more than
300, or takes more than 2 GB of memory beyond what it had, ends without a sentence, overwrites its
input, or, for files that carry checksums, succeeds with another result than that of the whole file.

    python tests/fuzz.py                        # 24,000 inputs
    python tests/fuzz.py --inputs 400 --seed 7
    python tests/fuzz.py --only 1234            # one of them again, with what the command said

The inputs depend on the seed and their number alone.
"""

import argparse
import importlib
import io
import json
import multiprocessing
import queue
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path

from fuzz_changes import Dice
from fuzz_files import make

# Seconds of computing, seconds of waiting, and bytes that no command may exceed.
SECONDS, PATIENCE, MEMORY = 10, 300, 2 * 2**30


class TooLongError(BaseException):
    """No command may take this long."""


@dataclass(frozen=True)
class End:
    """How a command ended."""

    status: object
    said: str
    result: str

    @property
    def fault(self):
        """What is wrong with it, or nothing."""
        if self.status not in (0, 1, 2):
            return str(self.status)
        if self.status and "internal error" in self.said:
            return "internal error"
        if self.status and "out of memory" in self.said:
            return "too much memory"
        sentences = re.findall(r"^taskuq: *\S", self.said, re.MULTILINE)
        if self.status and (not sentences or "Traceback" in self.said):
            return "no sentence"
        return ""


def call(words):
    """Run a command; or, for 'python', a function that reads a file, as a command would."""
    from taskuq.cli import app

    if words[0] != "python":
        app.main(list(words))
        return
    module, name = words[1].split(":")
    try:
        print(getattr(importlib.import_module(module), name)(Path(words[2])))
    except Exception as error:
        status, sentence = app._describe(error, [])
        sys.stderr.write(f"taskuq: {sentence}\n")
        sys.exit(status)


def ended(kind):
    out, said, status = io.StringIO(), io.StringIO(), 0
    shutil.rmtree("out", ignore_errors=True)
    if kind.result is not None:
        Path(kind.result).unlink(missing_ok=True)

    def stop(number, frame):
        raise TooLongError

    # A machine that others use may leave a command waiting; what it computes itself is counted.
    clocks = {
        signal.SIGPROF: (signal.ITIMER_PROF, SECONDS),
        signal.SIGALRM: (signal.ITIMER_REAL, PATIENCE),
    }
    before = {number: signal.signal(number, stop) for number in clocks}
    for timer, seconds in clocks.values():
        signal.setitimer(timer, seconds)
    try:
        with redirect_stdout(out), redirect_stderr(said), warnings.catch_warnings():
            warnings.simplefilter("always")
            call(kind.command)
    except SystemExit as stopped:
        status = stopped.code or 0
    except TooLongError:
        status = f"more than {SECONDS} s"
    except BaseException as error:
        status = f"a traceback: {type(error).__name__}"
        said.write(traceback.format_exc())
    finally:
        for number, (timer, _) in clocks.items():
            signal.setitimer(timer, 0)
            signal.signal(number, before[number])
    is_file = kind.result is not None and Path(kind.result).exists()
    result = Path(kind.result).read_text() if is_file else out.getvalue()
    return End(status, said.getvalue(), result)


def tried(kinds, whole, seed, number):
    """Change a file, run its command, and say what is wrong with the end; the file is restored."""
    kind, dice = kinds[number % len(kinds)], Dice(seed, number)
    if not kind.file:
        given = replace(kind, command=kind.change(dice, kind.command))
        inputs = takewhile(lambda word: not word.startswith("-"), kind.command[1:])
        before = {path: path.read_bytes() for path in map(Path, inputs) if path.is_file()}
        end = ended(given)
        lost = [str(path) for path, content in before.items() if path.read_bytes() != content]
        for path, content in before.items():
            path.write_bytes(content)
        fault = end.fault or (f"{lost} overwritten" if lost else "")
        return fault and f"{fault}: {given.command}", end
    path = Path(kind.file)
    content = path.read_bytes()
    changed, still_checked = kind.change(dice, content)
    path.write_bytes(changed)
    try:
        end = ended(kind)
    finally:
        path.write_bytes(content)
    fault = end.fault
    is_silent = "no SHA-256" not in end.said
    if kind.is_checked and still_checked and end.status == 0 and is_silent:
        fault = fault or ("" if end.result == whole[kind].result else "another result, silently")
    return fault, end


def limited():
    """Limit the memory of this process, so that an input that takes too much is seen."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, used + MEMORY))


def work(folder, seed, numbers, answers):
    """Go through some of the inputs, and say of each before and after it what happened."""
    try:
        kinds = make(folder)
        ends = {kind.command: ended(kind) for kind in {k.command: k for k in kinds}.values()}
        whole = {kind: ends[kind.command] for kind in kinds}
        broken = {kind.file: end.said for kind, end in whole.items() if end.status != 0}
        if broken:
            answers.put(("broken", None, json.dumps(broken)))
            return
        limited()
        for number in numbers:
            answers.put(("begun", number, ""))
            fault, end = tried(kinds, whole, seed, number)
            kind = kinds[number % len(kinds)]
            what = "refused" if end.status else "read"
            said = f"{kind.file} ({' '.join(kind.command[:2])}): {fault}" if fault else kind.file
            answers.put(("fault" if fault else what, number, said))
    except BaseException:
        answers.put(("broken", None, traceback.format_exc()))


def fuzz(inputs, seed=0, tell=lambda line: None):
    """Try inputs in another process; return how they ended, and the faults."""
    context, ends, faults = multiprocessing.get_context("spawn"), Counter(), []
    left = list(range(inputs))
    with tempfile.TemporaryDirectory() as scratch:
        while left:
            answers, begun = context.Queue(), None
            folder = tempfile.mkdtemp(dir=scratch)
            process = context.Process(target=work, args=(folder, seed, left, answers))
            process.start()
            while left:
                what, number, said = next_answer(process, answers, begun)
                if what == "begun":
                    begun = number
                    continue
                ends[what] += 1
                left = [n for n in left if n > number]
                if what == "fault":
                    faults.append((number, said))
                    tell(f"input {number}: {said}")
                if said.startswith("the process"):
                    break
                if sum(ends.values()) % 1000 == 0:
                    tell(f"{sum(ends.values())} inputs: {dict(ends)}")
            process.join()
    return ends, faults


def next_answer(process, answers, begun):
    """Wait for the next answer of a worker; a fault where it died or hung."""
    since = time.monotonic()
    while True:
        try:
            what, number, said = answers.get(timeout=0.2)
        except queue.Empty:
            is_hung = time.monotonic() - since > (6 if begun is None else 2) * PATIENCE
            if process.is_alive() and not is_hung:
                continue
            process.kill()
            if begun is None:
                raise SystemExit("a worker died before it began") from None
            return "fault", begun, "the process hung" if is_hung else "the process died"
        if what == "broken":
            raise SystemExit(f"a worker could not begin: {said}")
        return what, number, said


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=24_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int)
    chosen = parser.parse_args()
    if chosen.only is not None:
        with tempfile.TemporaryDirectory() as folder:
            kinds = make(folder)
            whole = {kind: ended(kind) for kind in kinds}
            fault, end = tried(kinds, whole, chosen.seed, chosen.only)
            print(kinds[chosen.only % len(kinds)], fault or "no fault", end.status, end.said)
        return
    ends, faults = fuzz(chosen.inputs, chosen.seed, tell=print)
    print(f"{chosen.inputs} inputs: {dict(ends)}; {len(faults)} faults")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
