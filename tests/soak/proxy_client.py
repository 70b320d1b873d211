"""A client of the Messages API that repeats requests, as SDKs do, and can be killed.

``proxy_client URL FOLDER TURNS`` continues the conversation in FOLDER up to that number
of turns.  Its address is that of the proxy.  It prints a line for each answer.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

SESSION: Final = "5d0a6b0e-3c53-4d52-8f59-5c0c2a5d7a11"
SECRET: Final = "ghp_" + "Zk3vQ9xLmN7pRt2wYb5uCe8dHf4jGa6sVb1n"
MAIL: Final = "grace.hopper@navy-yard.org"
_BODY: Final = {
    "model": "claude-opus-4-8",
    "max_tokens": 100,
    "system": "You are helpful.",
    "tools": [{"name": "bash", "description": "Runs a command.", "input_schema": {}}],
}
_PAUSE_SEC: Final = 0.05
_PATIENCE_SEC: Final = 60.0
# The API asks clients to repeat requests with these answers.
_REPEATABLE: Final = frozenset({408, 409, 429, 500, 502, 503, 504, 529})


def conversation(folder: Path) -> list[dict[str, Any]]:
    """Return the messages that the client has."""
    try:
        messages: list[dict[str, Any]] = json.loads((folder / "messages").read_bytes())
    except FileNotFoundError:
        return []
    return messages


def _save(folder: Path, messages: list[dict[str, Any]]) -> None:
    new = folder / "messages.new"
    new.write_text(json.dumps(messages))
    new.replace(folder / "messages")


def _ask(url: str, messages: list[dict[str, Any]], *, stream: bool) -> str:
    """Return the text of the answer, after as many attempts as it takes."""
    body = json.dumps({**_BODY, "messages": messages, "stream": stream})
    deadline = time.monotonic() + _PATIENCE_SEC
    while True:
        try:
            return _attempt(url, body, stream=stream)
        except (OSError, http.client.HTTPException, ValueError):
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE_SEC)  # as SDKs pause between attempts


def _attempt(url: str, body: str, *, stream: bool) -> str:
    """Send a request; raises an error for an answer that is not whole."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=_PATIENCE_SEC)
    headers = {"content-type": "application/json", "x-api-key": "sk-test"}
    headers["x-claude-code-session-id"] = SESSION
    try:
        connection.request("POST", f"{parts.path}/v1/messages", body, headers)
        response = connection.getresponse()
        content = response.read().decode()
    finally:
        connection.close()
    if response.status in _REPEATABLE:
        raise ConnectionError(f"HTTP {response.status}")
    if response.status != 200:
        raise SystemExit(f"HTTP {response.status}: {content}")
    if not stream:
        return str(json.loads(content)["content"][0]["text"])
    text = ""
    is_whole = False
    for line in content.splitlines():
        if not line.startswith("data: "):
            continue
        event = json.loads(line.removeprefix("data: "))
        text += event.get("delta", {}).get("text", "")
        is_whole = is_whole or event["type"] == "message_stop"
    if not is_whole:
        raise ConnectionError("the stream broke off")
    return text


def main(url: str, folder: Path, turns: int) -> None:
    """Continue the conversation up to this number of turns."""
    messages = conversation(folder)
    while True:
        turn = len(messages) // 2
        if len(messages) % 2 == 0:
            if turn == turns:
                return
            prompt = f"ask {turn} with {SECRET} for {MAIL}"
            content = [{"type": "text", "text": prompt}]
            messages.append({"role": "user", "content": content})
            _save(folder, messages)
        answer = _ask(url, messages, stream=turn % 2 == 1)
        content = [{"type": "text", "text": answer}]
        messages.append({"role": "assistant", "content": content})
        _save(folder, messages)
        os.write(1, b"answered\n")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
