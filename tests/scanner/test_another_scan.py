"""A scan is never answered with what was decided about another one that has the same name."""

from dataclasses import replace

import numpy as np
import pytest

from taskuq.service import _replay as replay
from taskuq.service._mrd import ACQUISITION, CLOSE, HEADER, IMAGE, header_xml
from taskuq.service._replay import _StoredScan, replay_scan

pytest.importorskip("ismrmrd", reason="the extra mrd is not installed")
HOST, WIDTH, NUMBER, OTHER = "127.0.0.1", 0.1, 1, 7


def anothers(small, scan, difference):
    """A scan with the same header and other lines: of another patient, or in one number only."""
    if difference == "all lines":
        return _StoredScan(scan.header, small.scan_of(OTHER).kspace)
    kspace = {k: lines.copy() for k, lines in scan.kspace.items()}
    for lines in kspace.values():
        place = (0, 0, small.COLUMNS[0][0])
        lines[place] = np.nextafter(lines[place].real, np.float32(9)) + 1j * lines[place].imag
    return _StoredScan(scan.header, kspace)


def answers(connect, service, scan, slices, columns):
    """Everything that is said to a scanner that sends some lines, whether asked for or not."""
    wire = connect(service)
    wire.send(HEADER, header_xml(scan.header))
    for slice_ in slices:
        for column in columns:
            wire.send(ACQUISITION, scan.line(slice_, int(column)))
    wire.send(CLOSE)
    images, said = [], []
    while (message := wire.read()) is not None:
        if message.kind == IMAGE:
            images.append(replay._decision(message))
        else:
            said.append(message.content)
    return images, said


def stored(small, connect, service, scan, how):
    """Let a scan be stored up to its stop, or cut it off after its first round."""
    if how == "finished":
        decisions = replay_scan(scan, HOST, service.port).decisions
        assert any(d["acceleration"] > 1 for d in decisions.values())
    else:
        images, _ = answers(connect, service, scan, range(3), small.COLUMNS[0])
        assert len(images) == 3


@pytest.mark.parametrize("difference", ["all lines", "one number"])
@pytest.mark.parametrize("how", ["finished", "cut off"])
@pytest.mark.parametrize("unit", ["case", "whole-group"])
def test_other_lines_under_the_same_name_are_told_nothing(
    small, serving, connect, unit, how, difference
):
    service = serving(policy=small.policy(unit, width=0.2 if unit == "whole-group" else WIDTH))
    scan = small.scan_of(2 if unit == "whole-group" else NUMBER)
    stored(small, connect, service, scan, how)
    other = anothers(small, scan, difference)
    images, said = answers(connect, service, other, range(3), range(small.SIZE))

    assert images == []
    assert any("is stored with other lines of round 0" in sentence for sentence in said)


def test_a_line_without_numbers_after_a_finished_scan_is_told_nothing(small, serving, connect):
    service, scan = serving(policy=small.policy(width=WIDTH)), small.scan_of(NUMBER)
    stored(small, connect, service, scan, "finished")
    nothing = _StoredScan(scan.header, {k: np.nan * one for k, one in scan.kspace.items()})
    images, said = answers(connect, service, nothing, range(3), [15])

    assert images == []
    assert sum("not finite" in sentence for sentence in said) == 3


def test_another_patient_under_the_same_name_has_a_scan_of_their_own(small, serving):
    policy = small.policy(width=WIDTH)
    service, scan, other = serving(policy=policy), small.scan_of(NUMBER), small.scan_of(OTHER)
    first = replay_scan(scan, HOST, service.port)
    header = replace(other.header, scan_id=scan.header.scan_id)
    second = replay_scan(_StoredScan(header, other.kspace), HOST, service.port)

    for number, played in ((NUMBER, first), (OTHER, second)):
        for slice_, decision in played.decisions.items():
            alone = small.acquired(policy, number, slice_).rounds[-1].to_dict()
            names = ("case", "round", "acceleration", "lower", "upper", "reason", "fault")
            assert {n: decision[n] for n in names} == {n: alone[n] for n in names}


@pytest.mark.parametrize("unit", ["case", "whole-group"])
def test_the_same_scan_again_hears_the_same_again(small, serving, unit):
    policy = small.policy(unit, width=0.2 if unit == "whole-group" else WIDTH)
    service, scan = serving(policy=policy), small.scan_of(2)
    first, again = (replay_scan(scan, HOST, service.port) for _ in range(2))

    assert again.lines == first.lines
    for slice_, decision in first.decisions.items():
        repeated = again.decisions[slice_]
        assert np.array_equal(repeated.pop("image"), decision.pop("image"))
        assert (decision.pop("stored"), repeated.pop("stored")) == (False, True)
        assert repeated == decision
