"""A browser that opens pages as a reader would, and the accessibility checker."""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCREENSHOTS = ROOT / "build/screenshots"
AXE = "4.14.0"
AXE_SHA256 = "20c09fe157a8a34a30e241aaa1fcdade657734f08ab379ecfbeb7d45cc46e878"
# Where changes are landed a missing browser is a failure, elsewhere a skip that says so.
REQUIRED = os.environ.get("TASKUQ_BROWSER") == "required"


def missing(what):
    """Fail or skip, according to where we are."""
    if REQUIRED:
        pytest.fail(f"{what}, and TASKUQ_BROWSER=required")
    pytest.skip(what)


@pytest.fixture(scope="session")
def browser():
    program = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None
    )
    if program is None:
        missing("no chromium is installed (Debian: apt-get install chromium)")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        missing("playwright is not installed (pip install 'taskuq[test]')")
    with sync_playwright() as driver:
        # A container's root has no sandbox to start in.
        arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
        opened = driver.chromium.launch(executable_path=program, args=arguments)
        yield opened
        opened.close()


class Heard:
    """What a page said and asked for while it was open."""

    def __init__(self, page):
        self.messages, self.requests, self.dialogs = [], [], []
        page.on("console", lambda message: self.messages.append(message.text))
        page.on("pageerror", lambda error: self.messages.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()))

    @property
    def outside(self):
        """Requests that leave the page's own file and data."""
        return [url for url in self.requests if not url.startswith(("data:", "file:"))]


@pytest.fixture
def open_page(browser):
    """Open a file as a reader would; close everything afterwards."""
    contexts = []

    def open_(path, *, width=1280, height=900, scheme="light", fragment="", **options):
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            offline=True,
            **options,
        )
        contexts.append(context)
        page = context.new_page()
        page.heard = Heard(page)
        page.goto(Path(path).as_uri() + fragment)
        page.wait_for_load_state("load")
        return page

    yield open_
    for context in contexts:
        context.close()


def on_screen(page, selector):
    """Whether all of an element is seen without scrolling."""
    box = page.locator(selector).bounding_box()
    size = page.viewport_size
    return (
        page.evaluate("scrollX + scrollY") == 0
        and min(box["x"], box["y"]) >= 0
        and box["x"] + box["width"] <= size["width"]
        and box["y"] + box["height"] <= size["height"]
    )


def unfold(page):
    """Open whatever is folded."""
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")


def violations(page, axe):
    """What the accessibility checker calls serious or critical: rule, impact, elements."""
    page.evaluate(axe)
    result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        (v["id"], v["impact"], [n["html"][:160] for n in v["nodes"][:4]])
        for v in result["violations"]
        if v["impact"] in ("serious", "critical")
    ]


@pytest.fixture
def keep(request):
    """Keep a screenshot as an artefact."""

    def keep_(page, name, **options):
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SCREENSHOTS / f"{name}.png", **options)

    return keep_


@pytest.fixture(scope="session")
def axe():
    """The text of axe-core, fetched once from npm and known by its sum."""
    folder = ROOT / "build/axe"
    script = folder / "node_modules/axe-core/axe.min.js"
    if not script.exists():
        npm = shutil.which("npm")
        if npm is None:
            missing("npm is not installed, so axe-core cannot be fetched")
        folder.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [npm, "install", "--no-save", "--ignore-scripts", "--prefix", str(folder),
             f"axe-core@{AXE}"], capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        if done.returncode:
            missing(f"axe-core cannot be fetched from npm ({done.stderr.strip()[-200:]})")
    text = script.read_text()
    assert hashlib.sha256(text.encode()).hexdigest() == AXE_SHA256
    return text
