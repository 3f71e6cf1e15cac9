"""A browser that opens the demo's page."""

from browsing import browser, keep, open_page

__all__ = ["browser", "keep", "open_page"]
