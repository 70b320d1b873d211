"""The redactor itself: one name for its rules, honest receipts, errors without text."""

import subprocess
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from refold.redaction.checks import Candidate
from refold.redaction.plan import Plan
from refold.redaction.redactor import RedactionError, Redactor
from refold.redaction.rules.default import DEFAULT_RULES
from refold.redaction.rules.rule import Rule
from tests.redaction.samples import PLANTED

SECRET = "hunter2-in-plain"


def breaks(match: Candidate) -> bool:
    raise ValueError(f"cannot judge {match.value}")


BROKEN = Redactor(
    Plan(
        rules=(
            Rule(
                id="x",
                type="X",
                pattern="hunter2.{0,20}",
                gate=("hunter2",),
                validator=breaks,
            ),
        )
    )
)


@pytest.mark.parametrize(
    "work",
    [
        lambda: BROKEN.text(SECRET),
        lambda: BROKEN.value({"a": [SECRET]}),
        lambda: BROKEN.value({"a": f'["{SECRET}"]'}),
        lambda: Redactor().value({"a": {SECRET}}),  # type: ignore[dict-item]  # no JSON
    ],
)
def test_an_error_holds_no_text(work: Callable[[], object]) -> None:
    with pytest.raises(RedactionError) as raised:
        work()

    assert raised.value.__cause__ is None
    assert raised.value.__context__ is None
    assert SECRET not in "".join(traceback.format_exception(raised.value))


def test_the_rule_set_has_one_name_in_every_process() -> None:
    program = (
        "from refold.redaction.redactor import Redactor; print(Redactor().rule_set)"
    )
    names = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ".", "REFOLD_CACHE": "off"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }

    assert names == {Redactor().rule_set}


def test_the_name_of_a_rule_set_follows_from_its_rules() -> None:
    rules = Redactor(Plan(name="mine", rules=DEFAULT_RULES)).rule_set
    one_changed = (replace(DEFAULT_RULES[0], priority=99), *DEFAULT_RULES[1:])

    assert rules.startswith("mine-2:")
    assert len(rules) == len("mine-2:") + 12
    assert Redactor(Plan(name="mine", rules=DEFAULT_RULES[::-1])).rule_set == rules
    assert Redactor(Plan(name="mine", rules=one_changed)).rule_set != rules
    assert Redactor(Plan(name="mine", rules=DEFAULT_RULES[1:])).rule_set != rules


def test_a_receipt_contains_only_counts() -> None:
    redactor = Redactor()
    _, counts = redactor.text("a@example.org, b@example.org or 13912345670")

    assert redactor.receipt(counts) == {
        "rules": redactor.rule_set,
        "engine": redactor.engine,
        "n": 3,
        "types": {"EMAIL": 2, "PHONE": 1},
    }


def test_the_receipt_of_a_clean_event_is_zero() -> None:
    redactor = Redactor()
    _, counts = redactor.value({"text": "hello"})

    assert redactor.receipt(counts) == {
        "rules": redactor.rule_set,
        "engine": redactor.engine,
        "n": 0,
    }


def test_a_redactor_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Redactor().rule_set = "other"


def test_threads_share_a_redactor() -> None:
    redactor = Redactor()
    texts = [planted.text for planted in PLANTED] * 20
    expected = [redactor.text(text) for text in texts]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(redactor.text, texts)) == expected
