"""Generated documents with secrets and personal data, in formats that have parsers.

``document`` makes one from a seed.  A text of tools may stand before it.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from importlib import import_module
from random import Random
from typing import Any, NamedTuple
from xml.etree import ElementTree
from xml.sax.saxutils import escape, quoteattr

from benchmarks.redaction import values

# It has no types.
yaml: Any = import_module("yaml")
Value = Any

_KEYS = (
    "password",
    "db_password",
    "pin",
    "otp",
    "phone",
    "mobile",
    "mrn",
    "card_no",
    "ssn",
    "token",
    "api_key",
    "list",
    "contact",
    "secret",
    "email",
    "name",
    "count",
    "note",
    "id",
    "dob",
)
_COMMANDS = (
    "",
    "$ terraform output -json\n",
    "2026-03-02T10:11:12Z INFO response=",
    'It\'s the answer, in "JSON":\n\n',
    "[worker-3] ",
    "+ curl -s https://api.example/v1/me\n",
)
_NOTES = (
    "nothing to see",
    'says "hi"',
    "a & b < c",
    "first\nsecond",
    "密码已重置",
    "it's 5 o'clock",
)


class Document(NamedTuple):
    """A text that ends with a document.

    text:   the complete text.
    start:  the position at which the document begins.
    format: the name of a parser in ``PARSERS``.
    """

    text: str
    start: int
    format: str


def _scalar(random: Random, key: str) -> Value:
    """Return a value for ``key``."""
    kind = random.randrange(10)
    if key == "pin":
        return random.choice(
            (random.randrange(1000, 9999), str(random.randrange(9999)))
        )
    if key in ("otp", "mrn"):
        return random.choice((random.randrange(10**5, 10**8), "482913"))
    if key in ("phone", "mobile", "contact"):
        number = int(f"13{random.randrange(10**8, 10**9)}")
        return random.choice((number, str(number), f"+86 {number}"))
    if kind == 0:
        return random.choice((None, True, False, 0, -4, 2.5, 1e21, ""))
    if kind < 4:
        return random.choice(_NOTES)
    if kind < 6:
        return values.make(random, random.choice([*values.PERSONAL]))
    if kind < 8:
        return values.SECRETS[random.choice([*values.SECRETS])](random)
    return random.choice(values.VENDORS).make(random)


def _value(random: Random, key: str, depth: int) -> Value:
    kind = random.randrange(8)
    if depth and kind == 0:
        return [_value(random, key, depth - 1) for _ in range(random.randrange(5))]
    if depth and kind == 1:
        return _object(random, depth - 1)
    if depth and kind == 2:
        return json.dumps(_object(random, depth - 1))
    return _scalar(random, key)


def _object(random: Random, depth: int) -> dict[str, Value]:
    keys = random.sample(_KEYS, random.randrange(1, 7))
    return {key: _value(random, key, depth) for key in keys}


def _row(random: Random) -> dict[str, str]:
    flat: dict[str, str] = {}
    for key in random.sample(_KEYS, random.randrange(2, 7)):
        value = _scalar(random, key)
        flat[key] = "" if value is None else str(value)
    return flat


def _json(random: Random) -> str:
    value = _object(random, 3)
    form = random.randrange(4)
    if form == 0:
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    if form == 1:
        return json.dumps(value, indent=2)
    if form == 2:
        return json.dumps([value, _object(random, 1)])
    return json.dumps(value)


def _json_in_string(random: Random) -> str:
    return json.dumps({"message": json.dumps(_object(random, 1)), "n": 1})


def _quoted_words(dumper: Any, text: str) -> Any:
    """Quote a text with spaces: a placeholder cannot begin a plain text of words."""
    style = '"' if " " in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_QuotingDumper: Any = type("QuotingDumper", (yaml.SafeDumper,), {})
_QuotingDumper.add_representer(str, _quoted_words)


def _yaml(random: Random) -> str:
    text: str = yaml.dump(
        _object(random, 2),
        Dumper=_QuotingDumper,
        allow_unicode=True,
        sort_keys=False,
        width=10_000,
    )
    return text


def _xml(random: Random) -> str:
    lines = ["<items>"]
    for key, value in _row(random).items():
        clean = "".join(sign for sign in value if sign >= " " and sign != "\ud83d")
        form = random.randrange(4)
        if form == 0:
            lines.append(f"  <item name={quoteattr(key)} value={quoteattr(clean)}/>")
        elif form == 1:
            lines.append(f"  <{key}>{escape(clean)}</{key}>")
        elif form == 2:
            inside = clean.replace("]]>", "")
            lines.append(f"  <{key}><![CDATA[{inside}]]></{key}>")
        else:
            lines.append(f"  <tr><td>{key}</td><td>{escape(clean)}</td></tr>")
    return "\n".join([*lines, "</items>"])


def _csv(random: Random) -> str:
    first = _row(random)
    out = io.StringIO()
    writer = csv.writer(
        out,
        delimiter=random.choice(",;\t"),
        lineterminator=random.choice(("\n", "\r\n")),
    )
    writer.writerow(first)
    for _ in range(random.randrange(1, 5)):
        row = [_scalar(random, key) for key in first]
        writer.writerow("" if cell is None else cell for cell in row)
    return out.getvalue()


def _rows(text: str) -> Value:
    dialect = csv.excel()
    header = text.partition("\n")[0]
    dialect.delimiter = next((sign for sign in ",;\t" if sign in header), ",")
    return [len(row) for row in csv.reader(io.StringIO(text), dialect)]


FORMATS: dict[str, Callable[[Random], str]] = {
    "json": _json,
    "json in a string": _json_in_string,
    "yaml": _yaml,
    "xml": _xml,
    "csv": _csv,
}
PARSERS: dict[str, Callable[[str], Value]] = {
    "json": json.loads,
    "json in a string": lambda text: json.loads(json.loads(text)["message"]),
    "yaml": yaml.safe_load,
    "xml": ElementTree.fromstring,
    "csv": _rows,
}


def document(random: Random, name: str | None = None) -> Document:
    """Return a document of a format; JSON comes after a text of tools."""
    name = name or random.choice([*FORMATS])
    text = FORMATS[name](random)
    before = random.choice(_COMMANDS) if name.startswith("json") else ""
    return Document(before + text, len(before), name)
