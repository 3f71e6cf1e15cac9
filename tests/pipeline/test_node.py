"""A node of a Ray cluster that is killed takes its work with it, and the table is the same."""

import os
import signal
import threading
import time

import numpy as np
import pytest
import toy

import taskuq as tq
from taskuq.pipeline._engines import RayOptions

RUN = {"accelerations": toy.ACCELERATIONS, "samples": 4, "seed": 3, "progress": False}
# A dead node, which refuses connections, is noticed in two seconds instead of half a minute; a
# slow one has as long to answer as ever.
SOON = {
    "health_check_initial_delay_ms": 0, "health_check_period_ms": 500,
    "health_check_failure_threshold": 3,
}  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")


@pytest.fixture
def cluster(monkeypatch):
    pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("PYTHONPATH", toy.PATH)
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": SOON}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    yield cluster, nodes
    cluster.shutdown()


def kill_raylet(node):
    (process,) = node.all_processes["raylet"]
    os.kill(process.process.pid, signal.SIGKILL)


def test_a_killed_node_changes_nothing(cluster, tmp_path):
    found, nodes = cluster
    at_work, driver = tmp_path / "at-work", os.getpid()
    at_work.mkdir()
    victim = nodes[0].node_id

    def recover(measurement, *, samples, seed):
        if os.getpid() != driver:
            import ray

            node = ray.get_runtime_context().get_node_id()
            (at_work / node).touch()
            if node == victim:
                time.sleep(120)  # it is in the middle of a case when its node dies
        return toy.recover(measurement, samples=samples, seed=seed)

    def kill():
        while not (at_work / victim).exists():
            time.sleep(0.05)
        kill_raylet(nodes[0])

    assassin = threading.Thread(target=kill)
    assassin.start()
    engine = RayOptions(address=found.address, workers=2, chunk=2, patience=60)
    table = tq.Pipeline(toy.measure, recover, toy.task).run(
        toy.images(12), store=tmp_path / "t", engine=engine, **RUN
    )
    assassin.join()
    expected = tq.Pipeline(toy.measure, toy.recover, toy.task).run(toy.images(12), **RUN)
    assert {path.name for path in at_work.iterdir()} == {node.node_id for node in nodes}
    assert np.array_equal(table.outputs, expected.outputs)
    assert np.array_equal(table.targets, expected.targets)
