"""What one session shows: its path, how it ended, what failed and what then helped."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby
from math import isfinite
from operator import itemgetter
from typing import Final, NamedTuple, TypeAlias

import orjson
from pydantic import JsonValue

from refold.domain import events
from refold.domain.canonical import shipped
from refold.domain.envelope import Envelope, Meta
from refold.domain.ids import MEMORY_ID
from refold.domain.model import Kept
from refold.domain.session import labels_in

# Told an event, it names the scenario that the event shows, or None.  It must be
# deterministic: memory that is made again must come out the same.
Classifier: TypeAlias = Callable[[Envelope], str | None]
# Tools that were called at once, by name: their order says nothing.
Step: TypeAlias = tuple[str, ...]
Path: TypeAlias = tuple[Step, ...]

# Raised when what is made of the same events becomes something else.
EXTRACTOR: Final = 6
# What is known of all sessions together, whatever their scenario.
GENERAL: Final = "general"
RETRIEVAL: Final = "memory_retrieval"
FILES: Final = "memory"
OWN_TOOLS: Final = frozenset({RETRIEVAL, FILES})
LONGEST: Final = 4  # steps of a path
OTHER: Final = "other"
CUT_OFF: Final = "cut_off"
_LONGEST_TAG: Final = 80
_OUTCOMES: Final = {"success": 1.0, "failure": 0.0, "partial": 0.5}
# What a human's decision says of the agent's work; one that it was moot says nothing.
_DECISIONS: Final = {"accept": 1.0, "corrected": 0.0, "reject": 0.0}
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,63}")
_CHECKS: Final = re.compile(r"verif|valid|check|test|lint|assert|review", re.IGNORECASE)


def by_words(scenarios: Mapping[str, tuple[str, ...]]) -> Classifier:
    """A classifier that looks for words in what users say, the first scenario first."""
    lowered = {k: tuple(map(str.lower, words)) for k, words in scenarios.items()}

    def classify(envelope: Envelope) -> str | None:
        said = envelope.payload
        text = said.text.lower() if isinstance(said, events.UserInput) else ""
        named = (n for n, words in lowered.items() if any(w in text for w in words))
        return next(named, None)

    return classify


def by_scenario(shown: Iterable[Shown]) -> dict[str, list[Shown]]:
    """The sessions of each scenario; ``general`` are all of them.  In order of ids."""
    found: dict[str, list[Shown]] = {GENERAL: []}
    for one in sorted(shown, key=lambda one: one.session_id):
        for name in {GENERAL, one.scenario}:
            found.setdefault(name, []).append(one)
    return {name: found[name] for name in sorted(found) if found[name]}


def steps(calls: Sequence[tuple[int, str, int]]) -> list[tuple[int, int, Step]]:
    """(first seq, last seq, tools) of each step; equal ones after each other are one.

    calls: seq, tool and group of each; those of one group were made at once.
    """
    found: list[tuple[int, int, Step]] = []
    for _, members in groupby(calls, key=itemgetter(2)):
        seqs, tools, _ = zip(*members, strict=True)
        step = tuple(sorted({*tools}))
        if found and found[-1][2] == step:
            found[-1] = (found[-1][0], seqs[-1], step)
        else:
            found.append((seqs[0], seqs[-1], step))
    return found


def subpaths(
    walked: Sequence[tuple[int, int, Step]], breaks: Sequence[int] = ()
) -> Iterator[tuple[Path, int, int]]:
    """Each path of 1 to ``LONGEST`` steps within it: (path, first seq, last seq).

    None goes over a place in ``breaks``, which are in order.
    """
    ends = iter((*breaks, len(walked)))
    limit = next(ends)
    for start in range(len(walked)):
        while start >= limit:
            limit = next(ends)
        for end in range(start + 1, min(limit, start + LONGEST) + 1):
            part = walked[start:end]
            yield tuple(step for _, _, step in part), part[0][0], part[-1][1]


_LOOKED_AT: Final = 400
_TOLD: Final = shipped("refold.projections", "data", "reasons.toml")
_FAILED: Final = re.compile(rf"\s*(?:{'|'.join(_TOLD['failed'])})", re.IGNORECASE)
_REASONS: Final = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in _TOLD["reasons"].items()
)
REASONS: Final = (*(name for name, _ in _REASONS), CUT_OFF, OTHER)


def reason_of(result: events.ToolResult) -> str | None:
    """Why the call failed, as one of ``REASONS``; None if it did not.

    Tools that report a failure as an ordinary result are told by how it begins.
    """
    if result.status == "unknown":
        return CUT_OFF
    text = _beginning(result.content)
    if result.status == "ok" and not _FAILED.match(text):
        return None
    return next((name for name, why in _REASONS if why.search(text)), OTHER)


# As programs write them: a model's own sentence is no code, however short.
_CODE: Final = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+){0,4}")
_LONGEST_CODE: Final = 40


def codes_of(told: Iterable[object]) -> list[str]:
    """The codes among warnings or issues: of an object its ``code``, or a text that is
    one, of words joined by ``_``.
    """
    found = []
    for one in told:
        code = (
            one.get("code") if isinstance(one, Mapping) else getattr(one, "code", one)
        )
        if isinstance(code, str) and len(code) <= _LONGEST_CODE:
            known = "_" in code or code is not one or code in REASONS
            found += [code] if known and _CODE.fullmatch(code) else []
    return found


def said_failed(content: JsonValue) -> tuple[str, str]:
    """The words by which a result says that it failed, and what a text has behind.

    Both are empty if nothing at its beginning says so.
    """
    if (match := _FAILED.match(_beginning(content))) is None:
        return "", ""
    rest = content[match.end() :].lstrip() if isinstance(content, str) else ""
    return " ".join(match[0].split()), rest


def _beginning(content: JsonValue) -> str:
    match content:
        case str(text) | [{"text": str(text)}, *_]:
            return text[:_LOOKED_AT]
    return orjson.dumps(content)[:_LOOKED_AT].decode(errors="replace")


class Failure(NamedTuple):
    """A call that failed, and what came of it.

    reason: one of ``REASONS``, or the code of a warning or of an issue.
    fix:    the tool that next did not fail, the same or another; None if there was
            none.  ``fixed_seq`` is of its result.
    called: the seq of the call; ``seq`` is of the result.
    """

    tool: str
    reason: str
    seq: int
    fix: str | None = None
    fixed_seq: int = 0
    called: int = 0


@dataclass(frozen=True, slots=True)
class Shown(Kept):
    """What a session shows by itself.

    success:    0 to 1, as it ended; None if nothing says how.  ``decided_seq`` is of
                the event that says it.
    own_word:   only the agent itself says how it ended.
    walked:     (first seq, last seq, tools) of each step, agent by agent; no path goes
                over the places in it that are ``breaks``.
    checks:     tools that check something, and where each was first used.
    iterations: how often the agent judged its own work.
    taints:     why it must not speak for anything, by code; empty if it may.
    advised:    the items of memory that the model was shown, by id, and the seq of the
                request in which it first was.
    parent:     the session that it was forked from, and where; or "" and 0.
    family:     the session that its forks began with, once that was looked up.
    project:    what its writer named as ``meta.project``.
    began_at:   when its first event happened, ``ended_at`` its last; microseconds since
                1970, by the clock of the events.
    gone:       kinds of items that it shows no more, for they lasted no longer.
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


class Watch:
    """Folds the events of one session, in order, into what they show.

    agent: of several in a session, whose calls count; None: everybody's.
    """

    def __init__(
        self,
        session_id: str,
        classify: Classifier | None = None,
        agent: str | None = None,
    ) -> None:
        self._session_id, self._classify, self._agent = session_id, classify, agent
        self._upto = self._iterations = self._tokens = self._reflected = 0
        self._began = self._ended = 0
        self._tag: str | None = None
        self._guess: str | None = None
        # By agent: what one calls is no step of another's.
        self._calls: dict[str, list[tuple[int, str, int]]] = {}
        self._groups: dict[str, int] = {}
        self._open: dict[str, tuple[int, str, str]] = {}
        self._parent, self._project = ("", 0), ""
        self._unfixed: list[Failure] = []
        self._fixed: list[Failure] = []
        self._checks: dict[str, int] = {}
        self._advised: dict[str, int] = {}
        self._models: set[str] = set()
        self._milliseconds = 0.0
        # By who says it: a human, the environment, the agent itself.
        self._said: dict[str, tuple[float, int]] = {}
        self._taints: dict[str, None] = {}

    def take(self, envelope: Envelope) -> None:
        """Look at the next event."""
        self._upto = envelope.seq
        self._began = min(self._began or envelope.at, envelope.at)
        self._ended = max(self._ended, envelope.at)
        if self._classify is not None and self._guess is None:
            self._guess = self._classify(envelope)
        self._meta(envelope)
        match envelope.payload:
            case events.ToolCall() as call if self._agent in (None, envelope.agent):
                self._call(envelope.seq, call, envelope.agent or "")
            case events.ToolResult() as result:
                self._result(envelope.seq, result, codes_of(envelope.meta.warnings))
            case events.Reflection(pass_=passed, issues=issues):
                self._iterations += 1
                self._name_failures(codes_of(issues))
                if passed is not None:
                    self._said["agent"] = (float(passed), envelope.seq)
            case events.Aggregate(results=results) if results:
                correct = sum(one.verdict == "correct" for one in results)
                self._said["agent"] = (correct / len(results), envelope.seq)
            case events.Final(reward=float(reward)) if isfinite(reward):
                self._said["environment"] = (min(1.0, max(0.0, reward)), envelope.seq)
            case events.Final(outcome=outcome) if outcome in _OUTCOMES:
                self._said["environment"] = (_OUTCOMES[outcome], envelope.seq)
            case events.HumanReview(decision=str(decision)) if decision in _DECISIONS:
                self._said["human"] = (_DECISIONS[decision], envelope.seq)
            case events.Request(advised=advised):
                self._told(envelope.seq, advised)
            case events.StateUpdate() as update:
                project = labels_in(update).get("project")
                if project and _NAME.fullmatch(project):
                    self._project = project
            case events.Fork(session_id=session_id, at_seq=at_seq):
                self._parent = (session_id, at_seq)

    def _meta(self, envelope: Envelope) -> None:
        meta, tag = envelope.meta, envelope.meta.scenario
        if tag and len(tag) <= _LONGEST_TAG and tag.isprintable():
            self._tag = tag
        usage = meta.usage or {}
        counts = (usage.get("input_tokens"), usage.get("output_tokens"))
        self._tokens += sum(count for count in counts if isinstance(count, int))
        if meta.model is not None and _NAME.fullmatch(meta.model):
            self._models.add(meta.model)
        more = meta.model_extra or {}
        project = more.get("project")
        if isinstance(project, str) and _NAME.fullmatch(project):
            self._project = project
        if more.get("tainted"):
            self._taints["marked"] = None
        advised = more.get("advised")  # what a model asked memory for, and was told
        self._told(envelope.seq, advised if isinstance(advised, list) else ())

    def _told(self, seq: int, advised: Iterable[object]) -> None:
        for name in advised:
            if isinstance(name, str) and MEMORY_ID.fullmatch(name):
                self._advised.setdefault(name, seq)

    def _call(self, seq: int, call: events.ToolCall, agent: str) -> None:
        if call.tool_name in OWN_TOOLS:
            return
        tool = call.tool_name
        if not _NAME.fullmatch(tool):  # models make up others, and write in them
            self._taints["odd_tool_name"] = None
            tool = "?"
        group = self._groups.get(agent, 0)
        self._calls.setdefault(agent, []).append((seq, tool, group))
        self._open[call.call_id] = (seq, tool, agent)
        if _CHECKS.search(tool):
            self._checks.setdefault(tool, seq)

    def _name_failures(self, codes: Sequence[str]) -> None:
        """Why those failed that nothing gave a reason for, as the reflection says."""
        since, self._reflected = self._reflected, self._upto
        for some in (self._unfixed, self._fixed) if codes else ():
            for index, one in enumerate(some):
                if one.reason == OTHER and one.seq > since:
                    some[index] = one._replace(reason=codes[0])

    def _result(self, seq: int, result: events.ToolResult, codes: list[str]) -> None:
        if result.untrusted:
            self._taints["untrusted_result"] = None
        called, tool, agent = self._open.pop(result.call_id, (0, "", ""))
        if not called:
            return
        # What this agent calls from here on it calls with this result at hand.
        self._groups[agent] = seq
        self._milliseconds += result.duration_ms or 0.0
        if (reason := reason_of(result)) is not None:
            reason = codes[0] if reason == OTHER and codes else reason
            self._unfixed.append(Failure(tool, reason, seq, called=called))
            return
        # Only a call that was made after the failure was seen can be what helped.
        helped = [one for one in self._unfixed if one.seq < called]
        if helped:
            self._unfixed = [one for one in self._unfixed if one.seq >= called]
            self._fixed += (one._replace(fix=tool, fixed_seq=seq) for one in helped)

    def shown(self) -> Shown:
        """What the events up to here show."""
        # A human's word counts, then the environment's; the agent's own if none else.
        said = self._said
        others = said.get("human") or said.get("environment")
        success, decided = others or said.get("agent") or (None, 0)
        walks = [steps(calls) for calls in self._calls.values()]
        failures = sorted((*self._fixed, *self._unfixed), key=lambda one: one.seq)
        return Shown(
            session_id=self._session_id,
            scenario=self._tag or self._guess or GENERAL,
            upto_seq=self._upto,
            success=success,
            decided_seq=decided,
            own_word=success is not None and not others,
            walked=tuple(step for walk in walks for step in walk),
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
        )


def watch(
    session_id: str,
    events: Iterable[Envelope],
    classify: Classifier | None = None,
    agent: str | None = None,
) -> Shown:
    """What these events of a session show."""
    watch = Watch(session_id, classify, agent)
    for envelope in events:
        watch.take(envelope)
    return watch.shown()


def families(shown: Iterable[Shown]) -> list[Shown]:
    """Each session with its family, and with what it inherits; in order of ids.

    Of a parent's taints all count, wherever they are; of what it was shown, that before
    the fork.
    """
    known = {one.session_id: one for one in shown}
    return [_member(one, known) for _, one in sorted(known.items())]


def untainted(shown: Iterable[Shown]) -> list[Shown]:
    """Those that may speak for something."""
    return [one for one in families(shown) if not one.taints]


def _member(one: Shown, known: dict[str, Shown]) -> Shown:
    if one.family:
        return one  # it was looked up already
    taints, advised = set(one.taints), dict(one.advised)
    family, (parent, at) = one.session_id, one.parent
    while parent and parent != family:
        family = parent
        older = known.get(parent)
        if older is None:
            break
        taints.update(older.taints)
        for name, seq in older.advised.items():
            if seq <= at:
                advised.setdefault(name, 0)
        parent, at = older.parent
    return replace(one, family=family, taints=tuple(sorted(taints)), advised=advised)


def may_trigger(event: events.Event, meta: Meta) -> bool:
    """Whether memory is worth making anew after this.

    The run ended, a human decided, an item was judged incorrect, something failed or
    was degraded, or the agent reflected: it may be unsure, or have done so before.
    """
    match event:
        case events.Aggregate(results=results):
            wrong = any(one.verdict == "incorrect" for one in results)
            return wrong or bool(meta.warnings)
        case events.Reflection() | events.AgentError() | events.Final():
            return True
        case events.HumanReview(decision=decision) if decision is not None:
            return True
        case events.StateUpdate(set=keys) if keys.get("warnings"):
            return True
    return bool(meta.warnings)
