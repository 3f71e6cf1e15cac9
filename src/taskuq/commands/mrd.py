"""taskuq serve, export and replay: decide about scans that come as MRD streams, rehearse it."""

from __future__ import annotations

import math
import os
import signal
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from taskuq.commands.arguments import Seed
from taskuq.commands.terminal import hand_over, say, show
from taskuq.errors import InputError

if TYPE_CHECKING:
    from taskuq.runs.mrd.session import Chain

# Beyond it no number of seconds, connections or MiB is meant.
MOST = 1e6


def serve(
    policy: Path,
    /,
    *,
    recover: str | None = None,
    task: str | None = None,
    masks: Path | None = None,
    choose: Path | None = None,
    runtime: Path | None = None,
    folder: Path = Path("scans"),
    host: str = "127.0.0.1",
    port: int = 9002,
    health_port: int | None = None,
    shadow: bool = False,
    watch: float | None = None,
    deadline: float | None = None,
    device: str | None = None,
    connections: int = 16,
    message_size: int = 32,
    scan_size: int = 8192,
    kept_size: int = 2048,
    idle: float = 600.0,
    unlike: bool = False,
    seed: Seed = 0,
) -> None:
    """Decide about scans that arrive as MRD streams, until it is stopped.

    Arguments:
        policy: The policy's file.
        recover: The recovery network: a name in the package, e.g. sampler-atlas, or weights.
        task: The task network: a name in the package, e.g. classifier-atlas, or weights.
        masks: The lines of each round, as taskuq masks writes them; the published ones where None.
        choose: The TOML file of the run that the policy is of, where its table [choose] has lines
            chosen for each slice.
        runtime: What taskuq export wrote, in place of recover, task and masks.
        folder: Where states of scans, the audit trail and the monitor are kept.
        host: Where to listen. MRD has no authentication: anything but loopback lets everybody in
            who can reach it.
        port: Where to listen.
        health_port: Tell over HTTP at this port how the service is.
        shadow: Say what would be decided, and stop nothing.
        watch: Watch whether scans are still like those of the calibration, with this probability of
            a false alarm over all time, e.g. 0.01.
        deadline: Seconds that recovery and task of a round may take; a late round stops nothing.
        device: Where networks run; the best there is by default.
        connections: Connections at once.
        message_size: The largest message, in MiB.
        scan_size: The largest scan, in MiB of k-space that its header announces.
        kept_size: How much a connection may send of slices that are not decided yet, in MiB.
        idle: Seconds without a message after which a connection is closed.
        unlike: Serve networks, masks or a rule that are known not to be the policy's, and scans of
            another number of coils. Nothing is promised then, and every reply and every stored scan
            says so; without it they are refused.
        seed: The seed of the recoveries.
    """
    import ismrmrd  # noqa: F401 - said at once where it is not installed

    from taskuq.runs.mrd.messages import Limits
    from taskuq.runs.mrd.service import LOOPBACK, Service, settle
    from taskuq.runs.serving import open_chain

    _require_positive(
        deadline=deadline, connections=connections, message_size=message_size,
        scan_size=scan_size, kept_size=kept_size, idle=idle,
    )  # fmt: skip
    _require_ports(port=port, health_port=health_port)
    # What is kept is of patients: nobody else on this computer may read it.
    os.umask(0o077)
    chain = open_chain(
        policy, recover, task, masks, folder, runtime=runtime,
        seed=seed, deadline=deadline, watch=watch, shadow=shadow, device=device,
        choose=choose, unlike=unlike,
    )  # fmt: skip
    limits = Limits(
        message=message_size * 2**20, connections=connections, idle=idle,
        scan=scan_size * 2**20, kept=kept_size * 2**20,
    )  # fmt: skip
    service = Service(chain, host, port, health_port, limits)
    settle()
    service.start()
    _say_terms(chain)
    if host != LOOPBACK:
        say(f"Whoever can reach {host} can scan here: put an authenticating proxy before it.")
    health = "" if health_port is None else f", health at http://{host}:{service.health_port}/"
    say(f"Listening on {host}, port {service.port}{health}; Ctrl-C or SIGTERM ends it.")
    _wait_for_the_end()
    say("Stopping: what is being decided is decided first.")
    service.stop()


def _wait_for_the_end() -> None:
    """Wait for SIGTERM or Ctrl-C."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *signal: ended.set())
    with suppress(KeyboardInterrupt):
        ended.wait()


def _say_terms(chain: Chain) -> None:
    """Say what a service promises, and what nobody but the user can see to.

    That nothing is promised was said when the parts were opened.
    """
    if chain.void is None:
        say(str(chain.policy))
    if chain.shadow:
        say("In shadow: it says what would be decided, and asks for all lines all the same.")
    if "fingerprints" not in chain.policy.provenance:
        say("The policy does not know its networks and masks: see that these are its own.")
    if "coils" not in chain.policy.provenance:
        say("The policy does not know the coils of its calibration: see that scans have as many.")


def _require_positive(**options: float | None) -> None:
    """Refuse numbers with which nothing could ever be decided, before networks are opened."""
    for name, value in options.items():
        if value is not None and not 0 < value < MOST:
            flag = name.replace("_", "-")
            raise InputError(f"--{flag} is {value}; give a number above 0 and below {MOST:g}")


def _require_ports(**options: int | None) -> None:
    for name, value in options.items():
        if value is not None and not 0 <= value < 2**16:
            flag = name.replace("_", "-")
            raise InputError(f"--{flag} is {value}; a port is a number from 0, any, to 65535")


def export(
    policy: Path,
    /,
    *,
    recover: str,
    task: str,
    masks: Path | None = None,
    coils: int = 8,
    height: int | None = None,
    unlike: bool = False,
    output: Annotated[Path, Parameter(name=["--output", "-o"])] = Path("runtime"),
) -> None:
    """Write recovery and task as programs that taskuq serve runs from, without training code.

    Arguments:
        policy: The policy's file.
        recover: The recovery network: a name in the package, e.g. sampler-atlas, or weights.
        task: The task network: a name in the package, e.g. classifier-atlas, or weights.
        masks: The lines of each round, as taskuq masks writes them; the published ones where None.
        coils: Receiver channels of the scans.
        height: Samples of a readout; as many as there are lines where None.
        unlike: Write networks or masks that are known not to be the policy's, about which it
            promises nothing; without it they are refused.
        output: The folder to write.
    """
    from taskuq.runs.serving import export as written

    found = written(policy, recover, task, masks, output, coils=coils, height=height, unlike=unlike)
    show(str(found))


def replay(
    source: str,
    /,
    *,
    to: str = "127.0.0.1:9002",
    patients: int = 1,
    first: int = 3000,
    coils: int = 8,
    seed: Seed = 1,
    every: float = 0.0,
    json: Annotated[str | None, Parameter(name="--json", allow_leading_hyphen=True)] = None,
) -> None:
    """Play scans against a service as a scanner would, and say what was saved and how long it took.

    Arguments:
        source: An MRD file (HDF5) of a Cartesian scan, or 'atlas' for synthetic patients.
        to: Where the service is, HOST:PORT.
        patients: How many patients of the atlas.
        first: The number of the first of them.
        coils: Receiver coils of the atlas.
        seed: The seed of the atlas's patients.
        every: Milliseconds from one line to the next, the repetition time of your sequence. Lines
            go as fast as they can by default, and the last one of a round waits behind the others.
        json: Write the record to this file, or to stdout for '-'.
    """
    from taskuq.decide.terms import as_told
    from taskuq.interval import Interval
    from taskuq.runs.mrd.replay import play, summary, told
    from taskuq.runs.mrd.service import as_address
    from taskuq.runs.mrd.stored import atlas_scans, read_scan

    _require_positive(patients=patients, coils=coils)
    if not 0 <= every < math.inf:
        raise InputError(f"--every is {every:g}; give milliseconds, 0 or more")
    host, port = as_address(to)
    if source != "atlas" and not Path(source).is_file():
        raise InputError(f"there is no file {source}; give an MRD file, or 'atlas'")
    scans = (
        atlas_scans(patients, seed, first, coils)
        if source == "atlas"
        else iter([read_scan(Path(source))])
    )
    played, width = [], 0
    for scan in scans:
        width = scan.header.shape[2]
        for sentence in scan.left_out:
            say(f"{source}: {sentence}")
        played.append(play(scan, host, port, every=every / 1000, tell=say))
        for slice_, one in played[-1].decisions.items():
            ends = Interval(one["lower"], one["upper"])
            said = ", ".join(str(ends[task]) for task in range(len(ends)))
            reason = as_told(one["reason"], shadow=one["shadow"])
            say(f"{scan.header.case(slice_)}: {reason}; {said}")
    found = summary(played, width)
    for sentence in told(found):
        say(sentence)
    hand_over(found, json)
