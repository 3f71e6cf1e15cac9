"""A run on a cluster, which tests kill."""

import sys

import taskuq as tq

CASES = 12


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
    pipeline.run(toy.images(CASES), store=store, engine=engines[engine], **toy.RUN)


if __name__ == "__main__":
    run(*sys.argv[1:3])
    sys.stdout.write("done")
