"""Secrets that attackers placed are found by both engines, once and for all."""

from __future__ import annotations

import json

import pytest

from benchmarks.redaction.adversarial import Case, cases
from refold.redaction import Plan, Redactor
from refold.redaction.engines import installed

ENGINES = ["stdlib", *(["vectorscan"] if installed() else [])]
ALL = [*cases("dev", times=1), *cases("held_out", times=1)]
KEYS = [case for case in ALL if case.kind == "key"]


def values_left(case: Case, clean: str) -> list[str]:
    return [secret for secret in case.secrets if secret in clean]


@pytest.mark.parametrize("engine", ENGINES)
def test_nearly_all_secrets_in_tool_results_are_found(engine: str) -> None:
    redactor = Redactor(Plan(engine=engine))  # type: ignore[arg-type]  # one of them
    missed = [
        case.text
        for case in ALL
        if values_left(case, json.dumps(redactor.value({"content": case.text})[0]))
    ]

    assert len(ALL) > 200
    assert len(missed) <= 0.03 * len(ALL), missed


@pytest.mark.parametrize("engine", ENGINES)
def test_no_line_of_a_private_key_is_left(engine: str) -> None:
    redactor = Redactor(Plan(engine=engine))  # type: ignore[arg-type]  # one of them

    for case in KEYS:
        assert not values_left(case, redactor.text(case.text)[0]), case.text[:80]


def test_another_pass_finds_no_more() -> None:
    redactor = Redactor(Plan(engine="stdlib"))

    for case in ALL:
        once, _ = redactor.text(case.text)
        assert redactor.text(once)[0] == once


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("password: *db_password", "password: *db_password"),
        ("password: !Ref DbPassword", "password: !Ref DbPassword"),
        ("--passphrase=PASS  ask for it", "--passphrase=PASS  ask for it"),
        ("db://user:password@localhost/db", "db://user:password@localhost/db"),
        ("sk_live_AAAAAAAAAAAAAAAAAAAAAAAA", "[REDACTED:API_KEY]"),
        ("sk_live_xxxxxxxxxxxxxxxxxxxxxxxx", "sk_live_xxxxxxxxxxxxxxxxxxxxxxxx"),
        ("XAUTH = bytes([41]) # and more", "XAUTH = bytes([41]) # and more"),
        (
            "password: Winter2024 sslmode=require",
            "password: [REDACTED:SECRET] sslmode=require",
        ),
        ("password: aB3xK9mQ7z port=5432", "password: [REDACTED:SECRET] port=5432"),
        (
            "password: str = 'hunter2x'",
            "password: str = '[REDACTED:SECRET]'",
        ),
        (
            "password=[REDACTED:SECRET]hunter2xyz",
            "password=[REDACTED:SECRET][REDACTED:SECRET]",
        ),
        (
            "password=[REDACTED:SECRET] and more",
            "password=[REDACTED:SECRET] and more",
        ),
        (
            "user,password\nada,hunter2x\nbob,bear-77Q\n",
            "user,password\nada,[REDACTED:SECRET]\nbob,[REDACTED:SECRET]\n",
        ),
    ],
)
def test_only_the_value_is_removed_from_its_surroundings(text: str, clean: str) -> None:
    assert Redactor(Plan(engine="stdlib")).text(text)[0] == clean


@pytest.mark.parametrize(
    "words",
    [
        ["sshpass", "-p", "bear-77Q", "ssh", "ada@host"],
        ["sudo", "sshpass", "-p", "bear-77Q", "ssh"],
        ["docker", "login", "-u", "ada", "-p", "bear-77Q", "registry"],
        ["az", "login", "-u", "ada", "-p", "bear-77Q"],
        ["mysql", "-u", "root", "-pbear-77Q"],
        ["gh", "secret", "set", "NAME", "-b", "bear-77Q"],
    ],
    ids=lambda words: words[0],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_a_list_of_arguments_in_a_text_is_a_command(
    words: list[str], engine: str
) -> None:
    redactor = Redactor(Plan(engine=engine))  # type: ignore[arg-type]  # one of them
    forms = [
        json.dumps(words),
        json.dumps(words, indent=2),
        json.dumps(words, separators=(",", ":")),
        str(words),
        str(words).replace(" ", ""),
        f"subprocess.run({words})",
    ]

    for text in forms:
        clean, _ = redactor.text(text)

        assert "bear-77Q" not in clean
        assert "REDACTED" in clean


@pytest.mark.parametrize(
    "value",
    [
        {
            "columns": ["user", "password"],
            "rows": [["ada", "hunter2"], ["bob", "x1y2"]],
        },
        {
            "headers": [{"name": "user"}, {"name": "token"}],
            "data": [["a", "q7Zt0Kx3Vb9L"]],
        },
        {"value": "hunter2", "name": "db_password"},
        {"ParameterKey": "DbPassword", "ParameterValue": "hunter2"},
        {"Id": "password", "Value": "hunter2"},
        {"SecretString": "q7Zt0Kx3Vb9L"},
        {"command": ["mysql", "-u", "root", "-phunter2", "db"]},
        {"argv": ["/usr/bin/sshpass", "-p", "hunter2", "ssh", "ada@host"]},
        {"argv": ["docker", "login", "-u", "ada", "-p", "hunter2"]},
        {"argv": ["sudo", "-n", "sshpass", "-p", "hunter2", "ssh", "ada@host"]},
        {"argv": ["env", "A=b", "redis-cli", "-a", "hunter2"]},
        {"argv": ["python", "-m", "twine", "upload", "-p", "hunter2", "dist/*"]},
        {"mnemonic": " ".join(["legal winner thank year wave sausage"] * 2)},
    ],
)
@pytest.mark.parametrize("engine", ENGINES)
def test_json_says_what_its_values_are(value: dict[str, object], engine: str) -> None:
    plain = json.dumps([value, {"nested": [value, {"a": {"b": [1, 2, 3]}}]}])
    redactor = Redactor(Plan(engine=engine))  # type: ignore[arg-type]  # one of them

    clean = json.dumps(redactor.value(json.loads(plain))[0])

    for secret in ("hunter2", "q7Zt0Kx3Vb9L", "x1y2", "legal winner"):
        assert secret not in clean
    assert "REDACTED" in clean
