"""Decisions in C from the exported policy equal those of Python."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from vectors import PATH, policies, vectors

import taskuq as tq
from raising import refused
from taskuq._io import json_text, read_json, with_checksum
from taskuq.cli.app import main
from taskuq.policy._specification import export_policy, export_test_vectors
from taskuq.table._examples import SyntheticTable, synthetic_outputs

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = ROOT / "runtime"
STRICT = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror"]
SANITIZED = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
COMPILER = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


@pytest.fixture(scope="module")
def stored():
    return read_json(PATH, "taskuq.decide-vectors/1")["policies"]


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    """Compile the C program, warnings as errors, with sanitizers where available."""
    if COMPILER is None:
        pytest.skip("there is no C compiler here")
    built = tmp_path_factory.mktemp("runtime") / "decide"
    sources = [
        str(RUNTIME / f"{name}.c") for name in ("decide", "specification", "seal", "json", "main")
    ]
    for flags in (SANITIZED, ["-O2"]):
        call = [COMPILER, *STRICT, *flags, "-o", str(built), *sources, "-lm"]
        done = subprocess.run(call, capture_output=True, text=True)
        if done.returncode == 0:
            return built
    raise AssertionError(done.stderr)


def line_of(vector):
    return json.dumps({name: vector[name] for name in ("round", "outputs")})


def asked(program, specification, lines, folder):
    path = folder / "decide.json"
    is_text = isinstance(specification, str)
    path.write_text(specification if is_text else json.dumps(with_checksum(specification)))
    done = subprocess.run(
        [program, path], input="\n".join(lines), capture_output=True, text=True,
        env=os.environ | {"ASAN_OPTIONS": "detect_leaks=0"},
    )  # fmt: skip
    return done, [json.loads(line) for line in done.stdout.splitlines()]


def test_stored_cases_equal_python(stored):
    for then, now in zip(stored, vectors()["policies"], strict=True):
        assert then["name"] == now["name"]
        for a, b in zip(then["vectors"], now["vectors"], strict=True):
            assert (a["outputs"], a.get("stop")) == (b["outputs"], b.get("stop"))
            assert np.allclose(ends(a), ends(b), rtol=0, atol=1e-12)


def ends(vector):
    return [float(end) for name in ("lower", "upper") for end in vector.get(name, ())]


def test_stored_cases_stop_continue_and_tie(stored):
    for policy in stored:
        expected = [one["stop"] for one in policy["vectors"] if "stop" in one]
        assert {True, False} == set(expected), policy["name"]
    tie = stored[0]
    assert tie["name"] == "adaptive ar"
    assert tie["specification"]["thresholds"] == [0.1, 0.1]  # half the width: strictly below


def require_equal(program, specification, expected, folder):
    done, found = asked(program, specification, map(line_of, expected), folder)
    assert (done.returncode, done.stderr) == (0, "")
    for vector, answer in zip(expected, found, strict=True):
        assert ("refused" in answer) == ("refused" in vector), vector
        assert answer.get("stop") == vector.get("stop"), vector
        assert np.allclose(ends(answer), ends(vector), rtol=1e-12, atol=1e-12)


def test_c_equals_python(program, stored, tmp_path):
    for policy in stored:
        require_equal(program, policy["specification"], policy["vectors"], tmp_path)


def test_c_equals_python_by_class_and_stratum(program, tmp_path):
    made = SyntheticTable(volumes=30, samples=4)
    table, goal = synthetic_outputs(made, seed=1), {"alpha": 0.2, "max_width": 0.1, "unit": "case"}
    parts = np.array(["a", "b"])[np.asarray(table.targets > np.median(table.targets), dtype=int)]
    by_stratum = tq.plan(table, strata=parts, **goal)
    with refused("option.missing"):
        export_policy(by_stratum)
    each = [by_stratum.for_stratum(stratum) for stratum in ("a", "b")]
    assert each[0].thresholds != each[1].thresholds
    for policy in (tq.plan(table, label=parts, **goal), *each):
        expected = export_test_vectors(policy, cases=10, seed=0)["vectors"]
        require_equal(program, export_policy(policy), expected, tmp_path)


def test_changed_specification_changes_decisions(program, stored, tmp_path):
    fixed = next(one for one in stored if one["name"] == "fixed-width")
    lines = [line_of(one) for one in fixed["vectors"] if one.get("stop")]
    never = fixed["specification"] | {"thresholds": ["inf", "inf"]}
    _, found = asked(program, never, lines, tmp_path)
    assert found
    assert not any(one["stop"] for one in found)


@pytest.mark.parametrize("spoil", [
    {"schema": "taskuq.decide/2"}, {"samples": 0}, {"samples": "4"}, {"thresholds": [0.1]},
    {"rules": []}, {"tasks": []}, {"ranges": [[1, 0]]}, {"more": 1}, {"refuse_identical": 0},
])  # fmt: skip
def test_c_refuses_unknown_fields(program, stored, tmp_path, spoil):
    done, found = asked(program, stored[0]["specification"] | spoil, ["{}"], tmp_path)
    assert (done.returncode, found) == (2, [])
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(("where", "what"), [
    ("report", "guess"), ("side", "both"), ("max_width", -1), ("center", {"kind": "median"}),
    ("scale", {"kind": "learned"}), ("scale", {"kind": "moderated"}), ("also", 1),
])  # fmt: skip
def test_c_refuses_unknown_rules(program, stored, tmp_path, where, what):
    changed = json.loads(json.dumps(stored[0]["specification"]))
    changed["rules"][1][0][where] = what
    done, _ = asked(program, changed, ["{}"], tmp_path)
    assert done.returncode == 2


def test_c_answers_or_refuses_damaged_lines_and_files(program, stored, tmp_path):
    rng = np.random.default_rng(0)
    policy = next(one for one in stored if one["name"] == "adaptive cqr")

    def spoilt(text):
        whole = bytearray(text.encode())
        for _ in range(int(rng.integers(1, 4))):
            place = int(rng.integers(len(whole)))
            match int(rng.integers(3)):
                case 0:
                    whole[place] = int(rng.integers(32, 127))
                case 1:
                    del whole[place : place + int(rng.integers(1, 20))]
                case _:
                    whole[place:place] = rng.choice([b"[", b"1e999", b'"', b"-", b"{", b"nul"])
        return whole.decode()

    lines = [spoilt(line_of(policy["vectors"][0])) for _ in range(1000)]
    done, found = asked(program, policy["specification"], lines, tmp_path)
    assert (done.returncode, done.stderr, len(found)) == (0, "", 1000)
    text = json.dumps(policy["specification"])
    for _ in range(40):
        (tmp_path / "spoilt.json").write_text(as_if_written(spoilt(text)))
        done = subprocess.run(
            [program, tmp_path / "spoilt.json"], input=lines[0], capture_output=True, text=True
        )
        assert done.returncode in (0, 2), done.stderr


def as_if_written(text):
    try:
        return json.dumps(with_checksum(json.loads(text)))
    except (ValueError, TypeError):
        return text


def stopping(stored, name="adaptive ar"):
    policy = next(one for one in stored if one["name"] == name)
    case = next(one for one in policy["vectors"] if one.get("stop") and one["round"] == 0)
    return policy["specification"], case


def test_c_allocates_nothing_for_wrong_sizes(program, stored, tmp_path):
    # (round, sample, task) by their first entries: 8 bytes for each number would be 2^64 bytes,
    # which are none where sizes wrap around.
    rounds, samples, tasks = 2**20, 2**20, 2**21
    line = f"[[[{'0,' * (tasks - 1)}0]{',0' * (samples - 1)}]{',0' * (rounds - 1)}]"
    line = f'{{"round":0,"outputs":{line}}}'
    small = '{"round": 0, "outputs": [[[0.1, 0.1]]]}'
    specified, good = stopping(stored)
    done, found = asked(program, specified, [line, small, line_of(good)], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert [list(answer) for answer in found[:2]] == [["refused"]] * 2
    assert found[2]["stop"]


def test_c_refuses_a_long_line_and_answers_the_next(program, stored, tmp_path):
    specified, good = stopping(stored)
    line = line_of(good)
    fits, longer = (line + " " * (2**22 - len(line) + more) for more in (0, 1))
    done, found = asked(program, specified, [longer, fits, longer, line], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert [answer.get("stop") for answer in found] == [None, True, None, True]
    done, _ = asked(program, json.dumps(with_checksum(specified)) + " " * 2**22, [line], tmp_path)
    assert done.returncode == 2


@pytest.mark.parametrize("spoil", [
    lambda line: line[:-1] + ', "outputs": [[[0.0], [1.0], [0.0], [1.0]]]}',
    lambda line: line[:-1] + ', "round": 0}',
    lambda line: line[:-1] + ', "fault": "the coil moved"}',
    lambda line: line.replace('"round": 0', '"round": 00'),
    lambda line: line.replace('"round": 0', '"round": 0.0'),
    lambda line: line.replace('"round": 0', '"round": 0e0'),
    lambda line: line.replace("[[[", "[[[0"),
    lambda line: line + "\0",
    lambda line: line + "\0 and more",
])  # fmt: skip
def test_c_refuses_ambiguous_lines(program, stored, tmp_path, spoil):
    specified, good = stopping(stored)
    line = line_of(good)
    assert spoil(line) != line
    _, found = asked(program, specified, [line, spoil(line)], tmp_path)
    assert found[0]["stop"]
    assert list(found[1]) == ["refused"]


@pytest.mark.parametrize("more", [
    '"thresholds": [-5, -5]', '"ranges refuse_identical": 1', '"": 1', '"rules ": 1',
])  # fmt: skip
def test_c_refuses_duplicate_and_unknown_names(program, stored, tmp_path, more):
    specified, good = stopping(stored)
    whole = json.dumps(with_checksum(specified))
    done, found = asked(program, whole, [line_of(good)], tmp_path)
    assert (done.returncode, len(found)) == (0, 1)
    for text in (f"{whole[:-1]}, {more}}}", whole + "\0"):
        done, found = asked(program, text, [line_of(good)], tmp_path)
        assert (done.returncode, found) == (2, [])
        # Not by its checksum, which a rewritten file has too.
        assert "as it was written" not in done.stderr


def test_file_without_a_checksum_is_refused(program, stored, tmp_path):
    specified, good = stopping(stored)
    done, found = asked(program, json.dumps(specified), [line_of(good)], tmp_path)
    assert (done.returncode, found) == (2, [])
    assert "no sha256" in done.stderr
    with refused("file.damaged"):
        read_json(tmp_path / "decide.json", "taskuq.decide/1")


def test_c_refuses_a_changed_file(program, stored, tmp_path):
    for policy in stored:
        # Texts of other letters and of every length, so that all ways to fill a block are seen.
        for length in range(64 if policy is stored[0] else 1):
            called = {"policy": '"ü\\' + length * "x"}
            text = json_text(policy["specification"] | called)
            done, _ = asked(program, text, [], tmp_path)
            assert (done.returncode, done.stderr) == (0, ""), (policy["name"], length)
    record = json.loads(text)
    for change in ({"samples": record["samples"] + 1}, {"policy": "another"}, {"sha256": None},
                   {"sha256": record["sha256"].upper()}):  # fmt: skip
        done, found = asked(program, json.dumps(record | change), ["{}"], tmp_path)
        assert (done.returncode, found) == (2, [])
        assert "not as it was written" in done.stderr
    written = [place for place, letter in enumerate(text) if letter.isdigit()]
    for place in written[:: len(written) // 10]:
        other = str((int(text[place]) + 1) % 10)
        done, _ = asked(program, text[:place] + other + text[place + 1 :], [], tmp_path)
        assert done.returncode == 2, place


@pytest.mark.parametrize("sizes", [(1000, 1001, 1), (2, 1, 500_001), (2, 1000, 501)])
def test_c_refuses_policies_that_are_too_large(program, stored, tmp_path, sizes):
    rounds, tasks, samples = sizes
    rule = stored[0]["specification"]["rules"][0][0]
    large = stored[0]["specification"] | {
        "samples": samples, "tasks": ["t"] * tasks, "ranges": [None] * tasks,
        "thresholds": [0.1] * rounds, "rules": [[rule] * tasks] + [[]] * (rounds - 1),
    }  # fmt: skip
    done, _ = asked(program, large, [], tmp_path)
    assert done.returncode == 2
    assert "do not fit" in done.stderr


def test_c_refuses_the_large_numbers_that_python_refuses(program, tmp_path):
    large = (1e20, 1e39, 1e59, 1e60, 1.001e60, 1e96, 1e200, 1e308)
    for name, policy in policies():
        if policy.task_ranges != (None,):
            continue
        shapes = [b * np.array(s) for b in large for s in ([1, -1, 1, -1], [1, 1, 1, 1 - 1e-7])]
        lines = [json.dumps({"round": 0, "outputs": [[[b] for b in x]]}) for x in shapes]
        _, found = asked(program, export_policy(policy), lines, tmp_path)
        for x, answer in zip(shapes, found, strict=True):
            try:
                expected = policy.decide(0, x[None]).stop
            except tq.InputError:
                expected = None
            assert answer.get("stop") == expected, (name, x)


def test_policies_without_a_specification_are_refused():
    table = synthetic_outputs(SyntheticTable(volumes=30, samples=4), seed=0)
    for options, code in (
        ({"unit": "whole-group"}, "option.conflict"),
        ({"budget": 0.5}, "option.conflict"),
        ({"policy": "adaptive", "score": "learned"}, "choice.unknown"),
    ):
        with refused(code):
            export_policy(tq.plan(table, alpha=0.2, max_width=0.2, **options))


def test_specification_follows_its_schema(stored):
    jsonschema = pytest.importorskip("jsonschema")
    schema = json.loads((ROOT / "docs/schemas/decide.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    for policy in stored:
        jsonschema.validate(policy["specification"], schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(stored[0]["specification"] | {"samples": 0}, schema)


def test_command_writes_specification_and_cases(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    table = synthetic_outputs(SyntheticTable(volumes=6, samples=4), seed=0)
    policy = tq.plan(table, alpha=0.2, max_width=0.2, unit="case")
    policy.save("policy.json")
    main(["export-policy", "policy.json", "--vectors", "cases.json", "--cases", "2"])
    assert read_json("decide.json", "taskuq.decide/1")["samples"] == 4
    written = read_json("cases.json", "taskuq.decide-vectors/1")
    assert written["vectors"] == export_test_vectors(policy, cases=2, seed=0)["vectors"]
