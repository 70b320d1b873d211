"""The profile of a user: what their sessions' verdicts show, and what they prefer."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

from refold.domain.canonical import canonical
from refold.domain.certificate import timestamp
from refold.domain.events import JsonObject
from refold.domain.ids import USER_SESSION
from refold.domain.preferences import Preference
from refold.projections.memory.declared.claiming import (
    Claim,
    Witness,
    about_error,
    about_subject,
    about_topic,
    clean,
    id_of,
    item,
)
from refold.projections.memory.declared.drawing import (
    Area,
    areas,
    levels,
    of_kind,
    topics_of,
)
from refold.projections.memory.declared.errors import errors, mistakes
from refold.projections.memory.declared.judged import Judged
from refold.projections.memory.declared.naming import Names, named, names
from refold.projections.memory.declared.progress import progress
from refold.projections.memory.declared.taxonomy import Taxonomy, packaged
from refold.projections.memory.declared.topics import topics
from refold.projections.memory.item import Item


class Stated(NamedTuple):
    """A preference, and the event of the user's own that states it."""

    value: Preference
    seq: int
    at: int


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
        shown: dict[str, Any] = {
            name: getattr(self, name) for name in self.__slots__ if name != "items"
        }
        for name in ("common_error_types", "weak_topics", "strong_topics"):
            shown[name] = list(shown[name])
        shown["recent_mistakes"] = [_mistake(one) for one in self.recent_mistakes]
        shown["improvement_areas"] = [
            {"name": one.name, "because": list(one.because)}
            for one in self.improvement_areas
        ]
        shown["items"] = [one.to_json() for one in self.items]
        return shown


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
    taxonomy, gone = taxonomy or packaged(), frozenset(forgotten)
    sessions = _once(judgeds)
    called = names(sessions, taxonomy)
    hidden = frozenset(
        e for e in called.labels_of_error if _error_ids(called, e) & gone
    )
    sessions = [named(one, called, without=hidden) for one in sessions]
    found = [
        *errors(user_id, sessions, taxonomy),
        *topics(user_id, sessions),
        *progress(user_id, sessions),
        *mistakes(user_id, sessions),
        *_preferred(user_id, preferences or {}),
    ]
    items = [
        one
        for one in found
        if one.expires_at > now and not (gone and _ids(called, one) & gone)
    ]
    return _profile(user_id, sessions, sorted(items, key=_rank), taxonomy, now)


def _once(judgeds: Iterable[Judged]) -> list[Judged]:
    """Each session once, as it was seen last, by name; those without verdicts not."""
    last: dict[str, Judged] = {}
    for one in judgeds:
        known = last.get(one.session_id)
        if known is None or _seen(known) < _seen(one):
            last[one.session_id] = one
    return [last[name] for name in sorted(last) if last[name].tallies]


def _seen(one: Judged) -> tuple[int, bytes]:
    return one.upto_seq, canonical(one.dump())


_ORDER: Final = ("error", "topic", "progress", "mistake", "preference")


def _rank(one: Item) -> tuple[Any, ...]:
    newest = -one.updated_at if one.kind == "mistake" else 0
    weight = one.content.get("weight", 0)
    place = _ORDER.index(one.kind)
    return place, newest, -weight, -one.confidence, one.memory_id  # type: ignore[operator]  # a number


def _preferred(user_id: str, stated: Mapping[str, Stated]) -> Iterator[Item]:
    """The user's own word, which needs no witnesses."""
    for key, (value, seq, at) in sorted(stated.items()):
        claim = Claim("preference", {"key": key, "value": value}, {}, 1.0, 1.0)
        said = Witness(Judged(USER_SESSION, seq), (seq,), at, at)
        yield replace(item(user_id, claim, [said]), confidence=1.0, against=0.0)


def _error_ids(called: Names, error: str) -> set[str]:
    labels = (error, *called.labels_of_error.get(error, ()))
    return {id_of("error", about_error(label)) for label in labels}


def _ids(called: Names, one: Item) -> set[str]:
    """The ids that an item has had or may have, as labels that are alike go together.

    Which of them it goes by depends on which was used most.
    """
    content: dict[str, Any] = dict(one.content)
    ids = {one.memory_id}
    if one.kind == "error":
        return ids | _error_ids(called, content["error"])
    if one.kind not in ("progress", "topic"):
        return ids
    subject = content["subject"]
    subjects = (subject, *called.labels_of_subject.get(subject, ()))
    if one.kind == "progress":
        return ids | {id_of("progress", about_subject(s)) for s in subjects}
    topic, standing = content["topic"], content["standing"]
    topics = (topic, *called.labels_of_topic.get((subject, topic), ()))
    return ids | {
        id_of("topic", about_topic(s, t, standing)) for s in subjects for t in topics
    }


def _profile(
    user_id: str,
    sessions: Sequence[Judged],
    items: Sequence[Item],
    taxonomy: Taxonomy,
    now: int,
) -> Profile:
    common = [one for one in of_kind(items, "error") if one.established]
    return Profile(
        user_id,
        common_error_types=tuple(str(one.content["error"]) for one in common),
        error_frequency=_by(of_kind(items, "error"), "error", "count"),
        weak_topics=topics_of(items, "weak"),
        strong_topics=topics_of(items, "strong"),
        learning_progress=_by(
            (one for one in of_kind(items, "progress") if one.established),
            "subject",
            "level",
        ),
        recent_mistakes=tuple(of_kind(items, "mistake")),
        improvement_areas=tuple(areas(items, sessions, taxonomy)),
        preferences=_by(of_kind(items, "preference"), "key", "value"),
        levels=levels(items, sessions, now),
        sessions=len(sessions),
        tainted_sessions=len(sessions) - len(clean(sessions)),
        items=tuple(items),
    )


def _by(items: Iterable[Item], name: str, value: str) -> dict[str, Any]:
    return {str(one.content[name]): one.content[value] for one in items}


def _mistake(one: Item) -> JsonObject:
    return {
        "memory_id": one.memory_id,
        "timestamp": timestamp(one.updated_at),
        **one.content,
    }
