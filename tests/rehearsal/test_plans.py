"""From a few steps to hours, and from hours to a plan."""

from itertools import pairwise

import pytest
from places import CONFIGS

from taskuq.errors import InputError
from taskuq.runs.rehearsal.cost import Done, cost_of, full_training
from taskuq.runs.rehearsal.plan import plan_markdown, plan_steps
from taskuq.runs.rehearsal.recipe import Line, read_recipe
from taskuq.runs.rehearsal.tables import rehearsal_markdown

HOURS = {"varnet": 6.0, "flow": 16.0, "simclr": 4.0, "classifier": 4.0}
BATCHES = {"varnet": 16, "flow": 8, "simclr": 128, "classifier": 128}


def made_record(**changes):
    """A rehearsal in which every command took an hour of the full experiment, or as above."""
    lines, results = read_recipe(), []
    for line in lines:
        kind = line.words[1] if line.verb == "train" else ""
        on_gpu = line.verb in ("train", "run", "quality")
        cost = {
            "unit": "step" if kind else "", "each": 0.1, "first": None, "bytes": 1e9, "note": "",
            "hours": HOURS.get(kind, 0.5 if on_gpu else None),
            "details": {"batch": BATCHES[kind]} if kind else {},
        }  # fmt: skip
        results.append({
            "line": line.text, "added": "", "status": "passed", "error": "", "seconds": 36.0,
            "kept": False, "peak_gpu_bytes": 2**30 * on_gpu, "peak_host_bytes": 2**30,
            "cost": cost,
            "after": ["taskuq train simclr     configs/fastmri-knee/simclr.toml"]
            if kind == "classifier" else [],
        })  # fmt: skip
    record = {
        "settings": {"toy": False, "data": None, "steps": 3}, "lines": results, "seconds": 600.0,
        "machine": {"device": "one GPU", "cores": 16}, "passed": len(results),
        "commands": len(lines),
    }  # fmt: skip
    return record | changes


def training(step):
    return "taskuq train" in step.command


def test_one_gpu_does_one_thing_after_the_other():
    steps = plan_steps(made_record(), 1)

    assert all(a.end == b.begin for a, b in pairwise(steps))
    assert sum(s.end - s.begin for s in steps if training(s)) == pytest.approx(30)
    assert max(step.gpus for step in steps) == 1


@pytest.mark.parametrize(("gpus", "longest"), [(4, 8.0), (8, 4.0)])
def test_gpus_are_shared_out_so_that_the_last_training_ends_soonest(gpus, longest):
    steps = [step for step in plan_steps(made_record(), gpus) if training(step)]
    begin = min(step.begin for step in steps)

    # Of four: two for the flow, one for each of the others; of eight twice that.
    assert max(step.end for step in steps) - begin == pytest.approx(longest)
    for step in steps:
        together = [s for s in steps if s.begin <= step.begin < s.end]
        assert sum(s.gpus for s in together) <= gpus
    commands = [step.command for step in steps]
    assert f"taskuq train flow configs/fastmri-knee/flow.toml --devices {gpus // 2}" in commands


def test_the_classifier_waits_for_what_it_starts_from():
    steps = {
        step.command.split()[2]: step for step in plan_steps(made_record(), 8) if training(step)
    }

    assert steps["classifier"].begin == steps["simclr"].end
    assert steps["flow"].begin == steps["varnet"].begin == steps["simclr"].begin


def test_nothing_runs_before_what_it_needs_is_there():
    for gpus in (1, 4, 8):
        steps = plan_steps(made_record(), gpus)
        trained = max(step.end for step in steps if training(step))
        assert all(s.begin >= trained for s in steps if "taskuq run" in s.command)


def test_there_is_no_plan_for_commands_that_fail():
    record = made_record()
    record["lines"][4]["status"] = "failed"
    record["passed"] -= 1

    with pytest.raises(InputError, match="1 commands of the rehearsal did not pass"):
        plan_steps(record, 4)
    assert "No plan" in plan_markdown(record)


def test_the_tables_are_markdown_with_a_row_for_each_command():
    text = rehearsal_markdown(made_record())
    table = text.split("\n\n")[1].splitlines()

    assert len(table) == 2 + len(read_recipe()) + 1
    assert len({row.count("|") for row in table}) == 1
    # 30 hours of training, and half an hour for each of two runs and quality.
    assert table[-1].endswith("| **32** | **18** |")
    assert text.count("GPUs**") + text.count("GPU: ") + text.count("GPUs: ") == 3


def test_a_trial_is_scaled_to_all_slices_and_epochs():
    trial = {
        "epochs": 50, "batch": 16, "step_s": 0.4, "first_step_s": 20.4, "validation_step_s": 0.2,
        "keep_s": 1.0, "keep_every": 1, "steps_per_epoch": 8, "validation_steps": 2,
        "epoch_s": None, "before": None, "minutes": 0.0,
    }  # fmt: skip

    hours = full_training(trial, learned=16422, tuned=864)

    # 1027 steps and 54 batches of validation in each epoch, and 20 s of compiling.
    assert hours == pytest.approx((50 * (1027 * 0.4 + 54 * 0.2 + 1) + 20) / 3600)
    assert full_training(trial | {"before": trial}, 16422, 864) == pytest.approx(2 * hours)


def test_quality_counts_the_warm_accelerations(tmp_path):
    from taskuq.data.made_fastmri import Layout, make_fastmri

    layout = Layout(80, 72, 9, 64)
    make_fastmri(tmp_path / "data", training=(1, 1), validation=(1, 5), layout=layout)
    said = [(5.0, "features of 10 training images"), (7.0, "R = 16, flow"), (57.0, "R = 8, flow"),
            (61.0, "R = 4, flow"), (65.0, "R = 2, flow")]  # fmt: skip
    line = next(line for line in read_recipe() if line.verb == "quality")

    cost = cost_of(Done(line, tmp_path, 69.0, 100, said))

    # Four cases of the annotated volume (its five slices' centre) and none of the others' single
    # slice; four rounds of 4 s, and 0.2 s for each of the reference's images.
    assert cost.each == pytest.approx(4 * 4.0 / 4)
    assert cost.hours == pytest.approx((4.0 * 2188 + 0.2 * 17286) / 3600)


def test_what_a_line_needs_is_read_off_its_configuration(tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs/fastmri-knee").symlink_to(CONFIGS)
    lines = {line.name: line for line in read_recipe()}
    run, classifier = lines["run-run-flow"], lines["train-classifier-classifier"]

    assert run.follows(classifier, tmp_path)
    assert run.follows(lines["train-flow-flow"], tmp_path)
    assert not run.follows(lines["train-varnet-varnet"], tmp_path)
    assert classifier.follows(lines["train-simclr-simclr"], tmp_path)
    assert not Line("", "taskuq demo -o runs/demo").follows(run, tmp_path)
