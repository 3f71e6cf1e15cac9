"""SLURM on this machine (slurm-wlm and munge of Debian), without accounting."""

import os
import pwd
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "sinfo")

CONFIGURATION = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
KillWait=2
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0
GresTypes=gpu
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=1000 Gres=gpu:2 State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP OverSubscribe=FORCE:2
"""


def missing():
    """Name the programs that are not installed."""
    return [name for name in PROGRAMS if shutil.which(name) is None]


@contextmanager
def slurm(folder):
    """Start a cluster of this one machine and give the environment in which it is found."""
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o600)
    # munged refuses folders that others could write to.
    folder.chmod(0o755)
    host = socket.gethostname().partition(".")[0]
    ports = dict(zip(("controller", "node"), free_ports(2), strict=True))
    configuration = folder / "slurm.conf"
    user = pwd.getpwuid(os.getuid()).pw_name
    configuration.write_text(
        CONFIGURATION.format(host=host, folder=folder, user=user, cpus=os.cpu_count() or 1, **ports)
    )
    # Devices that can be counted stand for GPUs, so that jobs can ask for them.
    (folder / "gres.conf").write_text("Name=gpu File=/dev/null\nName=gpu File=/dev/zero\n")
    environment = {**os.environ, "SLURM_CONF": str(configuration)}
    own = [f"--{name}-file={folder}/munge.{name}" for name in ("key", "log", "pid", "seed")]
    commands = [
        ["munged", "--foreground", "--force", f"--socket={folder}/munge.socket", *own],
        ["slurmctld", "-D"],
        ["slurmd", "-D", "-N", host],
    ]
    with ExitStack() as running:
        for command in commands:
            running.enter_context(daemon(command, folder, environment))
        wait_until_idle(environment, folder)
        yield {"SLURM_CONF": str(configuration)}
        subprocess.run(["scancel", "--user", user], env=environment, check=False)


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    found = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return found


@contextmanager
def daemon(command, folder, environment):
    """Run a daemon in the foreground of a process of ours, and end that one process."""
    said = folder / f"{command[0]}.said"
    with said.open("w") as output:
        process = subprocess.Popen(
            command, env=environment, stdout=output, stderr=output, start_new_session=True
        )
    try:
        if command[0] == "munged":
            wait_for(folder / "munge.socket", process, said)
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(path, process, said):
    deadline = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None, said.read_text()
        assert time.monotonic() < deadline, said.read_text()
        time.sleep(0.05)


def wait_until_idle(environment, folder):
    deadline = time.monotonic() + 300
    while True:
        found = subprocess.run(
            ["sinfo", "--noheader", "--format=%T"], env=environment, capture_output=True, text=True
        )
        if found.stdout.strip() == "idle":
            return
        logs = "\n".join(Path(p).read_text()[-2000:] for p in sorted(folder.glob("*.said")))
        assert time.monotonic() < deadline, f"{found.stdout}{found.stderr}\n{logs}"
        time.sleep(0.2)
