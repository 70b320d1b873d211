"""The profile of a user: what their sessions' verdicts show, and what they prefer.

Only for who consented, and never a text: names of subjects, topics and error types,
numbers, times, and where it is seen.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from statistics import median
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

from refold.domain.canonical import canonical
from refold.domain.erasure import timestamp
from refold.domain.errors import counted
from refold.domain.events import JsonObject
from refold.domain.ids import USER_SESSION
from refold.domain.model import quiet
from refold.domain.preferences import Preference
from refold.projections.memory.advice import Line, cited, shown
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
    EXTRACTOR,
    Judged,
    Names,
    Tally,
    named,
    names,
    newest,
)

Thing = TypeVar("Thing", str, tuple[str, str])
Standing: TypeAlias = Literal["weak", "strong"]
Items: TypeAlias = Sequence[Item]
Judgeds: TypeAlias = Sequence[Judged]
Levels: TypeAlias = dict[str, dict[str, dict[str, int]]]

# Of all sessions, the newest mistakes.
RECENT: Final = 20
# The newest sessions with the topic, none older than an item of a topic lasts.
WINDOW: Final = 10
# A usual pass mark, and the least that learning for mastery asks for (B. S. Bloom,
# Learning for Mastery, Evaluation Comment 1 (2), 1968: 80 to 90 %).
WEAK_BELOW: Final = 0.6
STRONG_FROM: Final = 0.8
# What is so much older counts half: of a term's work the last month counts most, and
# no single day decides.
HALF_LIFE: Final = 30 * 86_400_000_000
# A session weighs at most as much as two others: of three, which are the fewest that
# may say anything, none then has more than half of the weight.
_OTHERS: Final = 2
# Of each section, the surest; of mistakes, the newest.
MOST: Final = 5
_ORDER: Final = ("error", "topic", "progress", "mistake", "preference")


class Area(NamedTuple):
    """Something to improve, and the items because of which."""

    name: str
    because: tuple[str, ...]


class Stated(NamedTuple):
    """A preference, and the event of the user's own that states it."""

    value: Preference
    seq: int
    at: int


@quiet
@dataclass(frozen=True, slots=True)
class Profile:
    """What is known of a user who consented; all empty of others.

    Only what enough independent sessions show is in these fields, but for what is
    counted (``error_frequency``, ``levels``), the mistakes, which are single events,
    and the preferences, which are the user's own word.

    learning_progress: by subject, 0 to 1.
    levels:            subject, topic, error type, how often; of sessions that may
                       speak, as long as an item of a topic lasts.
    improvement_areas: each with the items that it follows from.
    sessions:          those with verdicts; ``tainted_sessions`` of them do not count.
    items:             all of it as items, by kind, the surest first; stale ones too.
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
        """All of it, with evidence."""
        shown: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        for name in ("common_error_types", "weak_topics", "strong_topics"):
            shown[name] = list(shown[name])
        mistakes = ((one, timestamp(one.updated_at)) for one in self.recent_mistakes)
        shown["recent_mistakes"] = [
            {"memory_id": one.memory_id, "timestamp": at, **one.content}
            for one, at in mistakes
        ]
        areas = self.improvement_areas
        shown["improvement_areas"] = [{"name": n, "because": [*w]} for n, w in areas]
        return {**shown, "items": [one.to_json() for one in self.items]}


def profile(
    user_id: str,
    judgeds: Iterable[Judged],
    preferences: Mapping[str, Stated] | None = None,
    *,
    now: int,
    taxonomy: Taxonomy | None = None,
    forgotten: Iterable[str] = (),
) -> Profile:
    """What these sessions and preferences make together, at ``now``.

    It depends on nothing else: not on their order, nor on whether one came twice.  What
    has expired is left out, and a mistake that is older than 30 days.

    now:       in microseconds since 1970.
    taxonomy:  None is the packaged one.
    forgotten: ids of items that the user wants gone.
    """
    last: dict[str, Judged] = {}  # each session once, as it was seen last
    for one in judgeds:
        known = last.get(one.session_id)
        if known is None or _seen(known) < _seen(one):
            last[one.session_id] = one
    taxonomy = taxonomy or packaged()
    sessions = [last[name] for name in sorted(last) if last[name].tallies]
    called = names(sessions, taxonomy)
    gone = _gone(called, frozenset(forgotten))
    errors_now = called.errors.values()
    hidden = frozenset(e for e in errors_now if id_of("error", {"error": e}) in gone)
    sessions = [named(one, called, without=hidden) for one in sessions]
    found = [
        *errors(user_id, sessions, taxonomy),
        *topics(user_id, sessions),
        *progress(user_id, sessions),
        *mistakes(user_id, sessions),
        *_preferred(user_id, preferences or {}),
    ]
    items = [o for o in found if o.expires_at > now and o.memory_id not in gone]
    items.sort(key=_rank)
    sure = [one for one in items if one.established]
    weak = of_kind(sure, "topic", standing="weak")
    strong = of_kind(sure, "topic", standing="strong")
    return Profile(
        user_id,
        common_error_types=tuple(_by(of_kind(sure, "error"), "error", "count")),
        error_frequency=_by(of_kind(items, "error"), "error", "count"),
        weak_topics=tuple(_by(weak, "topic", "standing")),
        strong_topics=tuple(_by(strong, "topic", "standing")),
        learning_progress=_by(of_kind(sure, "progress"), "subject", "level"),
        recent_mistakes=tuple(of_kind(items, "mistake")),
        improvement_areas=tuple(areas(sure, sessions, taxonomy)),
        preferences=_by(of_kind(items, "preference"), "key", "value"),
        levels=levels(items, sessions, now),
        sessions=len(sessions),
        tainted_sessions=len(sessions) - len(clean(sessions)),
        items=tuple(items),
    )


def _seen(one: Judged) -> tuple[int, bytes]:
    return one.upto_seq, canonical(one.dump())


def _rank(one: Item) -> tuple[Any, ...]:
    newest = -one.updated_at if one.kind == "mistake" else 0
    weight: Any = one.content.get("weight", 0)
    place = _ORDER.index(one.kind)
    return place, newest, -weight, -one.confidence, one.memory_id


def _by(items: Iterable[Item], name: str, value: str) -> dict[str, Any]:
    return {str(one.content[name]): one.content[value] for one in items}


def of_kind(items: Iterable[Item], kind: Declarative, **content: Any) -> Iterator[Item]:
    """Those of a kind, in whose content these stand."""
    for one in items:
        if one.kind == kind and content.items() <= one.content.items():
            yield one


def areas(sure: Items, sessions: Judgeds, taxonomy: Taxonomy) -> Iterator[Area]:
    """What to improve: each weak topic, by what helps against the surest error in it.

    Then the common errors that are not in any of them.
    """
    common = list(of_kind(sure, "error"))
    made: dict[tuple[str, str], set[str]] = defaultdict(set)  # which errors, in what
    for judged in clean(sessions):
        for tally in judged.tallies:
            made[tally.subject, tally.topic].update(e for e, _, _ in tally.errors)
    done = set[str]()
    for weak in of_kind(sure, "topic", standing="weak"):
        here = made[str(weak.content["subject"]), str(weak.content["topic"])]
        found = [one for one in common if one.content["error"] in here]
        done |= {one.memory_id for one in found}
        surest = sorted(found, key=lambda one: (-one.confidence, one.memory_id))[:1]
        advice = taxonomy.advice_on(str(surest[0].content["error"]) if surest else "")
        because = (weak.memory_id, *(one.memory_id for one in surest))
        yield Area(f"{advice}_{weak.content['topic']}", because)
    for one in common:
        if one.memory_id not in done:
            error = str(one.content["error"])
            yield Area(f"{taxonomy.advice_on(error)}_{error}", (one.memory_id,))


def levels(items: Items, sessions: Judgeds, now: int) -> Levels:
    """Subject, topic, error type: how often, in what has not expired."""
    known = {one.content["error"] for one in of_kind(items, "error")}
    found: Levels = {}
    for judged in clean(sessions):
        for tally in judged.tallies:
            if tally.last_at + lasting("topic") <= now:
                continue
            topic = found.setdefault(tally.subject, {}).setdefault(tally.topic, {})
            for error, count, _ in tally.errors:
                if error in known:
                    topic[error] = topic.get(error, 0) + count
    return found


def _gone(called: Names, forgotten: frozenset[str]) -> frozenset[str]:
    """The ids that what is forgotten has now, as labels that are alike go together.

    Which of them an item goes by depends on which was used most.
    """
    if not forgotten:
        return forgotten
    same: list[tuple[Declarative, JsonObject, JsonObject]] = []
    for label, head in called.errors.items():
        same.append(("error", {"error": label}, {"error": head}))
    labels: dict[str, list[str]] = defaultdict(list)
    for label, head in called.subjects.items():
        labels[head].append(label)
        same.append(("progress", {"subject": label}, {"subject": head}))
    for (subject, label), head in called.topics.items():
        for other in labels.get(subject, [subject]):
            for which in ("weak", "strong"):
                now = _about_topic(subject, head, which)
                same.append(("topic", _about_topic(other, label, which), now))
    gone = (one for one in same if id_of(*one[:2]) in forgotten)
    return forgotten.union(id_of(kind, now) for kind, _, now in gone)


@dataclass(frozen=True, slots=True)
class Witness:
    """A session that shows something: where, how often, and how much of it is right."""

    judged: Judged
    seqs: tuple[int, ...]
    first_at: int
    last_at: int
    verdicts: int = 1
    rate: float = 1.0

    @classmethod
    def of(cls, judged: Judged, tallies: Sequence[Tally]) -> Witness:
        """What the session says of a topic, or of all the topics of a subject."""
        verdicts = sum(one.verdicts for one in tallies)
        return cls(
            judged,
            newest(seq for one in tallies for seq in one.seqs),
            min(one.first_at for one in tallies),
            max(one.last_at for one in tallies),
            verdicts,
            sum(one.credit for one in tallies) / verdicts,
        )


@dataclass(frozen=True, slots=True)
class Claim:
    """What an item says, and how surely.

    about:   what it is about, which makes its id: names.
    told:    what is known of that, which may change: numbers.
    rate:    how far it holds, 0 to 1, over ``samples`` sessions' worth.
    """

    kind: Declarative
    about: JsonObject
    told: JsonObject
    rate: float
    samples: float


def item(
    user_id: str,
    claim: Claim,
    shows: Iterable[Witness],
    *,
    tainted: int = 0,
    stale: bool = False,
) -> Item:
    """The item of a claim.  ``shows`` are sessions that may speak, at least one.

    tainted: how many others show it too, and must not speak.
    """
    shows = in_time(shows)
    latest = shows[-EVIDENCE:]
    sure = lower_bound(claim.rate * claim.samples, claim.samples)
    against = lower_bound((1 - claim.rate) * claim.samples, claim.samples)
    return Item(
        memory_id=id_of(claim.kind, claim.about),
        user_id=user_id,
        kind=claim.kind,
        scenario=GENERAL,
        content={**claim.about, **claim.told},
        sessions=len(shows),
        tainted_sessions=tainted,
        success=None,
        confidence=round(sure, 6),
        against=round(against, 6),
        evidence=tuple(Evidence(o.judged.session_id, newest(o.seqs)) for o in latest),
        created_at=min(one.first_at for one in shows),
        updated_at=shows[-1].last_at,
        models=tuple(sorted({model for one in shows for model in one.judged.models})),
        stale=stale,
        extractor=EXTRACTOR,
    )


def id_of(kind: Declarative, about: JsonObject) -> str:
    """The id of the item that is about this, whatever the numbers in it."""
    return memory_id(kind, GENERAL, about)


def _about_topic(subject: str, topic: str, standing: str) -> JsonObject:
    return {"subject": subject, "topic": topic, "standing": standing}


def clean(judgeds: Iterable[Judged]) -> list[Judged]:
    """Those that may speak."""
    return [one for one in judgeds if not one.taints]


def in_time(shows: Iterable[Witness]) -> list[Witness]:
    """The oldest first; of one moment, by name."""
    return sorted(shows, key=lambda one: (one.last_at, one.judged.session_id))


def numbers(**told: float) -> JsonObject:
    """Numbers of an item, short enough to be read and to be the same anywhere."""
    return {k: round(n, 4) if isinstance(n, float) else n for k, n in told.items()}


def weights(counts: Sequence[int]) -> list[float]:
    """What each session weighs, given how many verdicts of each there are.

    As many as it has, but at most twice the median of the other sessions'; one session
    by itself weighs 1.
    """
    if len(counts) == 1:
        return [1.0]
    ordered = sorted(counts)
    places = {count: place for place, count in enumerate(ordered)}
    rest = {n: median(ordered[:at] + ordered[at + 1 :]) for n, at in places.items()}
    return [float(min(count, _OTHERS * rest[count])) for count in counts]


def mean(values: Sequence[float], weighed: Sequence[float]) -> float:
    """The weighted mean; 0 of nothing."""
    whole = sum(weighed)
    pairs = zip(values, weighed, strict=True)
    return sum(value * weight for value, weight in pairs) / whole if whole else 0.0


def effective(weighed: Sequence[float]) -> float:
    """How many sessions of equal weight would say it as surely; 0 of nothing.

    L. Kish, Survey Sampling (Wiley, 1965): the square of the sum by the sum of squares.
    """
    squares = sum(weight * weight for weight in weighed)
    return sum(weighed) ** 2 / squares if squares else 0.0


def witnesses(
    judgeds: Iterable[Judged],
    shown_by: Callable[[Judged], Iterable[tuple[Thing, Witness]]],
) -> Iterator[tuple[Thing, list[Witness], int]]:
    """In order, each thing, who shows it and may speak, and how many others do."""
    found: dict[Thing, list[Witness]] = defaultdict(list)
    tainted: Counter[Thing] = Counter()
    for judged in judgeds:
        for thing, witness in shown_by(judged):
            if judged.taints:
                tainted[thing] += 1
            else:
                found[thing].append(witness)
    for thing, some in sorted(found.items()):
        yield thing, some, tainted[thing]


def errors(user_id: str, judgeds: Judgeds, taxonomy: Taxonomy) -> Iterator[Item]:
    """Each type of error, sure as far as judged sessions show it.

    ``count`` is how often it was made, ``weight`` the same with no session outvoting
    the others.
    """
    sessions = sum(bool(one.tallies) for one in clean(judgeds))
    for error, some, tainted in witnesses(judgeds, _errors_of):
        counts = [one.verdicts for one in some]
        told: JsonObject = {"category": taxonomy.category_of(error)}
        told |= numbers(count=sum(counts), weight=sum(weights(counts)))
        rate = len(some) / sessions
        claim = Claim("error", {"error": error}, told, rate, sessions)
        yield item(user_id, claim, some, tainted=tainted)


def _errors_of(judged: Judged) -> Iterator[tuple[str, Witness]]:
    made: dict[str, list[tuple[Tally, int, tuple[int, ...]]]] = defaultdict(list)
    for tally in judged.tallies:
        for error, count, seqs in tally.errors:
            made[error].append((tally, count, seqs))
    for error, some in made.items():
        first, last = (
            min(o.first_at for o, *_ in some),
            max(o.last_at for o, *_ in some),
        )
        seqs = tuple(seq for _, _, found in some for seq in found)
        yield error, Witness(judged, seqs, first, last, sum(n for _, n, _ in some))


def mistakes(user_id: str, judgeds: Judgeds) -> Iterator[Item]:
    """The newest mistakes, the newest first; none of a session that may not speak.

    An item says where it is, and of which kind: not what was asked, nor answered.
    """
    found = [(judged, one) for judged in clean(judgeds) for one in judged.mistakes]
    found.sort(key=lambda it: (-it[1].at, it[0].session_id, -it[1].seq, -it[1].nr))
    for judged, one in found[:RECENT]:
        seq, nr, item_id, error, subject, topic, at = one
        place: JsonObject = {"session_id": judged.session_id, "seq": seq, "nr": nr}
        kind: JsonObject = {"item_id": item_id, "error": error}
        kind |= {"subject": subject, "topic": topic}
        claim = Claim("mistake", place, kind, 1.0, 1.0)
        yield item(user_id, claim, [Witness(judged, (seq,), at, at)])


class _Window(NamedTuple):
    standing: Standing | None
    rate: float
    samples: float
    verdicts: int
    shows: tuple[Witness, ...]


def topics(user_id: str, judgeds: Judgeds) -> Iterator[Item]:
    """Weak and strong topics, and what was said of them before and is not so now."""
    for (subject, topic), some, tainted in witnesses(judgeds, _topics_of):
        for standing, window, stale in _claimed(in_time(some)):
            about = _about_topic(subject, topic, standing)
            told = numbers(rate=window.rate, verdicts=window.verdicts)
            holds = window.rate if standing == "strong" else 1 - window.rate
            claim = Claim("topic", about, told, holds, window.samples)
            yield item(user_id, claim, window.shows, tainted=tainted, stale=stale)


def _topics_of(judged: Judged) -> Iterator[tuple[tuple[str, str], Witness]]:
    for tally in judged.tallies:
        if tally.topic:
            yield (tally.subject, tally.topic), Witness.of(judged, [tally])


def _claimed(seen: Sequence[Witness]) -> Iterator[tuple[Standing, _Window, bool]]:
    """What the newest window says, and the last that said otherwise: that is stale.

    Of what was said before only what enough sessions showed is kept.
    """
    now = _window(seen)
    if now.standing is not None:
        yield now.standing, now, False
    said: set[Standing | None] = {now.standing}
    oldest = seen[-1].last_at - lasting("topic")
    for end in range(len(seen) - 1, 0, -1):
        if seen[end - 1].last_at <= oldest:
            return  # what was said then has expired
        before = _window(seen[max(0, end - WINDOW) : end])
        standing = before.standing
        if standing is None or standing in said or len(before.shows) < INDEPENDENT:
            continue
        said.add(standing)
        yield standing, before, True


def _window(seen: Sequence[Witness]) -> _Window:
    """The window that ends with the last of these sessions."""
    oldest = seen[-1].last_at - lasting("topic")
    some = [one for one in seen[-WINDOW:] if one.last_at > oldest]
    weighed = weights([one.verdicts for one in some])
    rate = mean([one.rate for one in some], weighed)
    standing = _standing(rate)
    shows = tuple(one for one in some if _standing(one.rate) == standing)
    verdicts = sum(one.verdicts for one in some)
    return _Window(standing, rate, effective(weighed), verdicts, shows)


def _standing(rate: float) -> Standing | None:
    rate = round(rate, 6)
    if rate < WEAK_BELOW:
        return "weak"
    return "strong" if rate >= STRONG_FROM else None


def progress(user_id: str, judgeds: Judgeds) -> Iterator[Item]:
    """The level in each subject, 0 to 1: the mean of sessions, exponentially weighed.

    A session's weight is that of its verdicts (``weights``), halved with each 30 days
    that it is older than the newest: exponential smoothing for times that are not
    regular, as in D. J. Wright, Forecasting Data Published at Irregular Time Intervals
    Using an Extension of Holt's Method, Management Science 32 (1986), 499-510.
    """
    for subject, some, tainted in witnesses(judgeds, _subjects_of):
        last = max(one.last_at for one in some)
        capped = weights([one.verdicts for one in some])
        ages = ((last - one.last_at) / HALF_LIFE for one in some)
        weighed = [w * 0.5**age for w, age in zip(capped, ages, strict=True)]
        level = mean([one.rate for one in some], weighed)
        told = numbers(level=level, verdicts=sum(one.verdicts for one in some))
        samples = effective(weighed)
        # It claims what the level is, not that it is high: as sure as its witnesses.
        claim = Claim("progress", {"subject": subject}, told, 1.0, samples)
        yield item(user_id, claim, some, tainted=tainted)


def _subjects_of(judged: Judged) -> Iterator[tuple[str, Witness]]:
    by_subject: dict[str, list[Tally]] = defaultdict(list)
    for tally in judged.tallies:
        by_subject[tally.subject].append(tally)
    by_subject.pop("", None)
    for subject, tallies in by_subject.items():
        yield subject, Witness.of(judged, tallies)


def _preferred(user_id: str, stated: Mapping[str, Stated]) -> Iterator[Item]:
    """The user's own word, which needs no witnesses."""
    for key, (value, seq, at) in sorted(stated.items()):
        claim = Claim("preference", {"key": key, "value": value}, {}, 1.0, 1.0)
        said = Witness(Judged(USER_SESSION, seq), (seq,), at, at)
        yield replace(item(user_id, claim, [said]), confidence=1.0, against=0.0)


def lines(profile: Profile, now: int) -> list[Line]:
    """The profile as advice, the most useful first, at most ``MOST`` lines a section.

    Nothing that too few sessions show, that is stale, or that has expired at ``now``.
    A mistake is one event: it is said only as an example of an error type or of a weak
    topic that may be said, and as surely.  A preference is the user's own word and
    needs no witnesses.
    """
    items = [one for one in profile.items if one.expires_at > now]
    sure = [one for one in items if one.established]
    known = {one.memory_id: one for one in sure}
    areas = (
        (f"Improvement area: {area.name}", [known[name] for name in area.because])
        for area in profile.improvement_areas
        if known.keys() >= {*area.because}
    )
    mistakes = _as_examples(sure, of_kind(items, "mistake"))
    sections: list[Iterable[Line]] = [
        _said("Preference", of_kind(items, "preference")),
        _said("Weak topic", of_kind(sure, "topic", standing="weak")),
        _said("Common error type", of_kind(sure, "error")),
        (_line(said, of, max(one.confidence for one in of)) for said, of in areas),
        _said("Learning progress", of_kind(sure, "progress")),
        _said("Strong topic", of_kind(sure, "topic", standing="strong")),
        (_line(f"Recent mistake: {told(one)}", [one], sure) for one, sure in mistakes),
    ]
    return [line for section in sections for line in islice(section, MOST)]


def why_not(profile: Profile, item: Item, *, now: int, threshold: float) -> list[str]:
    """Why an item of the profile is not said to a model; nothing if it may be."""
    found = [one for one in lines(profile, now) if one.memory_id == item.memory_id]
    if found:
        sure = max(line.sure for line in found)
        low = f"below the threshold: {sure:.2f} of {threshold:.2f}"
        return [low] if sure < threshold else []
    reasons = []
    if item.kind not in ("preference", "mistake") and not item.established:
        if item.tainted:
            few = counted(item.tainted_sessions, "session")
            reasons.append(f"tainted: {few} cannot count for it")
        if item.stale:
            reasons.append("stale: newer sessions say the contrary")
        if item.sessions < INDEPENDENT and not item.tainted:
            reasons.append("too few sessions show it")
    if item.kind == "mistake" and not _as_examples(profile.items, [item]):
        reasons.append("no example of an error or topic that a model is told")
    return reasons or [f"behind the first {MOST} of its kind"]


def _said(section: str, items: Iterable[Item]) -> Iterator[Line]:
    return (_line(f"{section}: {told(one)}", [one], one.confidence) for one in items)


def _line(text: str, because: Items, sure: float) -> Line:
    """A line that names what it comes from; it goes by the first of that."""
    named = ", ".join(cited(one) for one in because)
    sessions = [place.session_id for one in because for place in shown(one)]
    return Line(f"- {text}; {named}", because[0].memory_id, sure, sessions)


def told(item: Item) -> str:
    """What an item of declarative memory says, in names and numbers."""
    content: dict[str, Any] = dict(item.content)
    match item.kind:
        case "error":
            often = f"{content['count']}× in {item.sessions} sessions"
            return f"{content['error']}, {often}"
        case "topic":
            items = f"over {content['verdicts']} items"
            return f"{place(content)}, {content['rate']:.0%} right {items}"
        case "progress":
            return f"{content['subject']} {content['level']:.0%}"
        case "mistake":
            about = (content["item_id"], place(content), content["error"])
            return " ".join((timestamp(item.updated_at)[:10], *filter(None, about)))
    value = content["value"]
    shown = str(value).lower() if isinstance(value, bool) else value
    return f"{content['key']} = {shown}"


def place(content: dict[str, Any]) -> str:
    """The topic, and its subject if it has one."""
    topic, subject = content["topic"], content["subject"]
    return f"{topic} ({subject})" if topic and subject else topic or subject


def _as_examples(items: Items, mistakes: Iterable[Item]) -> list[tuple[Item, float]]:
    """Mistakes of an error type or in a weak topic that may be said, and how surely."""
    sure = [one for one in items if one.established]
    known = {one.content["error"]: one.confidence for one in of_kind(sure, "error")}
    topics = of_kind(sure, "topic", standing="weak")
    weak: dict[Any, float] = {_where(one): one.confidence for one in topics}
    of = ((o, known.get(o.content["error"]), weak.get(_where(o))) for o in mistakes)
    some = ((one, [n for n in ways if n is not None]) for one, *ways in of)
    return [(one, max(ways)) for one, ways in some if ways]


def _where(item: Item) -> tuple[Any, Any]:
    return item.content["subject"], item.content["topic"]
