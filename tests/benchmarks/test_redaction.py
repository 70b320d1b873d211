"""The redaction benchmark: its data is the same each time, and it counts right."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson
import pytest

import refold
from benchmarks.redaction import (
    adversarial,
    clean,
    corpora,
    events,
    labelled,
    laws,
    report,
    tools,
    values,
)
from benchmarks.redaction.labelled import Item, items, vendor_items
from benchmarks.redaction.report import Figures
from benchmarks.redaction.tools import Span, replaced
from benchmarks.report import Check
from refold.adapters.cli import main
from refold.adapters.cli.run import command
from refold.redaction.redactor import Redactor

ROOT = Path(__file__).parents[2]


class Scripted:
    """A tool that finds what it is told to, whatever the text."""

    name = "scripted"

    def __init__(self, *spans: Span) -> None:
        self.found = spans

    def spans(self, text: str) -> Sequence[Span]:
        return self.found


def digest() -> str:
    small = corpora.Corpora(scale=0.002)
    parts = [
        small.clean,
        small.mixed,
        small.events,
        small.small_events,
        small.noise,
        small.small_leaves,
        small.adversarial,
        [item.text for item in items(random.Random(1), 1)],
        [item.text for item in vendor_items(random.Random(1))],
        [text.text for text in clean.texts(0.01)],
    ]
    return hashlib.sha256(orjson.dumps(parts)).hexdigest()


def test_the_same_seed_makes_the_same_corpora_in_every_process() -> None:
    code = "from tests.benchmarks.test_redaction import digest; print(digest())"

    printed = subprocess.check_output(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "4711"},
        text=True,
    )

    assert printed.strip() == digest()


def test_another_seed_makes_other_corpora() -> None:
    first = corpora.Corpora(0.001, seed=1)
    other = corpora.Corpora(0.001, seed=2)

    assert first.clean != other.clean
    assert first.events != other.events


def test_values_and_their_sentences_are_a_small_part_of_the_mixed_corpus() -> None:
    clean = corpora.Corpora(0.02).clean
    before = sum(len(text.encode()) for text in clean)

    texts = corpora.mixed(random.Random(3), clean)

    added = sum(len(text.encode()) for text in texts) - before
    assert len(texts) == len(clean)
    assert 0.01 <= added / before < 0.03


def test_events_are_json_and_small_ones_are_174_bytes() -> None:
    results = events.events(random.Random(1), 26)

    assert json.loads(json.dumps(results)) == results
    assert len({event["tool"] for event in results}) == 13
    assert {events.size(events.small_event(random.Random(n))) for n in range(50)} == {
        174
    }


def test_noise_and_adversaries_have_the_documented_number_and_size() -> None:
    noise = events.noise(random.Random(1), 120_000)
    hard = corpora.adversarial(random.Random(1))

    assert all(len(text.encode()) >= 10_000 for text in noise.values())
    assert len(hard) == 30
    assert {len(text) for text in hard.values()} == {100_000}


def test_clean_text_is_of_all_parts_and_eight_megabytes_at_least() -> None:
    figures = clean.found(Scripted().spans, clean.texts())

    assert figures.sizes.keys() == {"library", "packages", "diffs", "logs"}
    assert figures.sizes.total() >= 8_000_000
    assert figures.per_megabyte() == {}


def test_almost_no_trap_is_taken_for_a_secret() -> None:
    chance = random.Random(1)
    redactor = tools.Refold(tools.redactor("stdlib"))
    flagged = [
        form
        for _, form in clean.TRAPS
        if clean.found(
            redactor.spans, [clean.Text("", "", values.filled(form, chance))]
        ).types
    ]

    assert len(clean.TRAPS) >= 500
    assert len(flagged) <= 0.04 * len(clean.TRAPS), flagged


def test_findings_in_clean_text_are_counted_and_told_but_for_what_stood_there() -> None:
    text = "mail a@b.io pw=[REDACTED:SECRET] 4711"
    tool = Scripted(Span(5, 11, "EMAIL"), Span(15, 32, "SECRET"), Span(33, 37, "PIN"))
    reported = []

    figures = clean.found(
        tool.spans,
        [clean.Text("logs", "x", text)],
        lambda _, span: reported.append(span),
    )

    assert figures.types == {"logs": {"EMAIL": 1, "PIN": 1}}
    assert reported == [Span(33, 37, "PIN")]
    assert figures.per_megabyte()["PIN"] == pytest.approx(1e6 / len(text))


def test_a_secret_counts_as_found_only_if_nothing_of_it_is_left() -> None:
    text = "pw: abc def"

    assert tools.without(Scripted(Span(8, 11, "B"), Span(4, 7, "A")), text) == (
        "pw: \0 \0"
    )
    assert tools.without(Scripted(Span(4, 9, "A"), Span(5, 7, "B")), text) == (
        "pw: \0\0ef"
    )
    assert adversarial.recall("dev", lambda _: "", every=5)[2] == []


@pytest.mark.parametrize("half", ["dev", "held_out"])
def test_unchanged_values_count_as_missed(half: adversarial.Half) -> None:
    counts, hits, missed = adversarial.recall(half, lambda text: text)

    assert len(missed) == counts.total() > 600
    assert hits.total() == 0


def test_a_template_is_filled_slot_by_slot_and_the_rest_stays() -> None:
    text = values.filled("{d4}-{h6} {user} {{x}}", random.Random(1))

    number, rest = text.split("-")
    assert len(number) == 4
    assert rest[6:] == " {user} {{x}}"


def test_a_key_is_complete_in_each_of_its_carriers() -> None:
    for vendor in values.VENDORS:
        value = vendor.make(random.Random(1))

        for carrier in values.CARRIERS:
            assert value in values.carried(vendor, carrier, value), vendor.name
        assert values.secret_of(value) in value, vendor.name


def test_at_least_forty_vendors_on_each_side() -> None:
    items = vendor_items(random.Random(1))

    for held_out in (False, True):
        named = {
            item.name.split(" · ")[0] for item in items if item.held_out is held_out
        }
        assert len(named) >= 40


def test_labels_point_at_values() -> None:
    for item in items(random.Random(1), 4):
        for span in item.spans:
            assert item.text[span.start : span.end].strip()


def test_check_digits_are_those_of_published_examples() -> None:
    assert values.luhn("411111111111111") == "4111111111111111"
    assert values.checked_iban("DE", "370400440532013000") == "DE89370400440532013000"
    assert (
        values.checked_resident_id("110105", "19491231", "002") == "11010519491231002X"
    )
    assert values.identity_es("12345678") == "12345678Z"
    assert values.hong_kong_id("A", "123456") == "A123456(3)"
    assert values.taiwan_id("A", "12345678") == "A123456789"
    assert values.pesel("4405140135") == "44051401359"
    assert values.routing_us("11100002") == "111000025"
    assert values.tax_id_de("8609574271") == "86095742719"
    assert values.social_fr("2550814168025") == "255081416802538"


def test_personal_data_is_made_in_every_kind() -> None:
    rng = random.Random(1)

    assert all(values.make(rng, kind) for kind in values.PERSONAL)


@pytest.mark.parametrize(
    ("before", "after", "spans"),
    [
        ("nothing", "nothing", []),
        ("tel 123!", "tel [REDACTED:PHONE]!", [Span(4, 7, "PHONE")]),
        ("a 1 b 2", "a [REDACTED:X1] b [REDACTED:Y2#abcd2345]", [(2, 3), (6, 7)]),
        ('{"k": "v1"}', '{"k":"[REDACTED:KEY]"}', [Span(7, 9, "KEY")]),
        ("a b", "A [REDACTED:X1]", [Span(0, 0, "ALTERED")]),
    ],
)
def test_values_of_placeholders_are_derived_from_the_text_around(
    before: str, after: str, spans: list[tuple[int, ...]]
) -> None:
    assert [
        span[: len(want)]
        for span, want in zip(replaced(before, after), spans, strict=True)
    ] == [tuple(want) for want in spans]


TEXT = "mail a@b.io, call 555-0100"
LABELS = (Span(5, 11, "EMAIL"), Span(18, 26, "PHONE"))


def test_a_value_counts_as_found_only_if_it_is_covered_completely() -> None:
    tool = Scripted(Span(5, 11, "EMAIL"), Span(18, 21, "PHONE"))

    scored = labelled.score(tool, [Item(TEXT, LABELS, False)])

    email = scored.types["EMAIL"]
    phone = scored.types["PHONE"]
    assert (email.spans, email.whole, email.part, email.missed) == (1, 1, 0, 0)
    assert (phone.spans, phone.whole, phone.part, phone.missed) == (1, 0, 1, 0)
    assert (scored.total.recall, scored.total.precision) == (0.5, 1.0)


def test_two_findings_may_cover_a_value_together_and_marks_need_no_cover() -> None:
    tool = Scripted(Span(18, 21, "PHONE"), Span(22, 26, "SECRET"))

    scored = labelled.score(tool, [Item(TEXT, LABELS, False)])

    assert scored.types["PHONE"].whole == 1
    assert scored.types["EMAIL"].missed == 1


def test_a_finding_outside_all_labels_is_false() -> None:
    tool = Scripted(Span(0, 4, "PERSON"), Span(5, 11, "EMAIL"))

    scored = labelled.score(tool, [Item(TEXT, LABELS, False)])

    assert (scored.total.found, scored.total.false) == (2, 1)
    assert scored.total.precision == 0.5


def test_labels_of_other_types_count_neither_as_missed_nor_false() -> None:
    item = Item(TEXT, (Span(0, 4, "other:TITLE"),), False)

    scored = labelled.score(Scripted(Span(0, 4, "PERSON")), [item])

    assert (scored.total.spans, scored.total.found, scored.total.false) == (0, 1, 0)


def test_a_page_keeps_everything_except_its_results() -> None:
    page = "a\n<!-- results: begin (x) -->\nyesterday\n<!-- results: end -->\nz\n"
    speed = {"clean": {"vectorscan": 90.0, "presidio": 0.3}}
    figures = Figures(checks=[Check("speed", 2.0, least=1)], speed=speed)
    figures.placed = {
        "refold": {
            "dev": {"yaml": (2, 2), "url": (1, 1)},
            "held_out": {"yaml": (1, 2), "url": (1, 1)},
        },
        "presidio": {"dev": {"yaml": (0, 1)}, "held_out": {"yaml": (0, 1)}},
    }
    figures.clean = {"refold, sources": {"SECRET": 2.5}, "presidio": {"PHONE": 3.0}}
    figures.clean_bytes = {"refold, sources": 8_000_000, "presidio": 200_000}

    once = report.filled(page, figures)

    assert once.startswith("a\n<!-- results: begin (x) -->\n")
    assert once.endswith("<!-- results: end -->\nz\n")
    assert "yesterday" not in once
    assert "Refold's speed on clean text is 300 times presidio's." in once
    assert "| ✓ | speed | 2.000 | ≥ 1 |  |" in once
    assert "| yaml | 0.50 | 1.00 | 0.00 |" in once
    assert "| all | 0.67 | 1.00 | 0.00 |" in once
    assert "| SECRET | 2.5 | 0.0 |" in once
    assert report.filled(once, figures) == once
    with pytest.raises(ValueError, match="results: begin"):
        report.filled("no marks", figures)


def test_a_check_holds_within_its_bounds_and_says_when_it_was_not_measured() -> None:
    assert Check("x", 2.0, least=2).holds is True
    assert Check("x", 1.9, least=2).holds is False
    assert Check("x", 0, most=0).holds is True
    assert Check("x", None, least=2).holds is None


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ({"a": [1, "x"]}, {"b": [1, "y"]}, True),
        ({"a": 138}, {"a": "[REDACTED:PHONE]"}, True),
        ({"a": True}, {"a": "[REDACTED:PHONE]"}, False),
        ({"a": 1.5}, {"a": 1.6}, False),
        ([1, 2], [1], False),
        ("x", None, False),
    ],
)
def test_the_shape_is_the_same_if_only_texts_and_integers_differ(
    before: events.Json, after: events.Json, same: bool
) -> None:
    assert laws.same_shape(before, after) is same


@pytest.mark.parametrize(
    ("before", "after", "still"),
    [
        ('{"a": 1}', '{"a":"[REDACTED:PHONE]"}', True),
        ('{"a": 1}', '{"a":[REDACTED:PHONE]}', False),
        (['{"a": 1}'], ["[REDACTED:LEAF]"], True),
        ({"k": "[1]"}, {"k": "[1"}, False),
        ("[not JSON", "[neither", True),
    ],
)
def test_a_text_that_was_json_must_stay_json(
    before: events.Json, after: events.Json, still: bool
) -> None:
    assert laws.still_json(before, after) is still


def test_a_broken_law_is_counted_and_shown_by_a_short_text() -> None:
    class Doubling(Redactor):
        """Gives each of its placeholders another name."""

        def text(self, text: str, *, key: str | None = None, tag: object = None) -> Any:
            return text.replace("a", "aa"), None

    verdict = laws.laws({"stdlib": Doubling()}, 0, 1, also=["xxaxxbb", "none"])

    assert verdict.cases == 2
    assert verdict.broken == {"idempotent": 1}
    assert verdict.examples == ['idempotent: "a"']


def test_the_command_measures_and_writes_its_figures(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [sys.executable, "-m", "refold", "bench", "redaction"]

    ran = subprocess.run(
        [*command, "--quick", "--laws", "20", "--json", str(figures)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )

    written = json.loads(figures.read_text())
    assert ran.returncode in (0, 1), ran.stderr
    assert "Targets" in ran.stdout
    assert written["speed"]["clean"].keys() >= {"stdlib"}
    assert written["laws"]["cases"] >= 20
    assert any(check["holds"] is None for check in written["checks"])


def test_without_a_checkout_the_command_reports_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(refold, "__file__", str(tmp_path / "refold" / "__init__.py"))
    command.cache_clear()  # as if nothing was asked of it yet

    code = main(["bench", "redaction", "--quick"])

    assert code == 1
    assert "checkout" in capsys.readouterr().err
