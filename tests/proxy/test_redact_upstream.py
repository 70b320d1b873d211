"""With ``--redact-upstream``, providers get placeholders and clients get values."""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import httpx2
import pytest

from refold.adapters.proxy import protocols
from refold.adapters.proxy.environment import Upstream
from refold.adapters.proxy.recorder import StoreRecorder
from refold.adapters.proxy.recording import Recording
from refold.adapters.proxy.server import ProxyServer
from refold.domain.errors import InvalidConfiguration
from refold.domain.events import Request
from refold.redaction import Redactor
from refold.redaction.plan import Plan
from refold.store import SessionStore
from refold.store.session.session import Session
from tests.fuzz import wire
from tests.proxy.conftest import Machine
from tests.proxy.test_proxy_command import running as proxy_process
from tests.proxy.test_run import HTTP_AGENT, RUN, python, to
from tests.support import raw_http
from tests.support.provider import Answer, Call, Failure, Provider, Seen
from tests.support.provider_shapes import Protocol
from tests.support.proxying import SECRET
from tests.support.waiting import PATIENCE_SEC

USER = "ada"
EMAIL = "ada@example.org"
PHONE = "+1 415 555 0132"
KEY = "ghp_" + "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7bC0eF3hJ6"
OWNER = "owner@example.org"
SUPPORT = "support@example.org"
VALUES = (EMAIL, PHONE, KEY, OWNER, SUPPORT)
UPSTREAMS: dict[Protocol, str] = {
    "anthropic-messages": "anthropic",
    "openai-chat": "openai",
    "openai-responses": "openai",
    "gemini": "gemini",
    "ollama": "ollama",
}
SYSTEM = f"The owner is {OWNER}."
SCHEMA = {"type": "object", "properties": {"to": {"type": "string"}}}
DESCRIPTION = f"Sends a mail.  Ask {SUPPORT} about it."
FIRST = f"Write to {EMAIL}, call {PHONE}, and use {KEY}."
_PLACEHOLDER = re.compile(r"\[[A-Z_]+_[0-9]+\]")


def echo(request: Seen) -> Answer:
    """Answer with all placeholders of the request, in the text and in a call."""
    names = list(dict.fromkeys(_PLACEHOLDER.findall(request.decoded.decode())))
    arguments = {"to": names, "text": f'"{" ".join(names)}" [EMAIL_99]'}
    words = f"Here: {', '.join(names)} and [EMAIL_99] or [EM"
    return Answer(words, calls=(Call("send", arguments, f"call_{request.number}"),))


def body_of(name: Protocol, turns: list[tuple[str, str]], *, stream: bool) -> Any:
    """Return a request with a history of texts."""
    messages = [{"role": role, "content": text} for role, text in turns]
    function = {"name": "send", "description": DESCRIPTION, "parameters": SCHEMA}
    system = {"role": "system", "content": SYSTEM}
    match name:
        case "anthropic-messages":
            tool = {"name": "send", "description": DESCRIPTION, "input_schema": SCHEMA}
            return {
                "model": "claude-opus-4-8",
                "max_tokens": 1000,
                "system": SYSTEM,
                "tools": [tool],
                "messages": messages,
                "metadata": {"user_id": EMAIL},
                "stream": stream,
            }
        case "openai-responses":
            return {
                "model": "gpt-5",
                "instructions": SYSTEM,
                "tools": [{"type": "function", **function}],
                "input": messages,
                "metadata": {"owner": EMAIL},
                "stream": stream,
            }
        case "gemini":
            contents = [
                {
                    "role": "model" if role == "assistant" else "user",
                    "parts": [{"text": text}],
                }
                for role, text in turns
            ]
            return {
                "systemInstruction": {"parts": [{"text": SYSTEM}]},
                "tools": [{"functionDeclarations": [function]}],
                "contents": contents,
            }
    return {
        "model": "gpt-5",
        "tools": [{"type": "function", "function": function}],
        "messages": [system, *messages],
        "stream": stream,
    }


class Running:
    """A proxy that records in a store, and hides values from the provider."""

    def __init__(
        self, store: SessionStore, provider: Provider | raw_http.Server
    ) -> None:
        self.warnings: list[str] = []
        recorder = StoreRecorder(store, user_id=USER, redacts_upstream=True)
        self.recording = Recording(
            recorder, self.warnings.append, redacts_upstream=True
        )
        upstreams = {
            name: Upstream(name, provider.url) for name in set(UPSTREAMS.values())
        }
        self.server = ProxyServer(
            upstreams, protocols.of, self.recording, secret=SECRET
        )

    def post(self, upstream: str, path: str, body: Any) -> httpx2.Response:
        """Send a request to the proxy."""
        return httpx2.post(
            f"{self.server.address}/{upstream}{path}",
            json=body,
            headers={"accept-encoding": "gzip", "x-api-key": "sk-of-the-client"},
            timeout=PATIENCE_SEC,
        )

    def ask(
        self, name: Protocol, turns: list[tuple[str, str]], *, stream: bool
    ) -> list[Any]:
        """Ask the model; returns the events in the answer."""
        path = wire.PATHS[name]
        if name == "gemini" and stream:
            path = path.replace(":generate", ":streamGenerate") + "?alt=sse"
        body = body_of(name, turns, stream=stream)
        response = self.post(UPSTREAMS[name], path, body)
        assert response.status_code == 200, response.text
        headers = {"content-type": response.headers["content-type"]}
        answer = protocols.named(name).answer(
            200, headers, response.content, complete=True
        )
        assert answer.complete
        return [event.payload() for event in answer.events]

    def close(self) -> None:
        """Stop the proxy, and wait until everything is recorded."""
        self.server.stop()
        self.recording.close()


@contextmanager
def running(
    store: SessionStore, provider: Provider | raw_http.Server
) -> Iterator[Running]:
    """Run a proxy that hides values from the provider."""
    proxy = Running(store, provider)
    try:
        yield proxy
    finally:
        proxy.close()


@pytest.fixture
def echoing() -> Iterator[Provider]:
    """A provider that answers with the placeholders of the request."""
    with Provider(echo, scripted=lambda _: False) as provider:
        yield provider


def check_nothing_arrived(provider: Provider) -> None:
    """Check that the provider received no value."""
    assert provider.requests
    for request in provider.seen:
        for value in VALUES:
            assert value not in request.decoded.decode(), request.json


def only_session(store: SessionStore) -> Session:
    """Return the session of the store."""
    (info,) = store.sessions(USER)
    return store.session(user_id=USER, session_id=info.session_id)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", UPSTREAMS)
def test_the_provider_gets_placeholders_and_the_client_its_values(
    store: SessionStore, echoing: Provider, name: Protocol, stream: bool
) -> None:
    turns = [("user", FIRST)]
    with running(store, echoing) as proxy:
        first, called, *_ = proxy.ask(name, turns, stream=stream)
        turns += [("assistant", first["text"]), ("user", f"Again to {EMAIL}.")]
        second, *_ = proxy.ask(name, turns, stream=stream)

    check_nothing_arrived(echoing)
    sent = echoing.requests[0]
    assert sent.header("content-length") == str(len(sent.body))
    assert sent.header("accept-encoding") == "identity"
    for value in VALUES:
        assert value in first["text"]
        assert value in second["text"]
        assert value in called["arguments"]["to"]
        assert value in called["arguments"]["text"]
    assert first["text"].endswith(" and [EMAIL_99] or [EM")
    # The same values have the same numbers in the second request.
    before = _PLACEHOLDER.findall(echoing.requests[0].decoded.decode())
    after = _PLACEHOLDER.findall(echoing.requests[1].decoded.decode())
    assert set(before) | {"[EMAIL_99]"} == set(after)


@pytest.mark.parametrize("name", UPSTREAMS)
def test_the_log_has_what_the_provider_got(
    store: SessionStore, echoing: Provider, name: Protocol
) -> None:
    turns = [("user", FIRST)]
    with running(store, echoing) as proxy:
        first, *_ = proxy.ask(name, turns, stream=True)
        turns += [("assistant", first["text"]), ("user", f"Again to {EMAIL}.")]
        proxy.ask(name, turns, stream=False)

    assert not proxy.warnings
    session = only_session(store)
    types = [event.type for event in session.events()]
    assert types.count("user_input") == 2
    requests = session.events(types=("request",))
    key = session.writer.log.session_proof_key(session.stream)
    for envelope, received in zip(requests, echoing.requests, strict=True):
        assert isinstance(envelope.payload, Request)
        view = session.context(at=envelope.seq)
        assert view.digest == envelope.payload.digest
        assert view.system is not None
        assert view.system in json.loads(json.dumps(received.decoded.decode()))
        shown = str([view.messages, view.system, view.tools])
        for value in VALUES:
            assert value not in shown
        for placeholder in _PLACEHOLDER.findall(shown):
            assert placeholder in received.decoded.decode()
        mac = hmac.digest(key, b"wire\0" + received.body, "sha256").hex()
        wire_facts: Any = envelope.meta.dump()["wire"]
        assert wire_facts["mac"] == mac
        assert wire_facts["bytes"] == len(received.body)
    assert requests[0].payload.matches is True  # type: ignore[union-attr]  # a request
    assert not session.proofs.verify().problems


@pytest.mark.parametrize("name", UPSTREAMS)
def test_values_keep_their_placeholders_after_a_restart(
    store: SessionStore, echoing: Provider, name: Protocol
) -> None:
    turns = [("user", FIRST)]
    with running(store, echoing) as proxy:
        first, *_ = proxy.ask(name, turns, stream=True)
    turns += [("assistant", first["text"]), ("user", "And grace@example.org too.")]
    with running(store, echoing) as proxy:
        second, *_ = proxy.ask(name, turns, stream=True)

    check_nothing_arrived(echoing)
    assert "grace@example.org" not in echoing.requests[1].decoded.decode()
    for value in (*VALUES, "grace@example.org"):
        assert value in second["text"]
    before = _PLACEHOLDER.findall(echoing.requests[0].decoded.decode())
    after = _PLACEHOLDER.findall(echoing.requests[1].decoded.decode())
    assert set(before) < set(after)
    types = [event.type for event in only_session(store).events()]
    assert types.count("user_input") == 2


def test_the_sdk_of_anthropic_gets_the_values(
    store: SessionStore, echoing: Provider
) -> None:
    tool: Any = {"name": "send", "description": DESCRIPTION, "input_schema": SCHEMA}
    messages: list[Any] = [{"role": "user", "content": FIRST}]
    with running(store, echoing) as proxy:
        url = f"{proxy.server.address}/anthropic"
        client = anthropic.Anthropic(api_key="sk-of-the-client", base_url=url)
        for _ in range(2):
            with client.messages.stream(
                model="claude-opus-4-8",
                max_tokens=1000,
                system=SYSTEM,
                tools=[tool],
                messages=messages,
            ) as stream:
                message = stream.get_final_message()
            text, called = message.content
            assert text.type == "text"
            assert called.type == "tool_use"
            for value in VALUES:
                assert value in text.text
                assert value in called.input["to"]  # type: ignore[operator]  # a list
            result = {
                "type": "tool_result",
                "tool_use_id": called.id,
                "content": f"sent to {EMAIL}",
            }
            messages.append({"role": "assistant", "content": message.content})
            messages.append({"role": "user", "content": [result]})

    check_nothing_arrived(echoing)
    matches = [
        event.payload.matches  # type: ignore[union-attr]  # a request
        for event in only_session(store).events(types=("request",))
    ]
    assert matches[0] is True


def test_numbers_and_json_in_arguments_are_hidden(
    store: SessionStore, echoing: Provider
) -> None:
    arguments = {"phone": 4155550132, "note": json.dumps({"password": "hunter2-X9"})}
    block = {"type": "tool_use", "id": "toolu_1", "name": "send", "input": arguments}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "done"}
    body = body_of("anthropic-messages", [("user", "Call.")], stream=False)
    body["messages"] += [
        {"role": "assistant", "content": [block]},
        {"role": "user", "content": [result]},
    ]
    with running(store, echoing) as proxy:
        response = proxy.post("anthropic", "/v1/messages", body)

    assert response.status_code == 200, response.text
    received = echoing.requests[0].decoded.decode()
    assert "4155550132" not in received
    assert "hunter2-X9" not in received
    assert "toolu_1" in received
    assert "hunter2-X9" in response.text


def test_a_schema_may_have_any_json_as_a_type(
    store: SessionStore, echoing: Provider
) -> None:
    body = body_of("anthropic-messages", [("user", FIRST)], stream=False)
    kind = {"type": ["string", "null"], "description": f"Ask {SUPPORT}."}
    body["tools"][0]["input_schema"] = {"type": "object", "properties": {"type": kind}}
    with running(store, echoing) as proxy:
        response = proxy.post("anthropic", "/v1/messages", body)

    assert response.status_code == 200, response.text
    check_nothing_arrived(echoing)


def test_a_value_that_only_its_event_shows_is_hidden(
    store: SessionStore, echoing: Provider
) -> None:
    block = {"type": "tool_use", "id": "toolu_1", "name": "send", "input": {"id": KEY}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "done"}
    body = body_of("anthropic-messages", [("user", "Look.")], stream=False)
    with running(store, echoing) as proxy:
        answer = proxy.post("anthropic", "/v1/messages", body).json()
        first = {**result, "tool_use_id": answer["content"][-1]["id"]}
        body["messages"] += [
            {"role": "assistant", "content": answer["content"]},
            {"role": "user", "content": [first]},
            {"role": "assistant", "content": [block]},
            {"role": "user", "content": [result]},
        ]
        response = proxy.post("anthropic", "/v1/messages", body)

    assert response.status_code == 200, response.text
    check_nothing_arrived(echoing)
    calls = only_session(store).events(types=("tool_call",))
    assert len(calls) == 3
    newest = only_session(store).events(types=("request",))[-1]
    view = only_session(store).context(at=newest.seq)
    assert isinstance(newest.payload, Request)
    assert view.digest == newest.payload.digest


def test_an_error_of_the_provider_gives_the_values_back(
    store: SessionStore, provider: Provider
) -> None:
    provider.reply(Failure(400, words="[EMAIL_1] is no address"))
    with running(store, provider) as proxy:
        body = body_of("anthropic-messages", [("user", "Hello")], stream=True)
        response = proxy.post("anthropic", "/v1/messages", body)

    assert response.status_code == 400
    assert response.json()["error"]["message"] in (
        f"{value} is no address" for value in VALUES
    )


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages/count_tokens", {"messages": [EMAIL]}),
        ("/v1/messages", [EMAIL]),
        ("/api/event_logging", {"user": EMAIL}),
    ],
)
def test_a_request_that_cannot_be_redacted_is_not_sent(
    store: SessionStore, provider: Provider, path: str, body: Any
) -> None:
    with running(store, provider) as proxy:
        response = proxy.post("anthropic", path, body)
        listed = httpx2.get(
            f"{proxy.server.address}/anthropic/v1/models", timeout=PATIENCE_SEC
        )

    assert response.status_code == 502
    assert response.json()["type"] == "error"
    assert [request.method for request in provider.seen] == ["GET"]
    assert listed.status_code == 200


def test_a_request_is_not_sent_if_the_store_fails(
    store: SessionStore, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(type(store.writer), "append", fail)
    with running(store, provider) as proxy:
        body = body_of("openai-chat", [("user", FIRST)], stream=False)
        response = proxy.post("openai", "/v1/chat/completions", body)

    assert response.status_code == 502
    assert response.json()["error"]["code"] == "refold_proxy"
    assert not provider.seen


def test_signed_thinking_is_sent_unchanged(
    store: SessionStore, echoing: Provider
) -> None:
    thinking = {"type": "thinking", "thinking": f"To {EMAIL}.", "signature": "c2ln"}
    body = body_of("anthropic-messages", [("user", FIRST)], stream=False)
    body["messages"] += [
        {"role": "assistant", "content": [thinking, {"type": "text", "text": "Yes."}]},
        {"role": "user", "content": "Go on."},
    ]
    with running(store, echoing) as proxy:
        response = proxy.post("anthropic", "/v1/messages", body)

    assert response.status_code == 200, response.text
    received = echoing.requests[0].json["messages"]
    assert received[1]["content"][0] == thinking
    assert EMAIL not in str(received[0])


def test_a_policy_without_numbers_is_refused(store: SessionStore) -> None:
    labelled = Redactor(Plan(labels={"EMAIL": "MAIL"}))
    assert not labelled.numbering.numbered
    writer = store.writer
    object.__setattr__(writer, "redactor", labelled)

    with pytest.raises(InvalidConfiguration, match="placeholders have labels"):
        StoreRecorder(store, user_id=USER, redacts_upstream=True)


def test_the_command_hides_values_and_verifies(
    machine: Machine, echoing: Provider
) -> None:
    options = ("--redact-upstream", *to(echoing))

    ran = machine.refold(*RUN, *options, *python(HTTP_AGENT, FIRST))

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.startswith(f"Here: {EMAIL}, {PHONE}, {KEY} and ")
    assert EMAIL not in echoing.requests[0].decoded.decode()
    verified = machine.refold("verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    for path in machine.folder.rglob("*"):
        if path.is_file():
            assert EMAIL.encode() not in path.read_bytes(), path


def test_a_proxy_that_was_killed_goes_on_with_the_same_placeholders(
    machine: Machine, echoing: Provider
) -> None:
    secret = ("--secret-file", machine.folder / "secret")
    options = ("--redact-upstream", "--upstream", f"anthropic={echoing.url}", *secret)
    turns = [("user", FIRST)]
    for _ in range(2):
        with proxy_process(machine, *options) as (variables, process):
            body = body_of("anthropic-messages", turns, stream=True)
            response = httpx2.post(
                f"{variables['ANTHROPIC_BASE_URL']}/v1/messages",
                json=body,
                timeout=PATIENCE_SEC,
            )
            process.kill()
            process.wait()
        answer = protocols.named("anthropic-messages").answer(
            200, dict(response.headers), response.content, complete=True
        )
        text: Any = answer.events[0].payload()["text"]
        for value in VALUES:
            assert value in text
        turns += [("assistant", text), ("user", "Again.")]

    check_nothing_arrived(echoing)
    before = _PLACEHOLDER.findall(echoing.requests[0].decoded.decode())
    after = _PLACEHOLDER.findall(echoing.requests[1].decoded.decode())
    assert set(before) | {"[EMAIL_99]"} == set(after)


def test_a_compressed_answer_is_refused(store: SessionStore) -> None:
    respond = raw_http.reply(b"\x1f\x8b", b"content-encoding: gzip")
    with raw_http.Server(respond) as server, running(store, server) as proxy:
        body = body_of("anthropic-messages", [("user", FIRST)], stream=False)
        response = proxy.post("anthropic", "/v1/messages", body)

    assert response.status_code == 502
    assert "compressed its answer with gzip" in response.text


def test_headers_of_the_exact_bytes_are_left_out(store: SessionStore) -> None:
    content = b'{"type": "error", "error": {"message": "[EMAIL_1]"}}'
    headers = (b"ETag: 1", b"Content-MD5: 2", b"Digest: 3", b"request-id: 4")
    respond = raw_http.reply(content, *headers, status=b"400 No")
    with raw_http.Server(respond) as server, running(store, server) as proxy:
        body = body_of("anthropic-messages", [("user", FIRST)], stream=False)
        response = proxy.post("anthropic", "/v1/messages", body)

    assert response.json()["error"]["message"] in VALUES
    assert response.headers["request-id"] == "4"
    for name in ("etag", "content-md5", "digest", "content-length"):
        assert name not in response.headers


def test_a_placeholder_in_the_words_of_a_user_stays(
    store: SessionStore, echoing: Provider
) -> None:
    turns = [("user", f"Is [EMAIL_77] or [EMAIL_1] the name of {EMAIL}?")]
    with running(store, echoing) as proxy:
        proxy.ask("openai-chat", turns, stream=False)

    (asked,) = echoing.requests
    assert "Is [EMAIL_77] or [EMAIL_1] the name of [EMAIL_" in str(asked.json)


def test_a_summary_with_values_continues_its_session(
    store: SessionStore, echoing: Provider
) -> None:
    turns = [("user", FIRST)]
    with running(store, echoing) as proxy:
        first, *_ = proxy.ask("openai-chat", turns, stream=False)
        turns = [("user", f"Summary: {first['text']}")]
        proxy.ask("openai-chat", turns, stream=False)

    assert not proxy.warnings
    assert only_session(store).events(types=("provider_edit",))
