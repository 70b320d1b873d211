"""Advice from a user's memory: a stored shortlist for each scenario."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, Final

from refold.domain import events
from refold.domain.access_log import Access
from refold.domain.canonical import text_digest
from refold.domain.envelope import Draft
from refold.domain.ids import USER_SESSION, StreamId
from refold.domain.model import repr_without_texts
from refold.domain.ports import PAGE, EventLog, SessionInfo, SessionSnapshot, StoredView
from refold.projections.context.budget import NO_ADVICE, Advice
from refold.projections.context.strategy import Strategy
from refold.projections.memory.advice import (
    Candidate,
    Choice,
    Line,
    choose,
    shortlist,
)
from refold.projections.memory.profile import lines
from refold.projections.memory.sessions import (
    EXTRACTOR_VERSION,
    GENERAL,
    may_trigger_rebuild,
)
from refold.projections.memory.tool import (
    Answer,
    Memories as ToolMemories,
    Query,
    answer,
)
from refold.store.appends import Order, Writer
from refold.store.history import read_extras
from refold.store.memory.consent import (
    ConsentStatus,
    Decision,
    Wishes,
    session_of_user,
    wishes,
)
from refold.store.memory.procedural import remember
from refold.store.memory.profile import profile_of
from refold.store.memory.sessions import Selection
from refold.store.memory.views import ADVICE, keep_view

# The age at which a stored shortlist is built again, and that of an empty one: the next
# session may show something.
FRESH: Final = timedelta(hours=1)
_FRESH_EMPTY: Final = timedelta(minutes=1)
# The key of the ``state`` event that begins the user's own session.
MADE_BY: Final = "memory.extractor"
# How often a shortlist is built if sessions change during it.
_TRIES: Final = 4


@repr_without_texts
@dataclass(frozen=True, slots=True)
class Shortlist:
    """The parts of a user's memory that a model may be shown in one scenario.

    made_at:   microseconds since 1970.
    scenarios: all scenarios of the memory, including ``general``.
    profile:   lines about the user, which need consent.
    """

    made_at: int
    scenarios: list[str]
    candidates: list[Candidate]
    profile: list[Line]
    wishes: Wishes

    def advice(self, how: Choice, *, now: int) -> Advice:
        """Choose the advice.  ``now`` is in microseconds since 1970."""
        return choose(self._candidates(), how, now=now, profile=self._profile())

    def still_allows(self, advice: Advice, how: Choice, now: int) -> bool:
        """Whether a model may still be shown all of this advice, as it is."""
        about = [
            line
            for line in self._profile()
            if line.text.partition(";")[0] in advice.text
        ]
        allowed = {line.memory_id for line in about}
        for candidate in self._candidates():
            if candidate.is_allowed(how, now) and candidate.claim in advice.text:
                allowed.add(candidate.memory_id)
        is_short = len(advice.items) <= how.top + len(about)
        return is_short and allowed.issuperset(advice.items)

    def _profile(self) -> list[Line]:
        """The lines about the user that they have not removed; none without consent."""
        if not self.wishes.consent.declarative_memory:
            return []
        forgotten = self.wishes.forgotten
        return [line for line in self.profile if line.memory_id not in forgotten]

    def _candidates(self) -> list[Candidate]:
        """The candidates whose subject the user has not removed."""
        if self.wishes.consent.memory_opt_out:
            return []
        forgotten = {
            candidate.subject
            for candidate in self.candidates
            if candidate.memory_id in self.wishes.forgotten
        }
        return [
            candidate
            for candidate in self.candidates
            if candidate.subject not in forgotten
        ]

    def dump(self) -> dict[str, Any]:
        """Return the JSON that is stored."""
        scopes = {
            scope: [decision.granted, decision.at]
            for scope, decision in self.wishes.consent.scopes.items()
        }
        return {
            "made_at": self.made_at,
            "scenarios": self.scenarios,
            "candidates": [list(candidate) for candidate in self.candidates],
            "profile": [list(line) for line in self.profile],
            "scopes": scopes,
            "forgotten": sorted(self.wishes.forgotten),
        }


@dataclass(frozen=True, slots=True)
class Adviser:
    """Chooses advice about one user."""

    writer: Writer
    user_id: str

    @property
    def _log(self) -> EventLog:
        return self.writer.log

    def shortlist(self, scenario: str, *, fresh: timedelta = FRESH) -> Shortlist:
        """Return the stored shortlist, or build one if it is older than ``fresh``.

        For a scenario that no session has, it is the general one.
        """
        stored = self._stored(scenario, fresh)
        if stored is None and scenario != GENERAL:
            general = self._stored(GENERAL, fresh)
            if general is not None and scenario not in general.scenarios:
                stored = general
        return stored or self.learn(scenario)

    def _stored(self, scenario: str, fresh: timedelta) -> Shortlist | None:
        snapshot = self._log.snapshot(session_of_user(self.user_id), _name(scenario))
        stored = _loaded(snapshot)
        if stored is None:
            return None
        if not stored.candidates and not stored.profile:
            fresh = min(fresh, _FRESH_EMPTY)
        age = self.writer.clock() - stored.made_at
        return stored if 0 <= age <= fresh / timedelta(microseconds=1) else None

    def learn(self, *scenarios: str) -> Shortlist:
        """Build the shortlists of these scenarios and the general one; store them.

        If a session changes during this, they are built again, up to four times.  If a
        session is erased during it, the stored shortlists are dropped.  So concurrent
        calls leave shortlists of all that the last one could see.

        Returns the shortlist of the first scenario.
        """
        stream = session_of_user(self.user_id)
        for _ in range(_TRIES):
            before = self._log.sessions(self.user_id)
            head = self._log.head(stream)
            shortlists = self._built(dict.fromkeys((*scenarios, GENERAL)))
            first = next(iter(shortlists.values()))
            frozen = any(info.status.startswith("frozen") for info in before)
            if frozen or not before or first.wishes.consent.memory_opt_out:
                return first
            if head.seq == 0:
                self._begin_session(stream)
                continue
            for scenario, built in shortlists.items():
                if scenario == GENERAL or scenario in built.scenarios:
                    self._store(stream, scenario, built, head.seq)
            after = self._log.sessions(self.user_id)
            if _readable(before) - _readable(after):
                self._log.drop_views(self.user_id, USER_SESSION)
            elif _heads(before) == _heads(after):
                break
        return first

    def _begin_session(self, stream: StreamId) -> None:
        """Begin the user's own session, which stores the shortlists."""
        draft = Draft(events.StateUpdate(set={MADE_BY: EXTRACTOR_VERSION}))
        key = f"{MADE_BY} {EXTRACTOR_VERSION}"
        self.writer.append(Order(stream, (draft,), idempotency_key=key))

    def _store(
        self, stream: StreamId, scenario: str, built: Shortlist, head_seq: int
    ) -> None:
        """Store a shortlist.

        head_seq: the head before it was built: later wishes of the user are read from
                  the events after it.
        """
        name = _name(scenario)
        stored = self._log.load_view(stream, name)
        keep_view(
            self._log,
            stream,
            name,
            StoredView(head_seq, 0, built.dump()),
            replaces=stored.through_seq if stored else 0,
        )

    def _built(self, scenarios: Iterable[str]) -> dict[str, Shortlist]:
        now = self.writer.clock()
        wanted = wishes(self._log, self.user_id)
        memory = remember(self._log, self.user_id, Selection(now=now))
        about = lines(profile_of(self._log, self.user_id, now), now)
        shortlists: dict[str, Shortlist] = {}
        for scenario in scenarios:
            shortlists[scenario] = Shortlist(
                made_at=now,
                scenarios=sorted(memory.means),
                candidates=shortlist(
                    memory.items, scenario, now=now, means=memory.means
                ),
                profile=about,
                wishes=wanted,
            )
        return shortlists

    def for_session(self, stream: StreamId, strategy: Strategy, how: Choice) -> Advice:
        """Return advice for a session: that of its last request, until a compaction.

        So the prompt begins with the same bytes.  If a model must not be shown all of
        the last advice any longer, new advice is chosen.
        """
        candidates = self.shortlist(how.scenario)
        now = self.writer.clock()
        derived = stream._replace(stream=strategy.fingerprint)
        advice = self._last_advice(stream, derived)
        if advice is not None and self._may_repeat(advice, candidates, how, now):
            return advice
        head_seq = self._log.head(derived).seq
        return replace(candidates.advice(how, now=now), derived_seq=head_seq)

    def _last_advice(self, stream: StreamId, derived: StreamId) -> Advice | None:
        """The advice of the last request under this strategy; None after a compaction.

        derived: the stream of the strategy.
        """
        newest = self._log.read(stream, types=("request",), limit=1, newest=True)
        request = newest[0].payload if newest else None
        if (
            not isinstance(request, events.Request)
            or newest[0].activates_strategy
            or request.strategy.fingerprint != derived.stream
        ):
            return None
        advice = NO_ADVICE
        since = request.derived_seq
        if request.advised:
            handed = read_extras(self._log, stream, request)
            advice = Advice.from_request(handed.advice, request.advised)
            if advice is not NO_ADVICE:
                since = advice.derived_seq
        for entry in self._log.read(derived, after=since, types=("summary",)):
            summary = entry.payload
            if isinstance(summary, events.Summary) and summary.kind == "session":
                return None
        return advice

    def _may_repeat(
        self, advice: Advice, candidates: Shortlist, how: Choice, now: int
    ) -> bool:
        """Whether the advice fits, is allowed, and cites only sessions that exist."""
        if advice.tokens > how.tokens or not candidates.still_allows(advice, how, now):
            return False
        if not advice.sessions:
            return True
        return _readable(self._log.sessions(self.user_id)).issuperset(advice.sessions)


def learning(writer: Writer, order: Order) -> Callable[[], object] | None:
    """Return the work that brings memory up to date after this append.

    Returns None if no event of the append changes what memory shows.
    """
    if not any(may_trigger_rebuild(draft.event, draft.meta) for draft in order.drafts):
        return None
    scenarios = {draft.meta.scenario for draft in order.drafts if draft.meta.scenario}
    adviser = Adviser(writer, order.stream.user_id)
    return partial(adviser.learn, *scenarios)


def _name(scenario: str) -> str:
    """The name of a stored shortlist.

    It is not encrypted, so it has a digest of the scenario.
    """
    return f"{ADVICE}{EXTRACTOR_VERSION}-{text_digest(scenario)[:16]}"


def _loaded(snapshot: SessionSnapshot) -> Shortlist | None:
    """The stored shortlist with the wishes since then; None if it must be built again.

    It must be built again after a preference or consent: the user may allow more than
    it holds.
    """
    view = snapshot.view
    if view is None or not view.body or len(snapshot.new) >= PAGE:
        return None
    for envelope in snapshot.new:
        if isinstance(envelope.payload, events.StateUpdate | events.Consent):
            return None
    body: dict[str, Any] = dict(view.body)
    scopes = {
        scope: Decision(granted, at) for scope, (granted, at) in body["scopes"].items()
    }
    stored = Wishes(ConsentStatus(scopes), frozenset(body["forgotten"]))
    return Shortlist(
        made_at=body["made_at"],
        scenarios=body["scenarios"],
        candidates=[Candidate(*fields) for fields in body["candidates"]],
        profile=[Line(*fields) for fields in body["profile"]],
        wishes=stored.after(snapshot.new),
    )


def _heads(infos: Iterable[SessionInfo]) -> dict[str, tuple[int, str]]:
    """The head and status of each session, except the user's own."""
    return {
        info.session_id: (info.head_seq, info.status)
        for info in infos
        if info.session_id != USER_SESSION
    }


def _readable(infos: Iterable[SessionInfo]) -> set[str]:
    """The ids of the sessions that are not erased."""
    return {info.session_id for info in infos if info.status != "erased"}


def retrieve(writer: Writer, stream: StreamId, query: Query, how: Choice) -> Answer:
    """Answer a query from the memory of a user, for one of their sessions.

    The answer for a user who opted out is empty; without consent it holds nothing about
    the user.

    Raises Erased, KeyUnavailable, CorruptEvent.
    """
    now = writer.clock()
    memory = remember(writer.log, stream.user_id, Selection(now=now))
    profile = profile_of(writer.log, stream.user_id, now)
    items = {item.memory_id: item for item in profile.items}
    about = [
        (line, items[line.memory_id])
        for line in lines(profile, now)
        if line.memory_id in items
    ]
    memories = ToolMemories(memory.items, memory.means, about)
    result = answer(query, memories, how, now=now)
    if writer.audit is not None:
        counts = {"items": len(result.items)}
        access = Access("memory_load", stream.user_id, stream.session_id, counts=counts)
        writer.audit.note(access)
    return result
