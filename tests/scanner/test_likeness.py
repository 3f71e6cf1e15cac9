"""Scans that are not like those of the calibration are refused, or decided without a promise."""

import json
from dataclasses import replace

import pytest

import taskuq as tq
from taskuq.scan._round import coil_mismatch
from taskuq.service._interval import stored_interval
from taskuq.service._mrd import HEADER, header_xml, read_header
from taskuq.service._replay import read_mrd, replay_scan
from taskuq.table._examples import SyntheticTable, synthetic_outputs

ismrmrd = pytest.importorskip("ismrmrd", reason="the extra mrd is not installed")
HOST = "127.0.0.1"


def oversampled(small):
    xml = header_xml(small.scan_of(1).header)
    shown = xml.index("reconSpace")
    return xml[:shown] + xml[shown:].replace("<x>16</x>", "<x>8</x>", 1)


def test_a_service_refuses_readouts_with_oversampling(small, serving, connect):
    wire = connect(serving())
    wire.send(HEADER, oversampled(small))
    said = json.loads(wire.read().content)["said"]
    assert "readouts of 16 samples for images of 8; remove readout oversampling" in said


def test_a_replay_refuses_readouts_with_oversampling(small, tmp_path):
    replace(small.scan_of(1), xml=oversampled(small)).save(tmp_path / "a.h5")
    with pytest.raises(tq.InputError, match="remove readout oversampling"):
        read_mrd(tmp_path / "a.h5")


def test_a_header_whose_spaces_agree_is_read(small):
    header = small.scan_of(1).header
    assert read_header(header_xml(header)) == header


@pytest.fixture
def of_eight_coils(small):
    policy = small.policy(width=0.15)
    return replace(policy, provenance={**policy.provenance, "coils": 8})


def test_scans_of_another_number_of_coils_are_refused(small, serving, of_eight_coils):
    service = serving(policy=of_eight_coils)
    with pytest.raises(tq.InputError, match="calibrated with 8 coils, and this scan has 2"):
        replay_scan(small.scan_of(5), HOST, service.port)


def test_they_are_decided_without_a_promise_where_that_is_asked_for(
    small, serving, of_eight_coils, tmp_path
):
    service = serving(policy=of_eight_coils, unlike=True)
    played = replay_scan(small.scan_of(5, slices=1), HOST, service.port)
    (state,) = (tmp_path / "states").glob("scan-*.json")
    assert "8 coils, and this scan has 2" in played.decisions[0]["promise"]
    assert not stored_interval(state, of_eight_coils)["guaranteed"]


def test_a_policy_records_the_coils_of_its_table():
    table = synthetic_outputs(SyntheticTable(volumes=20), seed=0)
    for coils in (8, None):
        made = {"configuration": {"coils": coils} if coils else {}}
        policy = tq.plan(replace(table, provenance=made), alpha=0.2, max_width=0.2)
        assert policy.provenance.get("coils") == coils
        assert (coil_mismatch(policy, 12) is None) == (coils is None)
        assert coil_mismatch(policy, 8) is None
