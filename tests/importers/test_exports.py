"""An export is read one conversation after the other, from a list or an archive."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import refold
from refold.adapters import importers
from refold.adapters.importers import base, exports
from refold.adapters.importers.base import Source
from refold.domain.events import UserInput
from tests.importers import samples
from tests.importers.export_samples import chatgpt_conversation, chatgpt_node
from tests.importers.samples import Entry, events, read_one, refusal, write_document
from tests.importers.test_chatgpt import PNG, pictured


def archive(folder: Path, members: dict[str, bytes], name: str = "export.zip") -> Path:
    path = folder / name
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for member, data in members.items():
            packed.writestr(member, data)
    return path


def conversation(number: int, text: str = "Hello") -> Entry:
    return chatgpt_conversation(
        chatgpt_node("root", None, None),
        chatgpt_node("n1", "root", "user", text, at=1.0),
        current="n1",
        conversation_id=f"c-{number}",
        id=f"c-{number}",
    )


@pytest.mark.parametrize("form", ["chatgpt", "claude-ai"])
def test_an_archive_gives_the_same_as_its_conversations(
    tmp_path: Path, form: str
) -> None:
    plain = samples.write_sample(tmp_path, form)
    packed = archive(
        tmp_path,
        {"export/conversations.json": plain.read_bytes(), "export/user.json": b"{}"},
    )

    transcript = read_one(packed)

    assert transcript.format == form
    assert events(transcript) == events(read_one(plain))
    assert transcript.skipped[-1].why == "files without conversations: user.json"


def test_conversations_in_several_members_are_read_in_order(tmp_path: Path) -> None:
    members = {
        f"conversations-{part:03}.json": json.dumps([conversation(part)]).encode()
        for part in (1, 0)
    }

    transcripts = importers.read(archive(tmp_path, members))

    assert [transcript.session_id for transcript in transcripts] == ["c-0", "c-1"]
    source = transcripts[1].drafts[0].meta.source or {}
    assert source["place"] == "conversations-001.json [0] mapping.n1"


def test_an_image_in_the_archive_is_imported(tmp_path: Path) -> None:
    members = {
        "conversations.json": json.dumps(pictured()).encode(),
        "files/file-A1b2-cat.dat": PNG,
    }

    (event,) = events(read_one(archive(tmp_path, members)))

    assert isinstance(event, UserInput)
    assert event.attachments[0].data is not None


def test_an_archive_without_conversations_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path, {"a.json": b"[]"})

    assert "is compressed (zip): unpack it first" in refusal(path)


def test_an_archive_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path, {"conversations.json": b"[]"})
    path.write_bytes(path.read_bytes()[:-30])

    assert "is a damaged zip archive" in refusal(path)


def test_an_encrypted_archive_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path, {"conversations.json": b"[]"})
    data = bytearray(path.read_bytes())
    data[6] |= 1  # the flag in the header of the member
    data[data.index(b"PK\x01\x02") + 8] |= 1  # and in the directory
    path.write_bytes(bytes(data))

    assert "is an encrypted archive: unpack it first" in refusal(path, "chatgpt")


def test_an_archive_that_unpacks_to_far_more_is_refused(tmp_path: Path) -> None:
    zeros = b"[" + b" " * (65 << 20) + b"]"

    path = archive(tmp_path, {"conversations.json": zeros})

    assert "which no export does" in refusal(path, "chatgpt")


def test_an_archive_over_the_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "MAX_EXPORT", 10)
    members = {"conversations.json": json.dumps([conversation(0)]).encode()}

    assert "the limit is 10" in refusal(archive(tmp_path, members), "chatgpt")


def test_a_damaged_member_keeps_the_conversations_before_the_damage(
    tmp_path: Path,
) -> None:
    many = [conversation(number, "x" * 5_000) for number in range(400)]
    path = tmp_path / "export.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as packed:
        packed.writestr("conversations.json", json.dumps(many))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(bytes(data))

    transcripts = importers.read(path)

    assert len(transcripts) < 400
    assert transcripts[-1].skipped[-1].damaged


def test_a_list_that_is_cut_off_keeps_what_is_whole(tmp_path: Path) -> None:
    path = write_document(tmp_path, [conversation(0), conversation(1)])
    path.write_text(path.read_text()[:-40])

    (transcript,) = importers.read(path)

    assert transcript.session_id == "c-0"
    damage = transcript.skipped[-1]
    assert damage.damaged
    assert damage.why == (
        "is cut off: import the file again once it is complete; everything after it is "
        "left out"
    )
    assert "is cut off" in refusal(path)


@pytest.mark.parametrize("end", ["]]", "] x", ",]", "]}"])
def test_text_that_is_no_list_is_reported(tmp_path: Path, end: str) -> None:
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps([conversation(0)])[:-1] + end)

    assert importers.read(path)[0].skipped[-1].damaged


def test_a_byte_order_mark_and_spaces_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "conversations.json"
    text = json.dumps([conversation(0)], indent=4)
    path.write_bytes(b"\xef\xbb\xbf \n" + text.encode())

    assert read_one(path).session_id == "c-0"


def test_elements_may_be_larger_than_what_is_read_at_once(tmp_path: Path) -> None:
    long = "ä" * (3 << 20)
    path = tmp_path / "conversations.json"
    path.write_text(
        json.dumps([conversation(0), conversation(1, long)], ensure_ascii=False)
    )

    (_, transcript) = importers.read(path)

    assert events(transcript) == [UserInput(text=long)]


def test_a_list_over_the_limit_of_files_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(base, "MAX_FILE", 100)
    path = write_document(tmp_path, [conversation(0)])

    assert Source(path).content == "list"
    assert read_one(path).format == "chatgpt"
    other = write_document(tmp_path, samples.OPENAI, "other.json")
    assert "the limit is 100" in refusal(other)


def test_wrong_unicode_is_repaired_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps([conversation(0, "\ud800")]))

    transcript = read_one(path)

    assert transcript.skipped[-1].where == "conversations.json [0]"
    assert "1 value replaced" in transcript.skipped[-1].why


def test_an_export_in_another_encoding_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps([conversation(0)]), encoding="utf-16")

    assert "is not UTF-8" in refusal(path)


def test_importing_an_archive_again_adds_nothing(tmp_path: Path) -> None:
    members = {"conversations.json": json.dumps([conversation(0)]).encode()}
    path = archive(tmp_path, members)
    with refold.open("memory://") as store:
        (first,) = store.import_transcript(path, user_id="ada")
        members["conversations.json"] = json.dumps(
            [conversation(1), conversation(0)]
        ).encode()
        later = store.import_transcript(archive(tmp_path, members), user_id="ada")

        assert first.events == 2  # an input and the title
        assert [imported.events for imported in later] == [2, 0]


_READ = """
import resource, sys
from pathlib import Path
from refold.adapters import importers
sessions = 0
for transcript in importers.transcripts(Path(sys.argv[1])):
    sessions += bool(transcript.drafts)
print(sessions, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak_of(path: Path) -> tuple[int, int]:
    """Return the sessions that a process reads in a file, and its memory in kB."""
    run = subprocess.run(
        [sys.executable, "-c", _READ, str(path)],
        check=True,
        capture_output=True,
        text=True,
    )
    sessions, peak = run.stdout.split()
    return int(sessions), int(peak)


def test_memory_does_not_grow_with_the_export(tmp_path: Path) -> None:
    turns = [chatgpt_node("root", None, None)]
    for number in range(1, 200):
        parent = "root" if number == 1 else f"n{number - 1}"
        turns.append(
            chatgpt_node(f"n{number}", parent, "user", "word " * 200, at=float(number))
        )
    conversation = chatgpt_conversation(*turns, current="n199")
    small = write_document(tmp_path, [conversation] * 5, "small.json")
    large = tmp_path / "large.json"
    text = json.dumps(conversation)
    with large.open("w") as file:
        file.write("[" + ",".join([text] * 200) + "]")

    few, least = peak_of(small)
    many, most = peak_of(large)

    assert (few, many) == (5, 200)
    size = large.stat().st_size // 1024
    assert most - least < size // 2, f"{most - least} kB for a file of {size} kB"
