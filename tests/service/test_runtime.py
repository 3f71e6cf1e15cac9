"""A runtime says what its networks say, and what is not as it was written is refused."""

import copy
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import taskuq as tq
from raising import refused
from taskuq._io import read_json, write_json
from taskuq.measure._masks import mask_fingerprint, nested_masks
from taskuq.measure._mri import MultiCoilMRI, SimulatedMRIScanner, added_columns
from taskuq.recover import build
from taskuq.recover._varnet import VarNet, VarNetConfig
from taskuq.recover._varnet_training import VarNetRecovery
from taskuq.recover.flow._model import ConditionalFlow, FlowConfig
from taskuq.recover.flow._sample import ResidualFlowSampler
from taskuq.recover.sampler._sample import SamplerRecovery
from taskuq.recover.sampler._train import VarNetEstimator
from taskuq.service._export import write_runtime
from taskuq.service._runtime import open_runtime
from taskuq.table._examples import SyntheticTable, synthetic_outputs
from taskuq.task import build as build_task

SHAPE, RATES, SAMPLES = (2, 16, 16), (4.0, 2.0), 3
MASKS = nested_masks(16, RATES, rng=np.random.default_rng(0))


def image(seed):
    noise = torch.randn(2, *SHAPE, generator=torch.Generator().manual_seed(seed))
    return torch.complex(noise[0] + 2, noise[1])


def recovery(kind):
    torch.manual_seed(0)
    net = VarNet(VarNetConfig(cascades=1, width=4, pools=2, sensitivity_pools=2))
    if kind == "varnet":
        return VarNetRecovery(net)
    if kind == "sampler":
        return SamplerRecovery(build("sampler", preset="tiny"), VarNetEstimator(net))
    # A limit that many draws exceed, so that they are drawn again, some at lower temperatures.
    config = FlowConfig(
        coils=1,
        in_channels=6,
        unet_width=4,
        unet_pools=2,
        condition_channels=4,
        steps_per_layer=2,
        max_value=4.5,
    )
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


def require_alike(runtime, recover, task, samples=SAMPLES):
    scanner = MultiCoilMRI(MASKS, RATES)
    for seed in range(100, 104):
        for R in (*RATES, 1.0):
            p, scan = 1 if R == 1 else samples, scanner(image(seed), R)
            expected = recover(scan, samples=p, seed=seed)
            found = runtime.recover(scan, samples=p, seed=seed)
            assert found.shape == expected.shape
            assert (found - expected).abs().max() <= 1e-4 * expected.abs().max()
            outputs = runtime.task(found)
            assert (outputs - task(expected)).abs().max() <= 1e-4


def test_a_flow_of_programs_draws_what_the_flow_draws_those_beyond_its_limit_again(written, task):
    folder, policy, recover = written
    recover.rejected = recover.cooled = 0
    require_alike(open_runtime(folder, policy), recover, task)
    assert recover.rejected > 0
    assert recover.cooled > 0


@pytest.mark.parametrize(("kind", "samples"), [("sampler", 2), ("varnet", 1)])
def test_programs_of_other_recoveries_agree_too(kind, samples, task, tmp_path):
    recover = recovery(kind)
    policy = policy_of(recover, task, samples)
    write_runtime(tmp_path, policy, recover, task, added_columns(MASKS), SHAPE)
    require_alike(open_runtime(tmp_path, policy), recover, task, samples)


def test_scans_decide_with_a_runtime_as_with_its_networks(written, task):
    folder, policy, recover = written
    runtime = open_runtime(folder, policy)
    for k in range(200, 203):
        scans = [
            tq.acquire(policy, SimulatedMRIScanner(image(k), MASKS, RATES), recover=g, task=f,
                       samples=SAMPLES, case=f"{k}")
            for g, f in ((recover, task), (runtime.recover, runtime.task))
        ]  # fmt: skip
        assert len({len(scan.rounds) for scan in scans}) == 1
        ends = [np.r_[scan.interval.lower, scan.interval.upper] for scan in scans]
        assert np.abs(ends[0] - ends[1]).max() <= 1e-4


def copied(written, folder):
    for file in written[0].iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.mark.parametrize("spoil", ["bit", "swap", "missing", "manifest", "shape", "leads out"])
def test_what_is_not_as_it_was_written_is_refused(written, tmp_path, spoil):
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
    with pytest.raises(tq.InputError):
        open_runtime(folder, written[1])


def test_another_policy_is_refused(written):
    folder = written[0]
    table = synthetic_outputs(SyntheticTable(volumes=4), seed=0)
    with refused("policy.mismatch"):
        open_runtime(folder, tq.plan(table, alpha=0.2, max_width=0.2))


def test_a_slice_of_another_size_is_refused(written):
    folder, policy, _ = written
    scan = MultiCoilMRI(MASKS, RATES)(torch.ones(3, 16, 16) + 0j, 4.0)
    with refused("samples.mismatch"):
        open_runtime(folder, policy).recover(scan, samples=3, seed=0)


def test_a_recovery_that_is_no_program_is_refused(written, task, tmp_path):
    from taskuq.recover._methods import ZeroFilled

    with refused("component.invalid", "ZeroFilled"):
        write_runtime(tmp_path, written[1], ZeroFilled(), task, added_columns(MASKS), SHAPE)


def test_a_runtime_needs_no_code_of_networks_or_training(written, tmp_path):
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
    model = open_service_model(tmp_path / "policy.json", None, None, None, tmp_path, runtime=folder)
    assert model.shape == SHAPE
    assert [c.tolist() for c in model.columns] == [c.tolist() for c in added_columns(MASKS)]
    for code, *given in (
        ("option.missing", None, None, None), ("option.conflict", "flow-atlas", None, Path("x")),
    ):  # fmt: skip
        with refused(code, "--runtime"):
            open_service_model(
                tmp_path / "policy.json", given[0], given[1], None, tmp_path, runtime=given[2]
            )


@pytest.mark.parametrize("swapped", [None, "recover"])
def test_a_runtime_is_served_where_its_parts_are_the_policys(swapped, task, tmp_path):
    from taskuq.service._server import open_service_model

    recover, seen = recovery("varnet"), copy.deepcopy(task)
    for part, mark in ((recover, "a" * 16), (seen, "b" * 16)):
        object.__setattr__(part, "fingerprint", mark)
    marks = {"masks": mask_fingerprint(MASKS), "recover": "a" * 16, "task": "b" * 16}
    if swapped is not None:
        marks[swapped] = "c" * 16
    policy = policy_of(recover, seen, samples=1)
    policy = replace(policy, provenance={**policy.provenance, "fingerprints": marks})
    policy.save(tmp_path / "policy.json")
    write_runtime(tmp_path / "r", policy, recover, seen, added_columns(MASKS), SHAPE)
    given = (tmp_path / "policy.json", None, None, None, tmp_path)
    if swapped is None:
        assert open_service_model(*given, runtime=tmp_path / "r").void is None
        return
    with refused("policy.mismatch", f"{swapped} cccc"):
        open_service_model(*given, runtime=tmp_path / "r")
    with pytest.warns(UserWarning, match=swapped):
        model = open_service_model(*given, runtime=tmp_path / "r", allow_mismatch=True)
    assert swapped in model.void


def test_the_manifest_says_what_it_was_made_of(written):
    record = json.loads((written[0] / "manifest.json").read_text())
    assert record["recover"]["made_of"].endswith("ResidualFlowSampler")
    assert record["versions"]["torch"] == torch.__version__


def test_the_example_is_one_on_which_trained_networks_are_steady():
    from taskuq.measure._mri import MaskConfig
    from taskuq.recover._methods import open_recovery
    from taskuq.service._export import _example_slice

    recover, masks = open_recovery("varnet-atlas"), MaskConfig(accelerations=(2.0,)).masks(128)
    scan = MultiCoilMRI(masks, (2.0,))(_example_slice(8, 128, 128), 2.0)
    near = MultiCoilMRI(masks, (2.0,))((1 + 1e-6) * _example_slice(8, 128, 128), 2.0)
    first, second = (recover(one, samples=1, seed=0) for one in (scan, near))

    assert (first - second).abs().max() <= 1e-5 * first.abs().max()
