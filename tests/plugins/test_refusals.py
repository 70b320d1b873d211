"""A plugin that cannot be used is named, and leaves everything else working."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from refold.adapters import importers
from refold.adapters.importers import FORMATS
from refold.domain import plugins
from refold.domain.errors import ImportFailed, InvalidConfiguration
from refold.redaction import Policy, PolicyError
from refold.redaction.rules import PACKS
from tests.support.packages import Install, run_refold, write_package

_IMPORTER: Final = """
NAME = "notes"

def recognises(source):
    return source.path.suffix == ".notes"

def read(source):
    raise KeyError("a text of the file")
"""


def refused(path: Path, form: str = "auto") -> str:
    with pytest.raises(ImportFailed) as raised:
        importers.read(path, format=form)
    return raised.value.why


def packs_refused(name: str) -> str:
    with pytest.raises(PolicyError) as raised:
        Policy.of_packs([name])
    return raised.value.reason


def test_plugins_are_found_and_not_loaded(install: Install) -> None:
    install(
        "notes",
        {"refold.importers": {"notes": "notes"}, "refold.packs": {"ids": "notes:IDS"}},
        "raise AssertionError('it was loaded')",
    )

    assert importers.formats() == [*FORMATS, "notes"]
    packs = plugins.installed(plugins.PACKS, PACKS)
    assert packs.usable["ids"].package == "notes"
    assert packs.refused == {}


def test_packages_are_read_once_until_one_is_installed(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("notes", {"refold.importers": {"notes": "notes"}})
    assert importers.formats() == [*FORMATS, "notes"]
    listings: list[Path] = []
    read_bytes = Path.read_bytes

    def counted(path: Path) -> bytes:
        listings.append(path)
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", counted)

    assert importers.formats() == [*FORMATS, "notes"]
    assert listings == []

    install("diary", {"refold.importers": {"diary": "diary"}})
    assert importers.formats() == [*FORMATS, "diary", "notes"]


def test_a_plugin_that_cannot_be_imported_is_named_with_its_package(
    install: Install,
) -> None:
    install(
        "broken",
        {
            "refold.importers": {
                "missing": "no_such_module",
                "raising": "broken:nothing",
            },
        },
        "1 / 0",
    )
    usable = plugins.installed(plugins.IMPORTERS, FORMATS).usable

    with pytest.raises(InvalidConfiguration) as missing:
        usable["missing"].load()
    with pytest.raises(InvalidConfiguration) as raising:
        usable["raising"].load()

    assert str(missing.value) == (
        "the importer missing of the package broken cannot be loaded from "
        "no_such_module (there is no module no_such_module): update or remove the "
        "package"
    )
    assert str(raising.value) == (
        "the importer raising of the package broken cannot be loaded from "
        "broken:nothing (ZeroDivisionError): update or remove the package"
    )


def test_a_built_in_name_is_refused(install: Install) -> None:
    install(
        "greedy",
        {
            "refold.importers": {"openai": "greedy", "notes": "greedy"},
            "refold.packs": {"secrets": "greedy:PACK"},
        },
    )

    named_importers = plugins.installed(plugins.IMPORTERS, FORMATS)

    assert list(named_importers.usable) == ["notes"]
    assert named_importers.refused == {
        "openai": "the importer openai of the package greedy is refused, because "
        "the name openai is Refold's: rename it"
    }
    assert named_importers.refused["openai"] in unknown_format()
    assert Policy.of_packs(["secrets"]).plan().rules == PACKS["secrets"]
    assert "the pack secrets of the package greedy is refused" in packs_refused("no")


def unknown_format() -> str:
    with pytest.raises(InvalidConfiguration) as raised:
        importers.check_format("word")
    return str(raised.value)


def test_a_name_that_two_packages_add_is_refused(install: Install) -> None:
    install("first", {"refold.packs": {"ids": "first:PACK"}})
    install("second", {"refold.packs": {"ids": "second:PACK"}})

    reason = packs_refused("ids")

    assert "the pack ids is refused, because several packages add it" in reason
    assert "first" in reason
    assert "second" in reason


def test_an_importer_is_loaded_only_for_a_file_that_no_other_recognises(
    install: Install, tmp_path: Path
) -> None:
    install("broken", {"refold.importers": {"broken": "broken"}}, "1 / 0")
    chat = tmp_path / "chat.json"
    chat.write_text('{"messages": [{"role": "user", "content": "hello"}]}')
    other = tmp_path / "other.json"
    other.write_text('{"other": 1}')

    [transcript] = importers.read(chat)

    assert transcript.format == "openai"
    assert "the importer broken of the package broken cannot be loaded" in refused(
        other
    )


def test_a_file_that_is_no_json_can_be_recognised_by_a_plugin(
    install: Install, tmp_path: Path
) -> None:
    install(
        "notes",
        {"refold.importers": {"notes": "notes"}},
        """
from refold.adapters.importers import base

NAME = "notes"

def recognises(source):
    return source.path.suffix == ".notes"

def read(source):
    recording = base.Recording(NAME, source.name)
    for number, line in enumerate(source.path.read_text().splitlines(), start=1):
        piece = base.Piece("user_input", {"text": line})
        recording.take([piece], base.Origin(f"line {number}"))
    yield recording.transcript("")
""",
    )
    notes = tmp_path / "a.notes"
    notes.write_text("first\nsecond\n")

    [transcript] = importers.read(notes)

    assert [draft.event.payload()["text"] for draft in transcript.drafts] == [
        "first",
        "second",
    ]
    assert transcript.skipped == ()
    notes.rename(tmp_path / "a.txt")
    assert "JSON" in refused(tmp_path / "a.txt")


def test_an_importer_that_fails_refuses_the_file_and_names_its_package(
    install: Install, tmp_path: Path
) -> None:
    install("notes", {"refold.importers": {"notes": "notes"}}, _IMPORTER)
    notes = tmp_path / "a.notes"
    notes.write_text("text")

    assert refused(notes) == (
        "the importer notes of the package notes cannot read this file (KeyError): "
        "update or remove the package"
    )


@pytest.mark.parametrize(
    ("module", "problem"),
    [
        ("", "has no function recognises: notes"),
        (_IMPORTER.replace('"notes"', '"other"'), "must have NAME = 'notes': notes"),
    ],
)
def test_an_importer_with_missing_members_is_refused(
    module: str, problem: str, install: Install, tmp_path: Path
) -> None:
    install("notes", {"refold.importers": {"notes": "notes"}}, module)
    notes = tmp_path / "a.notes"
    notes.write_text("text")

    assert problem in refused(notes, "notes")


_RULE: Final = r"""
[[rules]]
id = "ids.badge"
type = "BADGE"
pattern = '\bBDG-\d{4}\b'
examples = ["«BDG-4711»"]
"""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("7", "is not a text in TOML: ids:PACK"),
        (repr("[[rules]"), "is wrong (ids:PACK line 1: this is not TOML"),
        (repr("version = 1"), "line 1: rules: it is missing"),
        (repr(_RULE.replace("«BDG-4711»", "BDG-X")), "line 6: rules.examples: "),
        (repr(_RULE.replace(r"\d{4}", r"\d+")), "line 5: rules.pattern: "),
        (repr(_RULE * 2), "has another rule ids.badge"),
        (repr(_RULE.replace("ids.badge", "phone.cn")), "has another rule phone.cn"),
    ],
)
def test_a_pack_that_a_policy_file_could_not_hold_is_refused(
    text: str, problem: str, install: Install
) -> None:
    install("ids", {"refold.packs": {"ids": "ids:PACK"}}, f"PACK = {text}")

    reason = packs_refused("ids")

    assert "the pack ids of the package ids" in reason
    assert problem in reason


def test_a_policy_finds_the_rules_of_a_pack_and_may_not_repeat_them(
    install: Install,
) -> None:
    install("ids", {"refold.packs": {"ids": "ids:PACK"}}, f"PACK = {_RULE!r}")
    text = f'version = 1\npacks = ["ids"]\n{_RULE}'

    rules = Policy.of_packs(["secrets", "ids", "ids"]).plan().rules
    with pytest.raises(PolicyError) as raised:
        Policy.parse(text)

    assert [rule.id for rule in rules if rule.id == "ids.badge"] == ["ids.badge"]
    assert "there is another rule ids.badge" in str(raised.value)


def test_refused_commands_are_listed_and_the_others_work(folder: Path) -> None:
    module = "def now(call): return None\n"
    write_package(
        folder,
        "first",
        {"refold.commands": {"log": "first:now", "now": "first:now", "two": "first:t"}},
        module,
    )
    write_package(folder, "second", {"refold.commands": {"two": "second:two"}})

    listed = run_refold(folder, "--help").stdout
    own = run_refold(folder, "log", "--help").stdout
    twice = run_refold(folder, "two")

    assert "\nOther:\n  now  Added by first.\n" in listed
    words = " ".join(listed.partition("\nRefused:\n")[2].split())
    assert words == (
        "log the command log of the package first is refused, because the name log "
        "is Refold's: rename it two the command two is refused, because "
        "several packages add it (first and second): remove all but one"
    )
    assert "Show the timeline of a session." in own
    assert twice.returncode == 2
    assert twice.stderr.startswith("refold: the command two is refused, because")


def test_an_unexpected_error_of_a_command_names_its_package(folder: Path) -> None:
    module = "def now() -> None:\n    raise KeyError('a text')\n"
    write_package(folder, "clock", {"refold.commands": {"now": "clock:now"}}, module)

    ran = run_refold(folder, "now")

    assert ran.returncode == 1
    assert ran.stderr == (
        "refold: unexpected KeyError in clock.py:2: this is a bug in the package "
        "clock; run it again with REFOLD_DEBUG=1 to see the traceback\n"
    )
