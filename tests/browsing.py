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
# A missing browser is a failure if required, else a skip.
REQUIRED = os.environ.get("TASKUQ_BROWSER") == "required"


def missing(what):
    """Fail if a browser is required, else skip."""
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
    """Console messages, requests and dialogs of a page."""

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


# Open pages by file and options, at most KEPT: to load a report takes longer than to reset it.
PAGES, KEPT = {}, 8


@pytest.fixture
def open_page(browser):
    """Open a file, or take an open page of it and reset it."""
    used = []

    def open_(path, *, width=1280, height=900, scheme="light", fragment="", **options):
        stat = Path(path).stat()
        key = str(path), stat.st_mtime_ns, stat.st_size, *sorted(options.items())
        page = next((p for p in PAGES.get(key, ()) if p not in used), None)
        is_new = page is None
        if is_new:
            context = browser.new_context(offline=True, **options)
            page = context.new_page()
            page.heard = Heard(page)
            PAGES.setdefault(key, []).append(page)
        used.append(page)
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme=scheme, media="screen")
        if not is_new:
            page.evaluate(RESET)
        if is_new or fragment:
            page.goto(Path(path).as_uri() + fragment)
            page.wait_for_load_state("load")
        return page

    yield open_
    while sum(map(len, PAGES.values())) > KEPT:
        for page in PAGES.pop(next(iter(PAGES))):
            page.context.close()


# Back to the state after loading: the explorer starts anew when its fragment changes.
RESET = """async () => {
    for (const one of document.querySelectorAll('details')) one.open = false;
    for (const one of document.querySelectorAll('input[type=checkbox]')) one.checked = false;
    document.activeElement?.blur();
    window.scrollTo({top: 0, behavior: 'instant'});
    const changed = new Promise((done) => addEventListener('hashchange', done, {once: true}));
    location.hash = '#slice=0&view=mean&reset=' + Math.random();
    await changed;
}"""


def on_screen(page, selector):
    """Return True if all of an element is seen without scrolling."""
    box = page.locator(selector).bounding_box()
    size = page.viewport_size
    return (
        page.evaluate("scrollX + scrollY") == 0
        and min(box["x"], box["y"]) >= 0
        and box["x"] + box["width"] <= size["width"]
        and box["y"] + box["height"] <= size["height"]
    )


OVERPRINTED = """() => {
    const boxes = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node; (node = walker.nextNode());) {
        const parent = node.parentElement;
        if (!node.data.trim() || parent.closest('.unseen, .skip, select, noscript')) continue;
        if (!parent.checkVisibility({opacityProperty: true, visibilityProperty: true})) continue;
        const range = document.createRange();
        range.selectNodeContents(node);
        for (const r of range.getClientRects()) {
            // Letters fill the middle of their line.
            const pad = r.height * 0.22;
            const hidden = parent.closest('.scroll, .strip, .views');
            const clip = hidden && hidden.getBoundingClientRect();
            if (clip && (r.right > clip.right || r.left < clip.left)) continue;
            const top = parent.closest('tbody') ? 60 : 0;  // below the head that stays
            if (clip && (r.bottom > clip.bottom || r.top < clip.top + top)) continue;
            if (r.width > 1) boxes.push([r.left, r.top + pad, r.right, r.bottom - pad, node]);
        }
    }
    const found = [];
    boxes.sort((a, b) => a[1] - b[1]);
    for (let i = 0; i < boxes.length; i++) {
        for (let j = i + 1; j < boxes.length && boxes[j][1] < boxes[i][3]; j++) {
            const [a, b] = [boxes[i], boxes[j]];
            if (a[4] === b[4] || Math.min(a[2], b[2]) - Math.max(a[0], b[0]) < 2) continue;
            if (Math.min(a[3], b[3]) - Math.max(a[1], b[1]) < 1) continue;
            found.push([a[4].data.trim().slice(0, 40), b[4].data.trim().slice(0, 40)]);
        }
    }
    return found;
}"""


def overprinted(page):
    """Return pairs of texts that are printed over each other."""
    return page.evaluate(OVERPRINTED)


def unfold(page):
    """Open all folded parts."""
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")


def violations(page, axe):
    page.evaluate(axe)
    result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        (v["id"], v["impact"], [n["html"][:160] for n in v["nodes"][:4]])
        for v in result["violations"]
        if v["impact"] in ("serious", "critical")
    ]


@pytest.fixture
def keep(request):
    def keep_(page, name, **options):
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=SCREENSHOTS / f"{name}.png", **options)

    return keep_


@pytest.fixture(scope="session")
def axe():
    """The text of axe-core, fetched once from npm and checked by its sum."""
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
