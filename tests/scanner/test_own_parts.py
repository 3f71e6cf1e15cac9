"""A service, and a run, know whose masks and networks they are given."""

from __future__ import annotations

import numpy as np
import pytest

import taskuq as tq
from taskuq.errors import InputError
from taskuq.experiments._run import open_run, read_run
from taskuq.measure._masks import nested_masks, save_masks
from taskuq.service._server import export, open_service_model

pytest.importorskip("ismrmrd", reason="the extra mrd is not installed")
RATES = (8.0, 4.0)
RUN = """
part = "all"
samples = 1
[data]
kind = "atlas"
patients = 2
slices = 1
coils = 2
seed = {seed}
[measure]
accelerations = [8, 4]
file = "{masks}"
[recover]
kind = "varnet"
weights = "varnet-atlas"
[task]
kind = "classifier"
weights = "classifier-atlas"
"""


def masks_file(path, seed, **more):
    masks = nested_masks(128, RATES, rng=np.random.default_rng(seed))
    return save_masks(path, masks, RATES, **more)


def opened(tmp_path, masks, seed=3):
    (tmp_path / "run.toml").write_text(RUN.format(masks=masks, seed=seed))
    return open_run(read_run(tmp_path / "run.toml"), "cpu")


@pytest.fixture
def planned(tmp_path):
    """The masks of a run, and the file of a policy from its table."""
    masks = masks_file(tmp_path / "own.npz", 5)
    run = opened(tmp_path, masks)
    rng = np.random.default_rng(0)
    table = tq.TaskOutputs(
        rng.uniform(size=(2, 20, 1)), rng.uniform(size=20), RATES,
        provenance={"configuration": run.configuration}, task_range=(0, 1),
    )  # fmt: skip
    tq.plan(table, alpha=0.3, max_width=0.5).save(tmp_path / "policy.json")
    return masks, tmp_path / "policy.json"


OWN = {"recover": "varnet-atlas", "task": "classifier-atlas"}


def test_what_a_run_was_made_with_is_served(planned, tmp_path):
    masks, policy = planned
    chain = open_service_model(policy, *OWN.values(), masks, tmp_path)
    known = chain.policy.provenance["fingerprints"]
    assert chain.void is None
    assert (chain.recover.fingerprint, chain.task.fingerprint) == (known["recover"], known["task"])


@pytest.mark.parametrize("other", ["published masks", "other masks", "recover"])
def test_other_masks_and_networks_are_refused_unless_asked_for(planned, tmp_path, other):
    masks, policy = planned
    recover = "flow-atlas" if other == "recover" else OWN["recover"]
    lines = {"published masks": None, "recover": masks}.get(other, tmp_path / "other.npz")
    masks_file(tmp_path / "other.npz", 1)
    what = "recover" if other == "recover" else "masks"
    with pytest.raises(InputError, match=f"calibrated with {what} .*--allow-mismatch"):
        open_service_model(policy, recover, OWN["task"], lines, tmp_path)
    with pytest.raises(InputError, match=f"calibrated with {what} .*--allow-mismatch"):
        export(policy, recover, OWN["task"], lines, tmp_path / "runtime", coils=2, height=None)
    with pytest.warns(UserWarning, match="nothing is promised"):
        chain = open_service_model(policy, recover, OWN["task"], lines, tmp_path, unlike=True)
    assert f"calibrated with {what}" in chain.void


@pytest.mark.parametrize(("learned_with", "is_own"), [(3, True), (4, False)])
def test_a_run_refuses_an_order_that_was_learned_on_its_own_cases(tmp_path, learned_with, is_own):
    about = opened(tmp_path, masks_file(tmp_path / "plain.npz", 0), seed=learned_with)
    names = [str(item.case) for item in about.images]
    made = {"configuration": about.configuration, "cases": names[:1]}
    learned = masks_file(tmp_path / "learned.npz", 0, provenance=made)
    if not is_own:
        assert opened(tmp_path, learned).masks.shape == (2, 128)
        return
    with pytest.raises(InputError, match="learned on 1 cases of this run"):
        opened(tmp_path, learned)
