"""The memory of a user: what each session shows, kept until the session moves on."""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import chain, groupby
from typing import Any, Final, NamedTuple, TypeVar, Unpack

import orjson

from refold.domain import errors, events
from refold.domain.access_log import Access
from refold.domain.canonical import canonical, text_digest
from refold.domain.envelope import Draft, Envelope, microseconds
from refold.domain.erasure import OF_TOOLS, OF_USER, timestamp
from refold.domain.ids import KEPT, MAIN, MEMORY_ID, USER_SESSION, StreamId, check_id
from refold.domain.model import quiet
from refold.domain.ports import (
    PAGE,
    EventLog,
    SessionInfo,
    Standing,
    StoredView,
    listed,
)
from refold.domain.preferences import Preference, stated, stating, unstated, unstating
from refold.domain.session import labels_in
from refold.domain.tokens import estimate_text
from refold.projections.context.budget import NO_ADVICE, Advice, Elsewhere
from refold.projections.context.compaction import note_lines
from refold.projections.context.strategy import Layers, Strategy, user_names
from refold.projections.memory import verdicts
from refold.projections.memory.advice import (
    Candidate,
    Choice,
    ChoiceArgs,
    Line,
    choice_from,
    choose,
    shortlist,
)
from refold.projections.memory.items import (
    NOBODY,
    Item,
    Lift,
    effort,
    items,
    lifts,
    shared,
)
from refold.projections.memory.labels import Taxonomy
from refold.projections.memory.profile import Profile, Stated, lines, profile
from refold.projections.memory.sessions import (
    EXTRACTOR,
    GENERAL,
    Classifier,
    Shown,
    Watch,
    by_scenario,
    families,
    untainted,
    watch,
)
from refold.projections.memory.tool import (
    Answer,
    Memories as ToolMemories,
    Query,
    answer,
)
from refold.store.appends import Order, Receipt, Writer
from refold.store.history import digest_of, handed_in, layer_texts, read_on, uncut
from refold.store.recorded import recorded

T = TypeVar("T")
# Beside the views of strategies, sealed and dropped like them.
SHOWN: Final = "memory-"
JUDGED: Final = "declared-"
ADVICE: Final = "advice-"

DECLARATIVE_MEMORY: Final = "declarative_memory"
MEMORY_OPT_OUT: Final = "memory_opt_out"
# A scope is looked up by its name, so it must be none that redaction would change.
_SCOPE: Final = re.compile(r"[a-z][a-z_]{0,63}(\.[a-z][a-z_]{0,63}){0,3}")
NAME: Final = f"{SHOWN}{EXTRACTOR}"
DECLARED_NAME: Final = f"{JUDGED}{verdicts.EXTRACTOR}"
MADE_BY: Final = "memory.extractor"
_HOUR: Final = timedelta(hours=1)
_SURE: Final = 0.5  # as sure as advice is by default
_TRIES: Final = 4


def drop_kept(log: EventLog, user_id: str, *kept: str) -> None:
    """Drop what is kept; other views go with it, and are folded again when needed.

    Of a user who is frozen it stays: it is dropped when they go on.
    """
    for info in log.sessions(user_id):
        names = log.view_names(user_id, info.session_id) if info.is_live else []
        if any(name.startswith(kept) for name in names):
            log.drop_views(user_id, info.session_id)


def keep(
    log: EventLog, stream: StreamId, name: str, view: StoredView, *, replaces: int
) -> None:
    """Keep it for the next call, if another was not first and it may be written.

    A program that may only read makes it each time.
    """
    with suppress(errors.StoreUnavailable):
        log.save_view(stream, name, view, replaces=replaces)


class Said(NamedTuple):
    """The last word of a user on one scope, and when it was recorded."""

    granted: bool
    at: str


class ConsentStatus(NamedTuple):
    """What a user allows now; what was never asked is not allowed.

    scopes: the last word on each scope that there was one on.
    """

    scopes: dict[str, Said]

    @property
    def memory_opt_out(self) -> bool:
        """Whether nothing of the user may go to memory; sessions work all the same."""
        return self.allows(MEMORY_OPT_OUT)

    @property
    def declarative_memory(self) -> bool:
        """Whether what the user is like may be remembered: asked for, and not out."""
        return self.allows(DECLARATIVE_MEMORY) and not self.memory_opt_out

    def allows(self, scope: str) -> bool:
        """Whether the last word on the scope was yes."""
        return scope in self.scopes and self.scopes[scope].granted

    def to_json(self) -> events.JsonObject:
        said = {name: dict(one._asdict()) for name, one in sorted(self.scopes.items())}
        now = {n: getattr(self, n) for n in (MEMORY_OPT_OUT, DECLARATIVE_MEMORY)}
        return {**now, "consent": {**said}}


@quiet
@dataclass(frozen=True, slots=True)
class User:
    """A user as a whole, apart from any one session."""

    writer: Writer
    user_id: str

    def _append(self, event: events.Event) -> Receipt:
        return self.writer.append(Order(_of_user(self.user_id), (Draft(event),)))

    def consent(self, scope: str, *, granted: bool = True, reason: str = "") -> Receipt:
        """Record that the user allows something from now on, or does not any more.

        scope: what it is about: ``declarative_memory``, or a name of your own of
               lower-case letters, ``_`` and up to three dots.

        Raises InvalidEvent for another scope, and as an append does.
        """
        if not _SCOPE.fullmatch(scope):
            raise errors.InvalidEvent(
                "a consent's scope is a name of lower-case letters, _ and dots"
            )
        return self._append(events.Consent(scope=scope, granted=granted, reason=reason))

    def withdraw(self, scope: str, *, reason: str = "") -> Receipt:
        """Record that the user does not allow it any more."""
        return self.consent(scope, granted=False, reason=reason)

    def opt_out(self, *, reason: str = "") -> Receipt:
        """Record that nothing of the user may go to memory from now on."""
        return self.consent(MEMORY_OPT_OUT, reason=reason)

    def opt_in(self, *, reason: str = "") -> Receipt:
        """Take an opt-out back; what needs its own consent needs it all the same."""
        return self.withdraw(MEMORY_OPT_OUT, reason=reason)

    def forget(self, memory_id: str, *, reason: str = "") -> Receipt:
        """Record that this item of memory is not to be there any more.

        It stays away, also when memory is made anew, whatever sessions show.

        Raises InvalidEvent for what cannot be an item's id.
        """
        if not MEMORY_ID.fullmatch(memory_id):
            raise errors.InvalidEvent(
                "an item of memory is named by m and 15 hex digits"
            )
        return self._append(events.Forget(item_id=memory_id, reason=reason))

    def prefer(self, key: str, value: Preference) -> Receipt:
        """Record what the user prefers, as they said or confirmed it.

        key:   a name of up to 64 lower-case letters, digits and ``_``.
        value: true, false, a number, or a token of up to 64 letters, digits and
               ``_ . : + / -`` and at most six words: no sentence.

        Raises InvalidEvent for others, for what redaction would change, and unless the
        user allows ``declarative_memory``: nothing is written then.
        """
        event = stating(key, value)
        if not self.status().declarative_memory:
            raise errors.InvalidEvent(
                "preferences need the user's consent: record that first, with "
                f"user.consent({DECLARATIVE_MEMORY!r})"
            )
        now = self.writer.clock()
        clean = self.writer.redacted(Draft(event), user_id=self.user_id, now=now)
        if clean.event != event:
            raise errors.InvalidEvent(
                "redaction would change this preference: give another"
            )
        return self._append(event)

    def unprefer(self, key: str) -> Receipt:
        """Record that it is no preference of the user's any more.

        Raises InvalidEvent for what cannot be the name of one.
        """
        return self._append(unstating(key))

    @recorded("memory_load", "scopes")
    def status(self) -> ConsentStatus:
        """What the user allows now.  Raises Erased, KeyUnavailable, CorruptEvent."""
        return wishes(self.writer.log, self.user_id).consent


class Wishes(NamedTuple):
    """What a user allows, and which items of memory they want to be gone."""

    consent: ConsentStatus
    forgotten: frozenset[str] = frozenset()

    def after(self, envelopes: Iterable[Envelope]) -> Wishes:
        """What holds after these events too, in their order."""
        scopes, forgotten = dict(self.consent.scopes), set(self.forgotten)
        for envelope in envelopes:
            match envelope.payload:
                case events.Consent(scope=scope, granted=granted):
                    scopes[scope] = Said(granted, timestamp(envelope.at))
                case events.Forget(item_id=item_id):
                    forgotten.add(item_id)
        return Wishes(ConsentStatus(scopes), frozenset(forgotten))


def wishes(log: EventLog, user_id: str) -> Wishes:
    """What a user wants now.  Raises Erased, KeyUnavailable, CorruptEvent."""
    stream, nothing = _of_user(user_id), Wishes(ConsentStatus({}))
    if log.head(stream).seq == 0:
        return nothing
    return nothing.after(read_on(log, stream, types=("consent", "forget")))


def _of_user(user_id: str) -> StreamId:
    """The session that concerns all of the user."""
    return StreamId(user_id, USER_SESSION, MAIN)


class Of(NamedTuple):
    """What memory is made of: of all, or of one agent, or of one project.

    classify: names the scenario of sessions that no ``meta.scenario`` tags.
    agent:    only what this agent called, of several in a session.
    project:  only sessions that are tagged with this ``meta.project``.
    now:      in microseconds since 1970: what sessions that are gone showed counts as
              long as it lasts; None: it does not count.
    """

    classify: Classifier | None = None
    agent: str | None = None
    project: str | None = None
    now: int | None = None


EVERYTHING: Final = Of()


@quiet
class Memory(NamedTuple):
    """What a user's sessions show together.

    success: the mean of how sessions ended, 0 to 1: what an item is measured by;
             ``means`` are those of each scenario.
    items:   the surest first.
    effort:  by scenario, the medians of tokens, milliseconds and iterations.
    effect:  how sessions ended that were shown an item, against the others.
    """

    user_id: str
    sessions: int
    success: float | None
    means: dict[str, float]
    items: list[Item]
    effort: dict[str, dict[str, float]]
    effect: list[Lift]
    opted_out: bool = False

    def named(self, memory_id: str) -> Item | None:
        """The item of that id."""
        return next((one for one in self.items if one.memory_id == memory_id), None)

    def advice(self, *, now: int, **how: Unpack[ChoiceArgs]) -> Advice:
        """What of it may be said to a model, ``now`` in microseconds since 1970.

        Raises InvalidConfiguration.
        """
        choosing = choice_from(how)
        listed = shortlist(self.items, choosing.scenario, now=now, means=self.means)
        return choose(listed, choosing, now=now)


def remember(log: EventLog, user_id: str, of: Of = EVERYTHING) -> Memory:
    """Make the memory of a user from the log; what did not change is not read again.

    A session that cannot be read is left out: ``verify`` says what is wrong with it.
    Of a user who opted out of memory there is none, and what was kept of it is dropped.

    Raises Erased, and where it cannot be told what the user allows, CorruptEvent and
    KeyUnavailable.
    """
    wanted = wishes(log, user_id)
    if wanted.consent.memory_opt_out:
        drop_kept(log, user_id, SHOWN, JUDGED, ADVICE)
        return Memory(user_id, 0, None, {}, [], {}, [], opted_out=True)
    return together_of(user_id, list(watched(log, user_id, of)), wanted.forgotten)


def means_of(shown: Iterable[Shown]) -> dict[str, float]:
    """How sessions ended that are not tainted, by scenario."""
    return {
        name: sum(ended) / len(ended)
        for name, some in by_scenario(untainted(shown)).items()
        if (ended := [one.success for one in some if one.success is not None])
    }


def together_of(
    user_id: str, shown: Sequence[Shown], forgotten: frozenset[str] = frozenset()
) -> Memory:
    """What these sessions show together, without what the user wants to be gone.

    What is gone in one scenario is gone in all: it is the same thing.
    """
    shown = families(shown)
    means, every = means_of(shown), items(shown, user_id)
    named = [(one, (one.kind, canonical(one.content))) for one in every]
    gone = {thing for one, thing in named if one.memory_id in forgotten}
    left = [one for one, thing in named if thing not in gone]
    of = user_id, len(shown), means.get(GENERAL), means
    return Memory(*of, left, effort(shown), lifts(shown))


def _shared(log: EventLog, k: int, now: int) -> Memory:
    """What sessions of all who did not opt out show, each thing by ``k`` users."""
    every = listed(log.sessions)
    users = [user_id for user_id, _ in groupby(every, lambda info: info.user_id)]
    by_user, forgotten = dict[str, list[Shown]](), dict[str, frozenset[str]]()
    for user_id in users:
        with suppress(errors.CorruptEvent, errors.Erased, errors.KeyUnavailable):
            wanted = wishes(log, user_id)
            if not wanted.consent.memory_opt_out:
                by_user[user_id] = list(watched(log, user_id, Of(now=now)))
                forgotten[user_id] = wanted.forgotten
    found = shared(by_user, k, forgotten)
    if not found:
        return Memory(NOBODY, 0, None, {}, [], {}, [])
    everything = [one for some in by_user.values() for one in some]
    told = {item.scenario for item in found} | {GENERAL}
    means = {name: at for name, at in means_of(everything).items() if name in told}
    return Memory(NOBODY, len(everything), means.get(GENERAL), means, found, {}, [])


def watched(log: EventLog, user_id: str, of: Of = EVERYTHING) -> Iterator[Shown]:
    """What each session of the user shows, those left out that cannot be read."""
    for info, shown in _of_each(log, user_id, partial(_of_session, of=of)):
        if of.project in (None, shown.project):
            # Nothing happened after it was recorded, whatever a clock said.
            latest = microseconds(info.updated_at)
            began, ended = min(shown.began_at, latest), min(shown.ended_at, latest)
            yield replace(shown, began_at=began, ended_at=ended)
    if of.now is not None and of.agent is None:
        for extract in extracts(log, user_id, "tools", of.now):
            shown = Shown.load(extract.told)
            if of.project in (None, shown.project):
                yield replace(shown, gone=extract.gone)


class Extract(NamedTuple):
    """What memory keeps of a session that retention erased: names, counts and seqs.

    of:    ``tools`` or ``user``; ``told`` is a Shown, or a Judged, as dumped.
    until: when each kind goes, in microseconds since 1970; ``gone`` are those that did.
    """

    session_id: str
    of: str
    told: dict[str, Any]
    until: dict[str, int]
    gone: tuple[str, ...] = ()
    used_at: int = 0

    def lasts(self, lasting: Mapping[str, timedelta]) -> int:
        """When all of it has gone: as was said when it was kept, or now, if sooner."""
        ends = _ends_of(self.until, lasting, self.used_at)
        return max((min(self.until[kind], at) for kind, at in ends.items()), default=0)


def _ends_of(
    kinds: Iterable[str], lasting: Mapping[str, timedelta], used_at: int
) -> dict[str, int]:
    """When those of these kinds go that were used last then."""
    return {
        kind: used_at + lasting[kind] // timedelta(microseconds=1)
        for kind in kinds
        if kind in lasting
    }


_KINDS: Final = {"tools": OF_TOOLS, "user": OF_USER}
_MADE_BY: Final = {"tools": EXTRACTOR, "user": verdicts.EXTRACTOR}
_EXTRACT: Final = "extract"


def extract_names(log: EventLog, user_id: str, session_id: str) -> dict[str, str]:
    """The sessions that keep extracts of this one, there or not, by their sort."""
    key = log.pseudonym_key(user_id, now=0)
    name = hmac.new(key, session_id.encode(), "sha256").hexdigest()[:32]
    return {of: f"{KEPT}{of}.{name}" for of in _KINDS}


def keep_extracts(
    writer: Writer, info: SessionInfo, lasting: Mapping[str, timedelta], used_at: int
) -> None:
    """Keep what a session shows, for when it is erased, in sessions of their own.

    Of what the user is like only with consent, and nothing of who opted out.
    """
    log, allowed = writer.log, wishes(writer.log, info.user_id).consent
    if allowed.memory_opt_out:
        return
    told = {"tools": _of_session(log, info, EVERYTHING).dump()}
    if allowed.declarative_memory:
        told["user"] = _declared_of_session(log, info).dump()
    names = extract_names(log, info.user_id, info.session_id)
    for of, shown in told.items():
        now, ends = writer.time.now(), _ends_of(_KINDS[of], lasting, used_at)
        if max(ends.values(), default=0) <= now:
            continue
        body: events.JsonObject = {
            "session_id": info.session_id,
            "extractor": _MADE_BY[of],
            "of": of,
            "until": {**ends},
            "used_at": used_at,
            "told": orjson.loads(canonical(shown)),  # without tuples
        }
        draft = Draft(events.StateUpdate(set={_EXTRACT: body}))
        clean = writer.redacted(draft, user_id=info.user_id, now=now)
        if clean.event == draft.event:  # else it holds what may not be kept
            stream = StreamId(info.user_id, names[of], MAIN)
            writer.append(Order(stream, (draft,)))


def extracts(
    log: EventLog, user_id: str, of: str = "", now: int = 0
) -> Iterator[Extract]:
    """What is kept of sessions that are not there any more, of one sort or all."""
    infos = [info for info in log.sessions(user_id) if info.status != "erased"]
    there = {info.session_id for info in infos}
    for info in infos:
        if info.session_id.startswith(f"{KEPT}{of}"):
            with suppress(errors.CorruptEvent, errors.Erased, errors.KeyUnavailable):
                found = _extract(log, StreamId(user_id, info.session_id, MAIN), now)
                if found is not None and found.session_id not in there:
                    yield found


def _extract(log: EventLog, stream: StreamId, now: int) -> Extract | None:
    """As it was kept last; None of one that another extractor made."""
    for one in log.read(stream, types=("state",), limit=1, newest=True):
        event = uncut(log, one, events.StateUpdate)
        kept: Any = event.set.get(_EXTRACT)
        if isinstance(kept, dict) and _MADE_BY.get(kept["of"]) == kept["extractor"]:
            gone = [k for k in _KINDS[kept["of"]] if kept["until"].get(k, 0) <= now]
            said = {name: kept[name] for name in kept if name != "extractor"}
            return Extract(**said, gone=tuple(gone))
    return None


def expired_extracts(
    log: EventLog, user_id: str, lasting: Mapping[str, timedelta], now: int
) -> list[str]:
    """The names of sessions whose extracts have gone, or the user allows no more."""
    allowed, found = wishes(log, user_id).consent, []
    for info in log.sessions(user_id):
        name = info.session_id
        if not name.startswith(KEPT) or info.status == "erased":
            continue
        kept = _extract(log, StreamId(user_id, name, MAIN), now)
        mine = f"{KEPT}user" not in name or allowed.declarative_memory
        lasts = mine and not allowed.memory_opt_out and kept is not None
        if not (lasts and kept and kept.lasts(lasting) > now):
            found.append(name)
    return found


def _of_each(
    log: EventLog, user_id: str, look: Callable[[EventLog, SessionInfo], T]
) -> Iterator[tuple[SessionInfo, T]]:
    """What each session of an agent has to say, but for those that cannot be read."""
    for info in log.sessions(user_id):
        if not info.is_apart:
            with suppress(errors.CorruptEvent, errors.Erased, errors.KeyUnavailable):
                yield info, look(log, info)


def _of_session(log: EventLog, info: SessionInfo, of: Of) -> Shown:
    """What one session shows; kept, if that is all of it and the session is live."""
    stream = StreamId(info.user_id, info.session_id, MAIN)
    whole = of.classify is None and of.agent is None
    stored = log.load_view(stream, NAME) if whole else None
    known = stored.through_seq if stored else 0
    if stored and stored.body and known == info.head_seq:
        return Shown.load(stored.body)
    shown = watch(stream.session_id, read_on(log, stream), of.classify, of.agent)
    if whole and info.is_live and shown.upto_seq > known:
        view = StoredView(shown.upto_seq, 0, shown.dump())
        keep(log, stream, NAME, view, replaces=known)
    return shown


def profile_of(
    log: EventLog, user_id: str, now: int, *, taxonomy: Taxonomy | None = None
) -> Profile:
    """Make the profile of a user from the log; what did not change is not read again.

    Of a user who has not consented, or opted out of memory, it is empty; what was kept
    is dropped.  What has expired ``now``, in microseconds since 1970, is left out, and
    a session that cannot be read.  ``taxonomy`` None is the packaged one.

    Raises as ``remember``.
    """
    wanted = wishes(log, user_id)
    if not wanted.consent.declarative_memory:
        if DECLARATIVE_MEMORY in wanted.consent.scopes:  # else nothing was ever kept
            drop_kept(log, user_id, JUDGED)
        return Profile(user_id)
    return profile(
        user_id,
        chain(
            (one for _, one in _of_each(log, user_id, _declared_of_session)),
            map(_judged, extracts(log, user_id, "user", now)),
        ),
        _preferences(log, user_id),
        now=now,
        taxonomy=taxonomy,
        forgotten=wanted.forgotten,
    )


def _judged(extract: Extract) -> verdicts.Judged:
    """What a session that is gone says still."""
    told = verdicts.Judged.load(extract.told)
    if {"error", "topic", "progress"} <= set(extract.gone):
        told = replace(told, tallies=())
    return replace(told, mistakes=()) if "mistake" in extract.gone else told


def _preferences(log: EventLog, user_id: str) -> dict[str, Stated]:
    """The last word on each, of those that were stated while the user consented."""
    found: dict[str, Stated] = {}
    wanted = Wishes(ConsentStatus({}))
    for envelope in read_on(log, _of_user(user_id), types=("consent", "state")):
        wanted = wanted.after([envelope])
        if isinstance(envelope.payload, events.StateUpdate):
            for key in unstated(envelope.payload):
                found.pop(key, None)
            if wanted.consent.declarative_memory:
                for key, value in stated(envelope.payload):
                    found[key] = Stated(value, envelope.seq, envelope.at)
    return found


def _declared_of_session(log: EventLog, info: SessionInfo) -> verdicts.Judged:
    """What one session's verdicts show; nothing is kept of one that is frozen."""
    stream = StreamId(info.user_id, info.session_id, MAIN)
    stored = log.load_view(stream, DECLARED_NAME)
    known = stored.through_seq if stored else 0
    # The taints are of what watches tools: when that becomes another, so do they.
    if stored and (known, stored.body.get("watched")) == (info.head_seq, EXTRACTOR):
        return verdicts.Judged.load(stored.body["judged"])  # type: ignore[arg-type]  # as saved below
    watching, judging = Watch(stream.session_id), verdicts.Judge(stream.session_id)
    for envelope in read_on(log, stream):
        watching.take(envelope)
        judging.take(envelope)
    judged = judging.judged(watching.shown().taints)
    if info.is_live:
        body: events.JsonObject = {"watched": EXTRACTOR, "judged": judged.dump()}
        view = StoredView(judged.upto_seq, 0, body)
        keep(log, stream, DECLARED_NAME, view, replaces=known)
    return judged


@quiet
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

    def advice(self, how: Choice, *, now: int) -> Advice:
        """What is said of it."""
        return choose(self._wanted(), how, now=now, profile=self._about())

    def says_still(self, advice: Advice, how: Choice, now: int) -> bool:
        """Whether all that was said may be said as it was."""
        about, text = self._about(), advice.text
        about = [one for one in about if one.text.partition(";")[0] in text]
        said = [one for one in self._wanted() if one.is_allowed(how, now)]
        known = {one.memory_id for one in said if one.claim in text}
        known |= {one.memory_id for one in about}
        few = len(advice.items) <= how.top + len(about)
        return few and known.issuperset(advice.items)

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
        gone = {one.subject for one in self.candidates if one.memory_id in names}
        return [one for one in self.candidates if one.subject not in gone]

    def dump(self) -> dict[str, Any]:
        """As it is stored."""
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
        kept = _loaded(self._log.standing(_of_user(self.user_id), _name(scenario)))
        age = self.writer.clock() - kept.made_at if kept else 0
        return kept if 0 <= age <= fresh / timedelta(microseconds=1) else None

    def learn(self, *scenarios: str) -> Shortlist:
        """Make it anew from the log, for these scenarios and in general, and keep it.

        Returns that of the first that is named.  Whoever is last sees what there is: if
        a session moved on while it was made, it is made again, a few times; if one was
        erased, what was kept is dropped.
        """
        stream = _of_user(self.user_id)
        for _ in range(_TRIES):
            before = self._log.sessions(self.user_id)
            head = self._log.head(stream)
            made = self._made(dict.fromkeys((*scenarios, GENERAL)))
            first = next(iter(made.values()))
            frozen = any(info.status.startswith("frozen") for info in before)
            if frozen or not before or first.wishes.consent.memory_opt_out:
                return first
            if head.seq == 0:
                # The session that concerns all of the user says who made memory.
                draft = Draft(events.StateUpdate(set={MADE_BY: EXTRACTOR}))
                key = f"{MADE_BY} {EXTRACTOR}"
                self.writer.append(Order(stream, (draft,), idempotency_key=key))
                continue
            for scenario, one in made.items():
                if scenario == GENERAL or scenario in one.scenarios:
                    # As of before it was made: wishes that came since are behind it.
                    view = StoredView(head.seq, 0, one.dump())
                    known = self._log.load_view(stream, name := _name(scenario))
                    replaces = known.through_seq if known else 0
                    keep(self._log, stream, name, view, replaces=replaces)
            after = self._log.sessions(self.user_id)
            if _readable(before) - _readable(after):
                self._log.drop_views(self.user_id, USER_SESSION)
            elif _ends(before) == _ends(after):
                break
        return first

    def _made(self, scenarios: Iterable[str]) -> dict[str, Shortlist]:
        now, wanted = self.writer.clock(), wishes(self._log, self.user_id)
        memory = remember(self._log, self.user_id, Of(now=now))
        about = lines(profile_of(self._log, self.user_id, now), now)
        known, listed = sorted(memory.means), partial(shortlist, memory.items)
        listed = partial(listed, now=now, means=memory.means)
        return {n: Shortlist(now, known, listed(n), about, wanted) for n in scenarios}

    def for_session(self, stream: StreamId, strategy: Strategy, how: Choice) -> Advice:
        """What the session is told: what its last request was, until it is compacted.

        So that what a model is sent begins as it did before.  What must not be said any
        more is not: then it is chosen anew.
        """
        listed, now = self.shortlist(how.scenario), self.writer.clock()
        derived = stream._replace(stream=strategy.fingerprint)
        found = self._log.read(stream, types=("request",), limit=1, newest=True)
        request = found[0].payload if found else None
        if (
            isinstance(request, events.Request)
            and request.strategy.fingerprint == strategy.fingerprint
        ):
            said = NO_ADVICE
            if request.advised:
                handed = handed_in(self._log, stream, request)
                said = Advice.recorded(handed.advice, request.advised)
            since = request.derived_seq if said is NO_ADVICE else said.derived_seq
            made = self._log.read(derived, after=since, types=("summary",))
            if not any(_kind(one) == "session" for one in made):
                good = said.tokens <= how.tokens and listed.says_still(said, how, now)
                asked = good and said.sessions
                infos = self._log.sessions(self.user_id) if asked else []
                if good and _readable(infos).issuperset(said.sessions):
                    return said
        upto = self._log.head(derived).seq
        return replace(listed.advice(how, now=now), derived_seq=upto)


def _name(scenario: str) -> str:
    """Of a view: it stands in plain, so it does not name the scenario."""
    return f"{ADVICE}{EXTRACTOR}-{text_digest(scenario)[:16]}"


def _loaded(standing: Standing) -> Shortlist | None:
    view = standing.view
    # A preference, or consent: what the user allows now may be more than what is kept.
    kinds = events.StateUpdate | events.Consent
    stated = any(isinstance(one.payload, kinds) for one in standing.new)
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


def retrieve(writer: Writer, stream: StreamId, query: Query, how: Choice) -> Answer:
    """What the memory of the stream's user says to a query, in the session it is of.

    Of a user who opted out nothing is said, and without consent nothing of what they
    are like.  Raises Erased, KeyUnavailable, CorruptEvent.
    """
    now = writer.clock()
    memory = remember(writer.log, stream.user_id, Of(now=now))
    profile = profile_of(writer.log, stream.user_id, now)
    items = {item.memory_id: item for item in profile.items}
    said = [line for line in lines(profile, now) if line.memory_id in items]
    about = [(line, items[line.memory_id]) for line in said]
    found = answer(query, ToolMemories(memory.items, memory.means, about), how, now=now)
    if writer.audit is not None:
        counts = {"items": len(found.items)}
        access = Access("memory_load", stream.user_id, stream.session_id, counts=counts)
        writer.audit.note(access)
    return found


_MOST_SESSIONS: Final = 20  # of the newest other ones, that layers look into
_MOST_FACTS: Final = 40
_ANSWERS: Final = 10  # the newest, of which one has a text
_ENDS: Final = ("final", "agent_response")


def elsewhere(
    log: EventLog, stream: StreamId, wanted: Layers, said: events.Request | None
) -> Elsewhere | None:
    """What other sessions of the user say in these layers; None if they say nothing.

    said: the request whose layers are told again, if all of it may still be told.
    """
    wishes_now = wishes(log, stream.user_id)
    if wishes_now.consent.memory_opt_out:
        return None
    looking = _Looking(log, stream, wanted, wishes_now)
    if said is not None:
        with suppress(errors.Expired):
            known = handed_in(log, stream, said).layers
            if known is None or looking.may_tell(known.refs):
                return known
    refs = looking.refs()
    texts = layer_texts(log, stream.user_id, refs)
    return Elsewhere(refs, texts) if texts else None


class _Looking(NamedTuple):
    """Looks for what layers show in the user's other sessions, the newest first."""

    log: EventLog
    stream: StreamId
    wanted: Layers
    wishes: Wishes

    def refs(self) -> dict[str, Any]:
        """Where it stands."""
        mine, at = {self.stream.session_id}, self.stream
        while origin := self.log.head(at).state.forked_from:  # which it shows already
            at = at._replace(session_id=origin[0])
            mine.add(origin[0])
        every = self.log.sessions(self.stream.user_id)
        others = [i for i in every if not i.is_apart and i.session_id not in mine]
        others.sort(key=lambda info: (info.updated_at, info.session_id), reverse=True)
        names = [info.session_id for info in others[:_MOST_SESSIONS]]
        # Told oldest first, so that what was said last comes last.
        about = self._about()
        return {
            "about": [line.text.partition(";")[0] for line in about],
            "items": [line.memory_id for line in about],
            "cited": sorted({name for line in about for name in line.cited}),
            "user": self._facts(names)[::-1] if self.wanted.user else [],
            "scope": self._scope(names)[::-1] if self.wanted.scope else [],
            "notes": self._notes(names)[::-1] if self.wanted.notes else [],
        }

    def may_tell(self, refs: Mapping[str, Any]) -> bool:
        """Whether what is said of the user holds still, and its sessions are there."""
        if not refs["about"]:
            return True
        there = _readable(self.log.sessions(self.stream.user_id))
        known = {line.memory_id for line in self._about()}
        return there.issuperset(refs["cited"]) and known.issuperset(refs["items"])

    def _about(self) -> list[Line]:
        """The profile and preferences, of who consented."""
        if not self.wanted.user or not self.wishes.consent.declarative_memory:
            return []
        user_id = self.stream.user_id
        infos = self.log.sessions(user_id)
        now = max((microseconds(info.updated_at) for info in infos), default=0)
        said = lines(profile_of(self.log, user_id, now), now)
        return [line for line in said if line.confidence >= _SURE]

    def _read(self, name: str, kind: str) -> list[Envelope]:
        with suppress(errors.CorruptEvent, errors.Erased, errors.KeyUnavailable):
            place = self.stream._replace(session_id=name)
            return list(read_on(self.log, place, types=(kind,)))
        return []

    def _facts(self, names: Sequence[str]) -> list[Any]:
        """Of each session the events that say what no newer one does."""
        said: set[str] = set()
        found = []
        for name in names:
            kept = []
            for one in reversed(self._read(name, "state")):
                keys = set(user_names(one))
                if keys - said and len(said) < _MOST_FACTS:
                    kept.append(one.seq)
                said |= keys
            if kept:
                found.append([name, kept[::-1]])
        return found

    def _notes(self, names: Sequence[str]) -> list[Any]:
        """The newest notes, as many lines as the layer keeps."""
        notes, found = self.wanted.notes, list[Any]()
        left = notes.max_lines if notes else 0
        for name in names:
            kept = []
            for one in reversed(self._read(name, "tool_call")):
                told = len(note_lines(one, notes.tool if notes else None))
                if told and told <= left:
                    kept.append(one.seq)
                    left -= told
            if kept:
                found.append([name, kept[::-1]])
        return found

    def _scope(self, names: Sequence[str]) -> list[Any]:
        """Digests of the newest sessions with the same project, within its tokens."""
        project = self._project()
        if project is None:
            return []
        infos = self.log.sessions(self.stream.user_id, labels={"project": project})
        same = {info.session_id for info in infos}
        left, found = self.wanted.scope_tokens, list[Any]()
        for name in [name for name in names if name in same]:
            for place, text in self._digest(name):
                left -= estimate_text(text)
                if left < 0:
                    return found
                found.append(place)
        return found

    def _project(self) -> str | None:
        """The session's label, if it is found by it: not where redaction changed it."""
        value: str | None = None
        for one in read_on(self.log, self.stream, types=("state",)):
            value = labels_in(one.payload).get("project", value)
        if value is None:
            return None
        user_id, session_id, _ = self.stream
        labels = {"project": value}
        found = self.log.sessions(user_id, session_id=session_id, labels=labels)
        return value if found else None

    def _digest(self, name: str) -> Iterator[tuple[list[Any], str]]:
        """The session's newest digest, its newest summary, or its last answer."""
        with suppress(errors.CorruptEvent, errors.Erased, errors.KeyUnavailable):
            main = self.stream._replace(session_id=name)
            others = [one for one in self.log.streams(*main[:2]) if one != MAIN]
            derived = [main._replace(stream=other) for other in others]
            made = [
                one
                for stream in derived
                for one in read_on(self.log, stream, types=("summary",))
                if _kind(one) != "notes"
            ]
            made.sort(key=lambda one: (_kind(one) == "scope", one.at, one.seq))
            answers = self.log.read(main, types=_ENDS, limit=_ANSWERS, newest=True)
            said = [one for one in answers if digest_of(one).strip()]
            for one in (made or said)[-1:]:
                yield [name, one.stream, one.seq], digest_of(one)


def _kind(envelope: Envelope) -> str:
    return str(getattr(envelope.payload, "kind", ""))


@dataclass(frozen=True, slots=True)
class Memories:
    """What sessions show together: of a user, or of many.

    shares: whether memory of many users may be made.
    """

    writer: Writer
    shares: bool = False

    @recorded("memory_load")
    def of(
        self,
        user_id: str,
        *,
        classify: Classifier | None = None,
        agent: str | None = None,
        project: str | None = None,
    ) -> Memory:
        """What the user's sessions show: tools that worked, that failed, that helped.

        By scenario, and under ``general`` all together.

        Made of the log alone, and kept for each session until it moves on.  A user
        who opted out of memory has none, and what was kept of them is dropped.

        Raises Erased.

        classify: names the scenario of sessions that no ``meta.scenario`` tags.
        agent:    only of what this agent called, of several in a session.
        project:  only of sessions that are tagged with this ``meta.project``.

        With a classifier or an agent every session is read again.
        """
        user_id = check_id("user_id", user_id)
        of = Of(classify, agent, project, self.writer.clock())
        return remember(self.writer.log, user_id, of)

    @recorded("memory_load")
    def profile(self, user_id: str, *, taxonomy: Taxonomy | None = None) -> Profile:
        """What verdicts on the user's work show, and what they prefer, if they consent.

        Empty of who has not allowed ``declarative_memory``, or opted out of memory.

        taxonomy: the types of error there are; None is the packaged one.

        Raises Erased.
        """
        user_id, now = check_id("user_id", user_id), self.writer.clock()
        return profile_of(self.writer.log, user_id, now, taxonomy=taxonomy)

    @recorded("memory_load")
    def advice(
        self, user_id: str, *, fresh: timedelta = _HOUR, **how: Unpack[ChoiceArgs]
    ) -> Advice:
        """What of the user's memory may be said to a model, as ``context`` takes it.

        It is read from a short list, which is made anew if it is older than ``fresh``.
        ``session.memory.advice`` returns the same advice until a compaction.

        Raises InvalidConfiguration, Erased.
        """
        adviser = Adviser(self.writer, check_id("user_id", user_id))
        choosing, now = choice_from(how), self.writer.clock()
        listed = adviser.shortlist(choosing.scenario, fresh=fresh)
        return listed.advice(choosing, now=now)

    @recorded("memory_load", named=False)
    def shared(self, *, k: int = 5) -> Memory:
        """What the sessions of many users show together, naming none of them.

        Off unless the store was opened with ``shared_memory=True``.  An item is in it
        only if ``k`` users or more, and as many sessions, show it.  Who opted out is
        not counted, nor who is erased: it is made of the log each time.
        ``Memory.advice`` says what of it may be said to a model.

        Raises InvalidConfiguration if it is off, and for ``k`` below 5.
        """
        if not self.shares:
            raise errors.InvalidConfiguration(
                "memory of many users is off: set REFOLD_SHARED_MEMORY=on, or open the "
                "store with shared_memory=True"
            )
        return _shared(self.writer.log, k, self.writer.clock())
