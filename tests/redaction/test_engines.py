"""Both engines give one result, and text that the first pass calls clean is clean."""

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings, strategies as st

from refold.redaction.engines import (
    EngineName,
    Trigger,
    Warming,
    engine_of,
    installed,
    patterns,
    stdlib,
)
from refold.redaction.engines.vectorscan import in_bytes, narrow, windows
from refold.redaction.plan import Plan
from refold.redaction.redactor import Redactor
from refold.redaction.rules import PACKS
from refold.redaction.rules.rule import Example
from tests.support.waiting import PATIENCE_SEC

ENGINES: tuple[EngineName, ...] = ("vectorscan", "stdlib")
RULES = tuple(chain.from_iterable(PACKS.values()))
BY_ENGINE = {name: Redactor(Plan(rules=RULES, engine=name)) for name in ENGINES}
fast, plain = BY_ENGINE.values()


def text_of(example: Example) -> str:
    marked = example[1] if isinstance(example, tuple) else example
    return re.sub("[«»]", "", marked)


EXAMPLES = [
    text_of(example)
    for rule in RULES
    for example in (*rule.examples, *rule.counter_examples)
]
GLUE = (
    "",
    " ",
    "\n",
    "\t",
    ", ",
    '"',
    "\\n",
    "\\",
    "：",
    "——",
    "\u00a0",
    "\u200b",
    "13",
    "0",
    "2024-01-02 ",
    "phone ",
    "手机",
    "１３８",
    "password=",
    "token: ",
    "[REDACTED:PHONE]",
    "@",
    "://",
    "\\u5bc6\\u7801",
    "İ",
    "K",
)


@st.composite
def disturbed_examples(draw: st.DrawFn) -> str:
    """Draw parts of examples, cut anywhere, next to disturbing text."""
    out = []
    for _ in range(draw(st.integers(1, 4))):
        example = draw(st.sampled_from(EXAMPLES))
        start = draw(st.integers(0, len(example)))
        whole = draw(st.booleans())
        out += [example if whole else example[start:], draw(st.sampled_from(GLUE))]
    return "".join(out)


keys = st.sampled_from(
    ["text", "phone", "password", "id_card", "note", "token", "卡号", "id", "value"]
)
values = st.recursive(
    disturbed_examples()
    | st.integers(-(10**18), 10**18)
    | st.floats(allow_nan=False)
    | st.none(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.parametrize("name", ["password", "token", "api_key"])
@pytest.mark.parametrize(
    "link",
    [" is ", " est ", " ist ", " lautet ", " é ", "는 ", "은 ", "は", "就是", " — "],
)
def test_both_engines_find_a_value_behind_each_word(name: str, link: str) -> None:
    text = f"{name}{link}hunter2x9Zq7Lm2Np"
    expected = f"{name}{link}[REDACTED:SECRET]"

    assert plain.text(text)[0] == expected
    assert fast.text(text)[0] == expected


@given(disturbed_examples())
@settings(max_examples=60)
def test_all_engines_find_the_same(text: str) -> None:
    results = {name: redactor.text(text) for name, redactor in BY_ENGINE.items()}

    assert results["vectorscan"] == results["stdlib"]


@given(disturbed_examples())
@settings(max_examples=40)
def test_no_engine_finds_more_than_another(text: str) -> None:
    clean, _ = fast.text(text)

    assert plain.text(clean)[0] == clean


@given(values)
@settings(max_examples=40)
def test_the_first_look_at_json_misses_nothing(value: Any) -> None:
    expected, tally = plain.value(value)

    assert orjson.dumps(fast.value(value)[0]) == orjson.dumps(expected)
    assert fast.value(value)[1] == tally


@pytest.mark.parametrize("name", ENGINES)
def test_long_texts_are_seen_to_their_ends(name: EngineName) -> None:
    filler = "the quick brown fox jumps over the lazy dog. " * 300
    value = "a@example.org"
    text = f"{value} {filler}{value} {filler}{value}"

    clean, tally = BY_ENGINE[name].text(text)

    assert tally.types == {"EMAIL": 3}
    assert clean == text.replace(value, "[REDACTED:EMAIL]")


@given(st.text(), st.text())
def test_a_byte_pattern_matches_where_its_text_pattern_does(
    before: str, after: str
) -> None:
    for pattern in ("码[：:是]x", "[^a-z]{0,3}q", "x[^0-9]?y", "[一-龥]z", "(?:a|：)b"):
        text = f"{before}码：x中q，x中y龥z：b{after}"
        by_bytes = re.compile(in_bytes(pattern).encode(), re.IGNORECASE)
        if re.search(pattern, text):
            assert by_bytes.search(text.encode(errors="replace"))


def test_the_narrow_part_of_a_pattern_is_what_ascii_can_match() -> None:
    assert narrow("key(?:[:=]|：|是)") == "key(?:[:=])"
    assert narrow("key[:：]") == "key[:]"
    assert narrow("密码[:=]") == ""


def test_windows_hold_complete_runs_and_do_not_overlap() -> None:
    run = b"1 2 3 4 5 6 7 8 9 0 " * 40
    data = b"x" * 2000 + run + b"y" * 2000 + b"123456789012," + b"z" * 900
    ends = [2000 + len(run) - 5, len(data) - 900]

    parts = windows(data, ends)

    assert len(parts) == 2
    assert parts[0][0] < 2000
    assert parts[0][1] >= 2000 + len(run)
    assert parts[0][1] < parts[1][0]


def test_an_engine_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("refold.redaction.engines.installed", lambda: False)

    with pytest.raises(ModuleNotFoundError, match="hyperscan"):
        engine_of("vectorscan", [Trigger("abc")])


def test_the_best_engine_takes_over_once_it_is_compiled() -> None:
    class Engine:
        gates = True

        def __init__(self, name: str) -> None:
            self.name = name

        def in_json(self, data: bytes) -> list[tuple[int, int]]:
            return []

        def scan(self, data: bytes) -> list[tuple[int, int]]:
            return []

    engines = []

    def make() -> Engine:
        engines.append(Engine("second"))
        return engines[0]

    warming = Warming(Engine("first"), make)
    warming.scan(b"x" * 1000)
    assert (warming.name, engines) == ("first", [])

    for _ in range(400):
        warming.in_json(b"x" * 1000)
    warming.join()

    assert warming.name == "second"
    assert len(engines) == 1


ENDING_AT_ONCE = """
import threading
from refold.redaction.engines import Warming, engine_of, Trigger

begun = threading.Event()

def make():
    begun.set()
    threading.Event().wait()

warming = Warming(engine_of("stdlib", (Trigger("token"),)), make)
warming.scan(b"x" * 1_000_000)
begun.wait()
"""

ENDING_WHILE_IT_COMPILES = """
import sys, threading, time
import refold

store = refold.open("memory://")
session = store.session(user_id="ada", session_id="s")
session.append(refold.UserInput(text="words of prose " * 30_000))
assert "refold-warm" in [thread.name for thread in threading.enumerate()]
time.sleep(float(sys.argv[1]))
"""

SCANNING_AT_EXIT = """
import atexit
from refold.redaction.engines import Warming, engine_of, Trigger

triggers = (Trigger("token"),)
warming = Warming(engine_of("stdlib", triggers), lambda: engine_of("stdlib", triggers))
atexit.register(lambda: print(len(warming.scan(b"token " * 100_000))))
"""


def run_program(program: str, *arguments: str) -> tuple[int, str]:
    """Run a program to its end, and return its exit code and its output.

    A program that does not end is killed and fails the test.
    """
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=PATIENCE_SEC,
    )
    return ran.returncode, ran.stdout


def test_a_process_that_ends_does_not_wait_for_an_engine() -> None:
    assert run_program(ENDING_AT_ONCE) == (0, "")


def test_a_process_may_end_at_any_moment_while_vectorscan_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REFOLD_HOME", str(tmp_path))
    moments = ("0", "0.4", "0.8", "1.2")

    with ThreadPoolExecutor(len(moments)) as pool:
        ends = [*pool.map(partial(run_program, ENDING_WHILE_IT_COMPILES), moments)]

    assert ends == [(0, "")] * len(moments)


def test_a_text_is_scanned_also_while_a_process_ends() -> None:
    assert run_program(SCANNING_AT_EXIT) == (0, "100000\n")


def test_every_engine_is_installed_where_these_tests_run() -> None:
    assert installed()


def test_patterns_of_many_policies_are_not_all_remembered() -> None:
    remembering = [
        stdlib._compiled,
        patterns.reach,
        patterns.fixed_width,
        patterns.is_ascii,
        patterns.holds_space,
        patterns.needed,
        patterns.unfinished,
    ]

    for function in remembering:
        assert function.cache_info().maxsize == patterns.REMEMBERED
