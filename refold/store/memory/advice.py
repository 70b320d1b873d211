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
from refold.projections.memory.items import Item
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
    UserDecisions,
    read_decisions,
    session_of_user,
)
from refold.store.memory.procedural import build_memory
from refold.store.memory.profile import profile_of
from refold.store.memory.sessions import Selection
from refold.store.memory.views import ADVICE_PREFIX, keep_view

# A stored shortlist is built again at this age.  An empty one is built again earlier,
# because the next session may already show something.
FRESH: Final = timedelta(hours=1)
_FRESH_EMPTY: Final = timedelta(minutes=1)
# The key of the ``state`` event that begins the session ``_user``.
_EXTRACTOR_KEY: Final = "memory.extractor"
# How often shortlists are built at most if sessions change concurrently.
_TRIES: Final = 4


@repr_without_texts
@dataclass(frozen=True, slots=True)
class Shortlist:
    """The parts of a user's memory that a model may be shown in one scenario.

    made_at:   when it was built, in microseconds since 1970.
    scenarios: all scenarios of the memory, including ``general``.
    profile:   lines about the user, which need consent.
    decisions: the user's consent and removed items, as far as they are known now.
    """

    made_at: int
    scenarios: list[str]
    candidates: list[Candidate]
    profile: list[Line]
    decisions: UserDecisions

    def advice(self, choice: Choice, *, now: int) -> Advice:
        """Choose the advice.  ``now`` is in microseconds since 1970."""
        return choose(self._candidates(), choice, now=now, profile=self._profile())

    def still_allows(self, advice: Advice, choice: Choice, now: int) -> bool:
        """Whether a model may still be shown this advice without any change."""
        about = [line for line in self._profile() if line.statement in advice.text]
        allowed = {line.memory_id for line in about}
        for candidate in self._candidates():
            if candidate.is_allowed(choice, now) and candidate.claim in advice.text:
                allowed.add(candidate.memory_id)
        is_short = len(advice.items) <= choice.top + len(about)
        return is_short and allowed.issuperset(advice.items)

    def _profile(self) -> list[Line]:
        """Return the lines about the user that may be shown.

        There are none without consent.  Lines that the user removed are left out.
        """
        if not self.decisions.consent.declarative_memory:
            return []
        forgotten = self.decisions.forgotten
        return [line for line in self.profile if line.memory_id not in forgotten]

    def _candidates(self) -> list[Candidate]:
        """Return the candidates that may be shown.

        There are none if the user opted out.  If the user removed an item, all
        candidates with its subject are left out.
        """
        if self.decisions.consent.memory_opt_out:
            return []
        forgotten = {
            candidate.subject
            for candidate in self.candidates
            if candidate.memory_id in self.decisions.forgotten
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
            for scope, decision in self.decisions.consent.scopes.items()
        }
        return {
            "made_at": self.made_at,
            "scenarios": self.scenarios,
            "candidates": [list(candidate) for candidate in self.candidates],
            "profile": [list(line) for line in self.profile],
            "scopes": scopes,
            "forgotten": sorted(self.decisions.forgotten),
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
        """Return the stored shortlist, or build one if that is older than ``fresh``.

        A scenario that no session has gets the general shortlist.
        """
        stored = self._stored(scenario, fresh)
        if stored is None and scenario != GENERAL:
            general = self._stored(GENERAL, fresh)
            if general is not None and scenario not in general.scenarios:
                stored = general
        return stored or self.learn(scenario)

    def _stored(self, scenario: str, fresh: timedelta) -> Shortlist | None:
        snapshot = self._log.snapshot(
            session_of_user(self.user_id), _view_name(scenario)
        )
        stored = _loaded(snapshot)
        if stored is None:
            return None
        if not stored.candidates and not stored.profile:
            fresh = min(fresh, _FRESH_EMPTY)
        age = self.writer.clock() - stored.made_at
        return stored if 0 <= age <= fresh / timedelta(microseconds=1) else None

    def learn(self, *scenarios: str) -> Shortlist:
        """Build the shortlists of these scenarios and the general one; store them.

        If a session changes concurrently, the shortlists are built again, at most four
        times.  So of several concurrent calls, the last one decides what is stored.  If
        a session is erased concurrently, the stored shortlists are dropped.

        Returns the shortlist of the first scenario.
        """
        stream = session_of_user(self.user_id)
        for _ in range(_TRIES):
            before = self._log.sessions(self.user_id)
            head = self._log.head(stream)
            each_once = dict.fromkeys((*scenarios, GENERAL))
            shortlists = self._built(each_once)
            first = next(iter(shortlists.values()))
            is_frozen = any(info.status.startswith("frozen") for info in before)
            if is_frozen or not before or first.decisions.consent.memory_opt_out:
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
        """Begin the session ``_user``, with which the shortlists are stored."""
        draft = Draft(events.StateUpdate(set={_EXTRACTOR_KEY: EXTRACTOR_VERSION}))
        key = f"{_EXTRACTOR_KEY} {EXTRACTOR_VERSION}"
        self.writer.append(Order(stream, (draft,), idempotency_key=key))

    def _store(
        self, stream: StreamId, scenario: str, built: Shortlist, head_seq: int
    ) -> None:
        """Store a shortlist.

        head_seq: the head of the session ``_user`` before the shortlist was built.
                  Readers add the user's decisions after this seq.
        """
        name = _view_name(scenario)
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
        decisions = read_decisions(self._log, self.user_id)
        memory = build_memory(self._log, self.user_id, Selection(now=now))
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
                decisions=decisions,
            )
        return shortlists

    def for_session(
        self, stream: StreamId, strategy: Strategy, choice: Choice
    ) -> Advice:
        """Return advice for a session: that of its last request, until a compaction.

        So the prompt begins with the same bytes.  If some of the last advice may no
        longer be shown, new advice is chosen.
        """
        candidates = self.shortlist(choice.scenario)
        now = self.writer.clock()
        derived = stream._replace(stream=strategy.fingerprint)
        advice = self._last_advice(stream, derived)
        if advice is not None and self._may_repeat(advice, candidates, choice, now):
            return advice
        head_seq = self._log.head(derived).seq
        return replace(candidates.advice(choice, now=now), derived_seq=head_seq)

    def _last_advice(self, stream: StreamId, derived: StreamId) -> Advice | None:
        """Return the advice of the last request under this strategy.

        Returns None if there is no such request, or if a compaction followed it.

        derived: the stream of the strategy.
        """
        newest = self._log.read(stream, types=("request",), limit=1, newest=True)
        if not newest or newest[0].activates_strategy:
            return None
        request = newest[0].payload
        if not isinstance(request, events.Request):
            return None
        if request.strategy.fingerprint != derived.stream:
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
        self, advice: Advice, candidates: Shortlist, choice: Choice, now: int
    ) -> bool:
        """Whether advice fits, may still be shown, and cites only existing sessions."""
        if advice.tokens > choice.tokens:
            return False
        if not candidates.still_allows(advice, choice, now):
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


def _view_name(scenario: str) -> str:
    """Return the name of the view that stores a shortlist.

    A name is not encrypted, so it contains a digest of the scenario.
    """
    return f"{ADVICE_PREFIX}{EXTRACTOR_VERSION}-{text_digest(scenario)[:16]}"


def _loaded(snapshot: SessionSnapshot) -> Shortlist | None:
    """Return the stored shortlist with the user's later decisions.

    Returns None if it must be built again.  That is so after a preference or a consent,
    because the user may now allow more than the shortlist contains.
    """
    view = snapshot.view
    if view is None or not view.body or len(snapshot.new) >= PAGE:
        return None
    for envelope in snapshot.new:
        if isinstance(envelope.payload, events.StateUpdate | events.Consent):
            return None
    body: dict[str, Any] = dict(view.body)
    scopes: dict[str, Decision] = {}
    for scope, (granted, at) in body["scopes"].items():
        scopes[scope] = Decision(granted, at)
    stored = UserDecisions(ConsentStatus(scopes), frozenset(body["forgotten"]))
    return Shortlist(
        made_at=body["made_at"],
        scenarios=body["scenarios"],
        candidates=[Candidate(*fields) for fields in body["candidates"]],
        profile=[Line(*fields) for fields in body["profile"]],
        decisions=stored.after(snapshot.new),
    )


def _heads(infos: Iterable[SessionInfo]) -> dict[str, tuple[int, str]]:
    """Return head and status of each session, except of the session ``_user``."""
    return {
        info.session_id: (info.head_seq, info.status)
        for info in infos
        if info.session_id != USER_SESSION
    }


def _readable(infos: Iterable[SessionInfo]) -> set[str]:
    """Return the ids of the sessions that are not erased."""
    return {info.session_id for info in infos if info.status != "erased"}


def retrieve(writer: Writer, stream: StreamId, query: Query, choice: Choice) -> Answer:
    """Answer a query from the memory of a user, for one of their sessions.

    The answer for a user who opted out is empty.  Without consent, it contains nothing
    about the user.

    Raises Erased, KeyUnavailable, CorruptEvent.
    """
    now = writer.clock()
    memory = build_memory(writer.log, stream.user_id, Selection(now=now))
    profile = profile_of(writer.log, stream.user_id, now)
    items = {item.memory_id: item for item in profile.items}
    about: list[tuple[Line, Item]] = []
    for line in lines(profile, now):
        if line.memory_id in items:
            about.append((line, items[line.memory_id]))
    memories = ToolMemories(memory.items, memory.means, about)
    result = answer(query, memories, choice, now=now)
    if writer.audit is not None:
        counts = {"items": len(result.items)}
        access = Access("memory_load", stream.user_id, stream.session_id, counts=counts)
        writer.audit.note(access)
    return result
