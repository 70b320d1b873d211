"""A file is read completely, or refused with one sentence that names a way out."""

import gzip
import json
import os
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from refold.adapters import importers
from refold.adapters.importers import base as source
from refold.domain.errors import ImportFailed
from refold.domain.events import UserInput
from refold.store.session.imports import extend
from refold.store.session.session import Session
from tests.importers import samples
from tests.importers.samples import (
    events,
    read_one,
    reasons,
    refusal,
    user_entry,
    write_document,
    write_lines,
)

HELLO = json.dumps({"role": "user", "content": "secret"}).encode()
MADE = samples.CLAUDE_CODE


def one_line(*, cut: int | None = None) -> bytes:
    return json.dumps(user_entry("u9", "secret")).encode()[:cut]


BAD: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "is empty"),
    "blank": (b"\n \n", "is empty"),
    "only a byte order mark": (b"\xef\xbb\xbf", "is empty"),
    "prose": (b"Dear secret diary,\n", "is not valid JSON"),
    "a picture": (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0", "is a binary file"),
    "compressed": (gzip.compress(HELLO), "is compressed (gzip): unpack it"),
    "UTF-16": (HELLO.decode().encode("utf-16"), "iconv -f UTF-16"),
    "UTF-16 without a mark": (HELLO.decode().encode("utf-16-le"), "iconv -f UTF-16"),
    "Latin-1": (b'{"role": "user", "content": "caf\xe9"}\n', "line 1: is not UTF-8"),
    "Latin-1 later": (HELLO + b'\n{"role": "\xe9"}\n', "line 2: is not UTF-8"),
    "cut": (HELLO + b"\n" + HELLO[:-3], "line 2: is cut off"),
    "cut in a word": (HELLO + b'\n{"a": tru', "line 2: is cut off"),
    "cut in a letter": (HELLO + b'\n{"a": "\xc3', "line 2: is cut off"),
    "cut document": (b'{\n "messages": [\n  {"role": "us', "line 3: is cut off"),
    "cut only line": (HELLO[:-4], "line 1: is cut off"),
    "broken between": (HELLO + b"\n{oops}\n" + HELLO + b"\n", "line 2: is not valid"),
    "broken first": (b'{"role": "user" "secret"}\n' + HELLO + b"\n", "line 1: is not"),
    "broken first, open": (b'{"role": "user"\n' + HELLO + b"\n", "line 1: is not"),
    "two on a line": (HELLO + HELLO + b"\n", "line 1: is not valid JSON"),
    "nested": (b"[" * 100_000 + b"]" * 100_000, "is nested too deeply"),
    "too many digits": (
        b'{"role": "user", "n": ' + b"9" * 5000 + b"}",
        "too many digits",
    ),
    "an empty list": (b"[]", "no known transcript format"),
    "a number": (b"7", "no known transcript format"),
    "another list": (b'[{"secret": 1}]', "no known transcript format"),
    "another log": (b'{"level": "info"}\n' * 2, "no known transcript format"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_with_a_way_out(tmp_path: Path, name: str) -> None:
    content, reason = BAD[name]
    path = tmp_path / "file.jsonl"
    path.write_bytes(content)

    message = refusal(path)

    assert reason in message
    assert message.startswith(str(path))
    assert "\n" not in message
    assert "secret" not in message


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda folder: folder / "gone.jsonl", "there is no such file"),
        (lambda folder: folder, "is a directory"),
        (lambda folder: _pipe(folder), "is not a regular file"),
        (lambda folder: folder / ("x" * 300), "cannot be read"),
        (lambda folder: folder / "a\0b", "cannot be read"),
        (lambda folder: _loop(folder), "cannot be read"),
    ],
)
def test_refuses_paths_that_are_no_files(
    tmp_path: Path, make: Callable[[Path], Path], reason: str
) -> None:
    assert reason in refusal(make(tmp_path))


def _pipe(folder: Path) -> Path:
    os.mkfifo(folder / "pipe")
    return folder / "pipe"


def _loop(folder: Path) -> Path:
    (folder / "loop").symlink_to(folder / "loop")
    return folder / "loop"


def test_a_file_that_may_not_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_lines(tmp_path, MADE)

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)

    assert "check its permissions" in refusal(path)


def test_a_file_with_an_invalid_unicode_name_can_be_reported(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.jsonl")
    path.write_bytes(b"{oops")

    assert refusal(path).encode().isascii() is False


def test_an_inspect_log_in_binary_form_says_how_to_convert_it(tmp_path: Path) -> None:
    path = tmp_path / "log.eval"
    path.write_bytes(b"PK\x03\x04\x14\0\0\0")

    assert "inspect log convert" in refusal(path)


def test_a_file_over_the_bound_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large.jsonl"
    with path.open("wb") as file:
        file.truncate(source.MAX_FILE + 1)

    assert f"is {source.MAX_FILE + 1:,} bytes, the limit is" in refusal(path)


def test_a_file_that_grows_over_the_bound_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_lines(tmp_path, MADE)
    growing = source.Source(path, strict=True)
    monkeypatch.setattr(source, "MAX_FILE", 100)

    with pytest.raises(ImportFailed, match="the limit is 100"):
        list(growing.lines())


def test_a_line_over_the_bound_is_refused_without_holding_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 1 << 20
    monkeypatch.setattr(source, "MAX_LINE", limit)
    path = tmp_path / "file.jsonl"
    path.write_bytes(HELLO + b'\n{"text": "' + b"x" * 20 * limit + b'"}\n')

    tracemalloc.start()
    message = refusal(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert "line 2: is longer than" in message
    assert peak < 4 * limit


def test_a_line_at_the_bound_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "MAX_LINE", len(HELLO))
    path = tmp_path / "file.jsonl"
    path.write_bytes(HELLO + b"\r\n" + HELLO)

    assert len(read_one(path).drafts) == 2


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\n\n  \n"])
def test_marks_blank_lines_and_a_missing_last_newline_do_no_harm(
    tmp_path: Path, newline: bytes
) -> None:
    path = tmp_path / "file.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + newline.join([HELLO, HELLO]))

    transcript = read_one(path)

    line = 1 + newline.count(b"\n")
    assert len(transcript.drafts) == 2
    assert (transcript.drafts[1].meta.source or {})["place"] == f"line {line}"


def test_half_a_character_is_replaced_and_reported(tmp_path: Path) -> None:
    path = write_lines(tmp_path, [user_entry("u1", "a"), user_entry("u2", "x\ud800y")])

    transcript = read_one(path)

    assert events(transcript)[1] == UserInput(text="x\ufffdy")
    assert reasons(transcript)["file.jsonl line 2"].startswith("1 value replaced")


@pytest.mark.parametrize(
    ("number", "imported"),
    [
        ("18446744073709551615", 18446744073709551615),
        ("18446744073709551616", "18446744073709551616"),
        ("-9223372036854775808", -9223372036854775808),
        ("-9223372036854775809", "-9223372036854775809"),
        ("NaN", "nan"),
        ("1e999", "inf"),
    ],
)
def test_no_number_loses_a_digit(tmp_path: Path, number: str, imported: Any) -> None:
    use = samples.answered("a", "m", samples.use("c1", n="HERE"))
    path = tmp_path / "file.jsonl"
    path.write_text(json.dumps(use).replace('"HERE"', number))

    (event,) = events(read_one(path))

    assert event.payload()["arguments"] == {"n": imported}


@pytest.mark.parametrize("levels", [150, 230, 900])
def test_a_deeply_nested_value_is_imported_with_its_depths_as_text(
    session: Session, tmp_path: Path, levels: int
) -> None:
    deep: Any = "leaf"
    for _ in range(levels):
        deep = [deep]
    path = write_lines(tmp_path, [samples.answered("a", "m", samples.use("c", n=deep))])

    transcript = read_one(path)
    extend(session, transcript.drafts, where="x")

    (event,) = session.events()
    assert transcript.skipped == ()
    assert "leaf" in str(event.payload.payload())
    assert [warning.code for warning in event.meta.warnings] == ["repaired"]


def test_a_session_id_that_cannot_be_one_is_left_to_the_caller(tmp_path: Path) -> None:
    for name in ("_user", "x" * 300, "a\nb", "", 7.5, None):
        document = {"session_id": name, "messages": samples.OPENAI}

        assert read_one(write_document(tmp_path, document)).session_id == ""


@pytest.mark.parametrize("name", BAD)
def test_every_refusal_is_one_sentence_and_names_the_file(
    tmp_path: Path, name: str
) -> None:
    path = tmp_path / "file.jsonl"
    path.write_bytes(BAD[name][0])

    with pytest.raises(ImportFailed) as caught:
        importers.read(path, strict=True)

    assert not re.search(r"[.!?]\s+[A-Z]", caught.value.why)
    assert caught.value.where.startswith(str(path))


DAMAGED = json.dumps(user_entry("u2", "two")).encode()


@pytest.mark.parametrize(
    ("damage", "drafts", "reason"),
    [
        (DAMAGED[:50] + b"\n", 2, "is the start of an entry that was never finished"),
        (b"\0" * 300 + b"\n", 2, "holds 300 NUL bytes in place of text"),
        (b"\xfe\n", 2, "is text that is no JSON object"),
        (DAMAGED + DAMAGED.replace(b"u2", b"u3") + b"\n", 4, "holds 2 entries"),
        (DAMAGED[:70] + DAMAGED + b"\n", 3, "is the start of an entry"),
        (DAMAGED.replace(b"two", b"\xe9") + b"\n", 2, "is not UTF-8"),
    ],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_damaged_line_costs_no_other_line(
    tmp_path: Path, *, damage: bytes, drafts: int, reason: str, first: bool
) -> None:
    good = json.dumps(user_entry("u1", "one")).encode() + b"\n"
    last = json.dumps(user_entry("u9", "nine")).encode() + b"\n"
    parts = [damage, good, last] if first else [good, damage, last]
    path = tmp_path / "file.jsonl"
    path.write_bytes(b"".join(parts))

    transcript = read_one(path)

    assert len(transcript.drafts) == drafts
    (left_out,) = [skipped for skipped in transcript.skipped if skipped.damaged]
    assert left_out.why.startswith(reason)
    assert left_out.where == f"file.jsonl line {1 if first else 2}"
    refused = refusal(path)
    assert f"line {1 if first else 2}" in refused or "no known" in refused


def test_damage_inside_a_line_names_its_byte(tmp_path: Path) -> None:
    path = tmp_path / "file.jsonl"
    good = json.dumps(user_entry("u1", "one")).encode()
    path.write_bytes(good + b"oops\n" + good.replace(b"u1", b"u2"))

    (left_out,) = [skipped for skipped in read_one(path).skipped if skipped.damaged]

    assert left_out.where == f"file.jsonl line 1 byte {len(good) + 1}"


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "text": "hi"}, {"role": "assistant", "text": "ho"}],
        [{"role": "tool", "tool_call_id": "c", "content": "no call"}],
        [],
    ],
)
def test_a_file_of_which_nothing_was_read_is_refused(
    tmp_path: Path, messages: list[Any]
) -> None:
    document = {"messages": messages, "producer": "other/1"}

    message = refusal(write_document(tmp_path, document))

    assert "nothing in it could be imported" in message or "no known" in message


def test_a_file_that_holds_only_notes_of_the_client_is_no_error(tmp_path: Path) -> None:
    entries = [
        {"type": "summary", "summary": "A title", "leafUuid": "x"},
        {"type": "file-history-snapshot", "messageId": "m"},
    ]

    transcript = read_one(write_lines(tmp_path, entries))

    assert transcript.drafts == ()
    assert len(transcript.skipped) == 2


@pytest.mark.parametrize(
    "document", [samples.LETTA, samples.SWE_AGENT, samples.INSPECT]
)
def test_two_documents_in_one_line_are_refused_with_a_way_out(
    tmp_path: Path, document: Any
) -> None:
    path = tmp_path / "file.json"
    path.write_text(json.dumps(document) * 2)

    with pytest.raises(ImportFailed, match="put each on a line of its own"):
        importers.read(path)
