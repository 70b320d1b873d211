"""Memory as a tool: how a model queries it, and the answer it gets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any, Final, Literal, NamedTuple, TypeAlias, get_args

import orjson

from refold.domain.canonical import canonical
from refold.domain.events import JsonObject
from refold.domain.model import repr_without_texts
from refold.domain.tokens import estimate_text
from refold.projections.memory import advice
from refold.projections.memory.items import Evidence, Item, Kind, Procedural
from refold.projections.memory.labels import name_of
from refold.projections.memory.sessions import GENERAL, RETRIEVAL_TOOL

NAME: Final = RETRIEVAL_TOOL
QueryType: TypeAlias = Literal["errors", "topics", "tool_paths", "all"]

_QUERY_TYPES: Final[tuple[str, ...]] = get_args(QueryType)
_PROCEDURAL: Final[tuple[str, ...]] = get_args(Procedural)
_KINDS: Final[Mapping[str, frozenset[Kind]]] = {
    "errors": frozenset({"failure", "warning", "recovery", "error", "mistake"}),
    "topics": frozenset({"topic", "progress"}),
    "tool_paths": frozenset({"path", "check", "effort"}),
}
_FIELDS: Final = {"user_id", "query_type", "subject_filter"}
_NO_LIMIT: Final = 1 << 60
_FOLDER: Final = files("refold.projections.memory")
_DEFINITION: Final = (_FOLDER / "tool.json").read_bytes()
_SCHEMA: Final = (_FOLDER / "answer.schema.json").read_bytes()
OUTPUT_SCHEMA: Final[JsonObject] = orjson.loads(_SCHEMA)
"""The JSON Schema of the text of a result."""


def definition(user_id: str | None = None) -> JsonObject:
    """Return the tool's definition for ``tools`` of the Messages API.

    user_id: the only value that the definition allows, so that a model knows which id
             to send.  Without it, the definition is the same for all users, and the
             model must learn the id elsewhere.
    """
    tool: dict[str, Any] = orjson.loads(_DEFINITION)
    if user_id is not None:
        tool["input_schema"]["properties"]["user_id"]["enum"] = [user_id]
    return tool


class Query(NamedTuple):
    """A model's query.

    subject: a name in its normalized spelling, or "" for any subject.
    """

    query_type: str = "all"
    subject: str = ""

    def includes(self, kind: Kind) -> bool:
        """Whether the query asks for items of this kind."""
        return self.query_type == "all" or kind in _KINDS[self.query_type]


class Refused(NamedTuple):
    """The reason that a query has no answer, in the words that the model gets."""

    why: str


def parse_query(arguments: object, *, user_id: str) -> Query | Refused:
    """Read a query from the arguments of a call.

    A query about another user is refused, whether that user exists or not.
    """
    if not isinstance(arguments, Mapping):
        return Refused("the input must be an object with user_id")
    if not set(arguments) <= _FIELDS:
        return Refused("only user_id, query_type and subject_filter can be given")
    if arguments.get("user_id") != user_id:
        return Refused("user_id must be the id of the user of this session")
    query_type = arguments.get("query_type")
    if query_type is None:
        query_type = "all"
    if query_type not in _QUERY_TYPES:
        return Refused(f"query_type must be one of {', '.join(_QUERY_TYPES)}")
    subject = arguments.get("subject_filter")
    if subject is None:
        return Query(query_type)
    name = name_of(subject) if isinstance(subject, str) else None
    if name is None:
        return Refused("subject_filter must be a name of at most six words")
    return Query(query_type, name)


class Memories(NamedTuple):
    """The memory of a user that an answer is chosen from.

    items:   the items of procedural memory, also those that are not shown.
    means:   by scenario, the mean outcome of its sessions.
    profile: lines about the user, each with its item.
    """

    items: Sequence[Item] = ()
    means: Mapping[str, float] = {}
    profile: Sequence[tuple[advice.Line, Item]] = ()


@repr_without_texts
@dataclass(frozen=True, slots=True)
class Answer:
    """The text of a result, in the form of ``OUTPUT_SCHEMA``, and its items' ids."""

    text: str
    items: tuple[str, ...] = ()


def answer(
    query: Query, memories: Memories, choice: advice.Choice, *, now: int
) -> Answer:
    """Answer a query with memories, which are chosen like advice.

    Memories about the user come last.  The text costs at most ``choice.tokens``, unless
    it is an empty list.
    """
    candidates = [
        *_procedural(query, memories, choice, now),
        *_about_user(query, memories, choice.threshold),
    ]
    chosen: list[JsonObject] = []
    for memory in candidates:
        if len(chosen) >= choice.top:
            break
        text = _text([*chosen, memory], left_out=len(candidates))
        if estimate_text(text) <= choice.tokens:
            chosen.append(memory)
    ids = dict.fromkeys(str(memory["memory_id"]) for memory in chosen)
    text = _text(chosen, left_out=len(candidates) - len(chosen))
    return Answer(text, tuple(ids))


def _procedural(
    query: Query, memories: Memories, choice: advice.Choice, now: int
) -> Iterator[JsonObject]:
    items = [item for item in memories.items if query.includes(item.kind)]
    scenario = choice.scenario
    if query.subject:
        scenario = _scenario_named(query.subject, items)
    candidates = advice.shortlist(items, scenario, now=now, means=memories.means)
    unbounded = replace(choice, scenario=scenario, tokens=_NO_LIMIT)
    chosen = advice.choose(candidates, unbounded, now=now)
    by_id = {item.memory_id: item for item in items}
    for memory_id in (*chosen.items, *chosen.left_out):
        item = by_id[memory_id]
        # The citation has a field of its own here.
        line = advice.advice_line(item).replace(f"; {advice.citation(item)}", "", 1)
        yield _memory(item, line, advice.confidence(item))


def _scenario_named(subject: str, items: Sequence[Item]) -> str:
    """Return the scenario with this name, or ``general``, which always applies."""
    for scenario in sorted({item.scenario for item in items}):
        if name_of(scenario) == subject:
            return scenario
    return GENERAL


def _about_user(
    query: Query, memories: Memories, threshold: float
) -> Iterator[JsonObject]:
    for line, item in memories.profile:
        subjects = {item.content.get("subject"), item.content.get("topic")}
        if query.subject and query.subject not in subjects:
            continue
        if query.includes(item.kind) and line.confidence >= threshold:
            # The citations have their own field here.
            yield _memory(item, line.statement, line.confidence)


def _memory(item: Item, line: str, confidence: float) -> JsonObject:
    evidence = [
        f"{evidence.session_id} #{_seq_range(evidence)}"
        for evidence in advice.cited_evidence(item)
    ]
    return {
        "type": "procedural" if item.kind in _PROCEDURAL else "declarative",
        "content": line.removeprefix("- "),
        "confidence": round(confidence, 2),
        "memory_id": item.memory_id,
        "evidence": list(evidence),
    }


def _seq_range(evidence: Evidence) -> str:
    first = evidence.seqs[0]
    last = evidence.seqs[-1]
    return str(first) if first == last else f"{first}-{last}"


def _text(memories: Sequence[JsonObject], *, left_out: int) -> str:
    result: dict[str, Any] = {"memories": list(memories)}
    if left_out:
        result["left_out"] = left_out
    return canonical(result).decode()
