"""The page on the protocol names exactly the promises that are checked."""

from __future__ import annotations

import re

from tests.simulation.promises import PROMISES
from tests.support.warm import ROOT


def test_the_page_names_the_checked_promises() -> None:
    page = (ROOT / "docs/explanation/protocol.md").read_text()
    table = page.split("## What always holds")[1].split("\n\nWhy they hold")[0]
    checks = [row.split("|")[2] for row in table.splitlines() if row.startswith("| ")]

    named = re.findall(r"`([a-z_]+)`", " ".join(checks))

    assert sorted(named) == sorted(promise.__name__ for promise in PROMISES)
