"""Stored values are small and can be read back; unreadable values are reported."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

import orjson
import pytest
import zstandard
from hypothesis import given, strategies as st

import refold
from refold.adapters import rows, streams
from refold.adapters.log import EncryptedLog
from refold.adapters.rows import pack, unpack
from tests.support.stores import open_at

PLACE = files("refold.adapters.sql").joinpath("data")
RESULT = {
    "meta": {"source": {"format": "openai", "place": "messages[4]"}},
    "payload": {"call_id": "call_7", "content": "3 passed in 0.1s", "status": "ok"},
    "redaction": {"engine": "stdlib", "n": 0, "rules": "default-2:0123456789ab"},
}


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
def test_packed_values_are_read_back(data: bytes) -> None:
    assert unpack(pack(data)) == data
    assert unpack(pack(data * 80)) == data * 80


def test_an_event_takes_less_than_half_of_its_json() -> None:
    data = orjson.dumps(RESULT)

    assert len(pack(data)) < len(data) / 2


def test_the_dictionary_is_the_one_that_rows_were_written_with() -> None:
    dictionary = PLACE.joinpath("events-1.zdict").read_bytes()

    # Rows are read with it forever: another dictionary is another file with its own
    # mark.
    assert sha256(dictionary).hexdigest() == (
        "459cfe4ce3e1be435759a7870ff79b10eec55f9c44bcbf79fa12fa217fadc839"
    )


@pytest.mark.parametrize("there", [None, b"", b"lpayoad"])
def test_without_the_right_dictionary_nothing_is_packed_or_read(
    there: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = pack(orjson.dumps(RESULT))
    if there is not None:
        original = PLACE.joinpath("events-1.zdict").read_bytes()
        (tmp_path / "data").mkdir()
        dictionary = tmp_path / "data" / "events-1.zdict"
        dictionary.write_bytes(original.replace(b"payload", there))
    monkeypatch.setattr(rows, "files", lambda _: tmp_path)
    rows._dictionary.cache_clear()

    monkeypatch.setattr(rows, "_idle_codecs", deque())  # as if nothing was packed yet

    with pytest.raises(refold.errors.IncompatibleStore, match="install Refold"):
        pack(orjson.dumps(RESULT))
    with pytest.raises(refold.errors.IncompatibleStore, match="install Refold"):
        unpack(packed)


def test_many_threads_pack_concurrently() -> None:
    texts = [f"{number} is said here. " * 40 for number in range(200)]

    with ThreadPoolExecutor(8) as pool:
        packed = [*pool.map(lambda text: pack(text.encode()), texts)]
        assert [text_bytes.decode() for text_bytes in pool.map(unpack, packed)] == texts

    assert len(rows._idle_codecs) <= rows._MOST_IDLE


def test_values_compressed_without_a_dictionary_are_read_back() -> None:
    assert unpack(b"\x01" + zstandard.compress(b"hello" * 9)) == b"hello" * 9
    assert unpack(b"\x00hello") == b"hello"


@pytest.mark.parametrize(
    "packed", [b"", b"\x07x", b"\x01x", b"\x02", pack(b"hello " * 40)[:-3]]
)
def test_unreadable_values_are_refused(packed: bytes) -> None:
    with pytest.raises(ValueError, match="packed"):
        unpack(packed)


def test_concurrent_threads_do_not_wait_for_each_other() -> None:
    texts = [orjson.dumps({**RESULT, "number": number}) for number in range(400)]

    with ThreadPoolExecutor(8) as threads:
        packed = list(threads.map(pack, texts))
        assert list(threads.map(unpack, packed)) == texts


def test_a_row_of_a_newer_refold_is_a_corrupt_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_at(f"sqlite:///{tmp_path}/refold.db", tmp_path) as store:
        session = store.session(user_id="ada", session_id="s")
        with monkeypatch.context() as newer:
            newer.setattr(rows, "pack", lambda data: b"\x09" + data)
            session.append(refold.UserInput(text="hello"))

        assert isinstance(store.log, EncryptedLog)
        with pytest.raises(refold.errors.CorruptEvent, match="begins with 09"):
            session.events()
        assert [problem.code for problem in session.verify().problems] == ["corrupt"]


def test_a_blob_of_a_newer_refold_is_corrupt_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_at(f"sqlite:///{tmp_path}/refold.db", tmp_path) as store:
        session = store.session(user_id="ada", session_id="s")
        monkeypatch.setattr(streams, "pack", lambda data: b"\x09" + data)
        session.append(refold.UserInput(text="a line of text. " * 5_000))
        shown = str(session.events()[0].payload.payload()["text"])
        sha = shown.split('blob("')[1].split('"')[0]

        with pytest.raises(refold.errors.CorruptEvent, match="does not open"):
            session.history.blob(sha)
