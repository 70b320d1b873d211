"""Contexts of a browser that wait as long as all tests do."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import Browser, BrowserContext

from tests.support.waiting import PATIENCE_SEC


def patient_context(browser: Browser, **options: Any) -> BrowserContext:
    """Return a new context whose actions and navigations wait for PATIENCE_SEC.

    Playwright's own default is 30 s, which a page can take on a loaded machine.
    """
    context = browser.new_context(**options)
    context.set_default_timeout(PATIENCE_SEC * 1000)
    return context
