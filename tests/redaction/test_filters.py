"""Log records and printed text are redacted on their way out, and nothing is raised."""

from __future__ import annotations

import io
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from refold.redaction import RedactionError, Redactor
from refold.redaction.pieces import RedactingFilter, RedactingWriter, redacted_lines
from tests.redaction.samples import PEM, PLANTED
from tests.support import warm

redactor = Redactor()
PHONE = "13912345670"
MAIL = "ada@mail.example.net"


class Broken(Redactor):
    """Fails at every text."""

    def text(self, *_: object, **__: object) -> tuple[str, object]:  # type: ignore[override]  # never returns
        raise RedactionError(f"made to fail, not on {PHONE}")


class Logged:
    """Return a logger whose handler redacts, and its output."""

    def __init__(self, form: str, redactor: Redactor) -> None:
        self.stream = io.StringIO()
        self.handler = logging.StreamHandler(self.stream)
        self.handler.setFormatter(logging.Formatter(form))
        self.handler.addFilter(RedactingFilter(redactor))
        self.logger = logging.Logger("test")
        self.logger.addHandler(self.handler)

    @property
    def text(self) -> str:
        return self.stream.getvalue()


@pytest.fixture
def logged() -> Logged:
    return Logged("%(levelname)s %(message)s", redactor)


def test_a_message_is_redacted_with_its_arguments(logged: Logged) -> None:
    logged.logger.info("call %s of %d", PHONE, 3)
    logged.logger.info("password: %(value)s", {"value": "hunter2x"})
    logged.logger.warning(MAIL)

    assert logged.text == (
        "INFO call [REDACTED:PHONE] of 3\nINFO password: [REDACTED:SECRET]\n"
        "WARNING [REDACTED:EMAIL]\n"
    )


def test_exceptions_and_stacks_are_redacted(logged: Logged) -> None:
    try:
        raise KeyError(MAIL)
    except KeyError:
        logged.logger.exception("failed", stack_info=True)

    assert MAIL not in logged.text
    assert "KeyError: '[REDACTED:EMAIL]'" in logged.text
    assert "Stack (most recent call last)" in logged.text


def test_the_text_of_an_exception_that_another_handler_made_is_redacted() -> None:
    both = Logged("%(message)s", redactor)
    plain = logging.StreamHandler(io.StringIO())
    both.logger.handlers.insert(0, plain)
    try:
        raise ValueError(MAIL)
    except ValueError:
        both.logger.exception("the call to %s failed", PHONE)

    assert MAIL in plain.stream.getvalue()
    assert MAIL not in both.text
    assert PHONE not in both.text


def test_extra_fields_of_a_log_record_are_redacted() -> None:
    form = "%(message)s %(phone)s %(n)s %(data)s %(thing)s %(none)s"
    logged = Logged(form, redactor)

    class Thing:
        def __str__(self) -> str:
            return f"<{MAIL}>"

    extra = {
        "phone": 4155550132,
        "n": 7,
        "data": {"mail": [MAIL]},
        "thing": Thing(),
        "none": None,
    }
    logged.logger.info("see", extra=extra)

    assert logged.text == (
        "see [REDACTED:PHONE] 7 {'mail': ['[REDACTED:EMAIL]']} <[REDACTED:EMAIL]> "
        "None\n"
    )


def test_a_filter_on_a_logger_redacts_for_all_handlers() -> None:
    stream = io.StringIO()
    logger = logging.Logger("test")
    logger.addHandler(logging.StreamHandler(stream))
    logger.addFilter(RedactingFilter(redactor))

    logger.info("call %s", PHONE)

    assert stream.getvalue() == "call [REDACTED:PHONE]\n"


def test_a_second_filter_changes_nothing(logged: Logged) -> None:
    logged.handler.addFilter(RedactingFilter(redactor))

    logged.logger.info("call %s", PHONE, extra={"mail": MAIL})

    assert logged.text == "INFO call [REDACTED:PHONE]\n"


def test_a_structured_message_stays_one() -> None:
    record = logging.makeLogRecord({"msg": {"phone": PHONE}})

    assert RedactingFilter(redactor).filter(record)
    assert record.msg == {"phone": "[REDACTED:PHONE]"}


@pytest.mark.parametrize(
    ("message", "arguments"), [("%d of " + PHONE, ("x",)), ("%s %s", (PHONE,))]
)
def test_a_message_that_cannot_be_made_is_withheld(
    logged: Logged, message: str, arguments: tuple[str, ...]
) -> None:
    logged.logger.info(message, *arguments)

    assert logged.text == "INFO [withheld: redaction stopped with TypeError]\n"


def test_log_records_that_cannot_be_redacted_are_withheld() -> None:
    logged = Logged("%(message)s %(mail)s", Broken())
    try:
        raise KeyError(MAIL)
    except KeyError:
        logged.logger.exception("call %s", PHONE, extra={"mail": MAIL})

    withheld = "[withheld: redaction stopped with RedactionError]"
    assert logged.text == f"{withheld} {withheld}\n{withheld}\n"


class Sink(io.StringIO):
    flushed = 0

    def flush(self) -> None:
        self.flushed += 1


def test_a_writer_redacts_over_the_ends_of_writes() -> None:
    sink = Sink()
    writer = RedactingWriter(sink, redactor)

    for character in f"call {PHONE[:5]}":
        writer.write(character)
    writer.flush()
    writer.write(f"{PHONE[5:]}\n{PEM}\n")
    writer.close()

    assert sink.getvalue() == "call [REDACTED:PHONE]\n[REDACTED:PRIVATE_KEY]\n"
    assert sink.flushed
    assert not sink.closed


def test_a_writer_replaces_stdout() -> None:
    sink = Sink()
    with RedactingWriter(sink, redactor) as writer, redirect_stdout(writer):
        print("call", PHONE, file=sys.stdout)  # noqa: T201 - what is tested

    assert sink.getvalue() == "call [REDACTED:PHONE]\n"
    with pytest.raises(ValueError, match="closed"):
        writer.write("more")


def test_a_writer_offers_no_way_around() -> None:
    writer = RedactingWriter(Sink(), redactor)

    assert not hasattr(writer, "buffer")
    assert (writer.writable(), writer.readable(), writer.isatty()) == (
        True,
        False,
        False,
    )
    with pytest.raises(OSError, match="fileno"):
        writer.fileno()


def test_a_writer_withholds_text_that_cannot_be_redacted() -> None:
    sink = Sink()
    with RedactingWriter(sink, Broken()) as writer:
        assert writer.write(f"call {PHONE}") == 16

    assert sink.getvalue() == "[withheld: redaction stopped with RedactionError]\n"


def test_lines_are_redacted_together() -> None:
    def lines() -> Iterator[str]:
        yield from f"before\n{PEM}\ncall {PHONE}\nlast".splitlines(keepends=True)

    assert [*redacted_lines(lines(), redactor)] == [
        "before\n",
        "[REDACTED:PRIVATE_KEY]\n",
        "call [REDACTED:PHONE]\n",
        "last",
    ]


@given(st.lists(st.sampled_from([*(p.text for p in PLANTED), "", "\n", "word"])))
@settings(deadline=None, max_examples=40)
def test_lines_are_together_the_text_redacted(pieces: list[str]) -> None:
    text = "\n".join(pieces)

    lines = [*redacted_lines(text.splitlines(keepends=True), redactor)]

    assert "".join(lines) == redactor.text(text)[0]
    assert all(line.endswith("\n") and line.count("\n") == 1 for line in lines[:-1])


def test_the_examples_of_the_page_run(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs/how-to/redact-logs-and-streams.md"
    blocks = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)

    ran = warm.code("\n".join(blocks), cwd=tmp_path, environment=os.environ)
    printed, errors = ran.communicate()

    assert (ran.returncode, printed) == (0, "call [REDACTED:PHONE]\n")
    assert errors == "WARNING:root:call [REDACTED:PHONE]\n"
