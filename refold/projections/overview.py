"""The overview of a session: what a list of sessions shows of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any, Final, Literal, NamedTuple, Self

from refold.domain import events
from refold.domain.envelope import Envelope
from refold.domain.events import JsonObject, ToolCall
from refold.domain.session import labels_in
from refold.projections.instructions import (
    LONGEST_TITLE,
    instruction_of,
    shortened,
    title_of,
)
from refold.projections.models import (
    Usage,
    characters_of,
    greatest_of,
    is_undercounted,
    usage_of,
)
from refold.projections.search.documents import has_failed

# The version of the stored form.  Stored overviews of another version are folded again.
SHAPE: Final = 6
# The origin of a title: a label ``title``, the client, an instruction, or a command.
TitleFrom = Literal["label", "client", "instruction", "command", ""]

_LONGEST_NAME: Final = 100  # characters of a project, agent, or model
# A part of an answer this many answers after its first part is an answer of its own.
_OPEN_ANSWERS: Final = 128
_DIGEST_SIZE: Final = 8  # bytes that stand for a path
_CHANGES: Final = frozenset({"created", "modified", "deleted"})
_PATCHED_FILE: Final = re.compile(
    r"^\*\*\* (?:Add|Update|Delete) File: (.+)$", re.MULTILINE
)
# The name that a client writes for an answer of no model.
_NO_MODEL: Final = "<synthetic>"
# By type of a client's record, the field with the title, and whether a person chose it.
_TITLE_RECORDS: Final[Mapping[str, tuple[str, bool]]] = {
    "custom-title": ("customTitle", True),
    "ai-title": ("aiTitle", False),
}
# The clients whose transcripts a capture records, entry by entry.
_CAPTURED: Final = frozenset({"claude-code", "codex"})


class Overview(NamedTuple):
    """The facts about a session that a list of sessions shows.

    title:         in one line.
    title_from:    the origin of the title.
    project:       ``meta.project`` or a label: ``project``, else ``folder``; else the
                   folder that a transcript names; else the label ``folder`` of a
                   program that began the session.
    agent:         the newest named agent, else the client: that of the transcript, or
                   of the label ``client``.
    model:         the model of the newest answer.
    started_at:    the time of the first event, in microseconds since 1970; 0 for none.
    last_at:       the time of the newest event.  Labels, and redactions of recorded
                   events, count for neither.
    events:        of the main stream.
    turns:         the inputs in which a person asked for something.
    calls:         the calls of tools.
    failures:      the events that ``is_failure`` recognizes.
    answers:       the answers of models with known usage, summaries included.
    usage:         the tokens of these answers.
    dollars:       the cost of the answers whose model has known prices.
    unpriced:      the number of the other answers.
    undercounted:  the number of answers with fewer recorded output tokens than their
                   text needs.
    redactions:    the number of values that redaction replaced.
    files_changed: the number of files that successful calls changed, as far as the
                   calls of known tools name them.
    outcome:       of the newest ``final``.
    closed:        whether the session was ended.
    parent:        the session that delegated this one, or that it was forked from.
    is_fork:       whether ``parent`` is the session that it was forked from.
    """

    title: str = ""
    title_from: TitleFrom = ""
    project: str = ""
    agent: str = ""
    model: str = ""
    started_at: int = 0
    last_at: int = 0
    events: int = 0
    turns: int = 0
    calls: int = 0
    failures: int = 0
    answers: int = 0
    usage: Usage = Usage()
    dollars: float = 0.0
    unpriced: int = 0
    undercounted: int = 0
    redactions: int = 0
    files_changed: int = 0
    outcome: str = ""
    closed: bool = False
    parent: str = ""
    is_fork: bool = False

    @property
    def duration(self) -> int:
        """The time between the first and the newest event, in microseconds."""
        return self.last_at - self.started_at

    @property
    def is_lower_bound(self) -> bool:
        """Whether the answers cost more than ``dollars``."""
        return bool(self.unpriced or self.undercounted)

    def dump(self) -> list[Any]:
        """Return the overview as JSON without the names of its fields."""
        return [*self._replace(usage=[*self.usage])]  # type: ignore[arg-type]  # as JSON

    @classmethod
    def load(cls, dumped: Iterable[Any]) -> Self:
        """Read what ``dump`` returned; raises TypeError or ValueError otherwise."""
        values = list(dumped)
        if len(values) != _FIELDS:
            raise ValueError("the overview was stored by another version")
        values[_USAGE] = Usage._make(values[_USAGE])
        return cls._make(values)


_USAGE: Final = Overview._fields.index("usage")
_FIELDS: Final = len(Overview._fields)


def is_failure(envelope: Envelope) -> bool:
    """Whether an event is a failed call, an error, or a run that ended in failure."""
    return has_failed(envelope.payload)


def overview_of(main: Iterable[Envelope], derived: Iterable[Envelope] = ()) -> Overview:
    """Return the overview of a session.

    main:    its main stream.
    derived: all events of its derived streams.
    """
    fold = OverviewFold()
    for envelope in main:
        fold.take(envelope)
    for envelope in derived:
        fold.take_derived(envelope)
    return fold.overview()


class OverviewFold:
    """Folds the events of a session, in order, into its overview."""

    def __init__(self) -> None:
        self._totals = Overview()
        self._label_titles: dict[str, str] = {}
        self._client_title = ""
        self._custom_title = ""
        self._instruction_title = ""
        self._command_title = ""
        # The command is the newest input: the client may have run it by itself.
        self._command_waits = False
        self._projects: dict[str, str] = {}
        self._agent = ""
        self._client = ""
        self._requested_model = ""
        # The usage, the model and the characters of the newest answers, by their keys.
        self._answers: dict[str, tuple[Usage, str, int]] = {}
        self._open_file: str | None = None
        # The files that calls without a result change, by call id.
        self._changing: dict[str, list[str]] = {}
        self._changed: set[str] = set()

    def take(self, envelope: Envelope) -> None:
        """Fold the next event of the main stream."""
        totals = self._totals
        if not _is_about_session(envelope.payload):
            at = envelope.at
            totals = totals._replace(
                started_at=min(totals.started_at or at, at),
                last_at=max(totals.last_at, at),
            )
        self._totals = totals._replace(
            events=totals.events + 1,
            failures=totals.failures + (1 if is_failure(envelope) else 0),
            redactions=totals.redactions + _redactions(envelope),
        )
        self._take_names(envelope)
        self._take_usage(envelope)
        match envelope.payload:
            case events.UserInput():
                self._take_input(envelope)
            case ToolCall() as call:
                self._count(calls=1)
                self._command_waits = False
                files = self._files_of(call)
                if files:
                    self._changing[call.call_id] = files
            case events.ToolResult(call_id=call_id, status=status):
                files = self._changing.pop(call_id, [])
                if status == "ok":
                    self._changed.update(map(_digest, files))
            case events.AgentResponse():
                self._command_waits = False
            case events.Final(outcome=outcome):
                self._totals = self._totals._replace(outcome=outcome)
            case events.SystemPrompt(closed=True):
                self._totals = self._totals._replace(closed=True)
            case events.Fork(session_id=session_id):
                self._totals = self._totals._replace(parent=session_id, is_fork=True)
            case events.Item(format="claude-code", kind=kind, value=dict() as value):
                self._take_record(kind, value)

    def take_derived(self, envelope: Envelope) -> None:
        """Fold an event of a derived stream, whose summaries may have a cost."""
        self._take_usage(envelope)

    def overview(self) -> Overview:
        """Return the overview of the events so far."""
        title, title_from = self._title()
        return self._totals._replace(
            title=title,
            title_from=title_from,
            project=self._project(),
            agent=self._agent or self._client,
            model=self._totals.model or self._requested_model,
            files_changed=len(self._changed),
        )

    def _project(self) -> str:
        for origin in ("meta", "project", "folder", "source", "begun_in"):
            project = self._projects.get(origin)
            if project:
                return project
        return ""

    def _title(self) -> tuple[str, TitleFrom]:
        title = self._label_titles.get("title")
        if title:
            return title, "label"
        if self._custom_title or self._client_title:
            return self._custom_title or self._client_title, "client"
        if self._instruction_title:
            if not self._command_title:
                return self._instruction_title, "instruction"
            both = f"{self._command_title}: {self._instruction_title}"
            return shortened(both, LONGEST_TITLE), "instruction"
        name = self._label_titles.get("name")
        if name:
            return name, "label"
        if self._command_title:
            return self._command_title, "command"
        return "", ""

    def _count(self, **numbers: int) -> None:
        """Add numbers to those of the overview."""
        totals = self._totals
        sums = {name: getattr(totals, name) + n for name, n in numbers.items()}
        self._totals = totals._replace(**sums)

    def _take_names(self, envelope: Envelope) -> None:
        """Remember the names in an event: of agent, client, project, and parent."""
        meta = envelope.meta
        if envelope.agent:
            self._agent = shortened(envelope.agent, _LONGEST_NAME)
        form = (meta.source or {}).get("format")
        if isinstance(form, str):
            self._client = shortened(form, _LONGEST_NAME)
        folder = (meta.source or {}).get("folder")
        if isinstance(folder, str):
            self._projects["source"] = shortened(folder, _LONGEST_NAME)
        elif meta.native is not None and "source" not in self._projects:
            folder = _folder_in_entry(envelope.payload, meta.native)
            if folder:
                self._projects["source"] = shortened(folder, _LONGEST_NAME)
        extra = meta.model_extra or {}
        project = extra.get("project")
        if isinstance(project, str):
            self._projects["meta"] = shortened(project, _LONGEST_NAME)
        parent = extra.get("parent")
        if isinstance(parent, dict) and self._totals.events == 1:
            session_id = parent.get("session_id")
            if isinstance(session_id, str):
                self._totals = self._totals._replace(parent=session_id)
        event = envelope.payload
        if isinstance(event, events.Request) and event.model:
            self._requested_model = shortened(event.model, _LONGEST_NAME)
        elif isinstance(event, events.AgentResponse):
            if meta.model and meta.model != _NO_MODEL:
                model = shortened(meta.model, _LONGEST_NAME)
                self._totals = self._totals._replace(model=model)
        elif isinstance(event, events.StateUpdate):
            self._take_labels(event)

    def _take_labels(self, update: events.StateUpdate) -> None:
        labels = labels_in(update)
        for name, value in labels.items():
            text = shortened(value or "", LONGEST_TITLE)
            if name in ("title", "name"):
                self._label_titles[name] = text
            elif name == "folder" and "client" in labels:
                # A capture names the folder of the transcript, which the client names
                # after the folder that it works in, or after a date.
                self._projects["begun_in"] = shortened(text, _LONGEST_NAME)
            elif name in ("project", "folder"):
                self._projects[name] = shortened(text, _LONGEST_NAME)
            elif name == "client" and not self._client:
                self._client = shortened(text, _LONGEST_NAME)

    def _take_record(self, kind: str, value: JsonObject) -> None:
        """Remember the title in a record of a client, if it has one."""
        field, is_custom = _TITLE_RECORDS.get(kind, ("", False))
        title = value.get(field)
        if not isinstance(title, str):
            return
        if is_custom:
            self._custom_title = shortened(title, LONGEST_TITLE)
        else:
            self._client_title = shortened(title, LONGEST_TITLE)

    def _take_input(self, envelope: Envelope) -> None:
        instruction = instruction_of(envelope)
        if instruction.kind == "output":
            if self._command_waits:  # the client ran it, and no model read it
                self._command_title = ""
                self._command_waits = False
                self._count(turns=-1)
            return
        if not instruction.kind:
            return
        self._count(turns=1)
        if instruction.kind == "command":
            # A command before the first instruction says more about the session.
            if not self._command_title and not self._instruction_title:
                self._command_title = title_of(instruction.text)
                self._command_waits = True
        elif not self._instruction_title:
            self._instruction_title = title_of(instruction.text)

    def _take_usage(self, envelope: Envelope) -> None:
        """Count the usage in an event: of an answer, or of a further part of one."""
        usage = usage_of(envelope)
        key = envelope.meta.response_id or f"{envelope.stream}\0{envelope.seq}"
        earlier = self._answers.pop(key, None)
        if usage is None and earlier is None:
            return
        event = envelope.payload
        model = envelope.meta.model
        if isinstance(event, events.Summary):
            model = event.summarizer.model or model
        totals = self._totals
        if earlier is None:
            counted = Usage()
            characters = 0
            model = model or self._requested_model
            cost_before: float | None = 0.0
            totals = totals._replace(answers=totals.answers + 1)
        else:
            counted, model, characters = earlier
            cost_before = counted.cost(model)
        was_undercounted = is_undercounted(counted, characters)
        usage = greatest_of(counted, usage or Usage())
        characters += characters_of(envelope)
        if is_undercounted(usage, characters) != was_undercounted:
            change = -1 if was_undercounted else 1
            totals = totals._replace(undercounted=totals.undercounted + change)
        cost = usage.cost(model)
        if cost is not None:
            totals = totals._replace(
                dollars=totals.dollars + cost - (cost_before or 0.0)
            )
        elif earlier is None:
            totals = totals._replace(unpriced=totals.unpriced + 1)
        self._totals = totals._replace(usage=totals.usage + _difference(usage, counted))
        if envelope.meta.response_id:
            self._answers[key] = usage, model or "", characters
            if len(self._answers) > _OPEN_ANSWERS:
                del self._answers[next(iter(self._answers))]

    def _files_of(self, call: ToolCall) -> list[str]:
        """Return the files that a call changes, and follow the file that is open."""
        # The list of known tools is a file that a list of sessions without new calls
        # does not read.
        from refold.projections.context.abridged import TOOLS, action_of

        patched = list(_patched_files(call))
        if patched:
            return patched
        action = action_of(call, TOOLS, self._open_file)
        if action is None or action.effect == "command" or action.target is None:
            return []
        self._open_file = None if action.effect == "deleted" else action.target
        return [action.target] if action.effect in _CHANGES else []

    def dump(self) -> JsonObject:
        """Return the state of the fold as JSON, so that later events can be folded."""
        return {
            "shape": SHAPE,
            "totals": self._totals.dump(),
            "label_titles": dict(self._label_titles),
            "titles": [
                self._client_title,
                self._custom_title,
                self._instruction_title,
                self._command_title,
                self._command_waits,
            ],
            "projects": dict(self._projects),
            "names": [self._agent, self._client, self._requested_model],
            "answers": [
                [key, [*usage], model, characters]
                for key, (usage, model, characters) in self._answers.items()
            ],
            "open_file": self._open_file,
            "changing": {call: [*files] for call, files in self._changing.items()},
            "changed": "".join(sorted(self._changed)),
        }

    @classmethod
    def load(cls, dumped: Mapping[str, Any]) -> Self:
        """Read what ``dump`` returned.

        Raises KeyError, TypeError, or ValueError for another version and other JSON.
        """
        if dumped["shape"] != SHAPE:
            raise ValueError("the fold was stored by another version")
        fold = cls()
        fold._totals = Overview.load(dumped["totals"])
        fold._label_titles = dict(dumped["label_titles"])
        (
            fold._client_title,
            fold._custom_title,
            fold._instruction_title,
            fold._command_title,
            fold._command_waits,
        ) = dumped["titles"]
        fold._projects = dict(dumped["projects"])
        fold._agent, fold._client, fold._requested_model = dumped["names"]
        for key, usage, model, characters in dumped["answers"]:
            fold._answers[key] = Usage(*usage), model, characters
        fold._open_file = dumped["open_file"]
        fold._changing = dict(dumped["changing"])
        digests = dumped["changed"]
        size = 2 * _DIGEST_SIZE
        for start in range(0, len(digests), size):
            fold._changed.add(digests[start : start + size])
        return fold


def _is_about_session(event: events.Event) -> bool:
    """Whether an event changes what is known of the session: a label or a redaction.

    It is no activity of the agent or a person.
    """
    return bool(labels_in(event)) or isinstance(event, events.RedactionApplied)


def _folder_in_entry(event: events.Event, native: Mapping[str, Any]) -> str:
    """The folder that an entry of a captured transcript names; empty without one."""
    if native.get("format") not in _CAPTURED:
        return ""
    value = event.value if isinstance(event, events.Item) else native.get("value")
    if not isinstance(value, dict):
        return ""
    for fields in (value, value.get("payload")):
        folder = fields.get("cwd") if isinstance(fields, dict) else None
        if isinstance(folder, str) and folder:
            return folder
    return ""


def _redactions(envelope: Envelope) -> int:
    """Return the number of values that redaction replaced in an event."""
    count = envelope.redaction.get("n")
    return count if isinstance(count, int) else 0


def _difference(usage: Usage, counted: Usage) -> Usage:
    """Return the tokens that were not counted yet."""
    return Usage(*(new - old for new, old in zip(usage, counted, strict=True)))


def _digest(path: str) -> str:
    data = path.encode("utf-8", "surrogatepass")
    return blake2b(data, digest_size=_DIGEST_SIZE).hexdigest()


def _patched_files(call: ToolCall) -> Iterator[str]:
    """Yield the files in a patch of ``apply_patch`` that the call applies."""
    from refold.projections.context.text import leaves

    arguments = call.arguments
    for text in [arguments] if isinstance(arguments, str) else leaves(arguments):
        if "*** Begin Patch" in text:
            for match in _PATCHED_FILE.finditer(text):
                yield match[1].strip()
