"""Changes of the public API that can break a caller are found, and no others."""

from __future__ import annotations

import pytest

from tools.public_api import DUMP, MODULES, PARTS, breaking_changes

OLD = """# module refold

class Store:
    def append(self, event, *, key = None) -> int: ...
    name: str


def redact(value, policy = None) -> Any: ...
"""


def test_the_dump_has_every_public_module() -> None:
    text = DUMP.read_text("utf-8")

    assert [
        line.split()[-1] for line in text.splitlines() if line[:9] == "# module "
    ] == [*MODULES, PARTS]
    assert "\nclass Session:\n" in text
    assert "\ndef redact(" in text


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ("    name: str\n", "", "refold.Store.name"),
        ("def redact(value", "def redact(values", "refold.redact"),
        ("event, *, key = None", "event, key", "refold.Store.append"),
        ("event, *", "event, seq, *", "refold.Store.append"),
        ("policy = None", "policy = 1", "refold.redact"),
        ("class Store:", "class Stores:", "refold.Store"),
    ],
)
def test_a_change_that_breaks_callers_is_named(
    before: str, after: str, named: str
) -> None:
    changes = breaking_changes(OLD, OLD.replace(before, after))

    assert changes
    assert any(change.startswith(named) for change in changes)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("key = None", "key = None, mark = None"),
        ("    name: str\n", "    name: str\n    size: int\n"),
        ("class Store:", "class Other:\n    ...\n\n\nclass Store:"),
    ],
)
def test_an_addition_breaks_nothing(before: str, after: str) -> None:
    assert breaking_changes(OLD, OLD.replace(before, after)) == []
