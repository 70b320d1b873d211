"""For any conversation, contexts equal what was sent, and content is stored once."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest
from hypothesis import given, note, strategies as st

from refold.adapters.proxy.recorder import StoreRecorder
from refold.store import SessionStore
from tests.support.wire import (
    WireClient,
    agent,
    call,
    check_contexts,
    reply,
    result,
    stored_texts,
    user,
)

_USERS = count(1)
_ACTS = st.sampled_from(
    [
        "say",
        "say",
        "call",
        "call",
        "two calls",
        "think",
        "retry",
        "fail",
        "lose answer",
        "rewind",
        "return",
        "compact",
        "compact with tail",
        "clear",
        "remove",
        "restart",
        "drop answer",
        "interrupt",
    ]
)
_STEPS = st.lists(
    st.tuples(_ACTS, st.integers(0, 5), st.booleans()), min_size=1, max_size=14
)


class Conversation:
    """A client with a drawn behavior.  Each new text of it is unique."""

    def __init__(self, store: SessionStore, user_id: str, session: str) -> None:
        self.store = store
        self.user_id = user_id
        self.client = WireClient(StoreRecorder(store, user_id=user_id), session)
        self.number = 0
        self.branches: list[list[dict[str, Any]]] = []
        self.first = ""

    def word(self, kind: str) -> str:
        """Return a new text."""
        self.number += 1
        secret = f" mail{self.number}@example.org" if self.number % 3 == 0 else ""
        return f"{kind} {self.client.session} {self.number}{secret}"

    def act(self, act: str, size: int, flag: bool) -> None:
        """Do a step; afterwards the conversation waits for the user again."""
        client = self.client
        messages = client.messages
        match act:
            case "say":
                client.say(self.word("ask"), self.word("answer"))
            case "call":
                self.calls(1, with_text=flag)
            case "two calls":
                self.calls(2, with_text=flag)
            case "think":
                self.think(dropped=flag)
            case "retry":
                messages.append(user(self.word("ask")))
                client.send(self.word("answer"), echo=False)
                client.send(self.word("answer"))
            case "fail":
                self.fail(size)
            case "lose answer":
                messages.append(user(self.word("ask")))
                exchange = client.exchange()
                client.recorder.begin(exchange)
                client.recorder.finish(exchange, reply(status=None, ending="lost"))
                client.send(self.word("answer"))
            case "rewind":
                self.branches.append(list(messages))
                del messages[self.boundary(size) :]
                client.say(self.word("ask"), self.word("answer"))
            case "return" if self.branches:
                branch = self.branches.pop()
                self.branches.append(list(messages))
                messages[:] = branch
                client.say(self.word("ask"), self.word("answer"))
            case "compact" if len(messages) > 4:
                self.branches.clear()
                messages[:] = [user(self.word("summary"))]
                client.send(self.word("answer"))
            case "compact with tail" if len(messages) > 4:
                self.branches.clear()
                tail = messages[max(2, self.boundary(size)) :]
                messages[:] = [user(self.word("summary")), agent("Understood."), *tail]
                client.say(self.word("ask"), self.word("answer"))
            case "clear":
                self.clear(size)
            case "remove" if len(messages) > 4:
                start = self.boundary(size + 1)
                end = self.boundary(size)
                del messages[start:end]
                client.say(self.word("ask"), self.word("answer"))
            case "restart":
                client.recorder.close()
                client.recorder = StoreRecorder(self.store, user_id=self.user_id)
            case "drop answer":
                messages.append(user(self.word("ask")))
                client.send(self.word("answer"), call(self.word("id")), echo=False)
                messages.append(user(self.word("instead")))
                client.send(self.word("answer"))
            case "interrupt":
                self.interrupt(flag)

    def calls(self, number: int, *, with_text: bool) -> None:
        client = self.client
        ids = [f"c{self.number}-{index}" for index in range(number)]
        self.number += 1
        content: list[Any] = [call(name, command=self.word("run")) for name in ids]
        if with_text:
            content.insert(0, self.word("calling"))
        client.say(self.word("ask"), *content)
        if number == 2:
            self.rewrite(client.messages[-1])
        results = [result(name, self.word("output")) for name in ids]
        client.messages.append(user(*results))
        client.send(self.word("answer"))

    def rewrite(self, message: dict[str, Any]) -> None:
        """Send a call back with other arguments than the model's."""
        for block in message["content"]:
            if block["type"] == "tool_use":
                block["input"] = {**block["input"], "all": False}
                if self.number % 2:
                    block["input"]["command"] = self.word("instead")
                return

    def think(self, *, dropped: bool) -> None:
        client = self.client
        self.number += 1
        thinking = {
            "type": "thinking",
            # A signed block with a secret is dropped, not redacted.
            "thinking": f"thought {self.number}",
            "signature": f"sig{self.number}",
        }
        client.messages.append(user(self.word("ask")))
        words = self.word("answer")
        client.send(thinking, words, echo=False)
        client.messages.append(agent(words) if dropped else agent(thinking, words))

    def fail(self, times: int) -> None:
        client = self.client
        client.messages.append(user(self.word("ask")))
        for _ in range(times):
            exchange = client.exchange()
            client.recorder.begin(exchange)
            client.recorder.finish(exchange, reply(status=529))
        client.send(self.word("answer"))

    def clear(self, size: int) -> None:
        """Replace the results of the oldest messages."""
        client = self.client
        cleared = 0
        for message in client.messages[:-3]:
            for block in message["content"]:
                if block["type"] == "tool_result" and cleared <= size:
                    block["content"] = "[cleared]"
                    cleared += 1
        client.say(self.word("ask"), self.word("answer"))

    def interrupt(self, repeated: bool) -> None:
        """Stop an answer in the middle; the client may repeat what came of it."""
        client = self.client
        client.messages.append(user(self.word("ask")))
        exchange = client.exchange()
        client.recorder.begin(exchange)
        words = self.word("half")
        client.recorder.finish(exchange, reply(words, ending="cancelled"))
        if repeated:
            client.messages.append(agent(words))
        client.messages.append(user(self.word("stop")))
        client.send(self.word("answer"))

    def boundary(self, size: int) -> int:
        """The index of one of the last inputs of the user."""
        starts = [
            index
            for index, message in enumerate(self.client.messages)
            if message["role"] == "user" and message["content"][0]["type"] == "text"
        ]
        if not starts:
            return 0
        return starts[max(0, len(starts) - 1 - size)]


@given(_STEPS)
def test_contexts_equal_what_was_sent(
    made_store: SessionStore, steps: list[tuple[str, int, bool]]
) -> None:
    user_id = f"user-{next(_USERS)}"
    conversation = Conversation(made_store, user_id, "s-1")
    for act, size, flag in steps:
        note(f"{act} {size} {flag}")
        conversation.act(act, size, flag)

    client = conversation.client
    assert check_contexts(made_store, client, user_id) == len(client.sent)
    doubled = {
        words: times
        for words, times in stored_texts(made_store, user_id).items()
        if times > 1 and words != "Understood."
    }
    assert not doubled


@pytest.fixture(scope="module")
def made_store(tmp_path_factory: pytest.TempPathFactory) -> Any:
    import refold

    folder = tmp_path_factory.mktemp("properties")
    with refold.open(f"sqlite:///{folder / 'store.db'}") as store:
        yield store
