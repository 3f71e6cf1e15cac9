import re
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml
from studies import release

ROOT = Path(__file__).resolve().parents[1]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def test_files_name_one_version(monkeypatch):
    assert release.VERSION in release.require_one_version()
    monkeypatch.setattr(release, "VERSION", "9.9.9")
    with pytest.raises(SystemExit, match=r"__init__.py does not name version 9\.9\.9"):
        release.require_one_version()


def test_table_of_versions_holds_every_python_and_the_lowest_dependencies():
    lines = (ROOT / "docs/results/compatibility.txt").read_text().splitlines()[2:]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    declared = {c.split()[-1] for c in release.PROJECT["classifiers"] if ":: Python :: 3." in c}
    found = {(python.rpartition(".")[0], which) for python, which, *_ in rows}
    assert found == {(python, which) for python in declared for which in ("newest", "lowest")}
    assert {row[-1] for row in rows} == {"{0} of {0}".format(len(release.COMMANDS))}
    for _, which, numpy, cyclopts, numba, _ in rows:
        assert (numba == "none") == (which == "lowest")
        lowest = {f"numpy>={numpy[:-2]}", f"cyclopts>={cyclopts[:-2]}"}
        assert (lowest <= set(release.PROJECT["dependencies"])) == (which == "lowest")


@pytest.mark.parametrize("hidden", ["", "sys.modules['numba'] = None"])
def test_commands_work_without_numba_rights_home_or_locale(tmp_path, hidden):
    script = (
        f"import os, sys\n{hidden}\n{release.ARRAYS}\nfrom taskuq.cli.app import main\n"
        f"for words in {release.COMMANDS}: main(words.split())\n"
        "assert not os.environ.get('HOME') and len(os.sched_getaffinity(0)) == 1\n"
    )
    ended = release.run_alone(tmp_path, sys.executable, "-c", script)
    assert ended.returncode == 0, ended.stderr
    assert {"policy.json", "intervals.csv"} <= {path.name for path in tmp_path.iterdir()}


def test_citation_is_complete():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors", "version", "license"} <= set(cited)
    assert [cited[name] for name in ("title", "license")] == ["taskuq", release.PROJECT["license"]]
    assert cited["references"][0]["authors"][0]["family-names"] == "Wen"


def archives(
    folder, *, inside=("taskuq/a.py", "taskuq-0.1.0.dist-info/METADATA"), size=1, sdist=None
):
    with zipfile.ZipFile(folder / "taskuq.whl", "w") as wheel:
        for name in inside:
            wheel.writestr(name, "x" * size)
    needed = (*release.DOCUMENTS, "src/taskuq/a.py", *(f"{f}/x" for f in release.FOLDERS))
    with tarfile.open(folder / "taskuq.tar.gz", "w:gz") as archive:
        for name in needed if sdist is None else sdist:
            archive.addfile(tarfile.TarInfo(f"taskuq-0.1.0/{name}"))
    return folder


def test_good_archives_pass(tmp_path):
    assert "2 folders in the wheel" in release.check_contents(archives(tmp_path), {"taskuq/a.py"})


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        ({"size": int(release.LARGEST)}, "more than"),
        ({"inside": ("taskuq/a.py", "tests/b.py")}, "holds tests"),
        ({"inside": ("taskuq/b.py",)}, "taskuq.whl lacks taskuq/a.py"),
        ({"sdist": (*release.DOCUMENTS, *(f"{f}/x" for f in release.FOLDERS))}, "lacks src/taskuq"),
        ({"sdist": (*release.DOCUMENTS, "src/taskuq/a.py", "docs/a")}, "gz lacks benchmarks, con"),
    ],
)
def test_bad_archives_are_refused(tmp_path, faults, said):
    with pytest.raises(SystemExit, match=said):
        release.check_contents(archives(tmp_path, **faults), {"taskuq/a.py"})


def test_torch_without_extras_is_refused():
    release.require_no_torch([["numpy", "2.0"], ["torchless", "1"]])
    with pytest.raises(SystemExit, match="without extras, nvidia-cublas, torch came along"):
        release.require_no_torch([["Torch", "2.4"], ["nvidia_cublas", "12"]])


def test_release_needs_an_empty_folder(tmp_path):
    (tmp_path / "old.whl").touch()
    with pytest.raises(SystemExit, match="starts from nothing"):
        release.main(["-o", str(tmp_path)])


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_to_files(name):
    links = [link for link in LINK.findall((ROOT / name).read_text()) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_cards_name_a_licence():
    for card in (ROOT / "src/taskuq/training/bundled").glob("*.md"):
        assert "| licence |" in card.read_text(), card.name


def test_extras_hold_what_tests_import():
    """Every library that a test imports at its top is a dependency or in an extra."""
    extras = release.PROJECT["optional-dependencies"].values()
    lists = [release.PROJECT["dependencies"], *extras]
    known = {
        re.split(r"[^\w-]", one)[0].lower().replace("-", "_") for many in lists for one in many
    }
    names = {"yaml": "pyyaml", "PIL": "pillow", "sklearn": "scikit_learn",
             "skimage": "scikit_image"}  # fmt: skip
    paths = list((ROOT / "tests").rglob("*.py"))
    top = re.compile(r"^(?:import|from) (\w+)", re.MULTILINE)
    imported = {name for path in paths for name in top.findall(path.read_text())}
    ours = {p.stem for p in paths} | {
        "taskuq", "studies", "benchmarks", "extensions", "setup", "measure", "pipeline", "laws",
        "training", "report",
    }  # fmt: skip
    used = {names.get(n, n).lower() for n in imported - ours - sys.stdlib_module_names}
    assert used - known == set()
