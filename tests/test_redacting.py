"""`refold.redact` does to a value what an append does, without the append."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import refold
from refold import opener

MAIL = "ada.lovelace@analytical.org"
GONE = "[REDACTED:EMAIL]"


def test_a_text_is_redacted() -> None:
    assert refold.redact(f"write to {MAIL}") == f"write to {GONE}"


def test_a_value_is_copied_where_it_changes() -> None:
    value = {"to": [MAIL, 1, None], "as": {"x": 2.5}}

    clean = refold.redact(value)

    assert clean == {"to": [GONE, 1, None], "as": {"x": 2.5}}
    assert value["to"] == [MAIL, 1, None]
    assert clean["as"] is value["as"]


def test_json_in_a_text_is_redacted_as_json() -> None:
    clean = refold.redact('{"student_id": 2021001234}')

    assert clean == '{"student_id": "[REDACTED:STUDENT_ID]"}'


def test_a_policy_is_given_as_an_object_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "china.toml").write_text('version = 1\npacks = ["pii-cn"]')

    for policy in (refold.Policy.of_packs(["pii-cn"]), tmp_path / "china.toml"):
        for _ in range(2):  # the second call uses the cached redactor
            clean = refold.redact(f"{MAIL} 13912345670", policy)
            assert clean == f"{MAIL} [REDACTED:PHONE]"


def test_the_environment_names_a_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "none.toml").write_text("version = 1\npacks = []")
    assert refold.redact(MAIL) == GONE

    monkeypatch.setenv("REFOLD_POLICY", str(tmp_path / "none.toml"))

    assert refold.redact(MAIL) == MAIL


def test_a_relative_path_starts_at_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder, packs in (("all", '["pii-common"]'), ("none", "[]")):
        (tmp_path / folder).mkdir()
        policy = tmp_path / folder / "policy.toml"
        policy.write_text(f"version = 1\npacks = {packs}")
    monkeypatch.chdir(tmp_path / "none")
    assert refold.redact(MAIL, "policy.toml") == MAIL

    monkeypatch.chdir(tmp_path / "all")

    assert refold.redact(MAIL, "policy.toml") == GONE
    monkeypatch.setenv("REFOLD_POLICY", "policy.toml")
    assert refold.redact(MAIL) == GONE
    monkeypatch.chdir(tmp_path / "none")
    assert refold.redact(MAIL) == MAIL


def test_another_thread_may_clear_the_cache_after_a_look_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class ClearedAfterLookUp(dict[Any, Any]):
        def __contains__(self, key: object) -> bool:
            is_cached = super().__contains__(key)
            self.clear()
            return is_cached

        def get(self, key: Any, default: Any = None) -> Any:
            value = super().get(key, default)
            self.clear()
            return value

    monkeypatch.setattr(opener, "_redactors", ClearedAfterLookUp())

    for _ in range(3):
        assert refold.redact(MAIL) == GONE


def test_each_policy_is_used_although_an_earlier_one_had_its_id() -> None:
    """Python frees each policy, and may give its id to the next one."""
    for number in range(20):
        finds_mail = number % 2 == 0
        packs = ["pii-common"] if finds_mail else ["pii-cn"]

        clean = refold.redact(MAIL, refold.Policy.of_packs(packs))

        assert clean == (GONE if finds_mail else MAIL)


def test_a_redaction_error_does_not_contain_the_value() -> None:
    deep: object = MAIL
    for _ in range(200):
        deep = [deep]

    with pytest.raises(refold.RefoldError, match="could not be redacted") as raised:
        refold.redact(deep)
    assert MAIL not in str(raised.value)


def test_a_policy_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(refold.InvalidConfiguration, match="cannot be read"):
        refold.redact(MAIL, tmp_path / "gone.toml")
