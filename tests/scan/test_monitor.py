"""Monitor of exchangeability: exact law of its e-process, alarms, resuming."""

import re
from dataclasses import replace
from fractions import Fraction
from itertools import combinations, permutations, product

import numpy as np
import pytest

import taskuq as tq
from raising import refused
from taskuq.cli.app import main
from taskuq.policy._policy import monitor_statistics
from taskuq.report._report import write_report
from taskuq.scan._audit import read_audit_log
from taskuq.scan._monitor import (
    BETS,
    _betting_payoffs,
    _MartingaleStream,
    _total_wealth,
    _update_wealth,
    monitor_table,
)
from taskuq.table._examples import SyntheticTable, synthetic_outputs


@pytest.fixture(scope="module")
def strange(toy):
    """Outputs of images that are darker than any calibration image."""
    rng = np.random.default_rng(0)
    return 0.05 + 0.01 * rng.random((40, 1, 6))


def watched(policy, outputs, **options):
    monitor = tq.Monitor(policy, **options)
    for k, x in enumerate(outputs):
        monitor.update(x, unit=f"case {k}")
    return monitor


def test_alarms_keep_their_rate_in_every_order(toy_policy):
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.random((4, 6)), rng.random((3, 6)) / 9 + 0.2])
    found = []
    for chosen in combinations(range(7), 3):
        seen = monitor_statistics(x[list(chosen), :, None], np.arange(3), ["task"])
        policy = replace(toy_policy, monitor_reference={**seen, "error": (0.1, 0.2, 0.3)})
        orders = permutations(set(range(7)) - set(chosen))
        found += [watched(policy, x[list(order)]).e_value for order in orders]
    assert broken(np.array(found)) <= 1 + 1e-9
    assert max(found) > 2


def test_alarm_is_permanent(toy, toy_policy, strange):
    monitor = watched(toy_policy, strange)
    assert monitor.alarm
    assert monitor.alarm_after < 20
    assert "What has changed: centre" in monitor.statement
    for x in toy.table().outputs[:1].swapaxes(0, 1):
        monitor.update(x)
    assert monitor.alarm


def test_audited_errors_raise_an_alarm(toy, toy_policy):
    table = toy.table(cases=120).select(cases=np.arange(60, 120))
    monitor = tq.Monitor(toy_policy)
    for x, z in zip(table.outputs[:1].swapaxes(0, 1), table.targets, strict=True):
        monitor.update(x)
        monitor.audit(x, (z + 0.5) % 1)
    assert list(monitor.alarms) == ["error"]


def test_own_statistic_is_monitored(toy_policy):
    rng = np.random.default_rng(2)
    monitor = tq.Monitor(toy_policy, calibration_statistics={"noise": rng.random(60)})
    for x in rng.random((20, 6)):
        monitor.update(x, statistics={"noise": 2.0})
    assert "noise" in monitor.alarms
    with refused("shape.mismatch", "noise"):
        monitor.update(np.full(6, 0.5))


def test_resumed_monitor_is_the_same(toy_policy, strange, tmp_path):
    whole = watched(toy_policy, strange[:9])
    first, second = (tq.Monitor(toy_policy, state=tmp_path / "m.json") for _ in range(2))
    for k, x in enumerate(strange[:9]):
        (second if k % 2 else first).update(x, unit=f"case {k}")
    watched(toy_policy, strange[:9], state=tmp_path / "m.json")  # nobody is counted twice
    third = tq.Monitor(toy_policy, state=tmp_path / "m.json")
    assert third.to_dict() == whole.to_dict()


def test_mismatched_monitor_is_refused(toy_policy, strange, whole, tmp_path):
    state = watched(toy_policy, strange[:2], state=tmp_path / "m.json")
    with refused("resume.mismatch", "delta"):
        tq.Monitor(toy_policy, delta=0.05, state=tmp_path / "m.json")
    with refused("table.duplicate", "case 0"):
        state.update(np.full(6, 0.9), unit="case 0")
    with refused("shape.axes"):
        tq.Monitor(whole[0]).update(np.full(6, 0.5))
    with refused("policy.mismatch"):
        tq.Monitor(replace(toy_policy, monitor_reference={}))


def test_alarm_prevents_early_stops(toy, toy_policy, strange, tmp_path):
    seed = toy.seed_of(toy_policy, 1)
    monitor = watched(toy_policy, strange)
    log = tmp_path / "log.jsonl"
    scan = toy.scan(toy.scanner_of(seed), policy=toy_policy, monitor=monitor, audit_log=log)
    assert scan.acceleration == 1
    assert "The guarantee is withdrawn" in scan.rounds[0].reason
    assert [line["withdrawn"] for line in read_audit_log(log)] == [True] * 4
    decision = toy_policy.decide(0, scan.rounds[0].outputs)
    assert decision.stop
    assert not monitor.review(decision).stop


def test_interrupted_scan_counts_once(toy, toy_policy, longest, tmp_path):
    monitor = tq.Monitor(toy_policy, state=tmp_path / "m.json")
    options = {"policy": toy_policy, "state": tmp_path / "s.json", "monitor": monitor}
    with pytest.raises(toy.PowerCutError):
        toy.scan(toy.failing(toy.scanner_of(longest), 2), **options)
    scan = toy.scan(toy.scanner_of(longest), **options)
    plain = toy.scan(toy.scanner_of(longest), policy=toy_policy)
    assert monitor.units == 1
    assert [r.to_dict() for r in scan.rounds] == [r.to_dict() for r in plain.rounds]


def test_group_is_one_unit(toy, whole):
    policy, seeds = whole
    monitor = tq.Monitor(policy)
    toy.scan([toy.scanner_of(s) for s in seeds], policy=policy, monitor=monitor)
    assert monitor.units == 1
    with refused("policy.mismatch"):
        toy.scan(toy.scanner_of(1), policy=policy, monitor=monitor)


def test_statistics_of_measurements(toy, toy_policy):
    monitor = tq.Monitor(
        toy_policy,
        calibration_statistics={"energy": [1.0, 2.0]},
        compute_statistics=lambda m: {"energy": abs(m[0]).mean()},
    )
    toy.scan(toy.scanner_of(3), policy=toy_policy, monitor=monitor)
    assert len(monitor._streams["energy"].values) == 1


def test_monitor_command_resumes_and_report_shows_the_alarm(
    toy, toy_policy, strange, tmp_path, capsys
):
    toy_policy.save(tmp_path / "policy.json")
    new = tq.TaskOutputs(strange.swapaxes(0, 1), case=[f"c{k}" for k in range(40)])
    new.save(tmp_path / "new.npz")
    for counted in (40, 0):
        main(["monitor", *(str(tmp_path / n) for n in ("policy.json", "new.npz")),
              "-o", str(tmp_path / "monitor.json")])  # fmt: skip
        table, sentence = (" ".join(text.split()) for text in capsys.readouterr())
        assert f"{counted} new cases, 40 in all" in table
        # The table and the sentence speak of the same evidence, and of the same limit.
        found, enough = re.search(r"cases is (\S+); the limit of (\S+) was", sentence).groups()
        assert found in re.split(r"[ │|]+", table)
        assert f"{enough} in any statistic" in table
    assert not list(tmp_path.glob(".*"))  # no lock is left
    page = write_report(tmp_path).read_text()
    assert "withdrawn" in page


@pytest.mark.parametrize("rates", [(12, 8, 4, 2), (8, 4, 2)])
def test_table_of_other_rounds_is_refused(rates):
    table = synthetic_outputs(SyntheticTable(volumes=30), seed=0)
    policy = tq.plan(table, alpha=0.2, max_width=0.2)
    other = replace(
        table, outputs=table.outputs[-len(rates) :], accelerations=np.array(rates, dtype=float)
    )
    monitor = tq.Monitor(policy)
    with refused("policy.mismatch", "R = 16"):
        monitor_table(monitor, other)
    assert monitor.units == 0
    with refused("policy.mismatch", "calibrated on"):
        monitor_table(monitor, table)
    new = synthetic_outputs(SyntheticTable(volumes=30), seed=1)
    monitor_table(monitor, replace(new, outputs=new.outputs[:1], accelerations=np.array([16.0])))
    assert monitor.units == 30


CALIBRATION, NEW = 3, 5
POPULATIONS = {
    "all different": (3, 1, 4, 8, 5, 9, 2),
    "some alike": (1, 1, 2, 2, 3, 4, 4),
    "one apart": (0, 0, 0, 0, 0, 0, 1),
    "all alike": (7,) * 7,
}


def largest(ranks, units):
    """The evidence after each unit for sequences of ranks (sequence, unit)."""
    capital, found = np.zeros((len(ranks), BETS)), []
    for k in range(ranks.shape[1]):
        capital = _update_wealth(capital, k, ranks[:, k], ranks[:, k], units[k])
        found.append(_total_wealth(capital, k + 1))
    return np.stack(found, axis=1)


def broken(tops):
    """By how much the largest evidence of equally likely orders breaks Ville's inequality."""
    tops = np.sort(tops)
    reached = len(tops) - np.searchsorted(tops, tops * (1 - 1e-12))
    return float((tops * reached / len(tops)).max())


@pytest.mark.parametrize("units", [1, 2, 3, 10, 63, 64, 65, 1000])
def test_every_bet_is_fair(units):
    ranks = np.arange(1, units + 1)
    assert np.allclose(_betting_payoffs(ranks, ranks, units).mean(axis=0), 1, rtol=1e-12)


def test_e_process_has_mean_1_and_keeps_villes_inequality():
    sizes = [CALIBRATION + 1 + k for k in range(NEW)]
    every = np.array(list(product(*(range(1, m + 1) for m in sizes))))
    found = largest(every, sizes)
    assert np.allclose(found.mean(axis=0), 1, rtol=1e-12)
    assert broken(found.max(axis=1)) <= 1 + 1e-9
    assert found.max() > 10  # an alarm at delta 0.1


@pytest.mark.parametrize("population", POPULATIONS.values(), ids=POPULATIONS)
def test_no_order_of_a_population_breaks_villes_inequality(population):
    tops, last = [], Fraction(0)
    for chosen in combinations(range(7), CALIBRATION):
        calibration = tuple(sorted(population[k] for k in chosen))
        for order in permutations(set(range(7)) - set(chosen)):
            stream = _MartingaleStream(calibration)
            for k in order:
                stream.add(population[k], None)
            tops.append(stream.largest)
            last += Fraction(stream.evidence[-1])
    assert broken(np.array(tops)) <= 1 + 1e-9
    assert last / len(tops) <= 1 + Fraction(1, 10**9)


def test_shares_of_delta_add_up(toy_policy):
    own = {"noise": [1.0, 2.0], "energy": [1.0, 2.0]}
    for monitor in (tq.Monitor(toy_policy), tq.Monitor(toy_policy, calibration_statistics=own)):
        shares = monitor._shares
        assert sum(shares.values()) == pytest.approx(1)
        assert max(shares, key=shares.get) == "centre"
    alone = replace(toy_policy, monitor_reference={"centre": (0.1, 0.2)})
    assert tq.Monitor(alone)._shares == {"centre": 1.0}


def test_fewer_large_ranks_are_noticed_early():
    # The largest fifth is missing, as after a loss of contrast: 40 units are enough for 1/delta
    # = 10 at the share of the centre.
    rng, found = np.random.default_rng(0), []
    for _ in range(21):
        stream = _MartingaleStream(tuple(np.sort(rng.random(300))))
        for _ in range(60):
            stream.add(0.8 * rng.random(), None)
        level = np.array(stream.evidence) >= 10 / 0.85
        found.append(1 + int(level.argmax()) if level.any() else 99)
    assert np.median(found) <= 40


def test_ranks_among_calibration_units_alone_break_the_law():
    # The fault: each new unit is compared with the calibration units, as if it came alone.
    every = np.array(list(permutations(range(CALIBRATION + NEW))))
    every = every[(np.diff(every[:, :CALIBRATION]) > 0).all(axis=1)]
    old, new = every[:, :CALIBRATION], every[:, CALIBRATION:]
    alone = 1 + (old[:, None] < new[:, :, None]).sum(axis=2)
    # A fair bet is worth 1 on average, at any time.
    assert largest(alone, [CALIBRATION + 1] * NEW)[:, -1].mean() > 1.3


def test_evidence_does_not_overflow():
    capital = np.zeros(BETS)
    for k in range(3000):
        capital = _update_wealth(capital, k, 1, 1, 10**6)
    assert np.isfinite(_total_wealth(capital, 3000))
