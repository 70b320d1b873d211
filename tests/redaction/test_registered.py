"""Every engine finds a registered value in every spelling."""

from __future__ import annotations

import base64
import json
import pickle
import re
from concurrent.futures import ThreadPoolExecutor
from html import escape
from threading import Event
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import assume, given, settings, strategies as st

from refold.redaction.engines import EngineName
from refold.redaction.registered import Registered

SECRET = 'p@ss/w"rd\\+1 é?'
ENGINES: tuple[EngineName, ...] = ("vectorscan", "stdlib")

values = st.text(
    st.characters(codec="utf-8", exclude_characters="[]#:"), min_size=8, max_size=40
).filter(lambda value: len(value.strip()) >= 8)
around = st.text(st.characters(codec="utf-8"), max_size=12)
engines = pytest.mark.parametrize("engine", ENGINES)


def registered(*secrets: str, engine: EngineName = "auto") -> Registered:
    registry = Registered(engine=engine)
    for secret in secrets:
        registry.register(secret)
    return registry


def covered(text: str, registry: Registered) -> str:
    """Return ``text`` with a star for each character that is found."""
    starred = list(text)
    for start, end, _ in registry.find(text):
        starred[start:end] = "*" * (end - start)
    return "".join(starred)


def wide(text: str) -> str:
    """``text`` in full-width characters."""
    return "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else c for c in text)


WRITTEN = {
    "plain": SECRET,
    "JSON": json.dumps(SECRET)[1:-1],
    "JSON in UTF-8": json.dumps(SECRET, ensure_ascii=False)[1:-1],
    "JSON in JSON": json.dumps(json.dumps(SECRET))[3:-3],
    "JSON with escaped slashes": json.dumps(SECRET)[1:-1].replace("/", "\\/"),
    "JSON with other escapes": json.dumps(SECRET)[1:-1].replace("@", "\\u0040"),
    "URL": quote(SECRET, safe=""),
    "URL in lower case": "p%40ss%2fw%22rd%5c%2b1%20%c3%a9%3f",
    "URL path": quote(SECRET),
    "form": quote_plus(SECRET),
    "form in lower case": "p%40ss%2fw%22rd%5c%2b1+%c3%a9%3f",
    "HTML": escape(SECRET),
    "hex": SECRET.encode().hex(),
    "hex in upper case": SECRET.encode().hex().upper(),
    "base64": base64.b64encode(SECRET.encode()).decode().rstrip("="),
    "base64 for URLs": base64.urlsafe_b64encode(SECRET.encode()).decode().rstrip("="),
    "full-width": wide(SECRET),
    "with invisible characters": "\u200b".join(SECRET),
}


@engines
@pytest.mark.parametrize("written", WRITTEN.values(), ids=WRITTEN)
def test_a_value_is_found_however_it_is_written(
    written: str, engine: EngineName
) -> None:
    registry = registered(SECRET, "another-value-2", engine=engine)

    assert covered(f"a: {written}.", registry) == f"a: {'*' * len(written)}."


@given(st.data(), st.binary(max_size=7), st.binary(max_size=7), st.booleans())
@settings(deadline=None, max_examples=60)
def test_in_base64_every_character_with_bits_of_the_value_is_found(
    data: st.DataObject, before: bytes, after: bytes, url_safe: bool
) -> None:
    value = data.draw(values).strip()
    secret = value.encode()
    encode = base64.urlsafe_b64encode if url_safe else base64.b64encode
    text = encode(before + secret + after).decode()
    first = len(before) * 8 // 6
    last = -(-(len(before) + len(secret)) * 8 // 6)

    starred = covered(text, registered(value, engine="stdlib"))

    assert set(starred[first:last]) == {"*"}
    if secret not in (before + secret)[:-1] and secret not in (secret + after)[1:]:
        assert starred[:first] + starred[last:] == text[:first] + text[last:]


@pytest.mark.parametrize("safe", ["", "/"])
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("before", [b"", b"a", b"ab"])
def test_base64_in_a_url_is_found_completely(
    before: bytes, safe: str, *, lower: bool
) -> None:
    secret = "\xfb\xff~~~???>>>\xfb\xff"
    encoded = base64.b64encode(before + secret.encode() + b"\xff\xff").decode()
    first = len(before) * 8 // 6
    last = -(-(len(before) + len(secret.encode())) * 8 // 6)
    parts = (encoded[:first], encoded[first:last], encoded[last:])
    quoted = [quote(part, safe=safe) for part in parts]
    left, within, right = (
        re.sub("%..", lambda m: m[0].lower() if lower else m[0], part)
        for part in quoted
    )

    assert covered(left + within + right, registered(secret)) == (
        left + "*" * len(within) + right
    )


@given(st.lists(values, min_size=1, max_size=4), st.data())
@settings(deadline=None, max_examples=15)
def test_all_engines_find_the_same(secrets: list[str], data: st.DataObject) -> None:
    parts = st.one_of(
        around,
        st.sampled_from(secrets),
        st.sampled_from(secrets).map(wide),
        st.sampled_from(secrets).map(lambda s: json.dumps(s)),
        st.sampled_from(secrets).map(lambda s: quote(s)),
        st.sampled_from(secrets).map(lambda s: s[1:]),
        st.sampled_from(["[REDACTED:PHONE]", "\ud800", "\u200b"]),
    )
    text = "".join(data.draw(st.lists(parts, max_size=8)))

    by_engine = [registered(*secrets, engine=e).find(text) for e in ENGINES]

    assert by_engine[0] == by_engine[1]


@engines
@given(values, st.lists(around), st.integers(0, 9))
@settings(deadline=None, max_examples=12)
def test_texts_are_clean_only_if_nothing_is_found_in_any(
    engine: EngineName, value: str, texts: list[str], place: int
) -> None:
    # Of punctuation alone, nothing says that it may be something else in disguise.
    assume(any(c.isascii() and c.isalnum() for c in value))
    registry = registered(value, engine=engine)
    dirty = [*texts[:place], wide(value), *texts[place:]]

    assert not registry.clean(dirty)
    assert not (registry.clean(texts) and any(map(registry.find, texts)))
    assert (
        registry.clean(["the quick", "brown fox"]) or value.strip() in "the quick brown"
    )


@given(values, around, around)
@settings(deadline=None, max_examples=60)
def test_extents_are_in_order_and_apart_and_cover_the_value(
    value: str, before: str, after: str
) -> None:
    value = value.strip()
    text = before + value + after
    findings = registered(value, engine="stdlib").find(text)

    assert any(s <= len(before) and len(before + value) <= e for s, e, _ in findings)
    edges = [edge for start, end, _ in findings for edge in (start, end)]
    assert edges == sorted(edges)


def test_overlapping_values_are_one_extent_of_the_longest_type() -> None:
    registry = Registered()
    registry.register("abcdefgh", "SHORT")
    registry.register("efghijklmnop", "LONG")
    registry.register("ababababab", "PERIODIC")

    assert registry.find("-abcdefghijklmnop-") == [(1, 17, "LONG")]
    assert registry.find("abababababababab") == [(0, 16, "PERIODIC")]
    assert registry.find("abcdefghabcdefgh") == [(0, 8, "SHORT"), (8, 16, "SHORT")]


def test_a_placeholder_is_not_searched() -> None:
    registry = registered("URL_CREDENTIAL")

    assert registry.find("[REDACTED:URL_CREDENTIAL] URL_CREDENTIAL") == [
        (26, 40, "SECRET")
    ]


def test_a_forgotten_value_is_found_no_more() -> None:
    registry = registered("first-value", "second-value")

    registry.forget("first-value")
    registry.forget("never-there")

    assert [covered(v, registry) for v in ("first-value", "second-value")] == [
        "first-value",
        "*" * 12,
    ]
    registry.forget("second-value")
    assert not registry
    assert registry.find("second-value") == []


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("s3cr3t!", "SECRET"),
        ("  s3cr3t!  ", "SECRET"),
        ("s3cr3t-value\ud800", "SECRET"),
    ],
)
def test_a_value_that_cannot_be_registered_is_not_in_the_error(
    value: str, kind: str
) -> None:
    with pytest.raises(ValueError, match="registered value") as caught:
        Registered().register(value, kind)

    assert "s3cr" not in str(caught.value)


@pytest.mark.parametrize("kind", ["", "a", "lower", "1ST", "A" * 41, "TWO WORDS"])
def test_a_type_must_fit_a_placeholder(kind: str) -> None:
    with pytest.raises(ValueError, match="a type is"):
        Registered().register("s3cr3t-value", kind)


def test_values_are_not_shown_and_not_pickled() -> None:
    registry = registered("first-value", "second-value")

    assert repr(registry) == "Registered(2 values)"
    with pytest.raises(TypeError, match="stay in this process"):
        pickle.dumps(registry)


def test_threads_search_while_values_change() -> None:
    registry = registered("constant-value", engine="stdlib")
    text = "a constant-value here " * 50
    stop = Event()

    def search(_: int) -> bool:
        good = True
        while not stop.is_set():
            good = good and len(registry.find(text)) == 50
        return good

    with ThreadPoolExecutor(3) as pool:
        searches = pool.map(search, range(3))
        for number in range(4):
            registry.register(f"passing-value-{number}")
            registry.find(text)
            registry.forget(f"passing-value-{number}")
        stop.set()

        assert all(searches)


def test_a_search_within_a_search_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    from refold.redaction.engines import vectorscan

    registry = registered("outer-value", engine="vectorscan")
    inner: list[object] = []
    note = vectorscan._note

    def interrupted(*args: object) -> None:
        if not inner:
            inner.append(None)
            inner.append(registry.find("an outer-value"))
        note(*args)  # type: ignore[arg-type]  # passed on as they come

    monkeypatch.setattr(vectorscan, "_note", interrupted)

    assert registry.find("outer-value") == [(0, 11, "SECRET")]
    assert inner[1] == [(3, 14, "SECRET")]


def test_variables_with_secret_names_and_plausible_values_are_registered() -> None:
    environ = {
        "OPENAI_API_KEY": "k-q7Zt0Kx3Vb9L",
        "DB_PASSWORD": "hunter2-hunter2",
        "GITHUB_TOKEN": " q7Zt0Kx3Vb \n",
        "dbPassword": "x9!kPq_27",
        "HOME_KEY": "/etc/keys/home.key",
        "MAX_TOKENS": "123456789",
        "KEY_ENV": "production",
        "TOKEN_URL": "https://auth.example.org/token",
        "SECRET": "short1",
        "API_TOKEN": "$OTHER_TOKEN",
        "KEYBOARD": "f2Gk8Wq1Zx-us",
        "PATH": "j5Tn4Rb7Yc-no",
    }
    registry = Registered.from_environ(environ)

    taken = {name for name, v in environ.items() if covered(v, registry) != v}
    assert taken == {"OPENAI_API_KEY", "DB_PASSWORD", "GITHUB_TOKEN", "dbPassword"}


def test_names_of_variables_can_be_given() -> None:
    registry = Registered.from_environ(
        {"LICENCE": "q7Zt0Kx3Vb9L", "API_KEY": "other-Value-1"},
        names=re.compile("LICENCE"),
    )

    assert len(registry) == 1
    assert registry.find("q7Zt0Kx3Vb9L")


@given(values)
@settings(deadline=None, max_examples=30)
def test_nothing_is_found_without_a_spelling_of_the_value(value: str) -> None:
    assume(value.strip() not in "the quick brown fox")

    assert registered(value, engine="stdlib").find("the quick brown fox") == []
