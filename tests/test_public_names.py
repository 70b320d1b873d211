"""What `import refold` offers is listed, exists, and is documented."""

from __future__ import annotations

import subprocess
import sys

import pytest

import refold
from tests.support.stores import ROOT


@pytest.mark.parametrize("name", refold.__all__)
def test_a_public_name_exists_and_is_documented(name: str) -> None:
    assert getattr(refold, name) is not None
    if name == "__version__":
        return
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    source = (ROOT / "refold" / "domain" / "errors.py").read_text("utf-8")
    assert getattr(refold, name).__doc__
    assert name in source or any(name in page.read_text("utf-8") for page in pages)


def test_what_is_not_public_is_no_attribute() -> None:
    assert set(dir(refold)) == set(refold.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        refold.nothing  # noqa: B018  # the look-up is the test


def test_importing_refold_loads_nothing_heavy() -> None:
    heavy = {"pydantic", "sqlalchemy", "psycopg", "eventsourcing", "anthropic", "rich"}
    code = "import refold, sys; print(*sys.modules)"

    loaded = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()

    assert not heavy & {module.split(".")[0] for module in loaded}
