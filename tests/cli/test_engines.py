"""The command line works the same on every engine."""

from pathlib import Path

import pytest

from tests.cli.conftest import SAMPLE, Refold

SESSION = ("--user", "lin", "--session", "run")
STRATEGY = ("--strategy", "turn_window:full_turns=2,cached_turns=2")


def test_the_main_commands_work_on_every_engine(
    refold: Refold, store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_KEYS", f"sqlite:///{tmp_path / 'keys.db'}")
    monkeypatch.setenv("REFOLD_DB", store_url)

    imported = refold("import", SAMPLE, *SESSION, "--json").json()
    compacted = refold("compact", *SESSION, *STRATEGY, "--until-idle", "--json").json()
    context = refold("context", *SESSION, *STRATEGY, "--json").json()
    verified = refold("verify", "--json").json()

    assert imported["events"] == 57
    assert len(compacted) == 2
    assert [span["kind"] for span in context["spans"]] == ["summary", "summary", "raw"]
    assert (verified["ok"], verified["events"]) == (True, 59)
