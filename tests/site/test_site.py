import os
import re
import subprocess
import sys
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlparse

import pytest
from docutils import nodes
from extensions import formulas, gallery, links, notebooks, reference
from sphinx.util.inventory import InventoryFile

import taskuq

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PARTS = ["tutorials", "how-to", "explanation", "reference", "results"]
PAGES = ["index.html", "how-to/choose.html", "explanation/guarantees.html", "results/paper.html",
         "reference/commands.html", "reference/glossary.html", "reference/api.html",
         "_made/commands/plan.html", "_made/gallery.html"]  # fmt: skip


def build(source, out):
    """Build a site as ``make docs`` does: a warning is an error."""
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "-b", "html", str(source), str(out)]
    return subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"MPLBACKEND": "Agg"}
    )


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    out = tmp_path_factory.mktemp("site")
    done = build(DOCS, out)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def test_no_link_inside_the_site_is_broken(site):
    assert len(list(site.rglob("*.html"))) > 30
    assert links.broken_links(site) == []


def test_a_broken_link_is_found(tmp_path):
    (tmp_path / "a.html").write_text('<a href="b.html#x">b</a><a href="#y">y</a><img src="c.svg">')
    (tmp_path / "b.html").write_text('<p id="x"></p><a href="a.html">a</a><a href="//h/z">z</a>')
    assert links.broken_links(tmp_path) == [("a.html", "#y"), ("a.html", "c.svg")]


def test_every_public_name_is_in_the_reference(site):
    with (site / "objects.inv").open("rb") as file:
        known = {
            name
            for kind, names in InventoryFile.load(file, "", lambda base, uri: uri).items()
            if kind.startswith("py:")
            for name in names
        }
    assert {f"taskuq.{name}" for name in set(taskuq.__all__) - {"__version__"}} <= known
    assert {f"{module}.{name}" for module, name in reference.public()} <= known
    assert {
        "taskuq.recover.build", "taskuq.recover.load", "taskuq.task.build", "taskuq.task.load",
        "taskuq.protocols.Measure", "taskuq.protocols.Recover", "taskuq.protocols.Task",
        "taskuq.protocols.Score",
    } <= known  # fmt: skip


def test_imports_of_a_page_are_public():
    text = "```python\nfrom taskuq.data._atlas import Atlas\nimport numpy\n```\n```text\nx\n```\n"
    assert reference.imported(text) == [("taskuq.data._atlas", "Atlas")]


def test_the_page_of_a_removed_subpackage_is_removed(tmp_path):
    gone = tmp_path / "_made/reference/gone.md"
    gone.parent.mkdir(parents=True)
    gone.write_text("# Gone")
    reference.write_pages(SimpleNamespace(srcdir=tmp_path))
    assert not gone.exists()
    assert (gone.parent / "report.md").exists()


@pytest.mark.parametrize("part", PARTS)
def test_every_page_of_a_part_is_listed_and_in_the_navigation(part):
    text = (DOCS / part / "index.md").read_text()
    listed = re.findall(r"\]\(([\w-]+)\.md\)", text)
    navigation = re.findall(r"^([\w-]+)$", text.partition("{toctree}")[2], re.MULTILINE)
    assert navigation == listed
    assert {*navigation, "index"} == {path.stem for path in (DOCS / part).glob("*.md")}


def test_every_command_and_option_has_its_page(site):
    from taskuq.cli.app import COMMANDS

    assert len(COMMANDS) > 20
    for name in COMMANDS:
        for words, options in options_of(name.split()):
            page = site / "_made/commands" / f"{name.replace(' ', '-')}.html"
            text = unescape(re.sub("<[^>]+>", " ", page.read_text()))
            missing = [one for one in options if not re.search(rf"{one}(?![\w-])", text)]
            assert missing == [], words


def options_of(words):
    """Return the option names of a command and of its subcommands."""
    from taskuq.cli.app import app

    command = app
    for word in words:
        command = command[word]
    if command.default_command is None:
        inside = [name for name in command if not name.startswith("-")]
        return [found for name in inside for found in options_of([*words, name])]
    arguments = command.assemble_argument_collection()
    names = {name for one in arguments for name in set(one.names) - set(one.negatives)}
    return [(" ".join(words), sorted(name for name in names if name.startswith("--")))]


def test_every_picture_of_the_gallery_is_drawn_by_its_code(site):
    page = (site / "_made/gallery.html").read_text()
    assert len(gallery.scripts()) >= 8
    for script in gallery.scripts():
        assert f"{script.stem}.svg" in page
        assert list((site / "_images").glob(f"{script.stem}*.svg"))


def test_every_tutorial_ends_in_a_picture(site):
    for script in notebooks.scripts():
        page = (site / f"_made/tutorials/{script.stem}.html").read_text()
        assert f"_images/{script.stem}-" in page or not notebooks.is_installed(script)


def test_nothing_is_loaded_from_elsewhere_and_formulas_are_mathml(site):
    for path in site.rglob("*.html"):
        loads = [load for load in links.Anchors(path.read_text()).loads if urlparse(load).netloc]
        assert loads == [], path
    assert (site / "explanation/proofs.html").read_text().count("<math") > 250


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("$\\nosuchthing{x}$", "nosuchthing"),
        ("<a href='nowhere.html'>there</a>", "nowhere.html"),
        ("[there](nowhere.md)", "nowhere.md"),
    ],
)
def test_an_invalid_formula_or_link_fails_the_build(tmp_path, text, message):
    (tmp_path / "conf.py").write_text(
        f"import sys\nsys.path.insert(0, {str(DOCS)!r})\n"
        "extensions = ['myst_parser', 'extensions.formulas', 'extensions.links']\n"
        "myst_enable_extensions = ['dollarmath']\nhtml_math_renderer = 'mathml'\n"
    )
    (tmp_path / "index.md").write_text(f"# Page\n\n{text}\n")
    done = build(tmp_path, tmp_path / "out")
    assert done.returncode != 0
    assert message in done.stderr


@pytest.mark.parametrize(
    ("tex", "part"),
    [
        (r"\hat z_i", "<msub>"),
        (r"S_1, \dots, S_n", "…"),
        (r"\big(x\big)", "minsize"),
        (r"\frac12 x", "<mn>1</mn>"),
        (r"a + \textstyle\sum_i s_i", "∑"),
    ],
)
def test_formulas_that_docutils_lacks_are_translated(tex, part):
    found = formulas.mathml(nodes.math(tex, tex), as_block=False)
    assert part in found
    assert "<munder" not in found
    assert "<code>" not in found


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("install", "get-started/install.html"),
        ("how many patients", "how-to/sample-size.html"),
        ("guarantees", "explanation/guarantees.html"),
    ],
)
def test_search_finds_the_page_first(site, open_page, query, first):
    page = open_page(site / "search.html", fragment=f"?q={query.replace(' ', '+')}")
    page.wait_for_selector("#search-results li a")
    assert first in page.get_attribute("#search-results li a", "href")
    assert page.heard.outside == []


@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing_serious(site, open_page, axe, name):
    page = open_page(site / name)
    page.evaluate(axe)
    found = page.evaluate("axe.run({resultTypes: ['violations']})")
    serious = [
        (one["id"], one["nodes"][0]["html"][:200])
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]
    assert serious == []
    assert page.heard.outside == []
