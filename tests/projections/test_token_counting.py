"""A count never falls when text is added, and learns from the paid tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

import refold
from refold.adapters.claude.summarizer import AnthropicCounter
from refold.domain.envelope import ACTIVATED, Envelope, Meta
from refold.domain.events import AgentResponse, Request, UserInput
from refold.domain.parts import UNKNOWN_TOKENS
from refold.projections.context.render import render
from refold.projections.context.strategies import spec
from refold.projections.context.view import View
from refold.projections.tokens import (
    Calibrated,
    Features,
    Observation,
    input_tokens,
    learned_from,
    of_request,
    of_text,
    starting_weights,
    tokens_of,
    total,
)
from tests.projections.logs import Log
from tests.support.messages_api import MessagesApi

MODEL = "claude-opus-5-5"
KEEP_ALL = spec.parse("keep_all")
PROSE = "The quick brown fox jumps over the lazy dog, and nobody minds. "
CODE = (
    "def read_file(path):\n    with open(path) as file:\n        return file.read()\n"
)
CHINESE = "今天天气很好，我们一起去公园散步吧。"
JSON = '{"id":4711,"tags":["a","b"],"path":"/etc/hosts","ok":true}'
TEXTS = st.one_of(st.text(), st.sampled_from([PROSE, CODE, CHINESE, JSON]))


def ask(*texts: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": text} for text in texts]


@settings(max_examples=50)
@given(st.lists(TEXTS, max_size=5), TEXTS)
def test_more_text_never_counts_less(texts: list[str], more: str) -> None:
    counter = Calibrated()

    before = counter.count(ask(*texts), model=MODEL)

    assert 0 <= before <= counter.count(ask(*texts, more), model=MODEL)
    assert before <= counter.count(ask(*texts), system=more, model=MODEL)
    if texts:
        longer = [*texts[:-1], texts[-1] + more]
        assert before <= counter.count(ask(*longer), model=MODEL)


observed = st.builds(
    Observation,
    st.just(MODEL),
    TEXTS.map(of_text),
    st.integers(min_value=0, max_value=2_000_000),
)


@settings(max_examples=50)
@given(st.lists(observed, max_size=8), TEXTS, TEXTS)
def test_a_calibrated_count_is_deterministic_and_monotone(
    learned: list[Observation], text: str, more: str
) -> None:
    counter = Calibrated().learn(learned)
    again = Calibrated().learn(learned)

    counted = counter.count(ask(text), model=MODEL)

    assert counted == again.count(ask(text), model=MODEL)
    assert 0 <= counted <= counter.count(ask(text + more), model=MODEL)


def test_kinds_of_text_are_distinguished() -> None:
    assert of_text("readFile x2\n今天 é") == Features(
        word=3, letter=9, mark=1, line=1, cjk=2, other=1
    )
    assert of_text("") == Features()
    assert of_text("\ud800") == Features(other=1)


def test_every_part_of_a_request_counts() -> None:
    call = {"type": "tool_use", "id": "t1", "name": "read", "input": {"path": "a"}}
    back = {"type": "tool_result", "tool_use_id": "t1", "content": "some text"}
    thought = {"type": "thinking", "thinking": "hm", "signature": "c2ln" * 500}
    hidden = {"type": "redacted_thinking", "data": "c2ln" * 500}
    image = {"type": "image", "source": {"type": "base64", "data": "iVBO" * 5_000}}
    paper = {"type": "document", "source": {"type": "text", "data": CHINESE}}
    odd = {"type": "of_next_year", "value": 1}

    def words(*blocks: dict[str, Any]) -> Features:
        return of_request([{"role": "user", "content": list(blocks)}])

    assert words(call).word == 3
    assert words(back).letter == 8
    assert words(thought) == words({"type": "text", "text": "hm"})
    assert words(hidden) == words()
    assert words(image).frame == words().frame + UNKNOWN_TOKENS
    assert words(paper).cjk == of_text(CHINESE).cjk
    assert words(odd).mark > 0
    assert of_request([], tools=[{"name": "x"}]).frame > 0


TRUE = (0.9, 0.05, 0.3, 1.0, 0.6, 0.4)


def paid(text: Features, beside: int = 0) -> int:
    return round(sum(w * n for w, n in zip(TRUE, text, strict=False))) + beside


def session(requests: int, *, beside: int, seed: int = 1) -> Iterator[Observation]:
    """Requests that grow, priced by other weights than those it starts with."""
    chance = Random(seed)
    text = Features()
    for _ in range(requests):
        piece = chance.choice([PROSE, CODE, CHINESE, JSON]) * chance.randint(5, 40)
        text = total([text, of_text(piece)])
        yield Observation(MODEL, text, paid(text, beside))


def off(counter: Calibrated, text: str) -> float:
    features = of_text(text * 50)
    return abs(counter.weights(MODEL).tokens(features) / paid(features) - 1)


@pytest.mark.parametrize("text", [PROSE, CODE, CHINESE, JSON])
def test_counts_are_within_fifteen_percent_of_the_usage(text: str) -> None:
    before = off(Calibrated(), text)

    after = off(Calibrated().learn(session(20, beside=700)), text)

    assert before > 0.2
    assert after < 0.15


def test_unrecorded_cost_of_requests_is_learned() -> None:
    counter = Calibrated().learn(session(20, beside=5_000))

    assert counter.weights(MODEL).unrecorded == pytest.approx(5_000, rel=0.3)
    assert counter.count([], model=MODEL) == ceil(counter.weights(MODEL).unrecorded)


def test_models_learn_separately_without_changes_in_place() -> None:
    fresh = Calibrated()

    learned = fresh.learn(session(5, beside=0))

    assert not fresh.learned
    assert learned.weights("gpt-4o") == starting_weights("o200k")
    assert learned.weights(MODEL).seen == 5
    assert learned.learn([Observation(MODEL, Features(), 0)]) == learned


def test_an_unknown_model_counts_as_the_newest() -> None:
    counter = Calibrated()

    assert counter.weights("no-such-model") == starting_weights("claude-4-7")
    assert starting_weights("no-such-tokenizer") == starting_weights("claude-4-7")


USAGE = {"input_tokens": 5, "cache_read_input_tokens": 80, "output_tokens": 9}


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        (None, 0),
        ({"output_tokens": 3}, 0),
        (USAGE, 85),
        ({**USAGE, "cache_creation_input_tokens": 15}, 100),
        ({"prompt_tokens": 70, "completion_tokens": 3}, 70),
        ({**USAGE, "iterations": [{}]}, 85),
        ({**USAGE, "iterations": [{}, {}]}, 0),
    ],
)
def test_a_prompt_includes_cached_input(usage: Any, tokens: int) -> None:
    assert input_tokens(usage) == tokens


def view_at(log: Log, seq: int) -> View:
    events = log.events[:seq]
    return render(KEEP_ALL, KEEP_ALL.read(KEEP_ALL.begin(), events), events)


def recorded(*, turns: int, model: str | None = MODEL, **request: Any) -> Log:
    """A session whose every request was recorded, with what it cost."""
    log = Log()
    for turn in range(turns):
        log.add(UserInput(text=f"{turn} {CHINESE * 20}"))
        asked = view_at(log, len(log.events)).request(model=model)
        asked = asked.model_copy(update=request)
        log.add(asked)
        view = view_at(log, len(log.events))
        cost = paid(of_request(view.messages, view.system))
        log.add(AgentResponse(text=CODE, usage={"input_tokens": cost}))
    return log


def learned(log: Log, **options: Any) -> Calibrated:
    def view_of(asked: Envelope) -> View:
        return view_at(log, asked.seq)

    return learned_from(log.events, view_of, **options)


def test_calibration_learns_from_a_session() -> None:
    log = recorded(turns=6)
    view = view_at(log, len(log.events))
    true = paid(of_request(view.messages, view.system))

    counter = learned(log)

    assert counter.weights(MODEL).seen == 6
    assert tokens_of(view, model=MODEL, counter=counter) == pytest.approx(true, rel=0.1)
    assert tokens_of(view, model=MODEL) > true * 1.2
    assert learned(log, last=2).weights(MODEL).seen == 2
    assert not learned(log, last=0).learned


@pytest.mark.parametrize("wrong", [{"digest": "0" * 64}, {"matches": False}])
def test_nothing_is_learned_from_a_request_unlike_its_view(
    wrong: dict[str, Any],
) -> None:
    assert not learned(recorded(turns=2, **wrong)).learned


def test_nothing_is_learned_without_a_known_model() -> None:
    assert not learned(recorded(turns=2, model=None)).learned


def test_nothing_is_learned_from_the_activation_of_a_strategy() -> None:
    log = recorded(turns=2)
    for index, event in enumerate(log.events):
        if event.type == "request":
            meta = Meta(status=ACTIVATED)
            log.events[index] = event.model_copy(update={"meta": meta})

    assert not learned(log).learned


def test_nothing_is_learned_without_an_answer() -> None:
    log = Log()
    log.add(UserInput(text="hello"))
    log.add(view_at(log, 1).request(model=MODEL))
    log.add(UserInput(text="are you there?"))
    log.add(AgentResponse(text="yes", usage={"input_tokens": 3}))

    assert isinstance(log.events[1].payload, Request)
    assert not learned(log).learned


def test_the_provider_counts_the_request(api: MessagesApi) -> None:
    tools: list[Any] = [{"name": "read", "input_schema": {"type": "object"}}]
    view = view_at(recorded(turns=1), 1)
    view = replace(view, system="Be brief.", tools=tuple(tools))
    counter = AnthropicCounter(api.client())

    tokens = tokens_of(view, model=MODEL, counter=counter)

    assert tokens > 0
    assert api.counted[-1].body == {
        "model": MODEL,
        "messages": view.messages,
        "system": "Be brief.",
        "tools": tools,
    }
    counter.count(view.messages, model=MODEL)
    assert set(api.counted[-1].body) == {"model", "messages"}


def test_a_failed_count_gives_the_reason_without_content() -> None:
    with MessagesApi() as api:
        url = api.url
        client = api.client(base_url=f"{url}/elsewhere")
        counter = AnthropicCounter(client, max_retries=0)

        with pytest.raises(refold.errors.CountingFailed, match="HTTP 404") as failed:
            counter.count(ask("the walrus is Paul"), model=MODEL)

    assert "walrus" not in str(failed.value)
    assert failed.value.__cause__ is None
