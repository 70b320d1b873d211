"""Exports of views, and the contexts of what importers read in them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from refold.adapters import exporters
from refold.adapters.exporters import base, openai
from refold.adapters.importers import Transcript, read
from refold.domain.envelope import Envelope
from refold.domain.events import (
    AgentResponse,
    Attachment,
    SystemPrompt,
    ToolCall,
    ToolResult,
    UserInput,
)
from refold.projections.context.strategies.keep_all import KeepAll
from refold.projections.context.strategy import Strategy
from refold.projections.context.text import THINKING
from refold.projections.context.view import View
from refold.store.marks import with_own_seqs
from tests.projections.logs import PIXEL, Log, log_of
from tests.projections.walk import Walk

Message = dict[str, Any]
TARGET = base.Target(folder=Path("/app/project"))


def failed_build(answer: AgentResponse, model: str) -> list[Envelope]:
    """Return the log of a build that fails, with an image, a call, and its result.

    answer: the first answer of the model, which calls a tool.
    """
    image = Attachment(kind="image", media_type="image/png", data=PIXEL)
    return log_of(
        SystemPrompt(text="You are an agent."),
        UserInput(text="Why does the build fail?", attachments=(image,)),
        (answer, {"model": model}),
        ToolCall(call_id="c1", tool_name="bash", arguments={"command": "make"}),
        ToolResult(call_id="c1", content="no such file", status="error"),
        AgentResponse(text="A file is missing."),
        UserInput(text="Create it."),
    )


def view_of(events: Sequence[Envelope], strategy: Strategy | None = None) -> View:
    """The view of a log under a strategy that compacts when it is due."""
    return Walk(strategy or KeepAll()).go(events).view()


def written(
    view: View, events: Sequence[Envelope], form: str, target: base.Target = TARGET
) -> base.Written:
    """The export of a view in a form."""
    conversation = base.conversation(view, events, "s-1")
    return exporters.writer(form).write(conversation, target)


def write(folder: Path, exported: base.Written, form: str) -> Path:
    """Write an export to a file."""
    suffix = ".jsonl" if exporters.writer(form).IS_LINES else ".json"
    path = folder / f"{form}{suffix}"
    lines = [json.dumps(value) + "\n" for value in exported.values]
    path.write_text("".join(lines))
    return path


def transcript_of(path: Path, form: str) -> Transcript:
    """The only transcript that an importer reads in a file."""
    (transcript,) = read(path, format=form)
    return transcript


def context_of(transcript: Transcript) -> list[Message]:
    """The messages of the context that a session with this transcript shows."""
    log = Log()
    for draft in with_own_seqs(transcript.drafts):
        log.add(
            draft.event,
            in_context=draft.meta.in_context,
            response_id=draft.meta.response_id,
            source=draft.meta.source,
        )
    return view_of(log.events).messages


def comparable(messages: Sequence[Message], form: str) -> list[Message]:
    """Messages without what the form cannot hold, or its importer does not keep."""
    compared: list[Message] = []
    for message in messages:
        content = [{**block} for block in message["content"]]
        if form in ("codex", "openai"):
            content = [block for block in content if block["type"] not in THINKING]
            for block in content:
                block.pop("is_error", None)
        if form in ("openai", "anthropic"):
            content = _joined(content, message["role"], form)
        if content:
            compared.append({"role": message["role"], "content": content})
    return compared


def _joined(content: list[Message], role: str, form: str) -> list[Message]:
    """The blocks as importers of chat messages order them: results, texts, files.

    Chat messages hold an answer, or a message of the user, as one.  Those of OpenAI
    hold no images in results.
    """
    results = [block for block in content if block["type"] == "tool_result"]
    texts = [block["text"] for block in content if block["type"] == "text"]
    others = [b for b in content if b["type"] not in ("tool_result", "text")]
    if form == "openai":
        for result in results:
            parts = result["content"]
            if isinstance(parts, list):
                others += [part for part in parts if part["type"] == "image"]
                words = [part for part in parts if part["type"] == "text"]
                result["content"] = [
                    part for part in words if part["text"] != openai.IN_IMAGES
                ]
    between = "\n\n" if role == "user" else ""
    joined = between.join(texts)
    shown = [{"type": "text", "text": joined}] if texts else []
    return [*results, *shown, *sorted(others, key=str)]
