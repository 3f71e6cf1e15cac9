r"""A programme of trainings and tables on one GPU, in calls of some minutes each.

    python -m scripts.programme plan PLAN.toml                                  # what to expect
    python -m scripts.programme prepare carry --lgg LGG.npz                     # at home
    python3 -m scripts.programme run PLAN.toml -o OUT \
        --work WORK --carried carry --seconds 560                               # where the GPU is
    python -m scripts.programme unpack HOME OUT/part-*.tar --carried carry      # at home again

README.md beside this file has the commands of the samplers in their order. ``prepare`` makes what a
machine without network, nilearn and cyclopts lacks. ``run`` runs the jobs of the plan, ``places``
of them side by side, each with its log, and ends after ``--seconds`` whatever still runs; then OUT
holds at most eight archives of at most 16 MiB, what matters most first, weights in float16, and
last the states of trainings that were stopped, as many as there is room for. Called again with the
same WORK it goes on: jobs that are done are not done again, trainings that were stopped go on
behind their last whole epoch. CUDA's MPS is used where it starts. ``unpack`` replaces what an
earlier call left at home by what is newer, and writes down what has arrived, which the next call
does not bring again.

Where the machine is another one,

    python -m scripts.programme bring HOME PLAN.toml brought                    # at home

makes folders brought-1, brought-2, ... that go there one after another, and ``--packed`` names
their archives: what is done is not done again, and trainings whose state is among them go on.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BEGIN = time.monotonic()
# Packing takes some seconds; not after each of many short jobs.
BETWEEN = 60.0
SCHEMA = "taskuq.arrived/1"


def say(line: str) -> None:
    print(f"[{time.monotonic() - BEGIN:4.0f} s] {line}", flush=True)


def plan(given: argparse.Namespace) -> None:
    from scripts.programme.plan import read_plan
    from scripts.programme.running import read_status
    from scripts.programme.schedule import words

    known = read_status(given.home) if given.home else {}
    before = {name for name, entry in known.items() if entry.state == "done"}
    calls = [seconds / 60 for seconds in given.seconds]
    for line in words(read_plan(given.plan, given.places), calls, before):
        print(line)


def prepare(given: argparse.Namespace) -> None:
    from scripts.programme.preparing import MIB, MOST
    from scripts.programme.preparing import prepare as prepare_parts

    files = prepare_parts(given.folder, given.parts.split(","), {"lgg": given.lgg})
    for path in files:
        say(f"{path.relative_to(given.folder)}: {path.stat().st_size / MIB:.1f} MiB")
    ours = _tracked()
    size = ours + sum(path.stat().st_size for path in files)
    say(f"{size / MIB:.1f} MiB with the {ours / MIB:.1f} MiB of this repository")
    if size > MOST:
        sys.exit(f"that is more than {MOST // MIB} MiB; leave a part out")


def _tracked() -> int:
    import subprocess

    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    names = listed.stdout.decode().split("\0")
    return sum((ROOT / name).stat().st_size for name in names if name and (ROOT / name).exists())


def run(given: argparse.Namespace) -> None:
    from scripts.programme.carrying import ARRIVED, put

    signal.signal(signal.SIGTERM, lambda *_: sys.exit("told to end"))  # after all that it started
    work: Path = given.work.resolve()
    put(given.carried, work)

    from scripts.programme.beside import Beside
    from scripts.programme.packing import pack, unpack
    from scripts.programme.plan import read_plan
    from scripts.programme.presence import PRESENT, write_present
    from scripts.programme.running import STATUS, forget
    from scripts.programme.running import run as run_jobs
    from scripts.programme.sharing import shared_gpu

    from taskuq.training.folder import RESUME

    plan = read_plan(given.plan, given.places)
    if given.packed:
        taken = unpack(given.packed, work)
        say(f"{len(taken)} files are taken from earlier archives")
        if STATUS in taken:
            forget(plan, work)
    kept = (STATUS, PRESENT, "logs/*.txt", *plan.keep, f"runs/**/{RESUME}")
    arrived = _arrived(given.carried / ARRIVED) if given.carried else []

    def packed() -> tuple[list[Path], list[str]]:
        write_present(plan.keep, work)
        return pack(kept, work, given.output, tell=say, arrived=arrived)

    beside = Beside(packed, BETWEEN, say)
    seconds = given.seconds - (time.monotonic() - BEGIN)
    with shared_gpu(work, say):
        try:
            entries = run_jobs(plan, work, seconds, tell=say, after=beside)
        finally:  # before anything else that may take long
            beside.end()
            archives, left_out = packed()
    for path in archives:
        say(f"{path.name}: {path.stat().st_size / 2**20:.1f} MiB")
    if left_out:
        say(f"left behind for lack of room: {', '.join(left_out)}")
    for name, entry in entries.items():
        print(f"{name:32s} {entry.state:10s} {entry.seconds:6.0f} s  {entry.why}")
    sys.exit(any(entry.state == "failed" for entry in entries.values()))


def _arrived(path: Path) -> list[str]:
    from taskuq.files import read_json

    return list(read_json(path, SCHEMA)["files"]) if path.exists() else []


def unpack(given: argparse.Namespace) -> None:
    from scripts.programme.carrying import ARRIVED
    from scripts.programme.packing import contents, fingerprint
    from scripts.programme.packing import unpack as unpack_all
    from scripts.programme.presence import remove_gone

    from taskuq.files import write_json

    put = unpack_all(given.archives, given.folder, newer=True)
    for name in put:
        say(f"{given.folder / name}")
    for name in remove_gone(given.folder, put):
        say(f"{given.folder / name} is removed: the machine has drawn its table anew")
    if given.carried is not None:
        path = given.carried / ARRIVED
        new = [fingerprint(info.name, content) for info, content in contents(given.archives)]
        write_json(path, {"schema": SCHEMA, "files": sorted({*_arrived(path), *new})})


def bring(given: argparse.Namespace) -> None:
    from scripts.programme.bringing import bring as bring_all
    from scripts.programme.packing import MIB
    from scripts.programme.plan import read_plan

    room = int(given.room * MIB)
    for path in bring_all(read_plan(given.plan), given.folder, given.brought, room):
        say(f"{path}: {path.stat().st_size / MIB:.1f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    foreseeing = commands.add_parser("plan")
    foreseeing.set_defaults(run=plan)
    foreseeing.add_argument("plan", type=Path)
    foreseeing.add_argument("--home", type=Path, help="of which jobs are done already")
    foreseeing.add_argument("--seconds", type=float, nargs="+", default=[560.0, 560.0, 440.0])
    preparing = commands.add_parser("prepare")
    preparing.set_defaults(run=prepare)
    preparing.add_argument("folder", type=Path)
    preparing.add_argument("--parts", default="base,site,lgg", help="with commas")
    preparing.add_argument("--lgg", type=Path, help="slices of 88 patients, for scripts/lgg.py")
    running = commands.add_parser("run")
    running.set_defaults(run=run)
    running.add_argument("plan", type=Path)
    running.add_argument("-o", "--output", type=Path, required=True)
    running.add_argument("--work", type=Path, required=True, help="what stays from call to call")
    running.add_argument("--carried", type=Path, help="what prepare made")
    running.add_argument("--packed", type=Path, nargs="*", default=[], help="earlier archives")
    running.add_argument("--seconds", type=float, default=560.0)
    for one in (foreseeing, running):
        one.add_argument("--places", type=int, help="jobs side by side, instead of the plan's")
    unpacking = commands.add_parser("unpack")
    unpacking.set_defaults(run=unpack)
    unpacking.add_argument("folder", type=Path)
    unpacking.add_argument("archives", type=Path, nargs="+")
    unpacking.add_argument("--carried", type=Path, help="where the next call learns what arrived")
    bringing = commands.add_parser("bring")
    bringing.set_defaults(run=bring)
    bringing.add_argument("folder", type=Path, help="what archives were unpacked into")
    bringing.add_argument("plan", type=Path)
    bringing.add_argument("brought", type=Path, help="what the folders' names begin with")
    bringing.add_argument("--room", type=float, default=34.0, help="MiB of each folder")
    given = parser.parse_args()
    given.run(given)


if __name__ == "__main__":
    main()
