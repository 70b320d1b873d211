"""A custom recognizer finds more, and can neither stall nor leak a text."""

from collections.abc import Callable, Iterable
from threading import Event
from typing import Any, Literal

import pytest

import refold
from refold.domain.errors import RedactionFailed, SessionNotFound
from refold.domain.events import UserInput
from refold.redaction.policy import Policy
from refold.redaction.recognizers import Guard, Span
from refold.redaction.redactor import Redactor
from refold.redaction.values import RedactionError

TEXT = "Ada Lovelace wrote it"
ADA = Span(0, 12, "PERSON", 0.9)


class Model:
    """Returns prepared answers, and remembers the texts that it got."""

    def __init__(self, answer: Callable[[str], Iterable[Any]]) -> None:
        self.answer = answer
        self.asked: list[tuple[str, str]] = []

    def analyze(self, text: str, language: str) -> Iterable[Span]:
        self.asked.append((text, language))
        return self.answer(text)


def names(text: str) -> list[Span]:
    start = text.find("Ada Lovelace")
    return [Span(start, start + 12, "PERSON", 0.9)] if start >= 0 else []


def fixed(*spans: Any) -> Model:
    return Model(lambda _: spans)


def failing(_: str) -> list[Span]:
    raise ValueError(f"cannot read {TEXT}")


def test_findings_of_a_recognizer_add_to_those_of_rules() -> None:
    redactor = Redactor(recognizer=Guard(Model(names)))

    clean, tally = redactor.text("Ada Lovelace, lin.wei@campus-mail.test")

    assert clean == "[REDACTED:PERSON], [REDACTED:EMAIL]"
    assert tally.types == {"PERSON": 1, "EMAIL": 1}


def test_a_recognizer_also_gets_text_without_rule_triggers() -> None:
    redactor = Redactor(recognizer=Guard(Model(names)))

    clean, _ = redactor.value({"note": {"by": ["Ada Lovelace"]}, "n": 7})

    assert clean == {"note": {"by": ["[REDACTED:PERSON]"]}, "n": 7}


def test_findings_below_the_least_score_are_ignored() -> None:
    model = fixed(ADA, Span(13, 18, "PERSON", 0.5))

    assert Guard(model).spans(TEXT) == [ADA]
    assert Guard(model, min_score=0.5).spans(TEXT) == [ADA, (13, 18, "PERSON", 0.5)]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("PHONE_NUMBER", "PHONE"),
        ("MY_TYPE", "MY_TYPE"),
        ("Ada Lovelace", "OTHER"),
        ("", "OTHER"),
        (None, "OTHER"),
    ],
)
def test_a_type_gets_its_name_in_refold(name: Any, kind: str) -> None:
    (span,) = Guard(fixed(Span(0, 3, name, 0.9))).spans(TEXT)

    assert span.type == kind


@pytest.mark.parametrize(("text", "language"), [("Ada", "en"), ("你好 Ada", "zh")])
def test_the_language_follows_the_text_unless_it_is_given(
    text: str, language: str
) -> None:
    model = fixed()

    Guard(model).spans(text)
    Guard(model, language="de").spans(text)

    assert model.asked == [(text, language), (text, "de")]


def test_an_empty_text_is_not_worth_a_question() -> None:
    model = fixed()

    assert Guard(model).spans(" \n") == []
    assert model.asked == []


BROKEN = [
    (Model(failing), "stopped with ValueError"),
    (fixed(Span(0, 99, "PERSON", 1.0)), "outside of the text"),
    (fixed(Span(-1, 3, "PERSON", 1.0)), "outside of the text"),
    (fixed(Span(3, 3, "PERSON", 1.0)), "outside of the text"),
    (fixed((0.0, 3, "PERSON", 1.0)), "outside of the text"),
    (fixed((True, 3, "PERSON", 1.0)), "outside of the text"),
    (fixed(Span(0, 3, "PERSON", 1.5)), "not from 0 to 1"),
    (fixed(Span(0, 3, "PERSON", float("nan"))), "not from 0 to 1"),
    (fixed((0, 3, "PERSON")), "not a span"),
    (fixed((0, 3, "PERSON", TEXT)), "not a span"),
    (fixed(None), "not a span"),
]


@pytest.mark.parametrize(("model", "reason"), BROKEN)
def test_a_failure_stops_redaction_and_tells_nothing_of_the_text(
    model: Model, reason: str
) -> None:
    with pytest.raises(RedactionError, match=reason) as caught:
        Guard(model).spans(TEXT)

    assert "Ada" not in str(caught.value)
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(("model", "reason"), BROKEN)
def test_open_means_that_a_failure_is_as_if_nothing_was_found(
    model: Model, reason: str
) -> None:
    assert Guard(model, on_failure="open").spans(TEXT) == []


@pytest.mark.parametrize("mode", ["closed", "open"])
def test_a_text_over_the_size_limit_is_not_passed_to_the_recognizer(
    mode: Literal["closed", "open"],
) -> None:
    model = fixed()
    guard = Guard(model, max_bytes=6, on_failure=mode)

    guard.spans("中文")
    if mode == "open":
        assert guard.spans("中文!") == []
    else:
        with pytest.raises(RedactionError, match="at most 6 bytes"):
            guard.spans("中文!")

    assert model.asked == [("中文", "zh")]


def test_a_slow_recognizer_is_given_up() -> None:
    release = Event()

    def stuck(_: str) -> list[Span]:
        release.wait()
        return [ADA]

    try:
        with pytest.raises(RedactionError, match="took more than 20 ms"):
            Guard(Model(stuck), budget_ms=20).spans(TEXT)
        assert Guard(Model(stuck), budget_ms=20, on_failure="open").spans(TEXT) == []
    finally:
        release.set()


def test_one_that_never_answers_is_not_asked_for_ever() -> None:
    release = Event()

    def stuck(_: str) -> list[Span]:
        release.wait()
        return []

    model = Model(stuck)
    guard = Guard(model, budget_ms=5, on_failure="open")
    try:
        for _ in range(8):
            guard.spans(TEXT)
        asked = len(model.asked)
    finally:
        release.set()

    assert asked == 4


def test_a_policy_sets_the_trust_in_a_recognizer() -> None:
    policy = Policy.parse(
        'version = 1\nmin_score = 0.95\n[recognizer]\nlanguage = "de"\nmax_bytes = 30'
    )
    model = fixed(ADA)
    guard = policy.guard(model)

    assert policy.guard(None) is None
    assert guard is not None
    assert guard.spans(TEXT) == []
    assert model.asked == [(TEXT, "de")]


def test_a_store_refuses_an_event_that_its_recognizer_could_not_judge() -> None:
    with refold.open("memory://", recognizer=Model(failing)) as store:
        session = store.session(user_id="ada", session_id="s")

        with pytest.raises(RedactionFailed, match="ValueError"):
            session.append([UserInput(text=TEXT)])

        with pytest.raises(SessionNotFound):
            session.events()
