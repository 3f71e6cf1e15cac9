"""The benchmark of latencies counts rounds that were decided, and says so where one is missing."""

from dataclasses import replace

import pytest
from benchmarks import scanner_gpu
from benchmarks.scanner import brightness, noisy, small_chain

pytest.importorskip("ismrmrd", reason="the extra mrd is not installed")
WAYS = [scanner_gpu.direct, scanner_gpu.over_loopback]
SLICES = scanner_gpu.WARM + 1


@pytest.fixture(scope="module")
def chosen(tmp_path_factory):
    """Parts that take no time, under the benchmark's policy."""
    columns = small_chain(tmp_path_factory.mktemp("unused")).columns
    policy = scanner_gpu.setting(is_toy=True).policy
    return scanner_gpu.Setting(noisy, brightness, policy, (2, 32, 32), columns)


def alike(images):
    return brightness(images) * 0 + 0.5


@pytest.mark.parametrize("task", [brightness, alike])
@pytest.mark.parametrize("way", WAYS)
def test_every_round_before_the_last_is_measured_whatever_networks_say(chosen, way, task):
    whole, computing = scanner_gpu.milliseconds(way, chosen, task, SLICES)

    assert whole.shape == computing.shape == (1, len(scanner_gpu.RATES))
    assert (computing > 0).all()
    assert (computing < whole).all()


@pytest.mark.parametrize("way", WAYS)
def test_a_scan_that_stops_early_is_an_error(chosen, way):
    hasty = replace(chosen.policy, thresholds=(-1e9,) * len(scanner_gpu.RATES))

    with pytest.raises(RuntimeError, match=r"is not waited for|15 rounds.*trail tells of 3"):
        scanner_gpu.milliseconds(way, replace(chosen, policy=hasty), brightness, SLICES)


@pytest.mark.parametrize("way", WAYS)
def test_a_round_that_could_not_be_decided_is_an_error(chosen, way):
    def beyond(images):
        return brightness(images) + (2 if len(images) > 1 else 0)

    with pytest.raises(RuntimeError, match="outside the task's range"):
        scanner_gpu.milliseconds(way, chosen, beyond, SLICES)
