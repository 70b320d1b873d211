"""Langfuse's exports: traces with observations, or observations alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from refold.adapters.importers import base
from refold.adapters.importers.model_calls import (
    ModelCall,
    ModelCalls,
    answers_in,
    instructions_in,
    messages_in,
)
from refold.domain.events import JsonObject

NAME = "langfuse"
_TYPES: Final = frozenset(
    {
        "AGENT",
        "CHAIN",
        "EMBEDDING",
        "EVALUATOR",
        "EVENT",
        "GENERATION",
        "GUARDRAIL",
        "RETRIEVER",
        "SPAN",
        "TOOL",
    }
)
# Langfuse's names of each count of tokens, by its name in the usage of an event.
_USAGE: Final = {
    "input_tokens": ("input", "input_tokens", "prompt_tokens", "promptTokens"),
    "output_tokens": (
        "output",
        "output_tokens",
        "completion_tokens",
        "completionTokens",
    ),
    "cache_read_input_tokens": ("cache_read_input_tokens", "input_cached_tokens"),
    "cache_creation_input_tokens": (
        "cache_creation_input_tokens",
        "input_cache_creation",
    ),
}
_SETTINGS: Final = ("environment", "modelParameters", "promptName", "version")


def recognises(source: base.Source) -> bool:
    """Whether the first value is a trace with observations, or an observation."""
    first = next(_values(source), None)
    if first is None:
        return False
    _, value = first
    return _is_trace(value) or _is_observation(value)


def read(source: base.Source) -> Iterator[base.Transcript]:
    """Yield a transcript for each session, or for each trace without one."""
    sessions: dict[str, _Session] = {}
    others: list[str] = []
    session_of: dict[str, str] = {}  # by trace
    for place, value in _values(source):
        if _is_trace(value):
            trace = base.mapping(value, "trace") or value
            trace_id = base.text(trace, "id") or place
            name = base.text(trace, "sessionId") or base.text(trace, "session_id")
            name = name or trace_id
            session_of[trace_id] = name
            session = sessions.setdefault(name, _Session())
            session.traces.append((place, trace))
            prefix = f"{place} ".lstrip()
            for index, observation in enumerate(base.each(value, "observations")):
                of_trace = {"traceId": trace_id, **observation}
                where = f"{prefix}observations[{index}]"
                session.observations.append((where, of_trace))
        elif _is_observation(value):
            trace_id = base.text(value, "traceId") or place
            name = base.text(value, "sessionId") or session_of.get(trace_id, trace_id)
            session = sessions.setdefault(name, _Session())
            session.observations.append((place, value))
        else:
            others.append(place)
    if not sessions:
        raise source.failed("holds no trace and no observation of Langfuse")
    for number, (name, session) in enumerate(sessions.items()):
        if number == 0:
            session.others = others
        yield from session.transcripts(source, name)


def _values(source: base.Source) -> Iterator[tuple[str, Any]]:
    """Yield the traces and observations of a file, with their places."""
    if source.is_lines:
        for line in source.lines():
            yield f"line {line.number}", line.value
        return
    document = source.document
    items = document if isinstance(document, list) else base.sequence(document, "data")
    if items:
        prefix = "" if isinstance(document, list) else "data"
        for index, value in enumerate(items):
            yield f"{prefix}[{index}]", value
    elif isinstance(document, dict):
        yield "", document


def _is_trace(value: Any) -> bool:
    """Whether a value is a trace with its observations."""
    observations = base.sequence(value, "observations")
    if not observations or not all(map(_is_observation, observations)):
        return False
    trace = base.mapping(value, "trace") or base.mapping(value)
    return base.text(trace, "id") is not None


def _is_observation(value: Any) -> bool:
    """Whether a value is an observation of a trace."""
    return base.text(value, "type") in _TYPES and "startTime" in value


class _Session:
    """The traces and observations of one session, each with its place."""

    def __init__(self) -> None:
        self.traces: list[tuple[str, dict[str, Any]]] = []
        self.observations: list[tuple[str, dict[str, Any]]] = []
        self.others: list[str] = []

    def transcripts(self, source: base.Source, name: str) -> Iterator[base.Transcript]:
        """Yield the transcripts of the session."""
        calls = ModelCalls(NAME, source, name)
        for place, observation in sorted(self.observations, key=_start_time):
            kind = observation["type"]
            if kind == "GENERATION":
                calls.add(_call(place, observation))
            elif kind == "TOOL":
                _remember_duration(calls, observation)
        if not calls.begun:
            calls.report("trace without a call of a model", self._first_place())
        for place, observation in self.observations:
            if observation["type"] != "GENERATION":
                kind = observation["type"].lower()
                why = f"{kind} observation; only calls of models have messages"
                calls.report(why, place, note=True)
        for place, trace in self.traces:
            if base.sequence(trace, "scores"):
                calls.report("scores of a trace", place, note=True)
        for place in self.others:
            calls.report("is no trace and no observation", place)
        title = ""
        if self.traces:
            title = base.text(self.traces[0][1], "name") or ""
        yield from calls.transcripts(title)

    def _first_place(self) -> str:
        places = [place for place, _ in (*self.traces, *self.observations)]
        return places[0] if places else ""


def _start_time(entry: tuple[str, dict[str, Any]]) -> float:
    began_at = base.moment(entry[1], "startTime")
    return 0.0 if began_at is None else began_at.timestamp()


def _remember_duration(calls: ModelCalls, observation: dict[str, Any]) -> None:
    """Remember how long a tool ran, if its observation names the call."""
    began_at = base.moment(observation, "startTime")
    ended_at = base.moment(observation, "endTime")
    call_id = base.text(observation, "metadata", "tool_call_id")
    calls.ran(call_id, began_at, ended_at)


def _call(place: str, observation: dict[str, Any]) -> ModelCall:
    """Return the call of a model in an observation."""
    source: JsonObject = {"trace": observation.get("traceId")}
    for name in ("parentObservationId", "name", *_SETTINGS):
        if observation.get(name):
            source[name] = observation[name]
    output = observation.get("output")
    error = ""
    if observation.get("level") == "ERROR":
        error = base.text(observation, "statusMessage") or "failed"
    return ModelCall(
        id=base.text(observation, "id") or place,
        place=place,
        history=[*instructions_in(output), *messages_in(observation.get("input"))],
        answer=answers_in(output),
        began_at=base.moment(observation, "startTime"),
        ended_at=base.moment(observation, "endTime"),
        model=base.text(observation, "model"),
        usage=_usage(observation),
        source=source,
        error=error,
    )


def _usage(observation: dict[str, Any]) -> JsonObject | None:
    """Return the tokens and the cost of a call."""
    usage: JsonObject = {}
    for name, keys in _USAGE.items():
        for details in ("usageDetails", "usage"):
            counts = base.mapping(observation, details)
            values = [counts[key] for key in keys if base.number(counts, key)]
            if values:
                usage.setdefault(name, values[0])
    for place in (
        ("costDetails", "total"),
        ("calculatedTotalCost",),
        ("totalCost",),
        ("usage", "totalCost"),
    ):
        cost = base.number(observation, *place)
        if cost:
            usage.setdefault("cost_usd", cost)
    return usage or None
