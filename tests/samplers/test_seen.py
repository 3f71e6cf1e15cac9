"""What a sampler has seen: the first judge may be among it, the second never, and any masks."""

from pathlib import Path

import pytest

from taskuq.settings import read_toml

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
FIRST = {"lgg": "adversarial", "atlas": "lesion"}


@pytest.mark.parametrize("data", FIRST)
def test_the_first_judge_is_that_of_the_task_terms_and_the_second_is_another_one(data):
    judges = read_toml(CONFIGS / data / "samplers.toml")["task"]
    seen = read_toml(CONFIGS / data / "sampler-task.toml")["task"]["weights"]
    assert judges.pop(FIRST[data])["weights"] == seen
    assert len(judges) == 1
    for path in (CONFIGS / data).glob("sampler*.toml"):
        task = read_toml(path).get("task", {})
        assert task.get("weights") not in [judge["weights"] for judge in judges.values()], path


@pytest.mark.parametrize("data", FIRST)
def test_aims_name_task_networks_that_judge(data):
    judges = read_toml(CONFIGS / data / "samplers.toml")["task"]
    aims = read_toml(CONFIGS / data / "aims.toml")["aim"]
    assert {aim["task"] for aim in aims if "task" in aim} == {FIRST[data]} <= set(judges)


@pytest.mark.parametrize("name", ["sampler", "sampler-task"])
@pytest.mark.parametrize("data", FIRST)
def test_samplers_that_orders_are_learned_on_have_seen_random_masks(data, name):
    scans = read_toml(CONFIGS / data / f"{name}.toml")["scans"]
    assert scans["rounds"] == 0.5
    rates = read_toml(CONFIGS / data / "order.toml")["measure"]["accelerations"]
    assert scans["masks"]["accelerations"] == [min(rates), max(rates)]
