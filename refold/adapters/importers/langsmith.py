"""LangSmith's exports of runs: trees of runs, or runs alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from refold.adapters.importers import base
from refold.adapters.importers.model_calls import (
    ModelCall,
    ModelCalls,
    answers_in,
    messages_in,
)
from refold.domain.events import JsonObject

NAME = "langsmith"
_TYPES: Final = frozenset(
    {"chain", "embedding", "llm", "parser", "prompt", "retriever", "tool"}
)
# The names under which the metadata of a run has its conversation.
_THREADS: Final = ("session_id", "thread_id", "conversation_id")
_MODELS: Final = ("ls_model_name", "model", "model_name")
_USAGE: Final = {
    "input_tokens": ("input_tokens", "prompt_tokens"),
    "output_tokens": ("output_tokens", "completion_tokens"),
}


def recognises(source: base.Source) -> bool:
    """Whether the first value is a run."""
    first = next(_values(source), None)
    return first is not None and _is_run(first[1])


def read(source: base.Source) -> Iterator[base.Transcript]:
    """Yield a transcript for each conversation, or for each trace without one."""
    runs: list[tuple[str, dict[str, Any]]] = []
    others: list[str] = []
    for place, value in _values(source):
        if _is_run(value):
            runs += _tree(place, value)
        else:
            others.append(place)
    if not runs:
        raise source.failed("holds no run of LangSmith")
    names = _names(runs)
    sessions: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for place, run in runs:
        sessions.setdefault(names[_trace_of(run)], []).append((place, run))
    for number, (name, of_session) in enumerate(sessions.items()):
        yield from _session(source, name, of_session, others if number == 0 else [])


def _values(source: base.Source) -> Iterator[tuple[str, Any]]:
    """Yield the runs of a file with their places."""
    runs = None if source.is_lines else base.at(source.document, "runs")
    if not isinstance(runs, list):
        yield from source.values()
        return
    for index, value in enumerate(runs):
        yield f"runs[{index}]", value


def _is_run(value: Any) -> bool:
    """Whether a value is a run, with its type and its place in a trace."""
    fields = base.mapping(value)
    has_trace = fields.keys() & {"trace_id", "dotted_order", "parent_run_id"}
    is_typed = base.text(fields, "run_type") in _TYPES
    return is_typed and bool(has_trace) and "inputs" in fields


def _tree(place: str, run: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a run, and those below it."""
    yield place, run
    for index, child in enumerate(base.each(run, "child_runs")):
        if _is_run({"trace_id": "", "inputs": None, **child}):
            of_trace = {"trace_id": _trace_of(run), **child}
            yield from _tree(f"{place} child_runs[{index}]".strip(), of_trace)


def _id_of(run: dict[str, Any]) -> str:
    return base.text(run, "id") or base.text(run, "run_id") or ""


def _trace_of(run: dict[str, Any]) -> str:
    return base.text(run, "trace_id") or _id_of(run)


def _names(runs: list[tuple[str, dict[str, Any]]]) -> dict[str, str]:
    """Return the conversation of each trace; without one, it is the trace."""
    names: dict[str, str] = {}
    for _, run in runs:
        trace = _trace_of(run)
        for thread in _THREADS:
            name = base.text(_metadata(run), thread)
            if name is not None and names.get(trace, trace) == trace:
                names[trace] = name
        names.setdefault(trace, trace)
    return names


def _metadata(run: dict[str, Any]) -> dict[str, Any]:
    return base.mapping(run, "extra", "metadata") or base.mapping(run, "metadata")


def _session(
    source: base.Source,
    name: str,
    runs: list[tuple[str, dict[str, Any]]],
    others: list[str],
) -> Iterator[base.Transcript]:
    """Yield the transcripts of one conversation."""
    calls = ModelCalls(NAME, source, name)
    for place, run in sorted(runs, key=_order):
        if run["run_type"] == "llm":
            calls.add(_call(place, run))
        elif run["run_type"] == "tool":
            _remember_duration(calls, run)
    if not calls.begun:
        calls.report("trace without a call of a model", runs[0][0])
    for place, run in runs:
        if run["run_type"] != "llm":
            why = f"{run['run_type']} run; only calls of models have messages"
            calls.report(why, place, note=True)
    for place in others:
        calls.report("is no run", place)
    roots = [run for _, run in runs if not base.text(run, "parent_run_id")]
    title = base.text(roots[0], "name") if roots else None
    yield from calls.transcripts(title or "")


def _order(entry: tuple[str, dict[str, Any]]) -> tuple[float, str]:
    """Return the place of a run among others: by its begin, then by its trace."""
    _, run = entry
    began_at = base.moment(run, "start_time")
    at = 0.0 if began_at is None else began_at.timestamp()
    return at, base.text(run, "dotted_order") or ""


def _remember_duration(calls: ModelCalls, run: dict[str, Any]) -> None:
    """Remember how long a tool ran, if its output names the call."""
    began_at = base.moment(run, "start_time")
    ended_at = base.moment(run, "end_time")
    output = base.mapping(run, "outputs", "output")
    call_id = base.text(output, "tool_call_id")
    call_id = call_id or base.text(output, "kwargs", "tool_call_id")
    calls.ran(call_id, began_at, ended_at)


def _call(place: str, run: dict[str, Any]) -> ModelCall:
    """Return the call of a model in a run."""
    metadata = _metadata(run)
    model: str | None = None
    for owner in (metadata, base.mapping(run, "extra", "invocation_params")):
        for name in _MODELS:
            model = model or base.text(owner, name)
    source: JsonObject = {"trace": _trace_of(run)}
    for name in ("parent_run_id", "name", "tags"):
        if run.get(name):
            source[name] = run[name]
    return ModelCall(
        id=_id_of(run) or place,
        place=place,
        history=messages_in(run.get("inputs")),
        answer=_answers(run.get("outputs")),
        began_at=base.moment(run, "start_time"),
        ended_at=base.moment(run, "end_time"),
        model=model,
        usage=_usage(run),
        source=source,
        error=base.text(run, "error") or "",
    )


def _answers(outputs: Any) -> list[dict[str, Any]]:
    """Return the messages of an answer; of several candidates, the first."""
    generations = base.sequence(outputs, "generations")
    while generations and isinstance(generations[0], list):
        generations = generations[0]
    if generations:
        first = base.mapping(generations[0])
        if first.get("message"):
            return [first["message"]]
        return [{"role": "assistant", "content": first.get("text")}]
    return answers_in(base.at(outputs, "output") or outputs)


def _usage(run: dict[str, Any]) -> JsonObject | None:
    """Return the tokens and the cost of a call."""
    usage: JsonObject = {}
    owners = [
        base.mapping(run, "outputs", "llm_output", "token_usage"),
        base.mapping(run, "outputs", "usage"),
        base.mapping(run, "outputs", "usage_metadata"),
        run,
    ]
    generations = base.sequence(run, "outputs", "generations")
    while generations and isinstance(generations[0], list):
        generations = generations[0]
    if generations:
        message = base.at(generations[0], "message")
        owners.insert(0, base.mapping(message, "kwargs", "usage_metadata"))
    for name, names in _USAGE.items():
        for owner in owners:
            values = [owner[each] for each in names if base.number(owner, each)]
            if values:
                usage.setdefault(name, values[0])
    cost = run.get("total_cost")
    if isinstance(cost, str):
        cost, _ = base.parsed(cost)
    if base.number(cost):
        usage["cost_usd"] = cost
    return usage or None
