"""Memory as a tool: how a model asks for what sessions showed, and what it is told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

import orjson

from refold.domain.canonical import canonical
from refold.domain.events import JsonObject
from refold.domain.model import quiet
from refold.domain.tokens import estimate_text
from refold.projections.memory import advice
from refold.projections.memory.items import Evidence, Item, Kind, Procedural
from refold.projections.memory.labels import name_of
from refold.projections.memory.sessions import GENERAL, RETRIEVAL

NAME: Final = RETRIEVAL
QueryType: TypeAlias = Literal["errors", "topics", "tool_paths", "all"]

_QUERIES: Final[tuple[str, ...]] = get_args(QueryType)
_KINDS: Final[Mapping[str, frozenset[Kind]]] = {
    "errors": frozenset({"failure", "recovery", "error", "mistake"}),
    "topics": frozenset({"topic", "progress"}),
    "tool_paths": frozenset({"path", "check", "effort"}),
}
_FIELDS: Final = {"user_id", "query_type", "subject_filter"}
_NO_LIMIT: Final = 1 << 60
_FILES: Final = files("refold.projections.memory")
_DEFINITION: Final = (_FILES / "tool.json").read_bytes()
# What the text of a result holds.
_SCHEMA: Final = (_FILES / "answer.schema.json").read_bytes()
OUTPUT_SCHEMA: Final[JsonObject] = orjson.loads(_SCHEMA)


def definition(user_id: str | None = None) -> JsonObject:
    """The tool as the Messages API takes it among ``tools``.

    user_id: named as the only one that is taken, so that a model knows what to say.
             Left out, the definition is the same for all users, and the user's id has
             to be told to the model elsewhere.
    """
    made: dict[str, Any] = orjson.loads(_DEFINITION)
    if user_id is not None:
        made["input_schema"]["properties"]["user_id"]["enum"] = [user_id]
    return made


class Query(NamedTuple):
    """What a model asks for; ``subject`` is a name in its one spelling, "" for any."""

    query_type: str = "all"
    subject: str = ""

    def takes(self, kind: Kind) -> bool:
        return self.query_type == "all" or kind in _KINDS[self.query_type]


class Refused(NamedTuple):
    """Why a query has no answer, as the model is told."""

    why: str


def asked(given: object, *, user_id: str) -> Query | Refused:
    """The query that a call's input is, if it asks about ``user_id``.

    Of any other user nothing is said, not even whether there is one.
    """
    if not isinstance(given, Mapping):
        return Refused("the input must be an object with user_id")
    if not set(given) <= _FIELDS:
        return Refused("only user_id, query_type and subject_filter can be given")
    if given.get("user_id") != user_id:
        return Refused("user_id must be the id of the user of this session")
    query_type, subject = given.get("query_type"), given.get("subject_filter")
    query_type = "all" if query_type is None else query_type
    if query_type not in _QUERIES:
        return Refused(f"query_type must be one of {', '.join(_QUERIES)}")
    if subject is None:
        return Query(query_type)
    name = name_of(subject) if isinstance(subject, str) else None
    if name is None:
        return Refused("subject_filter must be a name of at most six words")
    return Query(query_type, name)


class Known(NamedTuple):
    """What may be said of a user.

    items:   of procedural memory; of these, what may be said is told.
    means:   how sessions end, by scenario.
    profile: lines about the user, with the item that each is of.
    """

    items: Sequence[Item] = ()
    means: Mapping[str, float] = {}
    profile: Sequence[tuple[advice.Line, Item]] = ()


@quiet
@dataclass(frozen=True, slots=True)
class Answer:
    """The text of a result, as ``OUTPUT_SCHEMA`` says, and the items that it shows."""

    text: str
    items: tuple[str, ...] = ()


def answer(query: Query, known: Known, how: advice.Choice, *, now: int) -> Answer:
    """The memories that fit, chosen as advice is; what is about the user comes last.

    The text costs at most ``how.tokens``, or is an empty list.
    """
    found = [*_procedural(query, known, how, now)]
    for line, item in known.profile:
        about = {item.content.get("subject"), item.content.get("topic")}
        wanted = not query.subject or query.subject in about
        if wanted and query.takes(item.kind) and line.sure >= how.threshold:
            # What a line cites has fields of its own here.
            found.append(_memory(item, line.text.partition(";")[0], line.sure))
    taken: list[JsonObject] = []
    for memory in found:
        text = _written([*taken, memory], len(found))
        if len(taken) < how.top and estimate_text(text) <= how.tokens:
            taken.append(memory)
    text = _written(taken, len(found) - len(taken))
    ids = dict.fromkeys(str(memory["memory_id"]) for memory in taken)
    return Answer(text, tuple(ids))


def _procedural(
    query: Query, known: Known, how: advice.Choice, now: int
) -> Iterable[JsonObject]:
    items = [one for one in known.items if query.takes(one.kind)]
    scenario = how.scenario
    if query.subject:  # what was learned in no scenario of its own holds always
        names = sorted({one.scenario for one in items})
        named = (name for name in names if name_of(name) == query.subject)
        scenario = next(named, GENERAL)
    listed = advice.shortlist(items, scenario, now=now, means=known.means)
    wide = replace(how, scenario=scenario, tokens=_NO_LIMIT)
    chosen = advice.choose(listed, wide, now=now)
    by_id = {one.memory_id: one for one in items}
    for name in (*chosen.items, *chosen.left_out):
        item = by_id[name]
        line = advice.advised(item).replace(f"; {advice.cited(item)}", "", 1)
        yield _memory(item, line, advice.surety(item))


def _memory(item: Item, line: str, sure: float) -> JsonObject:
    procedural = item.kind in get_args(Procedural)
    return {
        "type": "procedural" if procedural else "declarative",
        "content": line.removeprefix("- "),
        "confidence": round(sure, 2),
        "memory_id": item.memory_id,
        "evidence": [f"{one.session_id} #{_seqs(one)}" for one in advice.shown(item)],
    }


def _seqs(place: Evidence) -> str:
    first, last = place.seqs[0], place.seqs[-1]
    return str(first) if first == last else f"{first}-{last}"


def _written(memories: Sequence[JsonObject], left_out: int) -> str:
    found: dict[str, Any] = {"memories": list(memories)}
    if left_out:
        found["left_out"] = left_out
    return canonical(found).decode()
