"""What one session shows: its path, how it ended, what failed and what then helped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Final

from refold.domain.envelope import Envelope
from refold.domain.events import (
    Aggregate,
    Final as Ending,
    HumanReview,
    JsonObject,
    Reflection,
    Request,
    ToolCall,
    ToolResult,
)
from refold.domain.ids import MEMORY_ID
from refold.projections.memory.own_tools import OWN_TOOLS
from refold.projections.memory.paths import Step, steps
from refold.projections.memory.reasons import reason_of
from refold.projections.memory.scenarios import GENERAL, Classifier, tagged
from refold.projections.memory.triggers import triggers

# Raised when what is made of the same events becomes something else.
EXTRACTOR: Final = 2
_OUTCOMES: Final = {"success": 1.0, "failure": 0.0, "partial": 0.5}
# What a human's decision says of the agent's work; one that it was moot says nothing.
_DECISIONS: Final = {"accept": 1.0, "corrected": 0.0, "reject": 0.0}
_NAME: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,63}")
_CHECKS: Final = re.compile(r"verif|valid|check|test|lint|assert|review", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Failure:
    """A call that failed, and what came of it.

    reason: one of ``reasons.REASONS``.
    fix:    the tool that next did not fail, the same or another; None if there was
            none.  ``fixed_seq`` is of its result.
    """

    tool: str
    reason: str
    seq: int
    fix: str | None = None
    fixed_seq: int = 0


@dataclass(frozen=True, slots=True)
class Shown:
    """What a session shows by itself.

    success:    0 to 1, as it ended; None if nothing says how.  ``decided_seq`` is of
                the event that says it.
    own_word:   only the agent itself says how it ended.
    walked:     (first seq, last seq, tools) of each step.
    checks:     tools that check something, and where each was first used.
    iterations: how often the agent judged its own work.
    taints:     why it must not speak for anything, by code; empty if it may.
    advised:    the items of memory that the model was shown, by id, and the seq of the
                request in which it first was.
    triggers:   why it is worth looking at, by name, and the seq of the first event.
    began_at:   when its first event happened, ``ended_at`` its last; microseconds since
                1970, by the clock of the events.
    """

    session_id: str
    scenario: str
    upto_seq: int
    success: float | None = None
    decided_seq: int = 0
    own_word: bool = False
    walked: tuple[tuple[int, int, Step], ...] = ()
    failures: tuple[Failure, ...] = ()
    checks: Mapping[str, int] = field(default_factory=dict)
    iterations: int = 0
    tokens: int = 0
    milliseconds: float = 0.0
    taints: tuple[str, ...] = ()
    advised: Mapping[str, int] = field(default_factory=dict)
    triggers: Mapping[str, int] = field(default_factory=dict)
    models: tuple[str, ...] = ()
    began_at: int = 0
    ended_at: int = 0

    def dump(self) -> JsonObject:
        """All of it as JSON."""
        found: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        found["walked"] = [[a, b, list(step)] for a, b, step in self.walked]
        found["failures"] = [
            [getattr(one, name) for name in one.__slots__] for one in self.failures
        ]
        for name in ("taints", "models"):
            found[name] = list(found[name])
        for name in ("checks", "advised", "triggers"):
            found[name] = dict(found[name])
        return found

    @classmethod
    def load(cls, dumped: Mapping[str, Any]) -> Shown:
        """What ``dump`` wrote."""
        found = dict(dumped)
        found["walked"] = tuple((a, b, tuple(step)) for a, b, step in found["walked"])
        found["failures"] = tuple(Failure(*one) for one in found["failures"])
        found["taints"], found["models"] = map(
            tuple, (found["taints"], found["models"])
        )
        return cls(**found)


class Watching:
    """Folds the events of one session, in order, into what they show."""

    def __init__(self, session_id: str, classify: Classifier | None = None) -> None:
        self._session_id, self._classify = session_id, classify
        self._upto = self._group = self._iterations = self._tokens = 0
        self._began = self._ended = 0
        self._tag: str | None = None
        self._guess: str | None = None
        self._calls: list[tuple[int, str, int]] = []
        self._names: dict[str, str] = {}
        self._failures: list[Failure] = []
        self._checks: dict[str, int] = {}
        self._advised: dict[str, int] = {}
        self._triggers: dict[str, int] = {}
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
        self._tag = tagged(envelope) or self._tag
        if self._classify is not None and self._guess is None:
            self._guess = self._classify(envelope)
        self._meta(envelope)
        match envelope.payload:
            case ToolCall() as call:
                self._call(envelope.seq, call)
            case ToolResult() as result:
                self._result(envelope.seq, result)
            case Reflection() as reflection:
                self._reflection(envelope.seq, reflection)
            case Aggregate() as aggregate:
                self._aggregate(envelope.seq, aggregate)
            case Ending() as ending:
                self._ending(envelope.seq, ending)
            case HumanReview(decision=str(decision)) if decision in _DECISIONS:
                self._said["human"] = (_DECISIONS[decision], envelope.seq)
            case Request(advised=advised):
                self._told(envelope.seq, advised)
        for name in triggers(envelope, self._iterations):
            self._triggers.setdefault(name, envelope.seq)

    def _meta(self, envelope: Envelope) -> None:
        meta = envelope.meta
        if meta.usage is not None:
            self._tokens += _tokens(meta.usage)
        if meta.model is not None and _NAME.fullmatch(meta.model):
            self._models.add(meta.model)
        more = meta.model_extra or {}
        if more.get("tainted"):
            self._taints["marked"] = None
        advised = more.get("advised")  # what a model asked memory for, and was told
        self._told(envelope.seq, advised if isinstance(advised, list) else ())

    def _told(self, seq: int, advised: Iterable[object]) -> None:
        for name in advised:
            if isinstance(name, str) and MEMORY_ID.fullmatch(name):
                self._advised.setdefault(name, seq)

    def _call(self, seq: int, call: ToolCall) -> None:
        if call.tool_name in OWN_TOOLS:
            return
        tool = self._named(call.tool_name)
        self._calls.append((seq, tool, self._group))
        self._names[call.call_id] = tool
        if _CHECKS.search(tool):
            self._checks.setdefault(tool, seq)

    def _named(self, tool: str | None) -> str:
        """The tool's name, if it is one: models make up others, and write in them."""
        if tool is not None and _NAME.fullmatch(tool):
            return tool
        self._taints["odd_tool_name"] = None
        return "?"

    def _result(self, seq: int, result: ToolResult) -> None:
        if result.tool_name in OWN_TOOLS:
            return
        # What is called from here on was called with this result at hand.
        self._group = seq
        self._milliseconds += result.duration_ms or 0.0
        known = self._names.pop(result.call_id, None)
        tool = known or self._named(result.tool_name)
        if result.untrusted:
            self._taints["untrusted_result"] = None
        reason = reason_of(result)
        if reason is not None:
            self._failures.append(Failure(tool, reason, seq))
            return
        self._failures = [
            failure
            if failure.fix is not None
            else Failure(failure.tool, failure.reason, failure.seq, tool, seq)
            for failure in self._failures
        ]

    def _reflection(self, seq: int, reflection: Reflection) -> None:
        self._iterations += 1
        if reflection.pass_ is not None:
            self._said["agent"] = (float(reflection.pass_), seq)

    def _aggregate(self, seq: int, aggregate: Aggregate) -> None:
        verdicts = [one.verdict for one in aggregate.results]
        if verdicts:
            self._said["agent"] = (verdicts.count("correct") / len(verdicts), seq)

    def _ending(self, seq: int, ending: Ending) -> None:
        if ending.reward is not None and isfinite(ending.reward):
            self._said["environment"] = (min(1.0, max(0.0, ending.reward)), seq)
        elif ending.outcome in _OUTCOMES:
            self._said["environment"] = (_OUTCOMES[ending.outcome], seq)

    def shown(self) -> Shown:
        """What the events up to here show."""
        # A human's word counts, then the environment's; the agent's own if none else.
        said = self._said
        others = said.get("human") or said.get("environment")
        success, decided = others or said.get("agent") or (None, 0)
        taints = dict(self._taints)
        if others and "agent" in said and said["agent"][0] >= 0.5 > others[0]:
            taints["false_reflection"] = None
        return Shown(
            session_id=self._session_id,
            scenario=self._tag or self._guess or GENERAL,
            upto_seq=self._upto,
            success=success,
            decided_seq=decided,
            own_word=success is not None and not others,
            walked=tuple(steps(self._calls)),
            failures=tuple(self._failures),
            checks=dict(self._checks),
            iterations=self._iterations,
            tokens=self._tokens,
            milliseconds=self._milliseconds,
            taints=tuple(sorted(taints)),
            advised=dict(self._advised),
            triggers=dict(self._triggers),
            models=tuple(sorted(self._models)),
            began_at=self._began,
            ended_at=self._ended,
        )


def watch(
    session_id: str, events: Iterable[Envelope], classify: Classifier | None = None
) -> Shown:
    """What these events of a session show."""
    watching = Watching(session_id, classify)
    for envelope in events:
        watching.take(envelope)
    return watching.shown()


def _tokens(usage: JsonObject) -> int:
    counts = (usage.get("input_tokens"), usage.get("output_tokens"))
    return sum(count for count in counts if isinstance(count, int))
