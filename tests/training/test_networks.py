import re
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from bits import same_bits
from raising import refused
from taskuq._config import from_toml_table, to_toml_table
from taskuq._io import read_json
from taskuq.recover._methods import RECOVERIES
from taskuq.task._methods import TASKS
from taskuq.training._fit import TrainerOptions, train_config
from taskuq.training._networks import LISTED, NETWORKS
from taskuq.training._weights import save_weights

OPENED = [(RECOVERIES, "flow"), (RECOVERIES, "varnet"), (TASKS, "classifier")]


@pytest.mark.parametrize(("methods", "name"), OPENED)
def test_network_is_loaded_from_its_file(methods, name, tmp_path):
    net = methods.build(name, "tiny")
    before = torch.random.get_rng_state()
    path = save_weights(net, tmp_path / "a.safetensors", kind=name, config=net.config)
    again = methods.load(path)
    assert again.config == net.config
    assert not again.training
    assert torch.equal(torch.random.get_rng_state(), before)
    found = dict(again.named_buffers()) | dict(again.named_parameters())
    for key, value in (*net.named_buffers(), *net.named_parameters()):
        assert same_bits(found[key], value)


@pytest.mark.parametrize("name", list(NETWORKS))
def test_network_has_its_configuration_and_presets(name):
    network = NETWORKS[name]
    settings = network.training()
    assert isinstance(settings.network, network.config)
    assert from_toml_table(network.training, to_toml_table(settings)) == settings
    assert all(isinstance(preset, network.config) for preset in network.presets.values())
    if network.presets:
        assert network.presets["paper"] == settings.network


@pytest.mark.parametrize("kind", ["flow", "varnet", "folder"])
def test_missing_weights_and_those_of_another_kind_are_refused(kind):
    with refused("config.missing"):
        RECOVERIES[kind]().open("cpu")
    with refused("weights.mismatch", "varnet-atlas"):
        RECOVERIES["flow"](weights="varnet-atlas").open("cpu")


def test_help_lists_all_networks_without_torch(tmp_path):
    code = (
        "import sys; from taskuq.cli.app import app; app(['train', '--help']); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    shown = re.sub(r"[│\s]+", " ", done.stdout)
    for lines in LISTED.values():
        assert all(line.about in shown for line in lines.values())
    assert done.stdout.endswith("False\n")


def test_evaluation_writes_a_record_and_a_table(tmp_path, configure, monkeypatch):
    def judge(settings, weights, cases):
        return {"schema": "mine/1", "weights": weights.name, "cases": len(cases[1])}

    judged = replace(NETWORKS["varnet"], evaluate=judge, table=lambda r: [f"{r['cases']} cases"])
    monkeypatch.setattr("taskuq.training._fit.NETWORKS", {"varnet": judged})
    lines = []
    machine, config = TrainerOptions("cpu", progress=False), configure("varnet", epochs=1)
    path = train_config("varnet", config, tmp_path / "run", machine=machine, log=lines.append)
    record = read_json(path.parent / "quality.json", "mine/1")
    assert record == {"schema": "mine/1", "weights": path.name, "cases": 4}
    assert lines == ["4 cases"]
