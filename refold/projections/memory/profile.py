"""The profile of a user: what verdicts show about them, and their preferences.

A profile exists only with the user's consent, and never holds texts: only names of
subjects, topics, and error types, numbers, times, and places of evidence.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from statistics import median
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

from refold.domain.canonical import canonical
from refold.domain.erasure import timestamp
from refold.domain.errors import counted
from refold.domain.events import JsonObject
from refold.domain.ids import USER_SESSION
from refold.domain.model import repr_without_texts
from refold.domain.preferences import Preference
from refold.projections.memory.advice import Line, citation, cited_evidence
from refold.projections.memory.items import (
    EVIDENCE,
    INDEPENDENT,
    Declarative,
    Evidence,
    Item,
    lasting,
    lower_bound,
    memory_id,
)
from refold.projections.memory.labels import Taxonomy, packaged
from refold.projections.memory.sessions import GENERAL
from refold.projections.memory.verdicts import (
    EXTRACTOR_VERSION,
    Mistake,
    Names,
    SessionVerdicts,
    Tally,
    named,
    names,
    newest,
)

Thing = TypeVar("Thing", str, tuple[str, str])
Standing: TypeAlias = Literal["weak", "strong"]
Levels: TypeAlias = dict[str, dict[str, dict[str, int]]]

RECENT: Final = 20
"""The most mistakes of a profile, over all sessions; the newest are kept."""
WINDOW: Final = 10
"""The most sessions that decide a topic's standing; the newest are used, and none that
is older than the lifetime of a topic's item."""
# A usual pass mark, and the least that learning for mastery asks for (B. S. Bloom,
# Learning for Mastery, Evaluation Comment 1 (2), 1968: 80 to 90 %).
WEAK_BELOW: Final = 0.6
STRONG_FROM: Final = 0.8
HALF_LIFE: Final = 30 * 86_400_000_000
"""Microseconds after which a session counts half.  So the last month of a term counts
most, and no single day decides."""
_MOST_OTHERS: Final = 2
"""A session weighs at most as much as two others.  With three sessions, the fewest that
establish an item, none then has more than half of the weight."""
MOST: Final = 5
"""The most lines of advice in a section."""
_KIND_ORDER: Final = ("error", "topic", "progress", "mistake", "preference")


class Area(NamedTuple):
    """An area to improve, and the ids of the items that it follows from."""

    name: str
    because: tuple[str, ...]


class Stated(NamedTuple):
    """A preference, and the user's own event that states it."""

    value: Preference
    seq: int
    at: int


@repr_without_texts
@dataclass(frozen=True, slots=True)
class Profile:
    """The profile of a user who consented; empty for all others.

    The fields hold only what enough independent sessions show, except counts
    (``error_frequency``, ``levels``), mistakes, which are single events, and
    preferences, which are the user's own statements.

    learning_progress: by subject, 0 to 1.
    levels:            by subject, topic, and error type, the number of errors in
                       untainted sessions within the lifetime of a topic's item.
    improvement_areas: each with the ids of the items that it follows from.
    sessions:          the number of sessions with verdicts; ``tainted_sessions`` of
                       them do not count as evidence.
    items:             the profile as items, by kind, the most certain first; includes
                       stale ones.
    """

    user_id: str
    common_error_types: tuple[str, ...] = ()
    error_frequency: Mapping[str, int] = field(default_factory=dict)
    weak_topics: tuple[str, ...] = ()
    strong_topics: tuple[str, ...] = ()
    learning_progress: Mapping[str, float] = field(default_factory=dict)
    recent_mistakes: tuple[Item, ...] = ()
    improvement_areas: tuple[Area, ...] = ()
    preferences: Mapping[str, Preference] = field(default_factory=dict)
    levels: Mapping[str, Mapping[str, Mapping[str, int]]] = field(default_factory=dict)
    sessions: int = 0
    tainted_sessions: int = 0
    items: tuple[Item, ...] = ()

    def to_json(self) -> JsonObject:
        """Return the profile with its evidence as JSON."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        for name in ("common_error_types", "weak_topics", "strong_topics"):
            fields[name] = list(fields[name])
        fields["recent_mistakes"] = [
            {
                "memory_id": mistake.memory_id,
                "timestamp": timestamp(mistake.updated_at),
                **mistake.content,
            }
            for mistake in self.recent_mistakes
        ]
        fields["improvement_areas"] = [
            {"name": area.name, "because": list(area.because)}
            for area in self.improvement_areas
        ]
        fields["items"] = [item.to_json() for item in self.items]
        return fields


def profile(
    user_id: str,
    sessions: Iterable[SessionVerdicts],
    preferences: Mapping[str, Stated] | None = None,
    *,
    now: int,
    taxonomy: Taxonomy | None = None,
    forgotten: Iterable[str] = (),
) -> Profile:
    """Build the profile that these sessions and preferences show at ``now``.

    The order of the sessions and repeated sessions make no difference.  Expired items
    are left out, such as mistakes older than 30 days.

    now:       microseconds since 1970.
    taxonomy:  None for the one that Refold ships.
    forgotten: ids of items that the user has removed.
    """
    taxonomy = taxonomy or packaged()
    folds = _newest_folds(sessions)
    merged = names(folds, taxonomy)
    removed = _removed_ids(merged, frozenset(forgotten))
    removed_errors = frozenset(
        error
        for error in merged.errors.values()
        if id_of("error", {"error": error}) in removed
    )
    folds = [named(session, merged, without=removed_errors) for session in folds]
    every_item = chain(
        errors(user_id, folds, taxonomy),
        topics(user_id, folds),
        progress(user_id, folds),
        mistakes(user_id, folds),
        _preference_items(user_id, preferences or {}),
    )
    items: list[Item] = []
    for item in every_item:
        if item.expires_at > now and item.memory_id not in removed:
            items.append(item)
    items.sort(key=_rank)
    established = [item for item in items if item.established]
    weak = of_kind(established, "topic", standing="weak")
    strong = of_kind(established, "topic", standing="strong")
    common = of_kind(established, "error")
    subjects = of_kind(established, "progress")
    return Profile(
        user_id,
        common_error_types=tuple(_values(common, "error", "count")),
        error_frequency=_values(of_kind(items, "error"), "error", "count"),
        weak_topics=tuple(_values(weak, "topic", "standing")),
        strong_topics=tuple(_values(strong, "topic", "standing")),
        learning_progress=_values(subjects, "subject", "level"),
        recent_mistakes=tuple(of_kind(items, "mistake")),
        improvement_areas=tuple(areas(established, folds, taxonomy)),
        preferences=_values(of_kind(items, "preference"), "key", "value"),
        levels=levels(items, folds, now),
        sessions=len(folds),
        tainted_sessions=len(folds) - len(untainted(folds)),
        items=tuple(items),
    )


def _newest_folds(sessions: Iterable[SessionVerdicts]) -> list[SessionVerdicts]:
    """Return the newest fold of each session with verdicts, in order of session ids."""

    def age(session: SessionVerdicts) -> tuple[int, bytes]:
        return session.upto_seq, canonical(session.dump())

    by_id: dict[str, SessionVerdicts] = {}
    for session in sessions:
        other = by_id.get(session.session_id)
        if other is None or age(other) < age(session):
            by_id[session.session_id] = session
    newest_folds = [by_id[session_id] for session_id in sorted(by_id)]
    return [session for session in newest_folds if session.tallies]


def _rank(item: Item) -> tuple[Any, ...]:
    newest_first = -item.updated_at if item.kind == "mistake" else 0
    weight: Any = item.content.get("weight", 0)
    return (
        _KIND_ORDER.index(item.kind),
        newest_first,
        -weight,
        -item.confidence,
        item.memory_id,
    )


def _values(items: Iterable[Item], key: str, value: str) -> dict[str, Any]:
    """Map one field of the items' content to another."""
    return {str(item.content[key]): item.content[value] for item in items}


def of_kind(items: Iterable[Item], kind: Declarative, **content: Any) -> Iterator[Item]:
    """Yield the items of a kind whose content has these values."""
    for item in items:
        if item.kind == kind and content.items() <= item.content.items():
            yield item


def areas(
    established: Sequence[Item], sessions: Sequence[SessionVerdicts], taxonomy: Taxonomy
) -> Iterator[Area]:
    """Yield the areas to improve.

    Each weak topic comes with what helps against the most certain error in it.  Common
    errors outside of weak topics follow.

    established: the established items.
    """
    common = list(of_kind(established, "error"))
    errors_in: dict[tuple[str, str], set[str]] = defaultdict(set)
    for session in untainted(sessions):
        for tally in session.tallies:
            names_of_errors = errors_in[tally.subject, tally.topic]
            names_of_errors.update(error for error, _, _ in tally.errors)
    covered: set[str] = set()
    for weak in of_kind(established, "topic", standing="weak"):
        topic = str(weak.content["topic"])
        topic_errors = errors_in[str(weak.content["subject"]), topic]
        in_topic = [item for item in common if item.content["error"] in topic_errors]
        covered.update(item.memory_id for item in in_topic)
        in_topic.sort(key=lambda item: (-item.confidence, item.memory_id))
        most_certain = in_topic[:1]
        error = str(most_certain[0].content["error"]) if most_certain else ""
        ids = [item.memory_id for item in most_certain]
        yield Area(f"{taxonomy.advice_on(error)}_{topic}", (weak.memory_id, *ids))
    for item in common:
        if item.memory_id not in covered:
            error = str(item.content["error"])
            yield Area(f"{taxonomy.advice_on(error)}_{error}", (item.memory_id,))


def levels(
    items: Sequence[Item], sessions: Sequence[SessionVerdicts], now: int
) -> Levels:
    """Count errors by subject, topic, and error type, in what has not expired."""
    shown_errors = {item.content["error"] for item in of_kind(items, "error")}
    counts: Levels = {}
    for session in untainted(sessions):
        for tally in session.tallies:
            if tally.last_at + lasting("topic") <= now:
                continue
            topic = counts.setdefault(tally.subject, {}).setdefault(tally.topic, {})
            for error, count, _ in tally.errors:
                if error in shown_errors:
                    topic[error] = topic.get(error, 0) + count
    return counts


def _removed_ids(merged: Names, forgotten: frozenset[str]) -> frozenset[str]:
    """Return the forgotten ids, and those of the same labels under merged names.

    The name that similar labels merge into depends on which one is used most, so an id
    may change after the user removed the item.
    """
    if not forgotten:
        return forgotten
    renamed: list[tuple[Declarative, JsonObject, JsonObject]] = []
    for label, name in merged.errors.items():
        renamed.append(("error", {"error": label}, {"error": name}))
    labels_of_subject: dict[str, list[str]] = defaultdict(list)
    for label, name in merged.subjects.items():
        labels_of_subject[name].append(label)
        renamed.append(("progress", {"subject": label}, {"subject": name}))
    for (subject, label), name in merged.topics.items():
        for subject_label in labels_of_subject.get(subject, [subject]):
            for standing in ("weak", "strong"):
                before = _about_topic(subject_label, label, standing)
                after = _about_topic(subject, name, standing)
                renamed.append(("topic", before, after))
    removed = set(forgotten)
    for kind, before, after in renamed:
        if id_of(kind, before) in forgotten:
            removed.add(id_of(kind, after))
    return frozenset(removed)


@dataclass(frozen=True, slots=True)
class Witness:
    """A session as evidence for one item.

    seqs:     the events that show it.
    verdicts: the number of verdicts about it.
    rate:     their mean credit, 0 to 1.
    """

    session: SessionVerdicts
    seqs: tuple[int, ...]
    first_at: int
    last_at: int
    verdicts: int = 1
    rate: float = 1.0

    @classmethod
    def of(cls, session: SessionVerdicts, tallies: Sequence[Tally]) -> Witness:
        """Return the session as evidence for a topic, or for all of a subject."""
        seqs: list[int] = []
        for tally in tallies:
            seqs += tally.seqs
        verdicts = sum(tally.verdicts for tally in tallies)
        return cls(
            session,
            seqs=newest(seqs),
            first_at=min(tally.first_at for tally in tallies),
            last_at=max(tally.last_at for tally in tallies),
            verdicts=verdicts,
            rate=sum(tally.credit for tally in tallies) / verdicts,
        )


@dataclass(frozen=True, slots=True)
class Claim:
    """The statement of an item and its support.

    about:   the names that identify the item.
    figures: its other content, which may change with new sessions.
    rate:    the share of the samples that supports the statement, 0 to 1.
    samples: the effective number of sessions.
    """

    kind: Declarative
    about: JsonObject
    figures: JsonObject
    rate: float
    samples: float


def item_of(
    user_id: str,
    claim: Claim,
    witnesses: Iterable[Witness],
    *,
    tainted: int = 0,
    stale: bool = False,
) -> Item:
    """Build the item of a claim.

    witnesses: untainted sessions that show it, at least one.
    tainted:   the number of tainted sessions that show it too.
    """
    ordered = in_time(witnesses)
    evidence = [
        Evidence(witness.session.session_id, newest(witness.seqs))
        for witness in ordered[-EVIDENCE:]
    ]
    models: set[str] = set()
    for witness in ordered:
        models.update(witness.session.models)
    confidence = lower_bound(claim.rate * claim.samples, claim.samples)
    against = lower_bound((1 - claim.rate) * claim.samples, claim.samples)
    return Item(
        memory_id=id_of(claim.kind, claim.about),
        user_id=user_id,
        kind=claim.kind,
        scenario=GENERAL,
        content={**claim.about, **claim.figures},
        sessions=len(ordered),
        tainted_sessions=tainted,
        success=None,
        confidence=round(confidence, 6),
        against=round(against, 6),
        evidence=tuple(evidence),
        created_at=min(witness.first_at for witness in ordered),
        updated_at=ordered[-1].last_at,
        models=tuple(sorted(models)),
        stale=stale,
        extractor=EXTRACTOR_VERSION,
    )


def id_of(kind: Declarative, about: JsonObject) -> str:
    """Return the id of the item that is about these names, whatever its figures."""
    return memory_id(kind, GENERAL, about)


def _about_topic(subject: str, topic: str, standing: str) -> JsonObject:
    return {"subject": subject, "topic": topic, "standing": standing}


def untainted(sessions: Iterable[SessionVerdicts]) -> list[SessionVerdicts]:
    """Return the sessions that count as evidence."""
    return [session for session in sessions if not session.taints]


def in_time(witnesses: Iterable[Witness]) -> list[Witness]:
    """Sort witnesses by the time of their last verdict, then by session id."""
    return sorted(
        witnesses, key=lambda witness: (witness.last_at, witness.session.session_id)
    )


def numbers(**figures: float) -> JsonObject:
    """Round figures to four digits, so that they are equal on every machine."""
    return {
        name: round(figure, 4) if isinstance(figure, float) else figure
        for name, figure in figures.items()
    }


def weights(counts: Sequence[int]) -> list[float]:
    """Return the weight of each session, given its number of verdicts.

    A session weighs as much as its verdicts, but at most twice the median of the other
    sessions.  A single session weighs 1.
    """
    if len(counts) == 1:
        return [1.0]
    ordered = sorted(counts)
    place_of = {count: place for place, count in enumerate(ordered)}
    median_of_others: dict[int, float] = {}
    for count, place in place_of.items():
        median_of_others[count] = median(ordered[:place] + ordered[place + 1 :])
    return [
        float(min(count, _MOST_OTHERS * median_of_others[count])) for count in counts
    ]


def mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """Return the weighted mean, or 0 if the weights sum to 0."""
    total = sum(weights)
    if not total:
        return 0.0
    weighted = [value * weight for value, weight in zip(values, weights, strict=True)]
    return sum(weighted) / total


def effective(weights: Sequence[float]) -> float:
    """Return the number of sessions of equal weight with the same certainty.

    The square of the sum divided by the sum of squares; 0 without weights.  L. Kish,
    Survey Sampling (Wiley, 1965).
    """
    squares = sum(weight * weight for weight in weights)
    if not squares:
        return 0.0
    return sum(weights) ** 2 / squares


class Support(NamedTuple):
    """The sessions that show something.

    witnesses: the untainted ones, at least one.
    tainted:   the number of the others.
    """

    witnesses: list[Witness]
    tainted: int


def support(
    sessions: Iterable[SessionVerdicts],
    shown_by: Callable[[SessionVerdicts], Iterable[tuple[Thing, Witness]]],
) -> Iterator[tuple[Thing, Support]]:
    """Yield, in order, each thing that sessions show, with its support.

    shown_by: yields the things that a session shows.
    """
    witnesses: dict[Thing, list[Witness]] = defaultdict(list)
    tainted: Counter[Thing] = Counter()
    for session in sessions:
        for thing, witness in shown_by(session):
            if session.taints:
                tainted[thing] += 1
            else:
                witnesses[thing].append(witness)
    for thing in sorted(witnesses):
        yield thing, Support(witnesses[thing], tainted[thing])


def errors(
    user_id: str, sessions: Sequence[SessionVerdicts], taxonomy: Taxonomy
) -> Iterator[Item]:
    """Yield an item for each error type.  Its confidence grows with its sessions.

    The figure ``count`` is the number of errors.  ``weight`` is that number after the
    share of each session in it was limited (``weights``).
    """
    total = sum(1 for session in untainted(sessions) if session.tallies)
    for error, (witnesses, tainted) in support(sessions, _errors_of):
        counts = [witness.verdicts for witness in witnesses]
        claim = Claim(
            kind="error",
            about={"error": error},
            figures={
                "category": taxonomy.category_of(error),
                **numbers(count=sum(counts), weight=sum(weights(counts))),
            },
            rate=len(witnesses) / total,
            samples=total,
        )
        yield item_of(user_id, claim, witnesses, tainted=tainted)


def _errors_of(session: SessionVerdicts) -> Iterator[tuple[str, Witness]]:
    tallies_with: dict[str, list[Tally]] = defaultdict(list)
    counts: Counter[str] = Counter()
    seqs: dict[str, list[int]] = defaultdict(list)
    for tally in session.tallies:
        for error, count, seqs_of_error in tally.errors:
            tallies_with[error].append(tally)
            counts[error] += count
            seqs[error] += seqs_of_error
    for error, tallies in tallies_with.items():
        yield (
            error,
            Witness(
                session,
                seqs=tuple(seqs[error]),
                first_at=min(tally.first_at for tally in tallies),
                last_at=max(tally.last_at for tally in tallies),
                verdicts=counts[error],
            ),
        )


def mistakes(user_id: str, sessions: Sequence[SessionVerdicts]) -> Iterator[Item]:
    """Yield the newest mistakes of untainted sessions, the newest first.

    An item states the place and the names of a mistake, not the question or the answer.
    """
    with_sessions: list[tuple[SessionVerdicts, Mistake]] = []
    for session in untainted(sessions):
        for mistake in session.mistakes:
            with_sessions.append((session, mistake))
    with_sessions.sort(key=_newest_first)
    for session, mistake in with_sessions[:RECENT]:
        claim = Claim(
            kind="mistake",
            about={
                "session_id": session.session_id,
                "seq": mistake.seq,
                "nr": mistake.nr,
            },
            figures={
                "item_id": mistake.item,
                "error": mistake.error,
                "subject": mistake.subject,
                "topic": mistake.topic,
            },
            rate=1.0,
            samples=1.0,
        )
        witness = Witness(session, (mistake.seq,), mistake.at, mistake.at)
        yield item_of(user_id, claim, [witness])


def _newest_first(
    with_session: tuple[SessionVerdicts, Mistake],
) -> tuple[int, str, int, int]:
    """Return the key that sorts mistakes with their sessions, the newest first."""
    session, mistake = with_session
    return -mistake.at, session.session_id, -mistake.seq, -mistake.nr


class _Window(NamedTuple):
    """A topic's standing over the newest sessions with it.

    witnesses: the sessions that by themselves show the same standing.
    """

    standing: Standing | None
    rate: float
    samples: float
    verdicts: int
    witnesses: tuple[Witness, ...]


def topics(user_id: str, sessions: Sequence[SessionVerdicts]) -> Iterator[Item]:
    """Yield weak and strong topics; standings that no longer hold are stale items."""
    for (subject, topic), (witnesses, tainted) in support(sessions, _topics_of):
        for window, stale in _standings(in_time(witnesses)):
            is_strong = window.standing == "strong"
            claim = Claim(
                kind="topic",
                about=_about_topic(subject, topic, window.standing or ""),
                figures=numbers(rate=window.rate, verdicts=window.verdicts),
                rate=window.rate if is_strong else 1 - window.rate,
                samples=window.samples,
            )
            yield item_of(
                user_id, claim, window.witnesses, tainted=tainted, stale=stale
            )


def _topics_of(session: SessionVerdicts) -> Iterator[tuple[tuple[str, str], Witness]]:
    for tally in session.tallies:
        if tally.topic:
            yield (tally.subject, tally.topic), Witness.of(session, [tally])


def _standings(witnesses: Sequence[Witness]) -> Iterator[tuple[_Window, bool]]:
    """Yield the topic's present standing, then earlier ones; true means stale.

    An earlier standing is yielded if it was a different one, enough sessions
    established it, and it has not expired.

    witnesses: the sessions with the topic, the oldest first.
    """
    newest_window = _window(witnesses)
    if newest_window.standing is not None:
        yield newest_window, False
    seen: set[Standing | None] = {newest_window.standing}
    expired_until = witnesses[-1].last_at - lasting("topic")
    for end in range(len(witnesses) - 1, 0, -1):
        if witnesses[end - 1].last_at <= expired_until:
            return
        window = _window(witnesses[max(0, end - WINDOW) : end])
        if window.standing is None or window.standing in seen:
            continue
        if len(window.witnesses) < INDEPENDENT:
            continue
        seen.add(window.standing)
        yield window, True


def _window(witnesses: Sequence[Witness]) -> _Window:
    """Return the window that ends with the last of these sessions."""
    expired_until = witnesses[-1].last_at - lasting("topic")
    inside: list[Witness] = []
    for witness in witnesses[-WINDOW:]:
        if witness.last_at > expired_until:
            inside.append(witness)
    weight_of_each = weights([witness.verdicts for witness in inside])
    rate = mean([witness.rate for witness in inside], weight_of_each)
    standing = _standing(rate)
    agreeing = [witness for witness in inside if _standing(witness.rate) == standing]
    return _Window(
        standing=standing,
        rate=rate,
        samples=effective(weight_of_each),
        verdicts=sum(witness.verdicts for witness in inside),
        witnesses=tuple(agreeing),
    )


def _standing(rate: float) -> Standing | None:
    rate = round(rate, 6)
    if rate < WEAK_BELOW:
        return "weak"
    if rate >= STRONG_FROM:
        return "strong"
    return None


def progress(user_id: str, sessions: Sequence[SessionVerdicts]) -> Iterator[Item]:
    """Yield the level in each subject, 0 to 1: an exponentially weighted mean.

    A session has the weight of its verdicts (``weights``), halved for each 30 days that
    it is older than the newest: exponential smoothing for irregular times, as in D. J.
    Wright, Forecasting Data Published at Irregular Time Intervals Using an Extension of
    Holt's Method, Management Science 32 (1986), 499-510.
    """
    for subject, (witnesses, tainted) in support(sessions, _subjects_of):
        last_at = max(witness.last_at for witness in witnesses)
        bounded = weights([witness.verdicts for witness in witnesses])
        weight_of_each: list[float] = []
        for weight, witness in zip(bounded, witnesses, strict=True):
            age = (last_at - witness.last_at) / HALF_LIFE
            weight_of_each.append(weight * 0.5**age)
        level = mean([witness.rate for witness in witnesses], weight_of_each)
        verdicts = sum(witness.verdicts for witness in witnesses)
        claim = Claim(
            kind="progress",
            about={"subject": subject},
            figures=numbers(level=level, verdicts=verdicts),
            # The statement is the level itself, so every sample supports it.
            rate=1.0,
            samples=effective(weight_of_each),
        )
        yield item_of(user_id, claim, witnesses, tainted=tainted)


def _subjects_of(session: SessionVerdicts) -> Iterator[tuple[str, Witness]]:
    by_subject: dict[str, list[Tally]] = defaultdict(list)
    for tally in session.tallies:
        if tally.subject:
            by_subject[tally.subject].append(tally)
    for subject, tallies in by_subject.items():
        yield subject, Witness.of(session, tallies)


def _preference_items(user_id: str, stated: Mapping[str, Stated]) -> Iterator[Item]:
    """Yield the user's own statements, which need no further evidence."""
    for key, (value, seq, at) in sorted(stated.items()):
        claim = Claim("preference", {"key": key, "value": value}, {}, 1.0, 1.0)
        witness = Witness(SessionVerdicts(USER_SESSION, seq), (seq,), at, at)
        yield replace(item_of(user_id, claim, [witness]), confidence=1.0, against=0.0)


def lines(profile: Profile, now: int) -> list[Line]:
    """Return the profile as lines of advice, the most useful section first.

    A section has at most ``MOST`` lines.  Items that too few sessions show, stale
    items, and items expired at ``now`` are left out.  A mistake is a single event: it
    is shown only as an example of an error type or weak topic that is shown, and with
    that item's confidence.  A preference is the user's own statement and is always
    shown.
    """
    items = [item for item in profile.items if item.expires_at > now]
    established = [item for item in items if item.established]
    sections: list[Iterable[Line]] = [
        _lines("Preference", of_kind(items, "preference")),
        _lines("Weak topic", of_kind(established, "topic", standing="weak")),
        _lines("Common error type", of_kind(established, "error")),
        _area_lines(profile.improvement_areas, established),
        _lines("Learning progress", of_kind(established, "progress")),
        _lines("Strong topic", of_kind(established, "topic", standing="strong")),
        _mistake_lines(established, of_kind(items, "mistake")),
    ]
    limited: list[Line] = []
    for section in sections:
        limited += islice(section, MOST)
    return limited


def _lines(section: str, items: Iterable[Item]) -> Iterator[Line]:
    for item in items:
        yield _line(f"{section}: {describe(item)}", [item], item.confidence)


def _area_lines(areas: Iterable[Area], established: Iterable[Item]) -> Iterator[Line]:
    by_id = {item.memory_id: item for item in established}
    for area in areas:
        if by_id.keys() >= set(area.because):
            because = [by_id[memory_id] for memory_id in area.because]
            confidence = max(item.confidence for item in because)
            yield _line(f"Improvement area: {area.name}", because, confidence)


def _mistake_lines(
    established: Sequence[Item], mistakes: Iterable[Item]
) -> Iterator[Line]:
    for mistake, confidence in _examples(established, mistakes):
        yield _line(f"Recent mistake: {describe(mistake)}", [mistake], confidence)


def _line(text: str, because: Sequence[Item], confidence: float) -> Line:
    """Return a line that cites its items, the first of which identifies the line."""
    citations = ", ".join(citation(item) for item in because)
    sessions: list[str] = []
    for item in because:
        sessions += [evidence.session_id for evidence in cited_evidence(item)]
    return Line(f"- {text}; {citations}", because[0].memory_id, confidence, sessions)


def why_not(profile: Profile, item: Item, *, now: int, threshold: float) -> list[str]:
    """Return the reasons that a model is not shown an item; an empty list if it is."""
    shown = [line for line in lines(profile, now) if line.memory_id == item.memory_id]
    if shown:
        confidence = max(line.confidence for line in shown)
        if confidence >= threshold:
            return []
        return [f"below the threshold: {confidence:.2f} of {threshold:.2f}"]
    reasons: list[str] = []
    if item.kind not in ("preference", "mistake") and not item.established:
        if item.tainted:
            sessions = counted(item.tainted_sessions, "session")
            reasons.append(f"tainted: {sessions} cannot count for it")
        if item.stale:
            reasons.append("stale: newer sessions say the contrary")
        if item.sessions < INDEPENDENT and not item.tainted:
            reasons.append("too few sessions show it")
    if item.kind == "mistake" and not _examples(profile.items, [item]):
        reasons.append("no example of an error or topic that a model is shown")
    return reasons or [f"behind the first {MOST} of its kind"]


def describe(item: Item) -> str:
    """Describe an item of declarative memory in names and numbers."""
    content: dict[str, Any] = dict(item.content)
    match item.kind:
        case "error":
            return (
                f"{content['error']}, {content['count']}× in {item.sessions} sessions"
            )
        case "topic":
            right = f"{content['rate']:.0%} right over {content['verdicts']} items"
            return f"{topic_name(content)}, {right}"
        case "progress":
            return f"{content['subject']} {content['level']:.0%}"
        case "mistake":
            date = timestamp(item.updated_at)[:10]
            topic = topic_name(content)
            parts = (date, content["item_id"], topic, content["error"])
            return " ".join(part for part in parts if part)
    value = content["value"]
    text = str(value).lower() if isinstance(value, bool) else value
    return f"{content['key']} = {text}"


def topic_name(content: dict[str, Any]) -> str:
    """Name the topic, with its subject if it has one; else only the subject."""
    topic = content["topic"]
    subject = content["subject"]
    if topic and subject:
        return f"{topic} ({subject})"
    name: str = topic or subject
    return name


def _examples(
    items: Sequence[Item], mistakes: Iterable[Item]
) -> list[tuple[Item, float]]:
    """Return the mistakes that exemplify an established error type or weak topic.

    Each comes with the confidence of the error type or topic, the higher of the two.
    """
    established = [item for item in items if item.established]
    common_errors = {
        item.content["error"]: item.confidence for item in of_kind(established, "error")
    }
    weak_topics = {
        (item.content["subject"], item.content["topic"]): item.confidence
        for item in of_kind(established, "topic", standing="weak")
    }
    examples: list[tuple[Item, float]] = []
    for mistake in mistakes:
        content = mistake.content
        confidences: list[float] = []
        if content["error"] in common_errors:
            confidences.append(common_errors[content["error"]])
        topic = (content["subject"], content["topic"])
        if topic in weak_topics:
            confidences.append(weak_topics[topic])
        if confidences:
            examples.append((mistake, max(confidences)))
    return examples
