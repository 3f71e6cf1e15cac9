import copy
import subprocess
import sys
from dataclasses import replace

import pytest
import torch

import taskuq as tq
from raising import refused
from taskuq._io import read_json, write_json
from taskuq.measure._masks import mask_fingerprint, nested_masks
from taskuq.measure._mri import MultiCoilMRI, added_columns
from taskuq.recover._varnet import VarNet, VarNetConfig
from taskuq.recover._varnet_training import VarNetRecovery
from taskuq.recover.flow._model import ConditionalFlow, FlowConfig
from taskuq.recover.flow._sample import ResidualFlowSampler
from taskuq.recover.sampler._network import SamplerConfig, SamplerNet
from taskuq.recover.sampler._sample import SamplerRecovery
from taskuq.recover.sampler._train import VarNetEstimator
from taskuq.service._export import write_runtime
from taskuq.service._mrd import Geometry
from taskuq.service._operations import ServeConfig
from taskuq.service._runtime import open_runtime
from taskuq.table._examples import SyntheticTable, synthetic_outputs
from taskuq.task import build as build_task

SHAPE, RATES, SAMPLES = (2, 16, 16), (4.0, 2.0), 3
MASKS = nested_masks(16, RATES, seed=0)


def image(seed):
    noise = torch.randn(2, *SHAPE, generator=torch.Generator().manual_seed(seed))
    return torch.complex(noise[0] + 2, noise[1])


def recovery(kind):
    torch.manual_seed(0)
    net = VarNet(VarNetConfig(1, width=2, pools=1, sensitivity_width=2, sensitivity_pools=1))
    if kind == "varnet":
        return VarNetRecovery(net)
    if kind == "sampler":
        small = SamplerConfig(width=4, decoder_channels=(2, 2), noise_channels=1, global_noise=2)
        return SamplerRecovery(SamplerNet(small), VarNetEstimator(net))
    # A limit that many draws exceed, so that they are drawn again, some at lower temperatures.
    config = FlowConfig(
        coils=1, in_channels=6, unet_width=2, unet_pools=1, condition_channels=2, layers=1,
        steps_per_layer=1, max_value=4.5,
    )  # fmt: skip
    return ResidualFlowSampler(ConditionalFlow(config), net)


@pytest.fixture(scope="module")
def task():
    torch.manual_seed(1)
    return build_task("classifier", preset="tiny").eval()


def policy_of(recover, task, samples=SAMPLES):
    table = tq.Pipeline(MultiCoilMRI(MASKS, RATES), recover, task).run(
        [image(k) for k in range(20)], accelerations=RATES, samples=samples, seed=0,
        task_range=(0, 1), progress=False,
    )  # fmt: skip
    return tq.plan(table, alpha=0.2, max_width=0.001)


@pytest.fixture(scope="module")
def written(task, tmp_path_factory):
    """The folder of a runtime of a flow, its policy and its recovery."""
    folder, recover = tmp_path_factory.mktemp("runtime"), recovery("flow")
    policy = policy_of(recover, task)
    write_runtime(folder, policy, recover, task, added_columns(MASKS), SHAPE)
    return folder, policy, recover


@pytest.fixture(scope="module")
def opened(written):
    return open_runtime(*written[:2])


def require_alike(runtime, recover, task, samples=SAMPLES):
    scanner = MultiCoilMRI(MASKS, RATES)
    for seed in range(100, 102):
        for R in (*RATES, 1.0):
            p, scan = 1 if R == 1 else samples, scanner(image(seed), R)
            expected = recover(scan, samples=p, seed=seed)
            found = runtime.recover(scan, samples=p, seed=seed)
            assert found.shape == expected.shape
            assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()
            outputs = runtime.task(found)
            assert (outputs - task(expected)).abs().max() <= 1e-4


def test_program_of_a_flow_draws_what_the_flow_draws(written, opened, task):
    recover = written[2]
    recover.rejected = recover.cooled = 0
    require_alike(opened, recover, task)
    assert recover.rejected > 0
    assert recover.cooled > 0


def test_program_of_a_sampler_draws_what_the_sampler_draws(task, tmp_path):
    recover = recovery("sampler")
    policy = policy_of(recover, task, 2)
    write_runtime(tmp_path, policy, recover, task, added_columns(MASKS), SHAPE)
    require_alike(open_runtime(tmp_path, policy), recover, task, 2)


def copied(written, folder):
    for file in written[0].iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


SPOILT = {
    "bit": "file.damaged", "swap": "file.damaged", "missing": "file.missing",
    "manifest": "file.damaged", "shape": "file.format", "leads out": "value.invalid",
}  # fmt: skip


@pytest.mark.parametrize(("spoil", "code"), SPOILT.items())
def test_damaged_runtime_is_refused(written, tmp_path, spoil, code):
    folder = copied(written, tmp_path)
    programs = [folder / f"{n}.pt2" for n in ("recover", "task")]
    manifest = folder / "manifest.json"
    record = read_json(manifest, "taskuq.runtime/1")
    if spoil == "bit":
        whole = bytearray(programs[0].read_bytes())
        whole[len(whole) // 2] ^= 1
        programs[0].write_bytes(whole)
    elif spoil == "swap":
        first, second = (path.read_bytes() for path in programs)
        programs[0].write_bytes(second)
        programs[1].write_bytes(first)
    elif spoil == "missing":
        programs[1].unlink()
    elif spoil == "manifest":
        manifest.write_text(manifest.read_text().replace('"samples": 3', '"samples": 4'))
    elif spoil == "shape":
        write_json(manifest, {**record, "shape": "wide"})
    else:
        write_json(manifest, {**record, "task": {**record["task"], "file": "../task.pt2"}})
    with refused(code):
        open_runtime(folder, written[1])


def test_runtime_of_another_policy_is_refused(written):
    folder = written[0]
    table = synthetic_outputs(SyntheticTable(volumes=4), seed=0)
    with refused("policy.mismatch"):
        open_runtime(folder, tq.plan(table, alpha=0.2, max_width=0.2))


def test_slice_of_another_size_is_refused(opened):
    scan = MultiCoilMRI(MASKS, RATES)(torch.ones(3, 16, 16) + 0j, 4.0)
    with refused("samples.mismatch"):
        opened.recover(scan, samples=3, seed=0)


def test_recovery_without_a_program_is_refused(written, task, tmp_path):
    from taskuq.recover._methods import ZeroFilled

    with refused("component.invalid", "ZeroFilled"):
        write_runtime(tmp_path, written[1], ZeroFilled(), task, added_columns(MASKS), SHAPE)


def test_runtime_imports_no_networks(written, tmp_path):
    folder, policy, _ = written
    policy.save(tmp_path / "policy.json")
    script = (
        "import sys; from pathlib import Path; import taskuq as tq\n"
        "from taskuq.service._runtime import open_runtime\n"
        f"open_runtime(Path({str(folder)!r}), tq.load_policy({str(tmp_path / 'policy.json')!r}))\n"
        "print([m for m in sys.modules if m.startswith(('taskuq.recover', 'taskuq.task',"
        " 'pytorch_lightning', 'lightning'))])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_serve_takes_a_runtime_or_networks(written, tmp_path):
    from taskuq.service._server import open_service_model

    folder, policy, _ = written
    policy.save(tmp_path / "policy.json")
    config = ServeConfig(tmp_path / "policy.json", runtime=folder, output=tmp_path)
    with refused("policy.mismatch", "coils, matrix, field of view"):
        open_service_model(config)
    geometry = Geometry(SHAPE[0], SHAPE[1:], (240.0, 240.0, 5.0))
    model = open_service_model(replace(config, geometry=geometry))
    assert (model.shape, model.geometry, model.void) == (SHAPE, geometry, None)
    assert [c.tolist() for c in model.columns] == [c.tolist() for c in added_columns(MASKS)]
    for code, more in (("option.missing", {"runtime": None}), ("option.conflict", {"task": "x"})):
        with refused(code, "--runtime"):
            open_service_model(replace(config, **more))


def test_runtime_is_served_only_with_the_parts_of_its_policy(task, tmp_path):
    from taskuq.service._server import open_service_model

    recover, seen = recovery("varnet"), copy.deepcopy(task)
    for part, mark in ((recover, "a" * 16), (seen, "b" * 16)):
        object.__setattr__(part, "fingerprint", mark)
    marks = {"masks": mask_fingerprint(MASKS), "recover": "c" * 16, "task": "b" * 16}
    policy = policy_of(recover, seen, samples=1)
    policy = replace(policy, provenance={**policy.provenance, "fingerprints": marks})
    policy.save(tmp_path / "policy.json")
    write_runtime(tmp_path / "r", policy, recover, seen, added_columns(MASKS), SHAPE)
    config = ServeConfig(tmp_path / "policy.json", runtime=tmp_path / "r", output=tmp_path)
    with refused("policy.mismatch", "recover cccc"):
        open_service_model(config)
    with pytest.warns(UserWarning, match="recover"):
        model = open_service_model(replace(config, allow_mismatch=True))
    assert "recover" in model.void
    require_alike(model, recover, seen, 1)
