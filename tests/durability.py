"""Commands that are killed, run twice at once, read while they write, or whose clock is set back.

Each trial ends with the result of an undisturbed command, equal to the bit, or with one sentence;
the same command, run again, then gives that result and leaves no partial file.

    python tests/durability.py              # 20 kills of each command, 5 of the other trials
    python tests/durability.py --short      # one kill of each, and one of each other trial

Commands are forks of one process that has imported everything, so that a kill hits their work and
not their imports. Full and read-only disks: tests/cli/full_disk.py.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

from taskuq.cli import app

PATIENCE = 400
DAY = 86_400


def command(words):
    """Return a job that runs a command line."""
    return lambda: app.main(words.split())


def acquire():
    """Scan a patient of the toy scanner and continue a scan that was begun."""
    import toy_scanner as toy

    import taskuq as tq

    scanner, policy = toy.scanner_of(1000), tq.load_policy("toy.json")
    tq.acquire(policy, scanner, **toy.STEPS, state="out/scan.json", audit_log="out/audit.jsonl")


def written(*names):
    """Return the digests of files in the folder of the output."""
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for name in names
        for path in sorted(Path("out").glob(name))
    }


def run_table():
    """Return the numbers of a table whose shards may differ."""
    import taskuq as tq

    table = tq.TaskOutputs.load("out")
    order = sorted(range(table.cases), key=lambda i: str(table.case[i]))
    return [sorted(map(str, table.case)), table.select(cases=order).outputs.tolist()]


def scanned():
    """Return the rounds of a scan, whose audit log must hold each of them in a valid chain."""
    from taskuq.scan._audit import read_audit_log

    state = json.loads(Path("out/scan.json").read_text())
    lines = read_audit_log("out/audit.jsonl")
    rounds = [(line["round"], line["lower"], line["upper"], line["stop"]) for line in lines]
    # A kill between log and state repeats the entry of a round.
    return [state["rounds"], list(dict.fromkeys(map(str, rounds)))]


# Each job, and what must be equal to the bit.
JOBS = {
    "run": (command("run run.toml -o out --device cpu"), run_table),
    "train": (
        command("train varnet train.toml -o out --no-progress --accelerator cpu"),
        lambda: written("best.safetensors", "last.safetensors"),
    ),
    "report": (
        command("report table.npz --alpha 0.3 --max-width 0.4 --splits 20 -o out"),
        lambda: written("report.html", "*.json"),
    ),
    "plan": (
        command("plan table.npz --alpha 0.3 --max-width 0.4 -o out/policy.json"),
        lambda: written("policy.json"),
    ),
    "acquire": (acquire, scanned),
}
READERS = {
    "run": ("status out", "evaluate out --exact --json -"), "report": ("report out",),
    "train": ("status out",), "plan": ("export-policy out/policy.json -o e.json",),
    "acquire": ("audit out/audit.jsonl", "interval out/scan.json toy.json -o i.json"),
}  # fmt: skip


def start(job, folder):
    """Fork a process that does a job in a folder; its exit status is that of a command."""
    said = tempfile.NamedTemporaryFile("w+", dir=folder, prefix="said-", delete=False)  # noqa: SIM115
    if pid := os.fork():
        return pid, Path(said.name)
    status = 70
    try:
        os.chdir(folder)
        for stream in (1, 2):
            os.dup2(said.fileno(), stream)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        job()
        status = 0
    except SystemExit as stopped:
        status = stopped.code or 0
    except BaseException as error:
        status, sentence = app._describe(error, [])
        sys.stderr.write(f"{traceback.format_exc() if status == 1 else ''}taskuq: {sentence}\n")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def end(process, is_killed=False):
    """Wait for a process; return "done", "killed" or "refused", or what is wrong with its end."""
    pid, said = process
    until = time.monotonic() + PATIENCE
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            break
        if time.monotonic() > until:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return "FAULT: hung"
        time.sleep(0.005)
    text, code = said.read_text(), os.waitstatus_to_exitcode(status)
    said.unlink()
    if code == 0 or (is_killed and code == -signal.SIGKILL):
        return "killed" if code else "done"
    sentences = [line for line in text.splitlines() if line.startswith("taskuq: ")]
    is_plain = code in (1, 2) and sentences and "internal error" not in text
    return "refused" if is_plain and "Traceback" not in text else f"FAULT: {code}, {text[-600:]}"


def result(digest, folder):
    """Return what must be equal, computed in a process of its own."""
    found = end(start(lambda: Path("digest").write_text(json.dumps(digest())), folder))
    assert found == "done", found
    return (folder / "digest").read_text()


def disturbed(kind, name, folder, seconds, dice):
    """Disturb a command and return how its processes ended."""
    job, _ = JOBS[name]
    process = start(job, folder)
    if kind == "two at once":
        other = start(job, folder)
        return [end(process), end(other)]
    if kind == "readers":
        ends = []
        while not os.waitid(os.P_PID, process[0], os.WEXITED | os.WNOHANG | os.WNOWAIT):
            ends.append(end(start(command(dice.choice(READERS[name])), folder)))
        return [*ends, end(process)]
    time.sleep(dice.uniform(0, 0.9 * seconds))
    os.kill(process[0], signal.SIGKILL)
    if (ended := end(process, is_killed=True)) == "done":
        # It was quicker than the undisturbed command.
        shutil.rmtree(folder / "out")
        return disturbed(kind, name, folder, seconds / 2, dice)
    if kind == "clock set back":
        # Files that were written before carry times of the future.
        for path in folder.rglob("*"):
            os.utime(path, (time.time() + DAY,) * 2)
    return [ended]


def undisturbed(name, base):
    """Return the seconds of a command and its result."""
    job, digest = JOBS[name]
    whole, begun = shutil.copytree(base, base.with_name("whole")), time.monotonic()
    first = end(start(job, whole))
    assert first == "done", first
    seconds, expected = time.monotonic() - begun, result(digest, whole)
    shutil.rmtree(whole)
    return seconds, expected


def trials(kind, name, base, number, dice, seconds, expected):
    """Count how trials ended; a fault begins with FAULT."""
    job, digest = JOBS[name]
    counts = Counter()
    for k in range(number):
        folder = shutil.copytree(base, base.with_name(f"trial-{k}"))
        counts.update(disturbed(kind, name, folder, seconds, dice))
        again = end(start(job, folder))
        if again != "done":
            counts[f"FAULT: again {again}"] += 1
        elif result(digest, folder) != expected:
            counts["FAULT: another result"] += 1
        else:
            counts["same"] += 1
        if left := [str(p) for p in (folder / "out").rglob("*.partial*")]:
            counts[f"FAULT: {left} left"] += 1
        shutil.rmtree(folder)
    return counts


KINDS = ("killed", "clock set back", "two at once", "readers")
# Trials of the short run, once each.
SHORT = [("killed", name) for name in JOBS] + [
    ("clock set back", "plan"), ("two at once", "run"), ("readers", "acquire"),
]  # fmt: skip


def prepare(folder):
    """Write the inputs of every command."""
    from full_disk import begin
    from toy_scanner import policy

    os.chdir(folder)
    begin()
    policy(0.01).save("toy.json")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=JOBS)
    parser.add_argument("--short", action="store_true")
    given = parser.parse_args(arguments)
    here = Path(__file__).resolve().parent
    sys.path[:0] = [str(here / "cli"), str(here / "scan"), str(here)]
    import full_disk  # noqa: F401
    import toy_scanner  # noqa: F401

    import taskuq.cli.run
    import taskuq.experiments._run
    import taskuq.report._report
    import taskuq.training._fit  # noqa: F401

    dice, faults = random.Random(given.seed), 0
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch) / "base"
        base.mkdir()
        assert end(start(lambda: prepare("."), base)) == "done"
        for name in [given.only] if given.only else JOBS:
            whole = undisturbed(name, base)
            for kind in KINDS:
                if given.short and (kind, name) not in SHORT:
                    continue
                number = given.trials if kind == "killed" else (given.trials + 3) // 4
                number = 1 if given.short else number
                counts = trials(kind, name, base, number, dice, *whole)
                faults += sum(n for what, n in counts.items() if what.startswith("FAULT"))
                ends = ", ".join(f"{n} {what}" for what, n in sorted(counts.items()))
                print(f"{name} | {kind} | {ends}", flush=True)
    print(f"{faults} faults")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
