"""Check of all links inside the site: pages, anchors, images, scripts."""

import html.parser
from pathlib import Path
from urllib.parse import unquote, urlparse

from sphinx.util import logging

logger = logging.getLogger(__name__)


class Anchors(html.parser.HTMLParser):
    """Ids, links and loaded files of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids, self.links, self.loads = set(), [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.ids.update(filter(None, (given.get("id"), given.get("name"))))
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag in ("img", "script", "iframe") and given.get("src"):
            self.loads.append(given["src"])
        if tag == "link" and given.get("href") and given.get("rel") in ("stylesheet", "icon"):
            self.loads.append(given["href"])


def broken_links(folder: Path) -> list[tuple[str, str]]:
    """Return the broken links inside a site, as (page, link)."""
    pages = {path.resolve(): Anchors(path.read_text()) for path in sorted(folder.rglob("*.html"))}
    broken = []
    for path, page in pages.items():
        for link in (*page.links, *page.loads):
            parts = urlparse(link)
            if parts.scheme or parts.netloc:
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            fragment = unquote(parts.fragment)
            nowhere = fragment and there in pages and fragment not in pages[there].ids
            if not there.is_file() or nowhere:
                broken.append((path.relative_to(folder.resolve()).as_posix(), link))
    return broken


def check(app, exception):
    if exception is None and app.builder.format == "html":
        for page, link in broken_links(Path(app.outdir)):
            logger.warning("%s links to %s, which does not exist", page, link, type="links")


def setup(app):
    app.connect("build-finished", check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
