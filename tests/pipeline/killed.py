"""What the kill tests kill: a run on a cluster, or a scan with a state."""

import sys
import time
from pathlib import Path

import taskuq as tq

CASES = 24


def run(engine, store):
    import toy

    from taskuq.pipeline import _local as local
    from taskuq.pipeline._engines import RayOptions, SlurmOptions

    local.SECONDS = 0.0  # a shard for every case
    engines = {
        "ray": RayOptions(address="auto", workers=2, chunk=2),
        "slurm": SlurmOptions(parameters={"gpus_per_node": 0, "timeout_min": 5}),
    }
    pipeline = tq.Pipeline(toy.measure, toy.slow_recover, toy.task)
    pipeline.run(
        toy.images(CASES), accelerations=toy.ACCELERATIONS, samples=4, seed=3, progress=False,
        store=store, engine=engines[engine],
    )  # fmt: skip


def scan(_, store):
    sys.path.insert(0, str(Path(__file__).parents[1] / "scan"))
    import toy_scanner

    def slow(measurement, *, samples, seed):
        time.sleep(0.1)
        return toy_scanner.recover(measurement, samples=samples, seed=seed)

    folder = Path(store)
    folder.mkdir(exist_ok=True)
    # No width is small enough to stop before everything is measured.
    policy = toy_scanner.policy(max_width=1e-6)
    found = toy_scanner.scan(
        toy_scanner.scanner_of(1000), policy=policy, recover=slow, state=folder / "scan.json"
    )
    (folder / "record.txt").write_text("\n".join(repr(r.to_dict()) for r in found.rounds))


if __name__ == "__main__":
    (scan if sys.argv[1] == "scan" else run)(*sys.argv[1:3])
    sys.stdout.write("done")
