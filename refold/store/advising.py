"""Advice for a context: of a short list that is kept beside what the user wants.

The short list is what of the user's memory may be said to a model at all.  It is a
stored view in the session that concerns all of the user, so that advice is one read,
however much memory there is; with it come the wishes that were uttered since.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final

from refold.domain.canonical import text_digest
from refold.domain.events import Request, StateUpdate, Summary
from refold.domain.ids import MAIN, USER_SESSION, StreamId
from refold.domain.ports import PAGE, EventLog, SessionInfo, Standing, StoredView
from refold.domain.record import Draft
from refold.projections.context.strategy import Strategy
from refold.projections.memory.advice import (
    Candidate,
    Choosing,
    Line,
    choose,
    shortlist,
)
from refold.projections.memory.declared.said import lines
from refold.projections.memory.scenarios import GENERAL
from refold.projections.memory.section import NO_ADVICE, Advice
from refold.projections.memory.shown import EXTRACTOR
from refold.store.declared import profile_of
from refold.store.filling import handed_in
from refold.store.kept import ADVICE, keep
from refold.store.remembering import remember
from refold.store.users import ConsentStatus, Said, Wishes, wishes
from refold.store.writing import Order, Writer

MADE_BY: Final = "memory.extractor"
_HOUR: Final = timedelta(hours=1)
_TRIES: Final = 4


@dataclass(frozen=True, slots=True)
class Shortlist:
    """What may be said of a user's memory in one scenario.

    made_at:   microseconds since 1970.
    scenarios: all that there are, ``general`` with them.
    profile:   lines about the user, said with consent only.
    """

    made_at: int
    scenarios: list[str]
    candidates: list[Candidate]
    profile: list[Line]
    wishes: Wishes

    def advice(self, how: Choosing, *, now: int) -> Advice:
        """What is said of it."""
        return choose(self._wanted(), how, now=now, profile=self._about())

    def says_still(self, advice: Advice, how: Choosing, now: int) -> bool:
        """Whether all that was said may be said as it was."""
        said = {one.memory_id: one for one in self._wanted()}
        about = {one.memory_id for one in self._about() if _said_in(one, advice)}
        for name in advice.items:
            one = said.get(name)
            known = one is not None and one.may_be_said(how, now)
            if not (name in about or (known and one and one.claim in advice.text)):
                return False
        return len(advice.items) <= how.top + len(about)

    def _about(self) -> list[Line]:
        """What is said of the user: nothing without their consent."""
        if not self.wishes.consent.declarative_memory:
            return []
        gone = self.wishes.forgotten
        return [one for one in self.profile if one.memory_id not in gone]

    def _wanted(self) -> list[Candidate]:
        if self.wishes.consent.memory_opt_out:
            return []
        names = self.wishes.forgotten
        gone = {one.thing for one in self.candidates if one.memory_id in names}
        return [one for one in self.candidates if one.thing not in gone]

    def dump(self) -> dict[str, Any]:
        return {
            "made_at": self.made_at,
            "scenarios": self.scenarios,
            "candidates": [list(one) for one in self.candidates],
            "profile": [list(line) for line in self.profile],
            "scopes": {name: list(s) for name, s in self.wishes.consent.scopes.items()},
            "forgotten": sorted(self.wishes.forgotten),
        }


@dataclass(frozen=True, slots=True)
class Adviser:
    """Advises in the store of a writer, about one user."""

    writer: Writer
    user_id: str

    @property
    def _log(self) -> EventLog:
        return self.writer.log

    @property
    def _stream(self) -> StreamId:
        return StreamId(self.user_id, USER_SESSION, MAIN)

    def shortlist(self, scenario: str, *, fresh: timedelta = _HOUR) -> Shortlist:
        """What may be said: as it is kept, made anew if it is older than ``fresh``.

        In a scenario that no session was in it is what may be said in general.
        """
        kept = self._kept(scenario, fresh)
        if kept is None and scenario != GENERAL:
            general = self._kept(GENERAL, fresh)
            kept = general if general and scenario not in general.scenarios else None
        return kept or self.learn(scenario)

    def _kept(self, scenario: str, fresh: timedelta) -> Shortlist | None:
        kept = _loaded(self._log.standing(self._stream, _name(scenario)))
        age = self.writer.clock() - kept.made_at if kept else 0
        return kept if 0 <= age <= fresh / timedelta(microseconds=1) else None

    def learn(self, *scenarios: str) -> Shortlist:
        """Make it anew from the log, for these scenarios and in general, and keep it.

        Returns that of the first that is named.  Whoever is last sees what there is: if
        a session moved on while it was made, it is made again, a few times; if one was
        erased, what was kept is dropped.
        """
        for _ in range(_TRIES):
            before = self._log.sessions(self.user_id)
            head = self._log.head(self._stream)
            made = self._made(dict.fromkeys((*scenarios, GENERAL)))
            first = next(iter(made.values()))
            frozen = any(info.status.startswith("frozen") for info in before)
            if frozen or not before or first.wishes.consent.memory_opt_out:
                return first
            if head.seq == 0:
                self._begin()
                continue
            self._keep(made, head.seq)
            after = self._log.sessions(self.user_id)
            if _readable(before) - _readable(after):
                self._log.drop_views(self.user_id, USER_SESSION)
            elif _ends(before) == _ends(after):
                break
        return first

    def _made(self, scenarios: Iterable[str]) -> dict[str, Shortlist]:
        now, wanted = self.writer.clock(), wishes(self._log, self.user_id)
        memory = remember(self._log, self.user_id)
        about = lines(profile_of(self._log, self.user_id, now), now)
        known = sorted(memory.means)
        made = {}
        for name in scenarios:
            listed = shortlist(memory.items, name, now=now, means=memory.means)
            made[name] = Shortlist(now, known, listed, about, wanted)
        return made

    def _keep(self, made: Mapping[str, Shortlist], through: int) -> None:
        """As of the moment before it was made: wishes that came since are behind it."""
        for scenario, listed in made.items():
            if scenario == GENERAL or scenario in listed.scenarios:
                name = _name(scenario)
                known = self._log.load_view(self._stream, name)
                replaces = known.through_seq if known else 0
                view = StoredView(through, 0, listed.dump())
                keep(self._log, self._stream, name, view, replaces=replaces)

    def _begin(self) -> None:
        """Begin the session that concerns all of the user: it says who made memory."""
        event = StateUpdate(set={MADE_BY: EXTRACTOR})
        draft, key = Draft(event), f"{MADE_BY} {EXTRACTOR}"
        self.writer.append(Order(self._stream, (draft,), idempotency_key=key))

    def for_session(
        self, stream: StreamId, strategy: Strategy, how: Choosing
    ) -> Advice:
        """What the session is told: what its last request was, until it is compacted.

        So that what a model is sent begins as it did before.  What must not be said any
        more is not: then it is chosen anew.
        """
        listed, now = self.shortlist(how.scenario), self.writer.clock()
        request = self._last_request(stream, strategy)
        if request is not None:
            said = self._said(stream, request)
            since = request.derived_seq if said is NO_ADVICE else said.derived_seq
            if not self._compacted(stream, strategy, since):
                good = said.tokens <= how.tokens and listed.says_still(said, how, now)
                if good and self._are_there(said.sessions):
                    return said
        derived = stream._replace(stream=strategy.fingerprint)
        upto = self._log.head(derived).seq
        return replace(listed.advice(how, now=now), derived_seq=upto)

    def _said(self, stream: StreamId, request: Request) -> Advice:
        """What a recorded request says to have said."""
        if not request.advised:
            return NO_ADVICE
        found = handed_in(self._log, stream, request)
        return Advice.recorded(found.advice, request.advised)

    def _are_there(self, names: Collection[str]) -> bool:
        """Whether none of these sessions was erased."""
        wanted = set(names)
        infos = self._log.sessions(self.user_id) if wanted else []
        return wanted <= _readable(infos)

    def _last_request(self, stream: StreamId, strategy: Strategy) -> Request | None:
        found = self._log.read(stream, types=("request",), limit=1, newest=True)
        request = found[0].payload if found else None
        if not isinstance(request, Request):
            return None
        return request if request.strategy.fingerprint == strategy.fingerprint else None

    def _compacted(self, stream: StreamId, strategy: Strategy, since: int) -> bool:
        derived = stream._replace(stream=strategy.fingerprint)
        made = self._log.read(derived, after=since, types=("summary",))
        return any(
            isinstance(one.payload, Summary) and one.payload.kind == "session"
            for one in made
        )


def _name(scenario: str) -> str:
    """Of a view: it stands in plain, so it does not name the scenario."""
    return f"{ADVICE}{EXTRACTOR}-{text_digest(scenario)[:16]}"


def _said_in(line: Line, advice: Advice) -> bool:
    return line.text.partition(";")[0] in advice.text


def _loaded(standing: Standing) -> Shortlist | None:
    view = standing.view
    stated = any(isinstance(one.payload, StateUpdate) for one in standing.new)
    if view is None or not view.body or stated or len(standing.new) >= PAGE:
        return None  # nothing is kept, or more was said since than a wish
    body: dict[str, Any] = dict(view.body)
    scopes = {name: Said(*said) for name, said in body["scopes"].items()}
    known = Wishes(ConsentStatus(scopes), frozenset(body["forgotten"]))
    return Shortlist(
        made_at=body["made_at"],
        scenarios=body["scenarios"],
        candidates=[Candidate(*one) for one in body["candidates"]],
        profile=[Line(*one) for one in body["profile"]],
        wishes=known.after(standing.new),
    )


def _ends(infos: Iterable[SessionInfo]) -> dict[str, tuple[int, str]]:
    return {
        info.session_id: (info.head_seq, info.status)
        for info in infos
        if info.session_id != USER_SESSION
    }


def _readable(infos: Iterable[SessionInfo]) -> set[str]:
    return {info.session_id for info in infos if info.status != "erased"}
