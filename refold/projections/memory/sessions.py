"""The facts of one session: its path, its outcome, its failures, and their fixes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby
from math import isfinite
from typing import Final, NamedTuple, TypeAlias

import orjson
from pydantic import JsonValue

from refold.domain import events
from refold.domain.canonical import load_packaged_toml
from refold.domain.envelope import CODES_OF_RECORDING, Envelope, Meta
from refold.domain.ids import MEMORY_ID
from refold.domain.model import JsonDataclass
from refold.domain.session import labels_in

Classifier: TypeAlias = Callable[[Envelope], str | None]
"""Names the scenario that an event shows, or None.  A classifier must be deterministic:
memory that is rebuilt must equal the memory before."""
Step: TypeAlias = tuple[str, ...]
"""The names of the tools that were called at once, sorted: their order says nothing."""
Path: TypeAlias = tuple[Step, ...]

# The version of the fold: it is raised when the same events give another result.
EXTRACTOR_VERSION: Final = 9
GENERAL: Final = "general"
"""The scenario that holds all sessions."""
RETRIEVAL_TOOL: Final = "memory_retrieval"
FILES_TOOL: Final = "memory"
OWN_TOOLS: Final = frozenset({RETRIEVAL_TOOL, FILES_TOOL})
"""The tools of memory itself, which are no steps of a path."""
LONGEST_PATH: Final = 4  # steps of a path
OTHER: Final = "other"
EXIT_STATUS: Final = "exit_status"
UNNAMED: Final = frozenset({OTHER, EXIT_STATUS})
"""Reasons that do not say why a call failed."""
NO_FAULT: Final = frozenset({"rejected", "cancelled"})
"""Reasons for which the tool did not run: somebody refused the call, or another call
made at once failed."""
CUT_OFF: Final = "cut_off"
_LONGEST_TAG: Final = 80
_OUTCOMES: Final = {"success": 1.0, "failure": 0.0, "partial": 0.5}
# A human's decision as an outcome; a dismissed question says nothing about the outcome.
_DECISIONS: Final = {"accept": 1.0, "corrected": 0.0, "reject": 0.0}
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,63}")
# The words of a tool's name, in camel case too.
_WORDS_OF_NAME: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# A word that says that a tool checks something.
_CHECK: Final = re.compile(
    r"verif\w*|(?:re)?valid\w*|assert\w*"
    r"|(?:type|health|spell|pre|re|double|cross|self)?check(?:s|er|ers|ed|ing)?"
    r"|(?:py|run|unit|doc|smoke|re|j|vi)?test(?:s|er|ers|ed|ing)?"
    r"|(?:es|py|re|tf|css)?lint(?:s|er|ers|ed|ing)?"
    r"|(?:re)?review(?:s|er|ers|ed|ing)?"
)
_UNKNOWN_TOOL: Final = "?"


def _is_check(tool: str) -> bool:
    """Whether a tool's name says that it checks something."""
    words = _WORDS_OF_NAME.findall(tool)
    return any(_CHECK.fullmatch(word.lower()) for word in words)


def by_words(scenarios: Mapping[str, tuple[str, ...]]) -> Classifier:
    """Return a classifier that looks for words in user inputs, also inside others.

    scenarios: by scenario, its words; the first scenario with a match wins.
    """
    lowered: dict[str, list[str]] = {}
    for scenario, words in scenarios.items():
        lowered[scenario] = [word.lower() for word in words]

    def classify(envelope: Envelope) -> str | None:
        if not isinstance(envelope.payload, events.UserInput):
            return None
        text = envelope.payload.text.lower()
        for scenario, words in lowered.items():
            if any(word in text for word in words):
                return scenario
        return None

    return classify


def by_scenario(sessions: Iterable[SessionFacts]) -> dict[str, list[SessionFacts]]:
    """Group sessions by scenario, in order of ids; ``general`` has all of them."""
    groups: dict[str, list[SessionFacts]] = {}
    for session in sorted(sessions, key=lambda session: session.session_id):
        for scenario in {GENERAL, session.scenario}:
            groups.setdefault(scenario, []).append(session)
    return {scenario: groups[scenario] for scenario in sorted(groups)}


class CalledTool(NamedTuple):
    """A call of a tool; calls of one group were made at once."""

    seq: int
    tool: str
    group: int


def steps(calls: Sequence[CalledTool]) -> list[tuple[int, int, Step]]:
    """Group calls into steps: (first seq, last seq, tools) of each.

    Equal steps in a row become one.
    """
    walked: list[tuple[int, int, Step]] = []
    for _, group in groupby(calls, key=lambda call: call.group):
        members = list(group)
        first_seq = members[0].seq
        last_seq = members[-1].seq
        step = tuple(sorted({call.tool for call in members}))
        if walked and walked[-1][2] == step:
            walked[-1] = (walked[-1][0], last_seq, step)
        else:
            walked.append((first_seq, last_seq, step))
    return walked


def subpaths(
    walked: Sequence[tuple[int, int, Step]], breaks: Sequence[int] = ()
) -> Iterator[tuple[Path, int, int]]:
    """Yield each path of 1 to ``LONGEST_PATH`` steps: (path, first seq, last seq).

    breaks: indexes in ``walked``, in order, that no path crosses.
    """
    ends = iter((*breaks, len(walked)))
    limit = next(ends)
    for start in range(len(walked)):
        while start >= limit:
            limit = next(ends)
        for end in range(start + 1, min(limit, start + LONGEST_PATH) + 1):
            part = walked[start:end]
            path = tuple(step for _, _, step in part)
            first_seq = part[0][0]
            last_seq = part[-1][1]
            yield path, first_seq, last_seq


# Characters at the beginning of a result that are searched for a failure.
_BEGINNING: Final = 400
_PATTERNS: Final = load_packaged_toml("refold.projections", "data", "reasons.toml")
_FAILED: Final = re.compile(rf"\s*(?:{'|'.join(_PATTERNS['failed'])})", re.IGNORECASE)
_REASONS: Final[tuple[tuple[str, re.Pattern[str]], ...]] = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in _PATTERNS["reasons"].items()
)
REASONS: Final = (*(name for name, _ in _REASONS), CUT_OFF, OTHER)


def reason_of(result: events.ToolResult) -> str | None:
    """Return why the call failed, one of ``REASONS``, or None if it succeeded.

    A tool that reports a failure as an ordinary result is recognized by the beginning
    of the result.
    """
    if result.status == "unknown":
        return CUT_OFF
    text = _beginning(result.content)
    if result.status == "ok" and not _FAILED.match(text):
        return None
    for name, pattern in _REASONS:
        if pattern.search(text):
            return name
    return OTHER


# A code as programs write it; a sentence of a model is no code, however short.
_CODE: Final = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+){0,4}")
_LONGEST_CODE: Final = 40


def codes_of(entries: Iterable[object]) -> list[str]:
    """Return the codes among warnings or issues.

    The code of an object is its ``code``.  A text is a code if it is one of ``REASONS``
    or consists of words joined by ``_``.  A code is in lower case, and has at most 5
    words and 40 characters.
    """
    codes: list[str] = []
    for entry in entries:
        if isinstance(entry, str):
            code = entry if "_" in entry or entry in REASONS else None
        elif isinstance(entry, Mapping):
            code = entry.get("code")
        else:
            code = getattr(entry, "code", None)
        if not isinstance(code, str) or len(code) > _LONGEST_CODE:
            continue
        if _CODE.fullmatch(code):
            codes.append(code)
    return codes


def said_failed(content: JsonValue) -> tuple[str, str]:
    """Split a result into the words that report its failure and the text after them.

    Both are empty if the result does not begin with such words.
    """
    match = _FAILED.match(_beginning(content))
    if match is None:
        return "", ""
    text = _text_of(content) or ""
    return " ".join(match[0].split()), text[match.end() :].lstrip()


def _text_of(content: JsonValue) -> str | None:
    """Return a result that is a text, or its first text block."""
    match content:
        case str(text) | [{"text": str(text)}, *_]:
            return text
    return None


# The header of a shell's result, and the first line of the command's output.
_EXIT: Final = re.compile(r"\s*exit code \d+\s*\n[^\n]*", re.IGNORECASE)


def _beginning(content: JsonValue) -> str:
    """Return the beginning of a result, which may name a failure and its reason.

    For a command with an exit status, this is the status and the first line of the
    output, because later lines report findings of a test or a linter.
    """
    text = _text_of(content)
    if text is not None:
        beginning = text[:_BEGINNING]
        header = _EXIT.match(beginning)
        return beginning if header is None else header[0]
    return orjson.dumps(content)[:_BEGINNING].decode(errors="replace")


class Failure(NamedTuple):
    """A failed call and how it was fixed.

    tool:      the tool that was called.
    reason:    one of ``REASONS``, or the code of a warning or issue.
    seq:       the seq of the result.
    fix:       the tool of the same agent that succeeded next, the same or another;
               None if there was none.
    fixed_seq: the seq of that tool's result.
    called:    the seq of the failed call.
    """

    tool: str
    reason: str
    seq: int
    fix: str | None = None
    fixed_seq: int = 0
    called: int = 0


@dataclass(frozen=True, slots=True)
class SessionFacts(JsonDataclass):
    """The facts of one session, without any other session.

    scenario:    the scenario that the writer named, or that a classifier found.
    upto_seq:    the last event that was folded.
    success:     the outcome, 0 to 1, or None if nothing states it.
    decided_seq: the event that states the outcome.
    own_word:    whether only the agent itself states the outcome.
    walked:      (first seq, last seq, tools) of each step, agent by agent.
    breaks:      the indexes in ``walked`` that no path crosses.
    checks:      the tools that check something, and the seq of the first use of each.
    warnings:    the codes of warnings about the run, and the seq of the first event
                 with each.  A code that is the reason of a failed call is left out.
    iterations:  how often the agent judged its own work.
    tokens:      the input and output tokens of all answers, without cached tokens.
    milliseconds: how long the tools ran that report it.
    taints:      the codes of the reasons that the session must not count as evidence.
    advised:     by id, the items of memory that the model was shown, and the seq of the
                 first request that showed it; 0 if a parent's request did.
    models:      the models that answered, sorted.
    parent:      the session and seq that it was forked from, or "" and 0.
    family:      the session that its line of forks began with, once looked up.
    project:     the last ``meta.project`` of the writer, or label ``project``.
    began_at, ended_at: the times of its first and last event, in microseconds since
                 1970, by the clock of the events.
    gone:        kinds of items that expired before this session; its caller sets it.
    """

    session_id: str
    scenario: str
    upto_seq: int
    success: float | None = None
    decided_seq: int = 0
    own_word: bool = False
    walked: tuple[tuple[int, int, Step], ...] = ()
    breaks: tuple[int, ...] = ()
    failures: tuple[Failure, ...] = ()
    checks: Mapping[str, int] = field(default_factory=dict)
    iterations: int = 0
    tokens: int = 0
    milliseconds: float = 0.0
    taints: tuple[str, ...] = ()
    advised: Mapping[str, int] = field(default_factory=dict)
    models: tuple[str, ...] = ()
    parent: tuple[str, int] = ("", 0)
    family: str = ""
    project: str = ""
    began_at: int = 0
    ended_at: int = 0
    gone: tuple[str, ...] = ()
    warnings: Mapping[str, int] = field(default_factory=dict)


class _OpenCall(NamedTuple):
    """A call without a result."""

    seq: int
    tool: str
    agent: str


class _Outcome(NamedTuple):
    """An outcome, 0 to 1, and the event that states it."""

    success: float
    seq: int


class SessionFold:
    """Folds the events of one session, in order, into ``SessionFacts``.

    agent: the only agent whose calls count; None counts the calls of every agent.
    """

    def __init__(
        self,
        session_id: str,
        classify: Classifier | None = None,
        agent: str | None = None,
    ) -> None:
        self._session_id = session_id
        self._classify = classify
        self._agent = agent
        self._upto = 0
        self._iterations = 0
        self._tokens = 0
        self._milliseconds = 0.0
        self._reflected_seq = 0
        self._began = 0
        self._ended = 0
        self._tag: str | None = None
        self._classified: str | None = None
        # By agent: a call of one agent is no step of another.
        self._calls: dict[str, list[CalledTool]] = {}
        self._groups: dict[str, int] = {}
        self._open: dict[str, _OpenCall] = {}
        self._parent: tuple[str, int] = ("", 0)
        self._project = ""
        self._unfixed: dict[str, list[Failure]] = {}
        self._fixed: list[Failure] = []
        self._checks: dict[str, int] = {}
        self._warnings: dict[str, int] = {}
        self._advised: dict[str, int] = {}
        self._models: set[str] = set()
        self._human_outcome: _Outcome | None = None
        self._environment_outcome: _Outcome | None = None
        self._agent_outcome: _Outcome | None = None
        self._taints: set[str] = set()

    def take(self, envelope: Envelope) -> None:
        """Fold the next event."""
        seq = envelope.seq
        self._upto = seq
        self._began = min(self._began or envelope.at, envelope.at)
        self._ended = max(self._ended, envelope.at)
        if self._classify is not None and self._classified is None:
            self._classified = self._classify(envelope)
        self._take_meta(seq, envelope.meta)
        codes = _codes_of_run(envelope.meta)
        if not isinstance(envelope.payload, events.ToolResult):
            self._take_warnings(seq, codes)
        match envelope.payload:
            case events.ToolCall() as call if self._agent in (None, envelope.agent):
                self._take_call(seq, call, envelope.agent or "")
            case events.ToolResult() as result:
                self._take_result(seq, result, codes)
            case events.Reflection(pass_=passed, issues=issues):
                self._iterations += 1
                self._name_failures(codes_of(issues))
                if passed is not None:
                    self._agent_outcome = _Outcome(float(passed), seq)
            case events.Aggregate(results=results) if results:
                correct = [result for result in results if result.verdict == "correct"]
                self._agent_outcome = _Outcome(len(correct) / len(results), seq)
            case events.Final(reward=float(reward)) if isfinite(reward):
                self._environment_outcome = _Outcome(min(1.0, max(0.0, reward)), seq)
            case events.Final(outcome=outcome) if outcome in _OUTCOMES:
                self._environment_outcome = _Outcome(_OUTCOMES[outcome], seq)
            case events.HumanReview(decision=str(decision)) if decision in _DECISIONS:
                self._human_outcome = _Outcome(_DECISIONS[decision], seq)
            case events.Request(advised=advised):
                self._take_advised(seq, advised)
            case events.StateUpdate() as update:
                warnings = update.set.get("warnings")
                if isinstance(warnings, list):
                    self._take_warnings(seq, codes_of(warnings))
                project = labels_in(update).get("project")
                if project and _NAME.fullmatch(project):
                    self._project = project
            case events.Fork(session_id=session_id, at_seq=at_seq):
                self._parent = (session_id, at_seq)

    def _take_meta(self, seq: int, meta: Meta) -> None:
        tag = meta.scenario
        if tag and len(tag) <= _LONGEST_TAG and tag.isprintable():
            self._tag = tag
        usage = meta.usage or {}
        for name in ("input_tokens", "output_tokens"):
            count = usage.get(name)
            if isinstance(count, int):
                self._tokens += count
        if meta.model is not None and _NAME.fullmatch(meta.model):
            self._models.add(meta.model)
        extra = meta.model_extra or {}
        project = extra.get("project")
        if isinstance(project, str) and _NAME.fullmatch(project):
            self._project = project
        if extra.get("tainted"):
            self._taints.add("marked")
        # The items that the retrieval tool returned to the model.
        advised = extra.get("advised")
        if isinstance(advised, list):
            self._take_advised(seq, advised)

    def _take_warnings(self, seq: int, codes: Iterable[str]) -> None:
        for code in codes:
            self._warnings.setdefault(code, seq)

    def _take_advised(self, seq: int, advised: Iterable[object]) -> None:
        for memory_id in advised:
            if isinstance(memory_id, str) and MEMORY_ID.fullmatch(memory_id):
                self._advised.setdefault(memory_id, seq)

    def _take_call(self, seq: int, call: events.ToolCall, agent: str) -> None:
        tool = call.tool_name
        if tool in OWN_TOOLS:
            return
        if not _NAME.fullmatch(tool):
            # A model invents such names, and may write instructions in them.
            self._taints.add("odd_tool_name")
            tool = _UNKNOWN_TOOL
        group = self._groups.get(agent, 0)
        self._calls.setdefault(agent, []).append(CalledTool(seq, tool, group))
        self._open[call.call_id] = _OpenCall(seq, tool, agent)
        if _is_check(tool):
            self._checks.setdefault(tool, seq)

    def _name_failures(self, codes: Sequence[str]) -> None:
        """Give failures since the last reflection the first code of this reflection.

        A failure whose reason is known keeps it.
        """
        since = self._reflected_seq
        self._reflected_seq = self._upto
        if not codes:
            return
        for failures in (*self._unfixed.values(), self._fixed):
            for index, failure in enumerate(failures):
                if failure.reason in UNNAMED and failure.seq > since:
                    failures[index] = failure._replace(reason=codes[0])

    def _take_result(
        self, seq: int, result: events.ToolResult, codes: Sequence[str]
    ) -> None:
        if result.untrusted:
            self._taints.add("untrusted_result")
        call = self._open.pop(result.call_id, None)
        if call is None:
            self._take_warnings(seq, codes)
            return
        # The agent's later calls are made with this result known: a new group.
        self._groups[call.agent] = seq
        self._milliseconds += result.duration_ms or 0.0
        reason = reason_of(result)
        if reason is not None:
            if reason in UNNAMED and codes:
                reason = codes[0]
            failure = Failure(call.tool, reason, seq, called=call.seq)
            self._unfixed.setdefault(call.agent, []).append(failure)
            self._take_warnings(seq, (code for code in codes if code != reason))
            return
        self._take_warnings(seq, codes)
        # Only a call of the agent that knew the failure can have fixed it.
        still_unfixed: list[Failure] = []
        for failure in self._unfixed.get(call.agent, ()):
            if failure.seq < call.seq:
                self._fixed.append(failure._replace(fix=call.tool, fixed_seq=seq))
            else:
                still_unfixed.append(failure)
        self._unfixed[call.agent] = still_unfixed

    def shown(self) -> SessionFacts:
        """Return the facts that the events so far show.

        The outcome is a human's decision, else the environment's statement, else the
        agent's own judgment.
        """
        outcome = self._human_outcome or self._environment_outcome
        own_word = outcome is None and self._agent_outcome is not None
        if outcome is None:
            outcome = self._agent_outcome
        walks = [steps(calls) for calls in self._calls.values()]
        walked: list[tuple[int, int, Step]] = []
        for walk in walks:
            walked += walk
        failures = list(self._fixed)
        for unfixed in self._unfixed.values():
            failures += unfixed
        failures.sort(key=lambda failure: failure.seq)
        return SessionFacts(
            session_id=self._session_id,
            scenario=self._tag or self._classified or GENERAL,
            upto_seq=self._upto,
            success=None if outcome is None else outcome.success,
            decided_seq=0 if outcome is None else outcome.seq,
            own_word=own_word,
            walked=tuple(walked),
            breaks=tuple(accumulate(len(walk) for walk in walks[:-1])),
            failures=tuple(failures),
            checks=dict(self._checks),
            iterations=self._iterations,
            tokens=self._tokens,
            milliseconds=self._milliseconds,
            taints=tuple(sorted(self._taints)),
            advised=dict(self._advised),
            models=tuple(sorted(self._models)),
            parent=self._parent,
            project=self._project,
            began_at=self._began,
            ended_at=self._ended,
            warnings=dict(self._warnings),
        )


def facts_of(
    session_id: str,
    envelopes: Iterable[Envelope],
    classify: Classifier | None = None,
    agent: str | None = None,
) -> SessionFacts:
    """Return the facts that these events of a session show."""
    fold = SessionFold(session_id, classify, agent)
    for envelope in envelopes:
        fold.take(envelope)
    return fold.shown()


def with_families(sessions: Iterable[SessionFacts]) -> list[SessionFacts]:
    """Return each session with its family and what it inherits, in order of ids.

    A fork inherits all taints of its parents, and the advice that they were shown
    before the fork.
    """
    by_id = {session.session_id: session for session in sessions}
    return [_with_family(by_id[name], by_id) for name in sorted(by_id)]


def untainted(sessions: Iterable[SessionFacts]) -> list[SessionFacts]:
    """Return the sessions without taints, each with its ``family``."""
    return [session for session in with_families(sessions) if not session.taints]


def _with_family(
    session: SessionFacts, by_id: Mapping[str, SessionFacts]
) -> SessionFacts:
    if session.family:
        return session  # it was looked up already
    taints = set(session.taints)
    advised = dict(session.advised)
    family = session.session_id
    line = [session.session_id]  # from the session to the beginning of its line
    parent, at_seq = session.parent
    while parent:
        if parent in line:
            # Forged forks may name each other in a circle, which is one family.
            family = min(line[line.index(parent) :])
            break
        line.append(parent)
        family = parent
        older = by_id.get(parent)
        if older is None:
            break
        taints.update(older.taints)
        for memory_id, seq in older.advised.items():
            if seq <= at_seq:
                advised.setdefault(memory_id, 0)
        parent, at_seq = older.parent
    return replace(
        session, family=family, taints=tuple(sorted(taints)), advised=advised
    )


def may_trigger_rebuild(event: events.Event, meta: Meta) -> bool:
    """Whether memory should be rebuilt after this event.

    That is so after the end of a run, an error of the agent, a reflection (which may
    express doubt), a human's decision, an incorrect verdict, and a warning about the
    run.
    """
    match event:
        case events.Aggregate(results=results):
            has_mistake = any(result.verdict == "incorrect" for result in results)
            return has_mistake or _is_degraded(meta)
        case events.Reflection() | events.AgentError() | events.Final():
            return True
        case events.HumanReview(decision=decision) if decision is not None:
            return True
        case events.StateUpdate(set=keys) if keys.get("warnings"):
            return True
    return _is_degraded(meta)


def _is_degraded(meta: Meta) -> bool:
    return any(warning.code not in CODES_OF_RECORDING for warning in meta.warnings)


def _codes_of_run(meta: Meta) -> list[str]:
    """Return the codes of the warnings about the run, except those on the recording."""
    warnings = [
        warning for warning in meta.warnings if warning.code not in CODES_OF_RECORDING
    ]
    return codes_of(warnings)
