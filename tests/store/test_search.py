"""Words are found where the log shows them, by an index that contains no words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import refold
from refold.domain.ids import StreamId
from refold.errors import Erased, InvalidEvent, SessionNotFound
from refold.projections import search as index
from refold.redaction.guard import Limits
from refold.redaction.redactor import Redactor
from refold.store import Session, SessionStore
from refold.testing import memory_log
from tests.support.redacting import MAIL, aware, unaware
from tests.support.stores import prepare


@pytest.fixture
def db(store_url: str, tmp_path: Path) -> str:
    return prepare(store_url, tmp_path)


def append_words(session: Session, *words: str) -> None:
    session.append([refold.UserInput(text=text) for text in words])


def found_places(
    store: SessionStore, text: str, **options: Any
) -> list[tuple[str, int]]:
    return [(hit.session_id, hit.seq) for hit in store.search("ada", text, **options)]


@pytest.mark.each_engine
def test_events_with_all_words_are_found_newest_first(db: str) -> None:
    with refold.open(db) as store:
        first, second = (store.session(user_id="ada", session_id=n) for n in ("a", "b"))
        append_words(first, "The train to Berlin", "a plane", "TRAIN, from berlin!")
        call = refold.ToolCall(
            call_id="c", tool_name="find_train", arguments={"berlin": {"at": 9.5}}
        )
        second.append(call)
        bob = store.session(user_id="bob", session_id="a")
        append_words(bob, "train berlin")

        for _ in range(2):  # the second time the index exists
            assert found_places(store, "berlin train") == [("b", 1), ("a", 3), ("a", 1)]
        assert found_places(store, "train", session_id="a", limit=1) == [("a", 3)]
        assert found_places(store, "trains") == []
        (hit, *_) = store.search("ada", "find")
        assert hit.type == "tool_call"
        assert "find_train" in hit.snippet
        append_words(first, "one more train")
        assert found_places(store, "train", limit=1) == [("a", 4)]
        with pytest.raises(SessionNotFound):
            store.search("ada", "train", session_id="none")


@pytest.mark.parametrize(
    ("text", "query"),
    [
        ("我在北京大学读书", "北京"),
        ("我在北京大学读书", "京大"),
        ("全角ＡＢＣ", "abc"),
        ("Straße", "STRASSE"),
        ("naïve café", "CAFÉ"),
        ("x" * 200, "x" * 200),
        ("the word don't", "don t"),
        ("한국어 검색", "한국"),
    ],
)
def test_words_of_any_script_are_found(text: str, query: str) -> None:
    assert index.words(query) <= index.words(text)


@pytest.mark.parametrize("text", ["", " !? ", " ".join(map(str, range(60)))])
def test_a_search_without_words_or_with_too_many_is_refused(text: str) -> None:
    store = SessionStore(memory_log(), Redactor(), Limits())
    with pytest.raises(InvalidEvent, match="1 to 50 words"):
        store.search("ada", text)


WORDS = st.sampled_from(["tea", "Tee", "cup", "北京", "42", "a_b"])


@given(st.lists(st.lists(WORDS, max_size=4), max_size=30), WORDS, st.integers(1, 9))
def test_hits_equal_the_matching_events_of_the_log(
    texts: list[list[str]], word: str, step: int
) -> None:
    store = SessionStore(memory_log(), Redactor(), Limits())
    session = store.session(user_id="ada", session_id="s")
    for number, text in enumerate(texts, 1):
        append_words(session, " ".join(text))
        if number % step == 0:
            store.search("ada", word)  # a part of the log is indexed by now

    found = [seq for _, seq in found_places(store, word, limit=99)]

    shown = [
        event.seq
        for event in (session.events() if texts else ())
        if index.words(word) <= index.words(index.searchable_text(event))
    ]
    assert found == shown[::-1]


def test_a_long_session_is_searched_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refold.store.search.SEGMENT", 8)
    store = SessionStore(memory_log(), Redactor(), Limits())
    session = store.session(user_id="ada", session_id="s")
    append_words(session, *(f"word{number % 3} all" for number in range(50)))

    assert found_places(store, "word1", limit=99) == [
        ("s", n) for n in range(50, 0, -3)
    ]
    names = store.log.view_names("ada", "s")
    assert len([name for name in names if name.startswith("search-")]) == 7


@pytest.mark.each_engine
def test_erased_events_are_neither_found_nor_indexed(db: str, tmp_path: Path) -> None:
    with refold.open(db, redactor=unaware()) as store:
        for name in ("a", "b"):
            append_words(
                store.session(user_id="ada", session_id=name), f"zebra {MAIL} here"
            )
        assert len(found_places(store, "lovelace zebra")) == 2
        store.session(user_id="ada", session_id="a").delete()
        assert found_places(store, "lovelace") == [("b", 1)]
    with refold.open(db, redactor=aware()) as store:
        list(store.reredact())
        assert store.log.view_names("ada", "b") == []
        assert found_places(store, "lovelace") == []
        assert found_places(store, "zebra") == [("b", 1)]
        view = store.log.load_view(StreamId("ada", "b"), "search-1-0")
        assert view is not None
        assert "zebra" not in str(view.body)
        store.erase("ada", "asked")
        with pytest.raises(Erased):
            store.search("ada", "zebra")
