"""``refold redact``: the redactor alone, as a filter."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from refold.adapters.cli.options import Json, Values
from refold.adapters.cli.output import write_line
from refold.domain.errors import RefoldError

if TYPE_CHECKING:
    from typing import BinaryIO

    from refold.redaction.engine import Redactor


class _Clean(NamedTuple):
    value: Any
    receipt: dict[str, Any]


def redact(
    file: Annotated[
        str, typer.Argument(metavar="[FILE|-]", help="What to read; - is stdin.")
    ] = "-",
    form: Annotated[
        Values,
        typer.Option(
            "--format",
            help="text; json: one value; jsonl: one value a line, each answered by a "
            "line, in order.",
        ),
    ] = Values.TEXT,
    as_json: Json = False,
) -> None:
    """Replace secrets and personal data in a text or in JSON.

    Nothing is stored.  With --json each value comes with the receipt that an event
    would carry: the rules, the engine and what was found by type.
    """
    from refold.redaction.engine import RedactionError, Redactor

    redactor = Redactor()
    with _input(file) as (name, source):
        try:
            for clean in _cleaned(redactor, form, name, source):
                _write(clean, form, as_json=as_json)
        except RedactionError as error:
            raise RefoldError(f"{name}: could not be redacted ({error})") from None


def _cleaned(
    redactor: Redactor, form: Values, name: str, source: BinaryIO
) -> Iterator[_Clean]:
    if form is Values.TEXT:
        text, counts = redactor.text(_decoded(source.read(), name))
        yield _Clean(text, redactor.receipt(counts))
        return
    for value in _values(form, name, source):
        clean, counts = redactor.value(value)
        yield _Clean(clean, redactor.receipt(counts))


def _values(form: Values, name: str, source: BinaryIO) -> Iterator[Any]:
    if form is Values.JSON:
        yield _parsed(source.read(), name)
        return
    for number, line in enumerate(source, start=1):
        if line.strip():
            yield _parsed(line, f"{name} line {number}")


def _parsed(data: bytes, where: str) -> Any:
    text = _decoded(data, where).removeprefix("\ufeff")
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"{error.msg.partition(':')[0]}, column {error.colno}"
        why = f"is not JSON ({place})"
    except RecursionError:
        why = "is nested too deeply"
    except ValueError:
        why = "holds a number with too many digits"
    raise RefoldError(f"{where}: {why}: mend it, or read the file with --format text")


def _decoded(data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise RefoldError(
            f"{where}: byte {error.start} is not UTF-8: convert it first, for instance "
            "with `iconv -f LATIN1 -t UTF-8`"
        ) from None


def _write(clean: _Clean, form: Values, *, as_json: bool) -> None:
    if as_json:
        write_line(_dumped({"value": clean.value, "redaction": clean.receipt}))
    elif form is Values.TEXT:
        sys.stdout.flush()
        sys.stdout.buffer.write(clean.value.encode())
    else:
        write_line(_dumped(clean.value))
    sys.stdout.buffer.flush()


def _dumped(value: Any) -> bytes:
    """Compact JSON; what UTF-8 cannot hold stays as the escape that it came as."""
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()


@contextmanager
def _input(file: str) -> Iterator[tuple[str, BinaryIO]]:
    if file == "-":
        yield "stdin", sys.stdin.buffer
        return
    with open(file, "rb") as source:
        yield file, source
