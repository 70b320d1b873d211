"""An identifier has a kind; a piece of prose or code has none."""

from __future__ import annotations

import pytest

from refold.projections.context.identifiers import kind_of


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("https://example.org/docs", "url"),
        ("staging.example.org", "host"),
        ("localhost:8080", "host"),
        ("10.0.0.7", "host"),
        ("src/store/main.py", "path"),
        ("/srv/build", "path"),
        ("8f3c2a1", "hash"),
        ("#412", "issue"),
        ("CORE-17", "issue"),
        ("filepath.Join", "symbol"),
        ("ParseConfig()", "symbol"),
        ("max_tokens", "symbol"),
        ("TestParse", "symbol"),
        ("cards-db-2", "symbol"),
        ("main.go", "symbol"),
        ("1218", "number"),
        ("2026-01-05", "number"),
        ("Mia Li", "name"),
        ("北京市", "name"),
        ("x = 1 7", None),
        ("Her card record", None),
        ("failed to open %s: %w", None),
        ("Run the linter after the fixes", None),
        ("state, err", None),
        ("git status --short", None),
    ],
)
def test_the_kind_of_a_text(text: str, kind: str | None) -> None:
    assert kind_of(text) == kind
