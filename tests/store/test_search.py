"""Events are ranked as by BM25 over their texts, by an index that contains no words."""

from __future__ import annotations

import hashlib
import sqlite3
from base64 import b64decode
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from math import log
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

import refold
from refold.domain.ids import StreamId
from refold.domain.ports import StoredView
from refold.errors import (
    CorruptEvent,
    Erased,
    InvalidEvent,
    KeyUnavailable,
    SessionNotFound,
)
from refold.projections.search.terms import stem, terms
from refold.redaction.guard import Limits
from refold.redaction.redactor import Redactor
from refold.store import Session, SessionStore
from refold.store.search import SearchHit
from refold.testing import memory_log
from tests.support.redacting import MAIL, aware, unaware
from tests.support.rewritten import tamper
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


def hits_of(store: SessionStore, text: str, **options: Any) -> list[SearchHit]:
    return store.search("ada", text, limit=99, **options)


def marked(hit: SearchHit) -> list[str]:
    return [hit.snippet[start:end] for start, end in hit.marks]


@pytest.mark.each_engine
def test_any_word_matches_and_events_with_more_of_them_come_first(db: str) -> None:
    with refold.open(db) as store:
        first, second = (store.session(user_id="ada", session_id=n) for n in ("a", "b"))
        append_words(first, "The train to Berlin", "a plane", "TRAIN, from berlin!")
        call = refold.ToolCall(
            call_id="c", tool_name="find_train", arguments={"berlin": {"at": 9.5}}
        )
        second.append(call)
        bob = store.session(user_id="bob", session_id="a")
        append_words(bob, "train berlin plane")

        for _ in range(2):  # the second time the index exists
            places = found_places(store, "berlin train")
            assert set(places) == {("b", 1), ("a", 3), ("a", 1)}
            assert places[0] == ("a", 3)  # the shortest one that is newest
            assert found_places(store, "plane berlin")[0] == ("a", 2)
        assert found_places(store, "train", session_id="a", limit=1) == [("a", 3)]
        assert found_places(store, "Trains")[0] == ("a", 3)
        (hit,) = store.search("ada", "find")
        assert hit.type == "tool_call"
        assert marked(hit) == ["find"]
        append_words(first, "train")
        assert found_places(store, "train", limit=1) == [("a", 4)]
        result = store.search_with_total("ada", "train", limit=1)
        assert (len(result.hits), result.total) == (1, 4)
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
        ("readHTTPFile()", "http file"),
        ("read_config_file", "config"),
        ("see src/store/search.py:12", "search py"),
        ("three releases", "released"),
        ("it was running", "runs"),
    ],
)
def test_words_of_any_script_and_parts_of_identifiers_are_found(
    text: str, query: str
) -> None:
    assert terms(query).keys() <= terms(text).keys()


@pytest.mark.parametrize("text", ["", " !? ", " ".join(map(str, range(60)))])
def test_a_search_without_words_or_with_too_many_is_refused(text: str) -> None:
    store = SessionStore(memory_log(), Redactor(), Limits())
    with pytest.raises(InvalidEvent, match="1 to 50 words"):
        store.search("ada", text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("type:nothing", "the types are"),
        ("after:yesterday", "after: takes a date"),
        ("before:", "needs a value"),
        ("failed:perhaps", "yes or no"),
        ("model:-", "needs a name"),
        ("file:/", "needs a name"),
    ],
)
def test_a_filter_with_a_wrong_value_is_refused(text: str, reason: str) -> None:
    store = SessionStore(memory_log(), Redactor(), Limits())
    with pytest.raises(InvalidEvent, match=reason) as refused:
        store.search("ada", text)
    assert "yesterday" not in str(refused.value)
    assert "perhaps" not in str(refused.value)


@pytest.fixture
def coding() -> SessionStore:
    """A store with a run that edits a file, fails, and goes on the next day."""
    store = SessionStore(memory_log(), Redactor(), Limits())
    session = store.session(user_id="ada", session_id="run")
    edit = refold.ToolCall(
        call_id="call-77",
        tool_name="Edit",
        arguments={"file_path": "/home/ada/shop/src/Cart.py", "new": "total = 1"},
    )
    search = refold.ToolCall(
        call_id="call-78", tool_name="mcp__web__search", arguments={"query": "cart"}
    )
    day = datetime(2026, 3, 16, 12, tzinfo=UTC)
    drafts = [
        refold.UserInput(text="Fix the cart: the total is wrong"),
        edit,
        refold.ToolResult(call_id="call-77", content="no such cart", status="error"),
        search,
        refold.ToolResult(call_id="call-78", content="cart pages"),
        refold.AgentResponse(text="The cart is fixed"),
    ]
    for number, event in enumerate(drafts):
        meta = {"model": "claude-opus-4-6"} if number == 5 else None
        session.append(event, meta=meta, ts=day + timedelta(days=number))
    return store


@pytest.mark.parametrize(
    ("query", "seqs"),
    [
        ("cart type:user_input", {1}),
        ("type:user_input,agent_response", {1, 6}),
        ("cart tool:edit", {2, 3}),
        ("tool:search", {4, 5}),
        ("TOOL:mcp__web__search cart", {4, 5}),
        ("file:cart.py", {2, 3}),
        ("file:src/Cart.py", {2, 3}),
        ("file:/home/ada/shop/src/Cart.py", {2, 3}),
        ("file:shop/", {2, 3}),
        ("file:art.py", set()),
        ("failed: file:cart.py", {3}),
        ("cart failed:no tool:edit", {2}),
        ("model:opus", {6}),
        ("model:claude-opus-4-6 cart", {6}),
        ("model:opus-5", set()),
        ("cart after:2026-03-20", {5, 6}),
        ("cart before:2026-03-17T12:00:00Z", {1}),
        ("after:2026-03-17 before:2026-03-18", {2}),
        ("session:run failed:", {3}),
        ("session:other cart", set()),
        ("session:ru failed:", {3}),
        ("session:ru… failed:", {3}),
        ("session:un failed:", set()),
        ("session:… failed:", set()),
        ('"the cart"', {1, 6}),
        ('"cart the"', {1}),  # punctuation does not count
        ('"the total" cart', {1}),
        ("call-77", {2, 3, 4, 5}),  # the ids share a word
        ("http://cart", {1, 2, 3, 4, 5, 6}),
    ],
)
def test_filters_and_phrases_restrict_a_search(
    coding: SessionStore, query: str, seqs: set[int]
) -> None:
    result = coding.search_with_total("ada", query, limit=99)

    assert {hit.seq for hit in result.hits} == seqs
    assert result.total == len(seqs)


def test_the_filter_session_takes_a_name_before_the_beginning_of_names() -> None:
    store = SessionStore(memory_log(), Redactor(), Limits())
    for name in ("run-1", "run-1~agent", "run-12", "other"):
        append_words(store.session(user_id="ada", session_id=name), "cart")

    def sessions_with(query: str) -> set[str]:
        return {name for name, _ in found_places(store, query)}

    assert sessions_with("cart session:run-1") == {"run-1"}
    assert sessions_with("cart session:run") == {"run-1", "run-1~agent", "run-12"}
    assert sessions_with("cart session:run-1~") == {"run-1~agent"}
    assert sessions_with("cart session:ru~ag…") == {"run-1~agent"}


def test_results_of_filters_alone_are_the_newest_first(coding: SessionStore) -> None:
    hits = hits_of(coding, "tool:edit,search")

    assert [hit.seq for hit in hits] == [5, 4, 3, 2]


def test_a_result_in_the_next_segment_has_the_file_of_its_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("refold.store.search.SEGMENT", 2)
    store = SessionStore(memory_log(), Redactor(), Limits())
    session = store.session(user_id="ada", session_id="s")
    calls = [
        refold.ToolCall(
            call_id=f"c{n}", tool_name="Read", arguments={"path": f"{n}.py"}
        )
        for n in range(4)
    ]
    session.append(calls)
    assert [hit.seq for hit in hits_of(store, "file:3.py")] == [4]
    session.append(
        [refold.ToolResult(call_id=f"c{n}", content="x") for n in (3, 1, 0, 2)]
    )

    assert [hit.seq for hit in hits_of(store, "file:3.py")] == [5, 4]
    assert [hit.seq for hit in hits_of(store, "file:0.py")] == [7, 1]


def test_a_snippet_shows_what_was_written_and_marks_the_words() -> None:
    store = SessionStore(memory_log(), Redactor(), Limits())
    session = store.session(user_id="ada", session_id="s")
    text = "filler " * 200 + "the migration\n\tfailed twice " + "more " * 200
    session.append(refold.ToolCall(call_id="migration-1", tool_name="run"))
    session.append(refold.ToolResult(call_id="migration-1", content=text))

    result, call = hits_of(store, "failing migrations")

    assert "…" == result.snippet[0] == result.snippet[-1]
    assert "the migration failed twice" in result.snippet
    assert marked(result) == ["migration", "failed"]
    assert call.snippet == "run"  # the id is found, and not shown
    chinese = store.session(user_id="ada", session_id="zh")
    append_words(chinese, "昨天在北京大学读书")
    (hit,) = hits_of(store, "北京大学")
    assert marked(hit) == ["北京大学"]


WORD_LISTS = ["tea", "Tee", "cups", "cup", "北京", "北京大学", "42", "x_b", "readFile"]
WORDS = st.sampled_from(WORD_LISTS)


def bm25(texts: Sequence[str], query: str) -> list[tuple[float, int]]:
    """Rank texts by the formula alone: the score and the number of each match."""
    documents = [terms(text) for text in texts]
    average = sum(document.total() for document in documents) / len(documents)
    scored: list[tuple[float, int]] = []
    for number, document in enumerate(documents):
        score = 0.0
        for term in terms(query):
            if term not in document:
                continue
            containing = sum(term in other for other in documents)
            rarity = log(1 + (len(texts) - containing + 0.5) / (containing + 0.5))
            norm = 0.9 * (1 - 0.4 + 0.4 * document.total() / average)
            count = document[term]
            score += rarity * count * 1.9 / (count + norm)
        if not document.keys().isdisjoint(terms(query)):
            scored.append((round(score, 9), number))
    return sorted(scored, reverse=True)


@given(
    st.lists(st.lists(WORDS, max_size=6), min_size=1, max_size=30),
    st.lists(WORDS, min_size=1, max_size=4),
    st.integers(1, 9),
)
def test_the_ranking_equals_bm25_over_the_texts(
    word_lists: list[list[str]], query: list[str], step: int
) -> None:
    store = SessionStore(memory_log(), Redactor(), Limits())
    session = store.session(user_id="ada", session_id="s")
    texts = [" ".join(words) for words in word_lists]
    for number, text in enumerate(texts, 1):
        append_words(session, text)
        if number % step == 0:
            store.search("ada", "tea")  # a part of the log is indexed by now

    hits = hits_of(store, " ".join(query))

    expected = bm25(texts, " ".join(query))
    assert [hit.seq for hit in hits] == [number + 1 for _, number in expected]
    for hit, (score, _) in zip(hits, expected, strict=True):
        assert hit.score == pytest.approx(score, abs=0.001)


@given(
    st.lists(st.lists(WORDS, min_size=1, max_size=6), min_size=1, max_size=20),
    st.lists(WORDS, min_size=1, max_size=4),
    st.integers(1, 5),
)
def test_the_best_events_are_the_same_whatever_the_limit(
    word_lists: list[list[str]], query: list[str], limit: int
) -> None:
    store = SessionStore(memory_log(), Redactor(), Limits())
    for number, words in enumerate(word_lists):
        session = store.session(user_id="ada", session_id=f"s{number % 3}")
        append_words(session, " ".join(words))

    found = found_places(store, " ".join(query), limit=limit, per_session=None)

    assert found == found_places(store, " ".join(query), limit=99)[:limit]


@given(
    st.lists(st.lists(WORDS, min_size=1, max_size=6), min_size=1, max_size=30),
    st.lists(WORDS, max_size=3),
    st.integers(1, 9),
    st.integers(1, 4),
)
def test_a_session_has_more_hits_than_its_bound_only_if_others_have_too_few(
    word_lists: list[list[str]], words: list[str], limit: int, per_session: int
) -> None:
    store = SessionStore(memory_log(), Redactor(), Limits())
    for number, texts in enumerate(word_lists):
        session = store.session(user_id="ada", session_id=f"s{number * number % 5}")
        append_words(session, " ".join(texts))
    query = " ".join(words) or "type:user_input"

    hits = store.search("ada", query, limit=limit, per_session=per_session)

    every_hit = hits_of(store, query, per_session=None)
    within = [hit for hit in every_hit if rank_in_session(hit, every_hit) < per_session]
    beyond = [hit for hit in every_hit if hit not in within]
    expected = [*within, *beyond][:limit]
    expected.sort(key=every_hit.index)
    assert [(hit.session_id, hit.seq) for hit in hits] == [
        (hit.session_id, hit.seq) for hit in expected
    ]
    matches = Counter(hit.session_id for hit in every_hit)
    shown = Counter(hit.session_id for hit in hits)
    for hit in hits:
        assert hit.more_in_session == matches[hit.session_id] - shown[hit.session_id]


def rank_in_session(hit: SearchHit, hits: Sequence[SearchHit]) -> int:
    """Return the number of better hits of the same session."""
    of_session = [other for other in hits if other.session_id == hit.session_id]
    return of_session.index(hit)


@pytest.mark.parametrize("query", ["tea", '"green tea"', "type:user_input"])
def test_one_session_does_not_crowd_out_the_others(query: str) -> None:
    store = SessionStore(memory_log(), Redactor(), Limits())
    append_words(store.session(user_id="ada", session_id="old"), "some green tea here")
    long = store.session(user_id="ada", session_id="long")
    append_words(long, *["green tea"] * 2_100)

    result = store.search_with_total("ada", query)

    (of_old,) = (hit for hit in result.hits if hit.session_id == "old")
    assert of_old.more_in_session == 0
    of_long = [hit for hit in result.hits if hit.session_id == "long"]
    assert len(of_long) == 19  # no other session has a match
    assert {hit.more_in_session for hit in of_long} == {2_100 - 19}
    assert result.total == 2_101
    assert [len(hits) for hits in result.by_session()] in ([19, 1], [1, 19])


@pytest.mark.parametrize("words", ["tea", '"green tea"'])
def test_few_hits_of_each_of_many_sessions_fill_a_page(words: str) -> None:
    store = SessionStore(memory_log(), Redactor(), Limits())
    for number in range(9):
        session = store.session(user_id="ada", session_id=f"s{number}")
        append_words(session, *["green tea"] * (number + 1))

    found = Counter(hit.session_id for hit in store.search("ada", words))
    of_all = Counter(
        hit.session_id for hit in store.search("ada", words, per_session=0)
    )
    of_one = store.search("ada", words, session_id="s8")

    assert max(found.values()) == 5
    assert sum(found.values()) == 20
    assert max(of_all.values()) == 9
    assert len(of_one) == 9


@given(
    st.lists(
        st.tuples(st.sampled_from(["ada", "bob"]), st.integers(0, 3), WORDS),
        min_size=1,
        max_size=20,
    ),
    st.sets(st.integers(0, 3), max_size=3),
    st.lists(WORDS, min_size=1, max_size=3),
    st.booleans(),
)
def test_no_result_is_of_another_user_or_of_an_erased_session(
    written: list[tuple[str, int, str]],
    erased: set[int],
    query: list[str],
    is_indexed_before: bool,
) -> None:
    store = SessionStore(memory_log(), Redactor(), Limits())
    expected: set[tuple[str, int]] = set()
    for user, number, word in written:
        session = store.session(user_id=user, session_id=f"s{number}")
        append_words(session, word)
        is_hit = not terms(word).keys().isdisjoint(terms(" ".join(query)))
        if user == "ada" and number not in erased and is_hit:
            expected.add((f"s{number}", session.head().seq))
    if is_indexed_before:
        store.search("ada", " ".join(query))
    for info in store.sessions("ada"):
        if int(info.session_id.removeprefix("s")) in erased:
            store.session(user_id="ada", session_id=info.session_id).delete()

    result = store.search_with_total("ada", " ".join(query), limit=99)

    assert {(hit.session_id, hit.seq) for hit in result.hits} == expected
    assert result.total == len(expected)


def test_a_search_scores_a_bounded_number_of_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("refold.projections.search.ranking.MOST_SCORED", 5)
    store = SessionStore(memory_log(), Redactor(), Limits())
    session = store.session(user_id="ada", session_id="s")
    append_words(session, *["common"] * 40, "common rare", *["common"] * 40)

    result = store.search_with_total("ada", "common rare", limit=20)

    assert result.hits[0].seq == 41
    assert len(result.hits) == 5
    assert result.total == 81


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


def test_a_search_that_indexes_few_events_counts_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("refold.store.search.SEGMENT", 8)
    store = SessionStore(memory_log(), Redactor(), Limits())
    for name in ("old", "new"):
        append_words(store.session(user_id="ada", session_id=name), *["tea"] * 20)

    results = [
        store.search_with_total("ada", "tea", limit=99, index_at_most=10)
        for _ in range(4)
    ]

    assert [result.not_searched for result in results] == [24, 12, 0, 0]
    assert [result.total for result in results] == [16, 28, 40, 40]
    assert {hit.session_id for hit in results[0].hits} == {"new"}


@pytest.mark.parametrize("error", [KeyUnavailable, CorruptEvent])
@pytest.mark.parametrize("is_indexed", [False, True])
def test_a_session_that_cannot_be_read_is_named_and_does_not_stop_the_search(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception], is_indexed: bool
) -> None:
    store = SessionStore(memory_log(), Redactor(), Limits())
    for name in ("sound", "damaged"):
        append_words(store.session(user_id="ada", session_id=name), "tea")
    if is_indexed:
        store.search("ada", "tea")
    read = store.log.read

    def read_or_fail(stream: StreamId, **options: Any) -> Any:
        if stream.session_id == "damaged":
            raise error.__new__(error)
        return read(stream, **options)

    monkeypatch.setattr(store.log, "read", read_or_fail)
    result = store.search_with_total("ada", "tea", limit=99)

    assert [hit.session_id for hit in result.hits] == ["sound"]
    assert result.unreadable == ("damaged",)
    with pytest.raises(error):
        store.search("ada", "tea", session_id="damaged")


@pytest.mark.each_engine
def test_a_damaged_row_does_not_stop_the_search(db: str) -> None:
    with refold.open(db) as store:
        for name in ("sound", "damaged"):
            append_words(store.session(user_id="ada", session_id=name), "tea")
    tamper(db, "UPDATE @events SET ts=ts+1 WHERE session_id='damaged'")

    with refold.open(db) as store:
        result = store.search_with_total("ada", "tea", limit=99)

    assert [hit.session_id for hit in result.hits] == ["sound"]
    assert result.unreadable == ("damaged",)


@pytest.mark.each_engine
def test_an_index_of_an_earlier_version_is_replaced(db: str) -> None:
    with refold.open(db) as store:
        stream = StreamId("ada", "a")
        append_words(store.session(user_id="ada", session_id="a"), "zebra")
        old = StoredView(1, 0, {"words": "", "ends": "", "seqs": ""})
        store.log.save_view(stream, "search-1-0", old, replaces=0)

        assert found_places(store, "zebra") == [("a", 1)]

        assert store.log.view_names("ada", "a") == ["search-3-0"]


def test_an_index_that_was_changed_is_built_again(sqlite_url: str) -> None:
    with refold.open(sqlite_url) as store:
        append_words(store.session(user_id="ada", session_id="a"), "zebra")
        store.search("ada", "zebra")
    with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as database:
        database.execute("UPDATE views SET body = zeroblob(99)")
    with refold.open(sqlite_url) as store:
        assert found_places(store, "zebra") == [("a", 1)]


def test_no_byte_on_disk_contains_a_word_or_an_unkeyed_hash_of_it(
    sqlite_url: str, tmp_path: Path
) -> None:
    words = ["zebrafish", "quagga", "okapi"]
    with refold.open(sqlite_url) as store:
        append_words(store.session(user_id="ada", session_id="a"), " ".join(words))
        assert store.search("ada", "quagga")
        view = store.log.load_view(StreamId("ada", "a"), "search-3-0")
        assert view is not None
        stored = b64decode(str(view.body["terms"]))
    on_disk = b""
    for path in tmp_path.rglob("*"):
        if path.is_file():
            on_disk += path.read_bytes()
    assert len(on_disk) > 10_000
    for word in words:
        unkeyed = hashlib.blake2b(stem(word).encode(), digest_size=5).digest()
        assert unkeyed not in stored  # even with the key of the rows
        for trace in (word.encode(), stem(word).encode(), unkeyed):
            assert trace not in on_disk


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
        view = store.log.load_view(StreamId("ada", "b"), "search-3-0")
        assert view is not None
        assert "zebra" not in str(view.body)
        store.erase("ada", "asked")
        with pytest.raises(Erased):
            store.search("ada", "zebra")
