"""Two agents in two processes, each with its own store, and one task between them.

python examples/two_agents.py

starts a researcher and a lead.  The lead asks, the researcher is killed and started
again, and the lead gets its answer once.  Their histories are separate: each sees only
the task and the answer.  Within the lead's session, a second agent shares its history.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import refold
from refold import AgentResponse, Final, ToolCall, UserInput
from refold.adapters.frameworks.a2a import deliver, receive, tool_definition

CARD = {
    "name": "Researcher",
    "description": "Finds out what things are.",
    "skills": [{"name": "drinks", "description": "all about tea"}],
}
TOOL = tool_definition(CARD)


def research(folder: Path) -> None:
    """Accept tasks over HTTP and do each, in this separate process."""
    store = refold.open(f"sqlite:///{folder}/researcher.db")

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            size = int(self.headers["Content-Length"])
            request = json.loads(self.rfile.read(size))
            task = receive(store, request, user_id="team")
            session = store.session(user_id="team", session_id=task["id"])
            if task["artifacts"] == []:
                # Here a model would work; a key for each step makes the step safe to
                # repeat.
                session.append(AgentResponse(text="I read."), idempotency_key="read")
                done = Final(text="Tea is a drink.", outcome="success")
                session.append(done, idempotency_key="done")
                task = receive(store, request, user_id="team")
            body = json.dumps({"task": task}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    (folder / "port.new").write_text(str(server.server_port))
    (folder / "port.new").replace(folder / "port")
    server.serve_forever()


def lead(folder: Path) -> None:
    """Ask the researcher until it answers, and continue with the answer."""

    def send(request: dict[str, Any]) -> dict[str, Any]:
        url = f"http://127.0.0.1:{(folder / 'port').read_text()}/"
        data = json.dumps(request).encode()
        with urllib.request.urlopen(url, data, timeout=10) as answer:
            task: dict[str, Any] = json.load(answer)
            return task

    with refold.open(f"sqlite:///{folder}/lead.db") as store:
        session = store.session(user_id="ada", session_id="s-1")
        asked = ToolCall(
            call_id="c1", tool_name=TOOL["name"], arguments={"task": "What is tea?"}
        )
        begin = [UserInput(text="Tell me about tea."), asked]
        session.append(begin, agent="lead", idempotency_key="begin")
        while True:
            try:
                task = deliver(session, "c1", send)
            except OSError:  # nobody answers at the moment
                time.sleep(0.05)
                continue
            if task["status"]["state"] == "TASK_STATE_COMPLETED":
                break
        # Another agent of the same session shares its history.
        check = AgentResponse(text="That is right: tea is a drink.")
        session.append(check, agent="critic", idempotency_key="check")


def main() -> None:
    """Run both, kill the researcher once, and show what each of them knows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start = [sys.executable, __file__]
        first = subprocess.Popen([*start, "research", name])
        while not (folder / "port").exists():
            if first.poll() is not None:
                sys.exit("the researcher did not start")
            time.sleep(0.01)
        first.kill()
        first.wait()
        asks = subprocess.Popen([*start, "lead", name])
        again = subprocess.Popen([*start, "research", name])
        asks.wait()
        again.kill()
        again.wait()
        for who in ("lead", "researcher"):
            with refold.open(f"sqlite:///{folder}/{who}.db") as store:
                for info in store.sessions():
                    session = store.session(
                        user_id=info.user_id, session_id=info.session_id
                    )
                    print(f"{who}: {[event.type for event in session.events()]}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["research", place]:
            research(Path(place))
        case ["lead", place]:
            lead(Path(place))
        case _:
            main()
