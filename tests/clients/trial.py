"""Runs a real client under ``refold run``, and compares requests with the record."""

from __future__ import annotations

import base64
import hmac
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

import refold
from refold.domain.envelope import Envelope
from refold.redaction.redactor import Redactor
from refold.store import Session, SessionStore
from tests.clients.install import ROOT
from tests.clients.programs import KEY, Program
from tests.clients.reading import Part, joined, sent, shown
from tests.support.provider import Provider, Reply, Seen
from tests.support.waiting import until

SECRET: Final = "ghp_Zk3vQ9xLmN7pRt2wYb5uCe8dHf4jGa6sVb1n"
MAIL: Final = "grace.hopper@navy-yard.org"
USER: Final = "ada"
PNG: Final = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAEElEQVR4nGP4z8AARAwQCgAf7gP9"
    "i18U1AAAAABJRU5ErkJggg=="
)
"""A red square."""
# A client that answers nothing within this time has failed.
_PATIENCE_SEC: Final = 240


class Outcome(NamedTuple):
    """How a run of a client ended."""

    status: int
    stdout: str
    stderr: str


class Recorded(NamedTuple):
    """A request event, and the session that has it."""

    session: Session
    event: Envelope

    @property
    def wire(self) -> Mapping[str, Any]:
        """The facts about the bytes of the request."""
        wire: Mapping[str, Any] = (self.event.meta.model_extra or {}).get("wire", {})
        return wire


class Trial:
    """A client with a home, a folder to work in, a provider, and a store."""

    def __init__(self, program: Program, provider: Provider, folder: Path) -> None:
        self.program = program
        self.provider = provider
        self.home = folder / "client"
        self.work = folder / "work"
        self.data = folder / "data"
        for place in (self.home, self.work, self.data):
            place.mkdir()
        self.stderr = ""
        self.url = f"sqlite:///{self.data / 'refold.db'}"

    # Running.

    def environment(self) -> dict[str, str]:
        """Return the variables of a run, without those of the person who tests."""
        path = f"{ROOT / '.venv/bin'}{os.pathsep}{os.environ['PATH']}"
        usual = {
            "PATH": path,
            "HOME": str(self.home),
            "TMPDIR": str(self.work.parent),
            "TERM": "dumb",
            "LANG": "C.UTF-8",
            "REFOLD_DB": self.url,
            "REFOLD_HOME": os.environ["REFOLD_HOME"],
            "REFOLD_CACHE": "off",
        }
        chosen = {}
        if self.program.variable:
            chosen[self.program.variable] = self.address
        return {**usual, **self.program.environment(self.home), **chosen}

    @property
    def address(self) -> str:
        """The address of the provider, as the client expects it."""
        return f"{self.provider.url}{self.program.base}"

    def begin(self, prompt: str, *replies: Reply) -> Outcome:
        """Begin a conversation, with these answers of the model."""
        return self.run(self.program.begin(prompt), *replies, *self.program.last)

    def resume(self, prompt: str, *replies: Reply) -> Outcome:
        """Continue the last conversation."""
        assert self.program.resume is not None
        return self.run(self.program.resume(prompt), *replies)

    def run(self, arguments: list[str], *replies: Reply, stdin: str = "") -> Outcome:
        """Run the client until it ends."""
        self.provider.forget_replies()
        self.provider.reply(*replies)
        process = self.start(arguments, stdin=subprocess.PIPE)
        try:
            out, err = process.communicate(stdin, timeout=_PATIENCE_SEC)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            raise AssertionError(f"the client did not end: {out}{err}") from None
        self.stderr += err
        return Outcome(process.returncode, out, err)

    def start(self, arguments: list[str], **options: Any) -> subprocess.Popen[str]:
        """Start the client under ``refold run``, in a process group of its own."""
        run = [*_refold(), "run", "--user", USER]
        if not self.program.variable:
            run += ["--upstream", f"{self.program.upstream}={self.address}"]
        return subprocess.Popen(
            [*run, "--", str(self.program.command), *arguments],
            cwd=self.work,
            env=self.environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            **options,
        )

    def run_without_proxy(self, arguments: list[str], *replies: Reply) -> None:
        """Run the client directly, so that nothing records its requests."""
        self.provider.forget_replies()
        self.provider.reply(*replies)
        subprocess.run(
            [str(self.program.command), *arguments],
            env=self.environment(),
            cwd=self.work,
            check=True,
            capture_output=True,
            timeout=_PATIENCE_SEC,
        )

    def import_transcripts(self, folder: Path) -> None:
        """Import the client's own transcripts into the same store."""
        files = [str(file) for file in sorted(folder.rglob("*.jsonl"))]
        assert files
        subprocess.run(
            [*_refold(), "import", "--user", USER, *files],
            env=self.environment(),
            cwd=self.work,
            check=True,
            capture_output=True,
            timeout=_PATIENCE_SEC,
        )

    def follow_transcripts(self, client: str, folder: Path) -> subprocess.Popen[str]:
        """Start ``refold capture``, which follows the client's own transcripts."""
        folder.mkdir(parents=True, exist_ok=True)
        return subprocess.Popen(
            [*_refold(), "capture", client, "--user", USER, "--folder", str(folder)],
            env=self.environment(),
            cwd=self.work,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def capture_once(self, client: str, folder: Path) -> None:
        """Capture everything in the client's own transcripts."""
        command = [*_refold(), "capture", client, "--once", "--user", USER]
        subprocess.run(
            [*command, "--folder", str(folder)],
            env=self.environment(),
            cwd=self.work,
            check=True,
            capture_output=True,
            timeout=_PATIENCE_SEC,
        )

    # Comparing.

    @cached_property
    def store(self) -> SessionStore:
        """The store that the runs have written to."""
        return refold.open(self.url)

    def close(self) -> None:
        """Close the store, if it was opened."""
        if "store" in vars(self):
            self.store.close()

    def check(self, *, interrupted: bool = False) -> list[Session]:
        """Compare the record of all requests with what the provider received.

        Returns the sessions, in order of their names.

        interrupted: whether the client may have been stopped after a request was
                     recorded, and before it was sent.
        """
        requests = self.provider.requests
        assert requests, f"the client has sent no request: {self.stderr}"
        assert "refold: warning" not in self.stderr, self.stderr
        recorded = list(_recorded(self.store))
        for request in requests:
            match = _match(recorded, request)
            recorded.remove(match)
            self._compare(match, request)
        if not interrupted:
            assert not recorded, "the store has requests that the provider never got"
        sessions = sessions_of(self.store)
        for session in sessions:
            problems = session.verify().problems
            assert not problems, problems
            if self.program.has_ids:
                _check_content_once(session)
        self._check_secrets(sessions)
        return sessions

    def _compare(self, recorded: Recorded, request: Seen) -> None:
        assert recorded.wire["bytes"] == len(request.body)
        view = recorded.session.context(at=recorded.event.seq)
        earlier = [each for each in self.provider.requests if each is not request]
        expected = _redacted(sent(request, earlier))
        actual = shown(view.messages)
        _assert_same(joined(actual), joined(expected), request)

    def _check_secrets(self, sessions: list[Session]) -> None:
        """Check that no file of the store has a secret or the provider's key."""
        for folder in (self.data, Path(os.environ["REFOLD_HOME"])):
            for file in folder.rglob("*"):
                if file.is_file():
                    content = file.read_bytes()
                    for secret in (KEY, SECRET, MAIL):
                        assert secret.encode() not in content, file
        for session in sessions:
            for event in session.events():
                written = event.model_dump_json()
                for secret in (KEY, SECRET, MAIL):
                    assert secret not in written


def _refold() -> list[str]:
    return [str(ROOT / ".venv/bin/refold")]


def sessions_of(store: SessionStore) -> list[Session]:
    """Return all sessions of the user."""
    summaries = store.sessions(user_id=USER)
    names = [summary.session_id for summary in summaries]
    return [store.session(user_id=USER, session_id=name) for name in names]


def _recorded(store: SessionStore) -> Iterator[Recorded]:
    for session in sessions_of(store):
        for event in session.events():
            if event.type == "request":
                yield Recorded(session, event)


def _match(recorded: list[Recorded], request: Seen) -> Recorded:
    """Return the record of a request, by the code over its bytes.

    The code is computed here again, not by the recorder.  A retry has the same bytes,
    so its record is the next one.
    """
    for candidate in recorded:
        session = candidate.session
        key = session.writer.log.session_proof_key(session.stream)
        code = hmac.digest(key, b"wire\0" + request.body, "sha256").hex()
        if candidate.wire.get("mac") == code:
            return candidate
    raise AssertionError(f"request {request.number} was not recorded")


def _redacted(parts: list[Part]) -> list[Part]:
    """Redact what the provider received, as the store redacts what it writes."""
    redactor = Redactor()
    redacted = []
    for part in parts:
        if part.kind == "image":
            redacted.append(part)
        else:
            redacted.append(part._replace(value=redactor.value(part.value)[0]))
    return redacted


def _assert_same(shown: list[Part], sent: list[Part], request: Seen) -> None:
    """Fail with the first part that differs.  Whole requests are too long to read."""
    for index, (ours, theirs) in enumerate(zip(shown, sent, strict=False)):
        assert ours == theirs, (
            f"request {request.number}, part {index} of {len(sent)}: "
            f"the context has {_from_difference(ours, theirs)}, "
            f"and the provider received {_from_difference(theirs, ours)}"
        )
    assert len(shown) == len(sent), (
        f"request {request.number}: the context has {len(shown)} parts, and the "
        f"provider received {len(sent)}; they end with {shown[-1:]} and {sent[-1:]}"
    )


def _from_difference(part: Part, other: Part) -> Part:
    """Return a part with its value from a little before the first difference."""
    value = str(part.value)
    same = 0
    for ours, theirs in zip(value, str(other.value), strict=False):
        if ours != theirs:
            break
        same += 1
    start = max(0, same - 40)
    return part._replace(value=value[start : same + 200])


def _check_content_once(session: Session) -> None:
    """Check that no call is in the log twice."""
    calls = [call.call_id for call in events_of(session, "tool_call")]
    assert len(calls) == len(set(calls)), calls


def events_of(session: Session, kind: str) -> list[Any]:
    """Return the payloads of all events of a type."""
    return [event.payload for event in session.events() if event.type == kind]


def seqs_of(session: Session, kind: str) -> list[int]:
    """Return the seqs of all events of a type."""
    return [event.seq for event in session.events() if event.type == kind]


def parents_of(sessions: list[Session]) -> list[tuple[str, int]]:
    """Return the links of linked sessions: the session and the seq that began each."""
    links = []
    for session in sessions:
        parent = session.delegation.parent()
        if parent is not None:
            links.append((parent.session_id, parent.seq))
    return links


def answers_of(session: Session) -> list[str]:
    """Return the texts of all answers of the model."""
    return [payload.text for payload in events_of(session, "agent_response")]


def with_answer(sessions: list[Session], text: str) -> Session:
    """Return the one session in which the model gave this answer."""
    matching = [session for session in sessions if text in answers_of(session)]
    assert len(matching) == 1, [answers_of(session) for session in sessions]
    return matching[0]


def wait_for_requests(provider: Provider, count: int) -> None:
    """Wait until the provider has received this number of requests."""
    until(lambda: len(provider.requests) >= count, f"{count} requests")
