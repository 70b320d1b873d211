"""The tests that every framework adapter must pass when items contain secrets.

An adapter inherits them in addition to the framework's own suite, which plants no
secrets.
"""

from __future__ import annotations

import asyncio
import json
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import refold
from refold.domain.envelope import Envelope
from refold.domain.errors import RefoldError
from refold.redaction import Policy
from tests.support.waiting import PATIENCE_SEC

SECRET = "ghp_Zk3vQ9xLmN7pRt2wYb5uCe8dHf4jGa6sVb1n"
MAIL = "grace.hopper@navy-yard.org"
OTHER = "joan.clarke@bletchley-park.org"
EVE = "eve.adams@cipher-house.org"
HELP = f"Help {EVE}."
ANSWER = f"Ask {OTHER}."
NUMBERED = Policy.parse("version = 1\nnumbered = true\n")
LATER = "Quux-Seventeen-cabin"  # found by rules that are added later
RIVALS = ("Is it the ground floor, perhaps?", "Is it the seventh floor, then?")
ROOM = "Ask for the cabin of Quux-Seventeen-cabin at the desk, please."


class SampleMessage(NamedTuple):
    """One message of a conversation; ``call`` asks for a tool, or is answered."""

    who: str
    text: str = ""
    call: str = ""
    arguments: Any = None


GIVEN = {"to": MAIL, "n": 3, f"copy to {MAIL}": [{SECRET: None}]}
CONVERSATION = (
    SampleMessage(
        "user", f"Write to {MAIL} with the key {SECRET}, and wait for the answer."
    ),
    SampleMessage("assistant", "I write to them at once.", "call_7f3a", GIVEN),
    SampleMessage("tool", f"sent to {MAIL}: token={SECRET} was accepted", "call_7f3a"),
    SampleMessage("assistant", f"It is sent to {MAIL}, and accepted."),
    SampleMessage("user", ROOM),
    SampleMessage(
        "assistant", "I look it up.", "call_8b1c", {"where": "desk", "deep": [ROOM]}
    ),
    SampleMessage("tool", "It is on the second floor, near the stairs.", "call_8b1c"),
    SampleMessage("assistant", "The second floor."),
)
EVENTS = [
    "user_input",
    "agent_response",
    "tool_call",
    "tool_result",
    "agent_response",
    "user_input",
    "agent_response",
    "tool_call",
    "tool_result",
    "agent_response",
]


class RedactedContract(ABC):
    """Inherit it, and implement how a framework creates, saves and loads its items.

    stale:   the error of the second of two writers; None if both may write.
    at_once: the most items of a conversation that one write saves; None for all.
    halves:  whether the framework passes half of a surrogate pair to its store.
    """

    stale: type[Exception] | None = None
    at_once: int | None = None
    halves = True

    @abstractmethod
    def adapter(self, store: refold.SessionStore) -> Any:
        """Return the adapter on this store."""

    @abstractmethod
    def item(self, sample: SampleMessage, number: int) -> Any:
        """Return the framework's item for a message; its id contains ``number``."""

    @abstractmethod
    async def save(
        self, adapter: Any, thread: str, items: list[Any], new: list[Any]
    ) -> None:
        """Save ``new``, the last of ``items``, as the framework would."""

    @abstractmethod
    async def load(self, adapter: Any, thread: str) -> list[Any]:
        """Return all items of the thread; none if the thread does not exist."""

    @abstractmethod
    async def delete(self, adapter: Any, thread: str) -> None:
        """Delete the thread."""

    @abstractmethod
    def plain(self, item: Any) -> Any:
        """Return the item as JSON."""

    @abstractmethod
    def ids(self, item: Any) -> list[str]:
        """Return the ids in the item, which must stay byte for byte."""

    def items(self) -> list[Any]:
        """Return the items of the whole conversation."""
        return [self.item(sample, number) for number, sample in enumerate(CONVERSATION)]

    @pytest.fixture
    def store(self, url: str) -> Iterator[refold.SessionStore]:
        with refold.open(url) as opened:
            yield opened

    def run(self, work: Any) -> Any:
        return asyncio.run(work)

    def as_text(self, items: list[Any]) -> str:
        """Return the JSON of items as one text."""
        return json.dumps([self.plain(item) for item in items], ensure_ascii=False)

    def test_secrets_are_nowhere_and_ids_stay(
        self, store: refold.SessionStore, tmp_path: Path
    ) -> None:
        items = self.items()
        adapter = self.adapter(store)
        self.run(self.save(adapter, f"of {MAIL}", items, items))

        loaded = self.run(self.load(adapter, f"of {MAIL}"))

        shown = self.as_text(loaded)
        stored = all_stored_text(store)
        for secret in (SECRET, MAIL):
            assert secret not in shown
            assert secret not in stored
            for path in tmp_path.rglob("*"):
                assert not path.is_file() or secret.encode() not in path.read_bytes()
        assert "[REDACTED:EMAIL]" in shown
        assert [self.ids(item) for item in loaded] == [self.ids(item) for item in items]

    def test_saved_again_nothing_is_added(self, store: refold.SessionStore) -> None:
        items = self.items()
        adapter = self.adapter(store)
        self.run(self.save(adapter, "t", items, items))
        before = seqs(store, items_only=True)

        loaded = self.run(self.load(adapter, "t"))
        self.run(self.save(adapter, "t", loaded, loaded))
        self.run(self.save(adapter, "t", items, items))

        again = self.run(self.load(adapter, "t"))
        assert self.as_text(again) == self.as_text(loaded)
        assert seqs(store, items_only=True) == before

    def test_numbered_placeholders_stay_the_sessions_own(self, url: str) -> None:
        items = self.items()
        with refold.open(url, policy=NUMBERED) as store:
            self.run(self.save(self.adapter(store), "t", items, items))
            before = seqs(store, items_only=True)

        with refold.open(url, policy=NUMBERED) as store:
            adapter = self.adapter(store)
            loaded = self.run(self.load(adapter, "t"))
            self.run(self.save(adapter, "t", loaded, loaded))
            self.run(self.save(adapter, "t", items, items))

            again = self.run(self.load(adapter, "t"))
            assert "[EMAIL_1]" in self.as_text(loaded)
            assert self.as_text(again) == self.as_text(loaded)
            assert seqs(store, items_only=True) == before

    def test_of_a_half_known_batch_the_rest_is_added(
        self, store: refold.SessionStore
    ) -> None:
        items = self.items()
        adapter = self.adapter(store)
        self.run(self.save(adapter, "t", items[:3], items[:3]))
        self.run(self.save(adapter, "t", items[:6], items[1:6]))
        self.run(self.save(adapter, "t", items, items))

        loaded = self.run(self.load(adapter, "t"))
        assert [self.ids(item) for item in loaded] == [self.ids(item) for item in items]

    def test_each_event_is_recorded_once_and_in_order(
        self, store: refold.SessionStore
    ) -> None:
        items = self.items()
        adapter = self.adapter(store)
        for end in range(1, len(items) + 1):
            self.run(self.save(adapter, "t", items[:end], items[end - 1 : end]))

        (info,) = store.sessions()
        session = store.session(user_id=info.user_id, session_id=info.session_id)
        types = [event.type for event in session.events() if event.type in EVENTS]
        assert types == EVENTS
        assert session.history.open_calls() == []
        roles = [message["role"] for message in session.context().messages]
        assert roles == ["user", "assistant"] * 4
        assert [verified.problems for _, verified in store.verify()] == [[]]

    def test_later_rules_change_item_and_event_together(self, url: str) -> None:
        items = self.items()
        with refold.open(url) as store:
            self.run(self.save(self.adapter(store), "t", items, items))
        rules = refold.redaction.Registered()
        rules.register(LATER, "SECRET")

        with refold.open(url, registered=rules) as store:
            applied = [report.applied for report in store.reredact() if report.applied]
            loaded = self.run(self.load(self.adapter(store), "t"))

            assert sum(record.events for record in applied) >= 2
            assert LATER not in self.as_text(loaded)
            assert LATER not in all_stored_text(store)
            assert "second floor" in self.as_text(loaded)
            assert [report.problems for _, report in store.verify()] == [[]]

    def test_a_large_item_is_read_back_completely(
        self, store: refold.SessionStore
    ) -> None:
        adapter = self.adapter(store)
        text = "A line of a very long file that somebody pasted here.\n" * 25_000
        items = [
            self.item(SampleMessage("user", text), 1),
            self.item(SampleMessage("assistant", "ok"), 2),
        ]
        self.run(self.save(adapter, "t", items, items))

        loaded = self.run(self.load(adapter, "t"))
        assert [*map(self.plain, loaded)] == [*map(self.plain, items)]

    def test_an_item_too_long_to_redact_becomes_a_stub(
        self, store: refold.SessionStore
    ) -> None:
        adapter = self.adapter(store)
        items = [self.item(SampleMessage("user", "An image, " + "A" * (20 << 20)), 1)]
        items.append(self.item(SampleMessage("assistant", "I see."), 2))
        self.run(self.save(adapter, "t", items, items))

        loaded = self.run(self.load(adapter, "t"))
        self.run(self.save(adapter, "t", items, items))
        shown = self.as_text(self.run(self.load(adapter, "t")))
        assert shown == self.as_text(loaded)
        assert len(shown) < 10_000
        assert "[REDACTED:UNSCANNED 20971530 bytes]" in shown
        assert "I see." in shown

    def test_a_deleted_thread_can_begin_again(self, store: refold.SessionStore) -> None:
        items = self.items()
        adapter = self.adapter(store)
        self.run(self.save(adapter, "t", items, items))
        self.run(self.save(adapter, "other", items[:1], items[:1]))

        self.run(self.delete(adapter, "t"))
        assert self.run(self.load(adapter, "t")) == []
        self.run(self.save(adapter, "t", items[:2], items[:2]))

        loaded = self.run(self.load(adapter, "t"))
        assert [self.ids(item) for item in loaded] == [self.ids(i) for i in items[:2]]
        assert len(self.run(self.load(adapter, "other"))) == 1
        store.upkeep.background.wait_idle()
        assert store.erasures.pending() == []

    def test_two_writers_lose_nothing(self, url: str) -> None:
        items = self.items()
        with refold.open(url) as store, refold.open(url) as other_store:
            adapters = [self.adapter(store), self.adapter(other_store)]

            async def both() -> Any:
                first = self.save(adapters[0], "t", items[:4], items[:4])
                second = self.save(adapters[1], "t", items[:4], items[:4])
                return await asyncio.gather(first, second, return_exceptions=True)

            results = self.run(both())
            assert sum(isinstance(result, BaseException) for result in results) <= 1

            loaded = self.run(self.load(adapters[0], "t"))
            assert [self.ids(i) for i in loaded] == [self.ids(i) for i in items[:4]]
            assert self.as_text(self.run(self.load(adapters[1], "t"))) == self.as_text(
                loaded
            )
            assert [verified.problems for _, verified in store.verify()] == [[]]

    def test_the_second_of_two_writers_decides_again(self, url: str) -> None:
        items = self.items()
        with refold.open(url) as store, refold.open(url) as other_store:
            adapters = [self.adapter(store), self.adapter(other_store)]
            self.run(self.save(adapters[0], "t", items[:4], items[:4]))
            new = [
                self.item(SampleMessage("user", text), 4 + n)
                for n, text in enumerate(RIVALS)
            ]
            together(store, other_store)

            async def both() -> Any:
                saves = [
                    self.save(adapter, "t", [*items[:4], item], [item])
                    for adapter, item in zip(adapters, new, strict=True)
                ]
                return await asyncio.gather(*saves, return_exceptions=True)

            results = self.run(both())
            assert [type(r) for r in results if r] == [self.stale][: bool(self.stale)]
            stored = all_stored_text(store)
            assert [text in stored for text in RIVALS] == [
                not result for result in results
            ]
            assert [verified.problems for _, verified in store.verify()] == [[]]

    def test_a_cancelled_write_is_complete_or_absent(
        self, store: refold.SessionStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        items = self.items()[: self.at_once]
        adapter = self.adapter(store)
        began = threading.Event()
        go = threading.Event()
        append = store.log.append

        def delayed_append(request: Any) -> Any:
            began.set()
            assert go.wait(PATIENCE_SEC)
            return append(request)

        async def cancelled() -> None:
            task = asyncio.ensure_future(self.save(adapter, "t", items, items))
            assert await asyncio.to_thread(began.wait, PATIENCE_SEC)
            task.cancel()
            await asyncio.sleep(0)
            go.set()
            await asyncio.gather(task, return_exceptions=True)

        monkeypatch.setattr(store.log, "append", delayed_append)
        self.run(cancelled())
        assert len(self.run(self.load(adapter, "t"))) in (0, len(items))
        self.run(self.save(adapter, "t", items, items))
        loaded = self.run(self.load(adapter, "t"))
        assert [self.ids(item) for item in loaded] == [self.ids(item) for item in items]
        assert [verified.problems for _, verified in store.verify()] == [[]]

    def test_values_that_json_cannot_hold_are_stored_repaired(
        self, store: refold.SessionStore
    ) -> None:
        adapter = self.adapter(store)
        arguments = {"half": "b\ud83d", "n": float("nan"), "long": 2**70}
        sample = SampleMessage("assistant", "a \ud800 b", "call_7f3a", arguments)
        if not self.halves:
            sample = SampleMessage(
                "assistant", "a \ufffd b", "call_7f3a", {"n": float("nan")}
            )
        items = [self.item(sample, 1)]
        self.run(self.save(adapter, "t", items, items))
        before = seqs(store, items_only=True)
        self.run(self.save(adapter, "t", items, items))

        (loaded,) = self.run(self.load(adapter, "t"))
        assert "a \ufffd b" in self.as_text([loaded])
        assert self.ids(loaded) == self.ids(items[0])
        assert seqs(store, items_only=True) == before

    def test_another_user_sees_nothing(self, store: refold.SessionStore) -> None:
        items = self.items()
        adapter = self.adapter(store)
        self.run(self.save(adapter, "t", items, items))
        users = {info.user_id for info in store.sessions()}

        store.erase(next(iter(users)), "asked")

        with pytest.raises(RefoldError):
            self.run(self.save(adapter, "t", items, items))
        assert SECRET not in all_stored_text(store)


class FilterContract(ABC):
    """Inherit it if a filter comes before the model.

    helps: whether the filter sees the agent's instructions.
    """

    helps = True

    @abstractmethod
    def talk(self, store: refold.SessionStore, texts: Sequence[str]) -> list[str]:
        """Return what a model receives when a user sends these texts, one run each.

        The agent's instructions are ``HELP``, and its model answers ``ANSWER`` each
        time.
        """

    @pytest.mark.parametrize("numbered", [False, True])
    def test_the_model_gets_the_stored_text(self, url: str, *, numbered: bool) -> None:
        policy = NUMBERED if numbered else None
        with refold.open(url, policy=policy) as store:
            sent = self.talk(store, [f"I am {MAIL}.", "Go on.", f"I am {MAIL}!"])

            assert len(sent) == 3
            for mail in (MAIL, OTHER, EVE):
                assert mail not in str(sent)
                assert mail not in all_stored_text(store)
            hidden = "[REDACTED:EMAIL]"
            first, second = ("[EMAIL_1]", "[EMAIL_2]") if numbered else (hidden, hidden)
            assert all(f"I am {first}." in request for request in sent)
            assert all(f"Help {hidden}." in request for request in sent) is self.helps
            assert all(f"Ask {second}." in request for request in sent[1:])
            assert f"I am {first}!" in sent[2]
            assert "[~" not in str(sent)


def together(*stores: refold.SessionStore) -> None:
    """Let the next append of each store wait until all of them have decided."""
    barrier = threading.Barrier(len(stores))

    def delayed_append(append: Any, waits: list[bool], request: Any) -> Any:
        if waits.pop():
            with suppress(threading.BrokenBarrierError):
                barrier.wait(PATIENCE_SEC)
        waits.append(False)
        return append(request)

    for store in stores:
        store.log.append = partial(delayed_append, store.log.append, [True])  # type: ignore[method-assign]  # to slow one append


def all_stored_text(store: refold.SessionStore) -> str:
    """Return everything stored of all sessions, decrypted: events, texts, views."""
    parts: list[str] = []
    for info in store.sessions():
        session = store.session(user_id=info.user_id, session_id=info.session_id)
        for name in session.history.streams():
            events: Iterable[Envelope] = session.history.pages()
            if name != "main":
                events = session.history.derived(name)
            for event in events:
                parts.append(event.model_dump_json())
                parts += [session.history.blob(sha256) for sha256 in event.blobs]
        for name in store.log.view_names(info.user_id, info.session_id):
            parts.append(str(store.log.load_view(session.stream, name)))
    return "\n".join(parts)


def seqs(store: refold.SessionStore, *, items_only: bool = False) -> int:
    """Return the number of events of conversations."""
    return sum(
        event.type in EVENTS or not items_only
        for info in store.sessions()
        for event in store.session(
            user_id=info.user_id, session_id=info.session_id
        ).history.pages()
    )
