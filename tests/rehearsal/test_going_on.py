"""A rehearsal that meets failures, is repeated, or is given other people's files."""

import json

import pytest
from places import CONFIGS
from volumes import write_volume

from taskuq.commands.app import main
from taskuq.errors import InputError
from taskuq.fingerprints import content_fingerprint
from taskuq.runs.rehearsal.child import Ended, run_command
from taskuq.runs.rehearsal.folder import Settings, WorkFolder
from taskuq.runs.rehearsal.recipe import read_recipe
from taskuq.runs.rehearsal.run import Rehearsal

SMALL = """# 1. Try
taskuq calibrate data/a.npz -o runs/a.json
taskuq predict runs/a.json data/a.npz -o runs/a.csv
taskuq calibrate data/b.npz -o runs/b.json
"""


class Played:
    """Stands in for processes: which commands fail, and which were run."""

    def __init__(self, *failing):
        self.failing, self.ran = failing, []

    def __call__(self, words, folder, log):
        self.ran.append(words[words.index("-o") + 1])
        status = int(any(word in self.failing for word in words))
        said = ((0.1, "Traceback"), (0.2, "taskuq: the disk is full")) if status else ()
        return Ended(status, 1.0, said, "cpu", 0, 2**30)


@pytest.fixture
def rehearse(tmp_path, monkeypatch):
    """Rehearse three commands whose processes are played."""
    monkeypatch.setattr(WorkFolder, "lay_out", lambda self, tell: None)
    monkeypatch.setattr(WorkFolder, "parameters", {})
    monkeypatch.setattr(WorkFolder, "trainings", {"none": {"training": {"batch": 4}}})

    def start(*failing, fresh=False, text=SMALL):
        played, said = Played(*failing), []
        monkeypatch.setattr("taskuq.runs.rehearsal.run.run_command", played)
        rehearsal = Rehearsal(
            tmp_path / "out", Settings(CONFIGS, toy=True), said.append, tuple(read_recipe(text))
        )
        record = rehearsal.run(fresh=fresh)
        return [r["status"] for r in record["lines"]], played.ran, "\n".join(said), record

    return start


def test_a_failure_ends_nothing_and_skips_what_needs_it(rehearse):
    found, ran, said, record = rehearse("data/a.npz")

    assert found == ["failed", "skipped", "passed"]
    assert ran == ["runs/a.json", "runs/b.json"]
    assert record["lines"][0]["error"] == "Traceback\ntaskuq: the disk is full\nexit status 1"
    assert "taskuq: the disk is full" in said
    assert "skipped: needs what 'taskuq calibrate data/a.npz -o' should have made" in said


def test_what_has_passed_is_kept_and_what_has_not_is_run_again(rehearse):
    rehearse("data/a.npz")

    found, ran, said, _ = rehearse()

    assert (found, ran) == (["passed"] * 3, ["runs/a.json", "runs/a.csv"])
    assert said.count("passed before, with this code and configuration, and kept") == 1


def test_what_reads_a_file_that_was_made_anew_is_run_again(rehearse):
    rehearse()

    changed = SMALL.replace("-o runs/a.json", "-o runs/a.json --alpha 0.2")
    found, ran, _, _ = rehearse(text=changed)

    # The second command is to the character what it was.
    assert (found, ran) == (["passed"] * 3, ["runs/a.json", "runs/a.csv"])


def test_a_fresh_rehearsal_keeps_nothing(rehearse):
    rehearse()

    assert rehearse(fresh=True)[1] == ["runs/a.json", "runs/a.csv", "runs/b.json"]
    assert rehearse()[1] == []


def test_other_code_keeps_nothing(rehearse, monkeypatch):
    rehearse()
    monkeypatch.setattr("taskuq.runs.rehearsal.run._code", lambda: "another")

    assert rehearse()[1] == ["runs/a.json", "runs/a.csv", "runs/b.json"]


def test_another_machine_keeps_nothing(rehearse, monkeypatch):
    rehearse()
    monkeypatch.setattr("taskuq.runs.rehearsal.run._machine", lambda: ["another GPU", 96])

    assert rehearse()[1] == ["runs/a.json", "runs/a.csv", "runs/b.json"]


def test_the_time_of_what_was_kept_counts(rehearse):
    rehearse("data/b.npz")

    record = rehearse()[3]
    assert [r["kept"] for r in record["lines"]] == [True, True, False]
    # A second each, of which one is played in this start and takes none.
    assert 2.0 <= record["seconds"] < 2.9


def test_commands_that_fill_one_place_are_run_together_and_find_it_empty(rehearse, tmp_path):
    text = "# 1. Try\n" + "".join(
        f"taskuq predict {name} -o runs/{name}.csv --cache cache/both\n" for name in "ab"
    )
    rehearse("b", text=text)
    left = tmp_path / "out/work/cache/both/of-before"
    left.parent.mkdir(parents=True)
    left.touch()

    assert rehearse(text=text)[1] == ["runs/a.csv", "runs/b.csv"]
    assert not left.exists()


def test_a_folder_of_other_things_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("precious")

    with pytest.raises(InputError, match="holds other things than a rehearsal"):
        Rehearsal(tmp_path, Settings(CONFIGS, toy=True)).run(fresh=True)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_a_folder_without_the_configurations_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["rehearse", str(tmp_path), "-o", str(tmp_path / "out"), "--toy"])

    assert stopped.value.code == 2
    assert "lacks classifier.toml, flow.toml" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "sentence"), [({"steps": 1}, "at least 2"), ({"volumes": 3}, "take 4 to 10")]
)
def test_too_little_is_refused(settings, sentence):
    with pytest.raises(InputError, match=sentence):
        Settings(CONFIGS, **settings)


def test_a_process_is_timed_and_what_it_said_is_kept(tmp_path):
    ended = run_command(["status", "absent", "--traceback"], tmp_path, tmp_path / "log.txt")

    assert ended.status == 2
    assert ended.text.splitlines()[-1].startswith("taskuq: ")
    assert "Traceback" in ended.text
    # Memory is its own, not that of the tests, which torch has made large.
    assert 2**24 < ended.peak_host_bytes < 2**29
    assert (tmp_path / "log.txt").read_text().splitlines()[-1].endswith(ended.said[-1][1])


def make_own(folder, *, tables=True):
    """Volumes of the exact layout that somebody has."""
    names = []
    for part in ("train", "val"):
        for k in range(6):
            names.append(f"file{part}{k}")
            path = folder / f"knee_multicoil_{part}" / f"{names[-1]}.h5"
            write_volume(path, slices=2, coils=9, height=320, width=320, recon=320)
    write_volume(folder / "knee_multicoil_train/other.h5", coils=9, acquisition="CORPDFS_FBK")
    if tables:
        rows = [f"{name},0,No,1,2,3,4,Meniscus Tear" for name in names[1::2]]
        header = "file,slice,study_level,x,y,width,height,label"
        (folder / "knee.csv").write_text("\n".join([header, *rows]))
        (folder / "knee_file_list.csv").write_text("\n".join(names))


@pytest.mark.parametrize("tables", [True, False])
def test_own_files_are_linked_and_never_touched(tmp_path, tables):
    own, said = tmp_path / "own", []
    make_own(own, tables=tables)
    before = content_fingerprint(own)
    work = WorkFolder(
        tmp_path / "work", Settings(CONFIGS, data=own, toy=True, volumes=4), tuple(read_recipe())
    )
    work.copy_configs()
    work.lay_out(said.append)

    links = list((work.path / "data").rglob("*.h5"))
    # Enough for three steps of four: six volumes of two slices would not be.
    assert {link.stem for link in links} >= {"filetrain1", "fileval1"}
    assert all(link.is_symlink() and link.resolve().parent.parent == own for link in links)
    assert "other" not in {link.stem for link in links}
    assert content_fingerprint(own) == before
    assert any("annotations are made up" in line for line in said) != tables
    assert (work.path / "data/knee.csv").is_symlink() == tables


def test_data_of_other_settings_are_refused(tmp_path):
    own = tmp_path / "own"
    make_own(own)
    for volumes in (4, 5):
        settings = Settings(CONFIGS, data=own, toy=True, volumes=volumes)
        work = WorkFolder(tmp_path / "out/work", settings, tuple(read_recipe()))
        work.copy_configs()
        if volumes == 4:
            work.lay_out(lambda line: None)
    with pytest.raises(InputError, match="volumes 4 there, 5 here"):
        work.lay_out(lambda line: None)
    assert json.loads((tmp_path / "out/work/data.json").read_text())["volumes"] == 4


def test_every_step_of_a_trial_sees_a_whole_batch(tmp_path):
    for volumes in range(4, 11):
        work = WorkFolder(tmp_path, Settings(CONFIGS, volumes=volumes), tuple(read_recipe()))
        work.copy_configs()
        learned = (volumes - 1) * work.slices[0]
        for table in work.trainings.values():
            batch = table["training"]["batch"]
            ends = [min(batch, learned - start) for start in range(0, learned, batch)]
            assert set((ends * 3)[:3]) == {batch}
