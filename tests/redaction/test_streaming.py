"""Text that arrives in pieces is redacted like the complete text."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, pairwise
from random import Random

import pytest
from hypothesis import given, settings, strategies as st

from benchmarks.redaction.streams import (
    document as stream_document,
    runs,
    streamed as corpus_streamed,
)
from refold.redaction import Redactor
from refold.redaction.pieces import StreamRedactor
from refold.redaction.plan import Plan
from refold.redaction.registered import Registered
from refold.redaction.rules.rule import Rule
from tests.redaction.samples import (
    KEYED,
    KEYS,
    NOISE,
    PEM,
    PLACEHOLDERS,
    PLANTED,
)
from tests.redaction.structured import document as structured

SECRETS = ("q7Zt0Kx3Vb9Lm2Np", "two lines\nof a secret")


def with_registered() -> Redactor:
    registered = Registered()
    for secret in SECRETS:
        registered.register(secret)
    return Redactor(registered=registered)


redactors = {"rules": Redactor(), "registered": with_registered()}
every_redactor = pytest.mark.parametrize(
    "redactor", redactors.values(), ids=redactors.keys()
)

fillers = st.sampled_from(
    [
        "The report is due on Monday, and nobody has begun to write it yet. ",
        "我们今天讨论的是——系统设计，以及如何处理文本。",
        "    def find(self, text: str, token: str = TOKEN) -> list[int]:",
        "x" * 90,
        "\u3000１３\u200b\\u5bc6\\u7801：",
    ]
)
parts = st.one_of(
    fillers,
    st.sampled_from([p.text for p in PLANTED]),
    st.sampled_from([p.value for p in KEYED]),
    st.sampled_from(list(chain.from_iterable(KEYS.values()))),
    st.sampled_from([*NOISE, *PLACEHOLDERS, *SECRETS]),
)
joints = st.sampled_from(["", " ", "\n", ": ", "=", "，", "\n\n"])


@st.composite
def texts(draw: st.DrawFn) -> str:
    pieces = draw(st.lists(st.tuples(parts, joints), max_size=40))
    text = "".join(part + joint for part, joint in pieces)
    return text.replace("\n", " ") if draw(st.booleans()) else text


def streamed(redactor: Redactor, pieces: Iterable[str]) -> str:
    stream = StreamRedactor(redactor)
    ready = [stream.feed(piece) for piece in pieces]
    return "".join([*ready, stream.close()])


def divided(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


@every_redactor
@given(text=texts(), data=st.data())
@settings(deadline=None, max_examples=40)
def test_pieces_are_redacted_like_the_whole_text(
    redactor: Redactor, text: str, data: st.DataObject
) -> None:
    places = st.integers(0, len(text))
    cuts = sorted(data.draw(st.lists(places, max_size=30)))
    pieces = [text[a:b] for a, b in pairwise([0, *cuts, len(text)])]

    assert streamed(redactor, pieces) == redactor.text(text)[0]


@every_redactor
@given(text=texts(), size=st.sampled_from([1, 7, 64, 500]))
@settings(deadline=None, max_examples=40)
def test_pieces_of_equal_length_are_redacted_like_the_whole_text(
    redactor: Redactor, text: str, size: int
) -> None:
    stream = StreamRedactor(redactor)
    clean = "".join(map(stream.feed, divided(text, size))) + stream.close()

    whole, tally = redactor.text(text)
    assert (clean, stream.tally.types) == (whole, tally.types)


@pytest.mark.parametrize("before", [300, 318, 365])
def test_a_value_is_found_wherever_the_pieces_end(before: int) -> None:
    for planted in PLANTED:
        text = ("lorem " * 61)[:before] + f"\n{planted.text}\n" + "ipsum " * 100

        clean = streamed(redactors["rules"], divided(text, 97))

        assert clean == redactors["rules"].text(text)[0], planted
        assert planted.value not in clean, planted


@pytest.mark.parametrize("joint", [":\n", ": ", "\n"])
@pytest.mark.parametrize("word", ["phone", "手机", "Tel"])
def test_a_word_is_context_for_the_text_after_it(word: str, joint: str) -> None:
    before = "lorem ipsum\n" * 60
    pieces = [f"{before}{word}{joint}", "62345678", "\nand so on"]

    clean = streamed(redactors["rules"], pieces)

    assert clean.endswith(f"{word}{joint}[REDACTED:PHONE]\nand so on")


@pytest.mark.parametrize(
    "text",
    [
        "The report is due on Monday. " * 4000,
        "A line of a report, one of many.\n" * 4000,
        "我们今天讨论的是——系统设计，以及如何处理文本。\n" * 4000,
        "token = next_token(stream) if token else None\n" * 2000,
        "mail ada@mail.example.net or call 13912345670 today, ok?\n" * 1500,
        '{"id": 17, "text": "no news", "key": "value"}, ' * 2000,
        "q" * 100_000,
    ],
    ids=["prose", "lines", "Chinese", "code", "found", "JSON", "one word"],
)
def test_only_a_little_is_held_back(text: str) -> None:
    stream = StreamRedactor(redactors["rules"])

    ready = 0
    most = 0
    for number, piece in enumerate(divided(text, 50), start=1):
        ready += len(stream.feed(piece))
        most = max(most, number * 50 - ready)
        if "@" in text:
            break

    assert most < 3000


def test_a_private_key_is_held_until_it_ends() -> None:
    stream = StreamRedactor(redactors["rules"])
    body = "MIIEow3fTq9ZkLm2Np5Rs8Wd1Yf4Hj6CgTuEaXbVcZdAeSfRgThYjUkIlOpMn\n" * 50
    pem = PEM.replace("MIIE", body + "MIIE")

    early = "".join(map(stream.feed, divided(f"key:\n{pem[:2000]}", 80)))
    late = "".join(map(stream.feed, divided(pem[2000:] + "\nand on\n" * 100, 80)))

    assert "MII" not in early + late
    assert (early + late + stream.close()).startswith(
        "key:\n[REDACTED:PRIVATE_KEY]\nand"
    )


def test_rules_that_look_over_ends_of_lines_are_waited_for() -> None:
    rule = Rule(
        id="own.block",
        type="BLOCK",
        gate=("begin",),
        pattern=r"begin\s{1,40}[a-z\s]{0,2000}end",
        examples=(),
    )
    redactor = Redactor(Plan(rules=(rule,)))
    text = "a text to come first\n" * 40 + "begin\n" + "some words\n" * 60 + "end\nand"
    text += " more words that follow" * 40

    assert streamed(redactor, divided(text, 33)) == redactor.text(text)[0]
    assert "[REDACTED:BLOCK]" in redactor.text(text)[0]


def test_settings_that_need_the_whole_text_are_refused() -> None:
    class Recognizer:
        def find(self, text: str) -> list[tuple[int, int, str]]:
            return []

    with pytest.raises(ValueError, match="drop_leaf"):
        StreamRedactor(Redactor(Plan(actions={"PHONE": "drop_leaf"})))
    with pytest.raises(ValueError, match="recognizer"):
        StreamRedactor(Redactor(recognizer=Recognizer()))
    with pytest.raises(ValueError, match="registered"):
        StreamRedactor(Redactor(registered=Recognizer()))


def test_a_closed_stream_accepts_no_text() -> None:
    stream = StreamRedactor(redactors["rules"])
    stream.feed("text")

    assert (stream.close(), stream.close()) == ("text", "")
    with pytest.raises(ValueError, match="closed"):
        stream.feed("more")


@pytest.mark.parametrize("seed", range(6))
def test_documents_of_the_corpora_are_redacted_like_the_whole_text(seed: int) -> None:
    for run in runs(Random(seed)):
        whole, _ = redactors["rules"].text(run.text)

        assert corpus_streamed(redactors["rules"], run) == whole


def short_document(seed: int) -> str:
    """Return a document that is a little longer than the buffer of a stream."""
    random = Random(f"cuts {seed}")
    parts: list[str] = []
    while sum(map(len, parts)) < 540:
        text = random.choice((stream_document(random), structured(random).text))
        parts.append(text[: random.randrange(60, 260)])
        parts.append(random.choice(("\n", " ", "", "\n\n")))
    return "".join(parts)


@pytest.mark.load
@pytest.mark.parametrize("seed", range(2))
def test_every_cut_of_a_short_document_gives_the_whole(seed: int) -> None:
    redactor = redactors["rules"]
    text = short_document(seed)
    whole, _ = redactor.text(text)

    for cut in range(1, len(text)):
        assert streamed(redactor, [text[:cut], text[cut:]]) == whole, cut


@pytest.mark.parametrize("seed", range(2))
def test_pairs_of_cuts_of_a_short_document_give_the_whole(seed: int) -> None:
    redactor = redactors["rules"]
    random = Random(f"pairs {seed}")
    text = short_document(seed)
    whole, _ = redactor.text(text)

    for width in (1, 2, 3, 8, 40, 150):
        for _ in range(8):
            first = random.randrange(1, len(text) - width)
            second = first + width
            parts = [text[:first], text[first:second], text[second:]]
            assert streamed(redactor, parts) == whole, (first, second)


LINES_OF_A_KEY = [
    "q93OZQnzsY0HakCGDi7lB9XgKMJhoei4igiKvMIIEpAIBAAKCAQEA0",
    "BfSGvNbsW0WDuO+Te98Y6ilDDSFViT+vGmVYJLuFk6Fqx+7hAo4wHRX",
    "eJa/R3kdaBEf2mw65H1z/OtKvvEXHWeMKlaoojp123M0fp7Iwx83oGc",
    "mu3XQjuDzBolsL6",
]


@pytest.mark.parametrize("line_break", ["\n", "\\n", "<br>", "\nkeys/id_rsa:7:"])
@pytest.mark.parametrize("count", [1, 3, 24])
@pytest.mark.parametrize("size", [40, 130, 700])
def test_lines_of_a_key_wait_for_the_last_one(
    line_break: str, count: int, size: int
) -> None:
    # Only the last line of all says that the lines before it are a key.
    *full, short = LINES_OF_A_KEY
    lines = line_break.join([*full * count, short])
    end = f"{line_break}-----END RSA PRIVATE KEY-----\n"
    text = "Nothing is here yet, and it goes on. " * 30 + line_break + lines + end
    whole, _ = redactors["rules"].text(text)

    clean = streamed(redactors["rules"], divided(text, size))

    assert clean == whole
    assert "BfSGvNbs" not in clean


@pytest.mark.parametrize("step", [64, 997])
def test_a_long_statement_of_sql_is_redacted_as_in_the_whole(step: int) -> None:
    redactor = Redactor(Plan(engine="stdlib"))
    rows = [f"({number}, 'bear-{number}Qx')" for number in range(10, 600)]
    text = f"INSERT INTO u (id, password) VALUES {','.join(rows)};\nthe end\n"
    stream = StreamRedactor(redactor)

    clean = ""
    for start in range(0, len(text), step):
        clean += stream.feed(text[start : start + step])
    clean += stream.close()

    assert clean.count("[REDACTED:SECRET]") == len(rows)
    assert clean == redactor.text(text)[0]
