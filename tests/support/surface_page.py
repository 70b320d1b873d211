"""Writes the reference of what a capture does with each part of the SDK's API.

The cells of blocks and of most parameters are observed: a capture records a sample of
the part, against a server on this machine.  To write the page again:

.venv/bin/python -m tests.support.surface_page
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from pathlib import Path
from typing import Any, Final, NamedTuple

import anthropic

import refold
from refold.adapters.claude.capture import Capture
from refold.adapters.keys.master import MasterKeyFile
from refold.domain.envelope import Envelope
from tests.support.messages_api import MessagesApi, message
from tests.support.sdk_shapes import ANSWERS, BETA, CLIENT, REQUEST_BLOCKS, STABLE

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "claude-sdk.md"
_INTRODUCTION: Final = """\
This page lists what a [capture](../how-to/record-claude.md) does with each method,
parameter and block of the SDK, version {version}. A test tries a sample of each, and
writes the tables. `Capture` and `AsyncCapture` have the same methods. A call that the
SDK would refuse raises `InvalidConfiguration` before anything is recorded."""
_ABOUT_PARAMETERS: Final = """\
Pass parameters in `options`, unless the table names an argument. If you pass a
parameter of the beta API, the capture uses `client.beta.messages`. Pass skills in
`container`, connectors in `mcp_servers` (their tokens are not recorded), and edits of
the context in `context_management`. Pass a parameter that the installed SDK does not
have yet in `extra_body`."""
# The capture's name for each method of the SDK.
METHODS: Final = {
    "create": "`create`",
    "stream": "`stream`",
    "parse": "`parse`",
    "count_tokens": "`count_tokens`; records nothing",
    "tool_runner": (
        "`tool_runner`; toolsets and `stream=True` are refused: `InvalidConfiguration`"
    ),
    "batches": "`batch_request`, `record_batch`",
    "with_raw_response": "none: pass the raw response to `record`",
    "with_streaming_response": "none: pass the parsed message to `record`",
    "thread": (
        "refused: `InvalidConfiguration`; pass the messages and the answer to `record`"
    ),
}
BATCH_METHODS: Final = {
    "create": "pass it the requests of `batch_request`",
    "results": "pass each result to `record_batch`",
    "retrieve": "nothing to record",
    "list": "nothing to record",
    "cancel": "pass the results to `record_batch` afterwards",
    "delete": "nothing to record",
    "with_raw_response": "nothing to record",
    "with_streaming_response": "nothing to record",
}
# Options that the capture sets itself, or that concern the client alone.
_NOT_OPTIONS: Final = {
    "model": "argument of the capture; in the `request`",
    "max_tokens": "argument of the capture; in the `request`",
    "messages": "built from the session; the `request` has their digest",
    "system": "argument of the capture or the call; in the `request`",
    "tools": "argument of the capture or the call; in the `request`",
    "stream": "set by `create` and `stream`",
}
_TRANSPORT: Final = {
    "extra_headers": {"x-a": "b"},
    "extra_query": {"a": "b"},
    "extra_body": {"a": "b"},
    "timeout": 30,
    "betas": ["a-beta"],
}


class Outcome(NamedTuple):
    """The events of a session after a call, and the error that refused the call."""

    events: tuple[Envelope, ...] = ()
    error_name: str = ""


class Trials:
    """Captures of new sessions in one store, and the server that they call."""

    def __init__(self, store: refold.SessionStore, api: MessagesApi) -> None:
        self._store = store
        self.api = api
        self._client = api.client(max_retries=0)
        self._count = 0

    def capture(self, strategy: str | None = None) -> Capture:
        """Return a capture of a new session."""
        self._count += 1
        session = self._store.session(user_id="ada", session_id=f"s-{self._count}")
        return Capture(
            self._client, session, model="claude-x", max_tokens=99, strategy=strategy
        )


@contextmanager
def _trials() -> Iterator[Trials]:
    with tempfile.TemporaryDirectory() as folder:
        key_file = MasterKeyFile(Path(folder) / "master.key")
        key_file.create()
        store = refold.open("memory://", master=key_file.open())
        with store, MessagesApi() as api:
            yield Trials(store, api)


def _events(capture: Capture) -> tuple[Envelope, ...]:
    try:
        return tuple(capture.session.events())
    except refold.SessionNotFound:
        return ()


def _call_with_option(trials: Trials, name: str, value: Any) -> Outcome:
    capture = trials.capture()
    requests_before = len(trials.api.requests)
    trials.api.reply(message("Fine."))
    try:
        capture.create("Go.", options={name: value})
    except refold.errors.RefoldError as error:
        assert len(trials.api.requests) == requests_before
        trials.api.forget_replies()
        return Outcome(_events(capture), type(error).__name__)
    return Outcome(_events(capture))


def _option_cell(trials: Trials, name: str, value: Any) -> str:
    """Describe the outcome of a call with this option."""
    outcome = _call_with_option(trials, name, value)
    if outcome.error_name:
        assert outcome.events == (), name
        return f"refused: `{outcome.error_name}`, nothing recorded"
    request = next(event for event in outcome.events if event.type == "request")
    recorded: Any = request.meta.dump().get("options", {})
    return "sent and recorded" if name in recorded else "sent, not recorded"


def _parameter_rows(trials: Trials) -> Iterator[str]:
    names: dict[str, set[str]] = {}
    for label, api in (("messages", CLIENT.messages), ("beta", CLIENT.beta.messages)):
        for method in ("create", "stream", "parse", "count_tokens", "tool_runner"):
            call = getattr(api, method, None)
            if call is not None:
                for name in signature(call).parameters:
                    names.setdefault(name, set()).add(label)
    yield "| parameter | method of the SDK | in a capture |"
    yield "|---|---|---|"
    for name in sorted(names):
        where = "`messages`" if "messages" in names[name] else "only `beta.messages`"
        yield f"| `{name}` | {where} | {_parameter_cell(trials, name)} |"


def _parameter_cell(trials: Trials, name: str) -> str:
    """Describe how a capture treats a parameter of the SDK."""
    if name in _NOT_OPTIONS:
        return _NOT_OPTIONS[name]
    if name == "output_format":
        return (
            "argument of `parse`, option of `stream`; its schema is recorded. "
            + _in_create(trials, name, dict)  # any class: `create` refuses them all
        )
    if name == "max_iterations":
        return "argument of `tool_runner`"
    if name in ("run_tools_eagerly", "compaction_control"):
        return _in_create(trials, name, True)
    for samples in (STABLE, BETA, _TRANSPORT):
        if name in samples:
            return _option_cell(trials, name, samples[name])
    return _in_create(trials, name, "x")  # a parameter that has no sample yet


def _in_create(trials: Trials, name: str, value: Any) -> str:
    return f"In `create`: {_option_cell(trials, name, value)}"


def _answer_rows(trials: Trials) -> Iterator[str]:
    yield "| block of an answer | recorded as | sent back |"
    yield "|---|---|---|"
    rows: dict[str, str] = {}
    for block in ANSWERS.values():
        capture = trials.capture()
        sent_back = _sent_back_cell(trials, capture, block)
        answer_events = _events(capture)[2:]  # without the input and the request
        recorded = _recorded_as(answer_events, block)
        if sent_back == "no":
            # Compaction blocks are sent back only where the provider compacts.
            compacting = trials.capture("native:compact=true")
            under_native = _sent_back_cell(trials, compacting, block)
            if under_native != "no":
                sent_back = f"{under_native}, under `native:compact=true`"
        rows[block["type"]] = f"{recorded} | {sent_back}"
    for name in sorted(rows):
        yield f"| `{name}` | {rows[name]} |"


def _sent_back_cell(trials: Trials, capture: Capture, block: Any) -> str:
    """Describe how the next request contains this block of an answer."""
    before, after = _partners(block)
    trials.api.reply(message("Here: ", *before, block, *after), message("Fine."))
    capture.create("Go.")
    content: Any = "And?"
    if block["type"] == "tool_use":
        content = [{"type": "tool_result", "tool_use_id": block["id"]}]
    capture.create(content)
    answer_content = trials.api.requests[-1].body["messages"][1]["content"]
    return _difference(answer_content, block)


def _partners(block: Any) -> tuple[list[Any], list[Any]]:
    """Return the blocks that the API requires before and after this one."""
    kind = "mcp_tool" if block["type"].startswith("mcp_tool_") else "server_tool"
    if "tool_use_id" in block:
        call = {"type": f"{kind}_use", "id": block["tool_use_id"], "name": "t"}
        return [{**call, "input": {}}], []
    if block["type"] in ("server_tool_use", "mcp_tool_use"):
        result = "mcp_tool_result" if kind == "mcp_tool" else "web_search_tool_result"
        return [], [{"type": result, "tool_use_id": block["id"], "content": []}]
    return [], []


def _difference(content: list[Any], block: Any) -> str:
    """Describe how the assistant's blocks in the next request contain this one."""
    for sent in content:
        if {**sent, "cache_control": None} == {**block, "cache_control": None}:
            return "unchanged"
    if any(sent["type"] == block["type"] for sent in content):
        return "without fields that the API adds"
    return "no"


def _recorded_as(events: tuple[Envelope, ...], block: Any) -> str:
    """Return the field of the event that has the block."""
    kinds = [event.type for event in events]
    if block["type"] == "text":
        return "`agent_response.text`"
    if "thinking" in block["type"]:
        return "`agent_response.thinking`, byte for byte"
    if "tool_call" in kinds:
        return "`tool_call`"
    for event in events:
        payload: Any = event.payload
        if event.type != "provider_edit":
            continue
        if block["type"] in [recorded["type"] for recorded in payload.blocks]:
            return "`provider_edit.blocks`, byte for byte"
    raise AssertionError(f"{block['type']} is recorded nowhere: {kinds}")


def _request_rows(trials: Trials) -> Iterator[str]:
    yield "| block of a request | passed to `create` | of the assistant, in `record` |"
    yield "|---|---|---|"
    rows: dict[str, str] = {}
    for block in REQUEST_BLOCKS.values():
        kind = block["type"]
        in_input = _in_input_cell(trials, block)
        in_answer = _in_recorded_answer_cell(trials, block)
        rows[kind] = f"{in_input} | {in_answer}"
    for name in sorted(rows):
        yield f"| `{name}` | {rows[name]} |"


def _in_input_cell(trials: Trials, block: Any) -> str:
    """Describe how a capture records a block that is passed to ``create``."""
    capture = trials.capture()
    events_before = 0
    if block["type"] == "tool_result":
        call_id = block["tool_use_id"]
        call = {"type": "tool_use", "id": call_id, "name": "t", "input": {}}
        trials.api.reply(message(call))
        capture.create("Go.")
        events_before = len(_events(capture))
    trials.api.reply(message("Fine."))
    try:
        capture.create([block])
    except refold.errors.RefoldError as error:
        assert len(_events(capture)) == events_before, block["type"]
        trials.api.forget_replies()
        return f"refused: `{type(error).__name__}`, nothing recorded"
    return f"`{_events(capture)[events_before].type}`"


def _in_recorded_answer_cell(trials: Trials, block: Any) -> str:
    """Describe how ``record`` stores a block of the assistant."""
    messages: Any = [
        {"role": "user", "content": "Go."},
        {"role": "assistant", "content": [block]},
        {"role": "user", "content": "And?"},
    ]
    capture = trials.capture()
    try:
        capture.record(messages=messages)
    except refold.errors.RefoldError as error:
        return f"refused: `{type(error).__name__}`, nothing recorded"
    kinds = [event.type for event in _events(capture)]
    recorded_types = [kind for kind in kinds if kind not in ("user_input", "request")]
    return ", ".join(f"`{kind}`" for kind in recorded_types) or "not recorded"


def _method_rows() -> Iterator[str]:
    yield "| method of the SDK | in a capture |"
    yield "|---|---|"
    rows = {"messages": METHODS, "messages.batches": BATCH_METHODS}
    for path, methods in rows.items():
        for prefix in ("", "beta."):
            resource: Any = CLIENT
            for name in f"{prefix}{path}".split("."):
                resource = getattr(resource, name)
            for name in _public(resource):
                yield f"| `{prefix}{path}.{name}` | {methods[name]} |"


def _public(resource: Any) -> list[str]:
    return [name for name in dir(resource) if not name.startswith("_")]


def page() -> str:
    """Return the complete page."""
    with _trials() as trials:
        return _page(trials)


def _page(trials: Trials) -> str:
    lines = [
        "# What a capture does with the Anthropic SDK",
        "",
        *_INTRODUCTION.format(version=anthropic.__version__).splitlines(),
        "",
        "## Methods",
        "",
        *_method_rows(),
        "",
        "## Parameters",
        "",
        *_ABOUT_PARAMETERS.splitlines(),
        "",
        *_parameter_rows(trials),
        "",
        "## Blocks of an answer",
        "",
        *_answer_rows(trials),
        "",
        "## Blocks of a request",
        "",
        *_request_rows(trials),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
