"""Weights, states and configurations: exact when they are right, refused when they are not."""

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from bits import same_bits
from raising import refused
from taskuq._config import read_config, to_toml_table, toml_text
from taskuq.data._atlas import Atlas
from taskuq.recover import build, load
from taskuq.recover._varnet_training import VarNetTraining, load_public_varnet
from taskuq.recover.flow._train import _FlowTraining
from taskuq.table._examples import stored_quality
from taskuq.task import load as load_task
from taskuq.task._metrics import auroc
from taskuq.training._checkpoints import _load_state, _save_state
from taskuq.training._networks import NETWORKS
from taskuq.training._weights import FOLDER, read_card, read_tensors, save_weights, shipped

CONFIGS = Path(__file__).resolve().parents[2] / "configs"

leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
states = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
    ),
    max_leaves=12,
)


@settings(max_examples=25)
@given(state=states)
def test_plain_state_round_trip(tmp_path_factory, state):
    path = _save_state(state, tmp_path_factory.getbasetemp() / "state.safetensors")
    found = _load_state(path)
    assert found == state
    assert repr(found) == repr(state)  # 1 is not True, (1,) is not [1]


def test_tensors_of_a_state_keep_their_bits(tmp_path):
    tensor = torch.tensor([float("nan"), -0.0, 1e-45], dtype=torch.float32)
    state = {"a": [tensor, {3: tensor}], "b": torch.tensor(7), "c": torch.tensor([True])}
    found = _load_state(_save_state(state, tmp_path / "a.safetensors"))
    assert same_bits(found["a"][0], tensor)
    assert same_bits(found["a"][1][3], tensor)
    assert same_bits(found["b"], state["b"])
    assert same_bits(found["c"], state["c"])


def test_objects_are_not_stored(tmp_path):
    with pytest.raises(TypeError, match="not plain data"):
        _save_state({"loss": nn.L1Loss()}, tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())


class Hostile:
    """Unpickling this would create a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def test_hostile_checkpoint_cannot_run_code(tmp_path):
    mark = tmp_path / "ran"
    for name in ("best.safetensors", "weights.pt"):
        (tmp_path / name).write_bytes(pickle.dumps(Hostile(mark), protocol=2))
    (tmp_path / "best.toml").write_text('kind = "flow"\n[network]\n')
    for read in (_load_state, read_tensors, load):
        with refused("file.format"):
            read(tmp_path / "best.safetensors")
    with refused("file.format"):
        load(tmp_path / "weights.pt")
    with refused("file.format"):
        load_public_varnet(tmp_path / "weights.pt")
    assert not mark.exists()


@pytest.fixture
def saved(tmp_path):
    net = build("varnet", preset="tiny")
    path = tmp_path / "best.safetensors"
    return net, save_weights(net, path, kind="varnet", config=net.config)


def test_half_precision_rounds_weights_and_leaves_rotations_alone(tmp_path):
    flow = build("flow", preset="tiny")
    path = tmp_path / "demo.safetensors"
    save_weights(flow, path, kind="flow", config=flow.config, half=True)
    found, state = load(path).state_dict(), flow.state_dict()
    assert path.stat().st_size < 2.2 * sum(p.numel() for p in flow.parameters()) + 2e5
    for name, value in state.items():
        if name.endswith("matrix"):
            assert same_bits(found[name], value)
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ("cascades", "weights.mismatch"),
        ("width", "weights.mismatch"),
        ("kind", "weights.mismatch"),
        ("truncated", "file.format"),
        ("absent", "file.missing"),
    ],
)
def test_file_that_does_not_fit_is_refused(saved, change, code):
    net, path = saved
    card = path.with_suffix(".toml")
    if change in ("cascades", "width"):
        other = replace(net.config, **{change: 4})
        card.write_text(toml_text({"kind": "varnet", "network": to_toml_table(other)}))
    elif change == "kind":
        card.write_text(toml_text({"kind": "classifier", "network": {}}))
    elif change == "truncated":
        path.write_bytes(path.read_bytes()[:-50])
    else:
        card.unlink()
    with refused(code):
        load(path)


def test_public_weights_are_loaded(tmp_path):
    state = build("varnet").state_dict()
    state["cascades.3.dc_weight"].fill_(0.7)
    named = {f"varnet.{name}": value for name, value in state.items()}
    torch.save({"state_dict": named}, tmp_path / "public.pt")
    found = load_public_varnet(tmp_path / "public.pt").state_dict()
    assert torch.equal(found["cascades.3.dc_weight"], state["cascades.3.dc_weight"])
    torch.save({"a": torch.ones(1)}, tmp_path / "public.pt")
    with refused("weights.mismatch"):
        load_public_varnet(tmp_path / "public.pt")


@pytest.mark.parametrize(
    ("file", "layout", "preset"),
    [
        ("fastmri-knee/flow.toml", _FlowTraining, "paper"),
        ("fastmri-knee/varnet.toml", VarNetTraining, "paper"),
        ("atlas/flow.toml", _FlowTraining, "around"),
        ("atlas/flow-whole-image.toml", _FlowTraining, "demo"),
        ("atlas/varnet.toml", VarNetTraining, "demo"),
    ],
)
def test_shipped_configurations_are_valid(file, layout, preset):
    found = read_config(layout, CONFIGS / file)
    if file.startswith("fastmri"):
        # The paper's values are also the defaults in code.
        assert found.network == layout().network
        for name in ("epochs", "batch", "learning_rate", "weight_decay", "clip_norm", "schedule"):
            assert getattr(found.training, name) == getattr(layout().training, name)
        assert found.measure == layout().measure
    else:
        name = "flow" if layout is _FlowTraining else "varnet"
        assert found.network == build(name, preset=preset).config


@pytest.mark.parametrize(
    ("text", "code", "name"),
    [
        ("[training]\nlearning_rate = -1", "value.invalid", "learning_rate"),
        ("[training]\ncuda_graphs = true\naccumulate = 2", "option.conflict", "cuda_graphs"),
        ("[training]\nprecision = 'fp8'", "choice.unknown", "'32-true', 'bf16-mixed'"),
        ("[network]\nfill = 'all'", "choice.unknown", "'noise', 'residual'"),
        ("[augment]\nrotation = 90", "value.invalid", "rotation"),
    ],
)
def test_wrong_setting_is_refused(tmp_path, text, code, name):
    path = tmp_path / "a.toml"
    path.write_text(text)
    with refused(code, name):
        read_config(_FlowTraining, path)


def test_shipped_classifier_finds_lesions_in_new_patients():
    pytest.importorskip("nilearn")
    atlas = Atlas(patients=6, seed=0, coils=0, first=1000)  # beyond all patients it was made with
    images = torch.stack([atlas[k].image for k in range(len(atlas))])
    with torch.no_grad():
        outputs = load_task(FOLDER / "classifier-atlas.safetensors")(images)
    assert auroc(outputs.numpy(), atlas.labels) > 0.85


@pytest.mark.parametrize("name", shipped())
def test_model_card_has_the_fields_of_a_hub(name):
    head = (FOLDER / f"{name}.md").read_text().split("---\n")[1]
    lines = head.splitlines()
    keys = {line.partition(":")[0] for line in lines if not line.startswith("-")}
    assert keys == {"license", "library_name", "pipeline_tag", "datasets", "tags", "metrics"}
    assert "license: mit" in lines


@pytest.mark.parametrize("name", shipped())
def test_model_card_has_the_figures_of_the_network_and_its_record(name):
    text, path = (FOLDER / f"{name}.md").read_text(), FOLDER / f"{name}.safetensors"
    card = read_card(path, list(NETWORKS))
    network = NETWORKS[card["kind"]].load(path, card["network"])
    assert f"| parameters | {sum(p.numel() for p in network.parameters()):,}" in text
    method = name if name == "sampler-atlas" else name.removesuffix("-atlas")
    rows = [row for row in stored_quality()["results"] if row["method"] == method]
    assert len(rows) == 4 * (name in ("varnet-atlas", "flow-atlas", "sampler-atlas"))
    for row in rows:
        psnr, ssim = row["psnr"]["mean"], row["ssim"]["mean"]
        assert f"| {row['acceleration']:g} | {psnr:.1f} | {ssim:.3f} |" in text
