"""Adversarial texts and JSON for redaction: seconds of CPU per MB, growth with size.

``python -m benchmarks.redaction.growth`` prints a line for each input and engine.  Each
input repeats the parts that cost rules, engines or the walk over JSON the most work per
character: words that start rules, prefixes, delimiters, quotes, brackets, digits,
escapes, arrays, keys, and JSON in JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from time import process_time
from typing import Final, NamedTuple, TypeAlias

from refold.redaction.engines import EngineName, installed
from refold.redaction.plan import Plan
from refold.redaction.redactor import Redactor
from refold.redaction.values import JsonValue, OverBudget

# Creates an input of about that many characters.
Maker: TypeAlias = Callable[[int], JsonValue]

# The bound for each input on each engine, in seconds of CPU a MB.
BOUND: Final = 1.0

# A text repeats one of these.
UNITS: Final[Mapping[str, str]] = {
    "one letter": "a",
    "one capital": "A",
    "one digit": "9",
    "one Chinese character": "密",
    "one full-width digit": "１",
    "hidden characters": "1\u200b",
    "folded letters": "p\u200ba\u200bs\u200bs\u200bw\u200bo\u200br\u200bd\u200b=",
    "slashes": "a/",
    "backslashes": "\\",
    "line breaks": "\n",
    "escaped line breaks": "\\n",
    "escapes of characters": "\\u0031",
    "deep escapes": "\\\\u0031",
    "double quotes": '"',
    "single quotes": "'",
    "open braces": "{",
    "open brackets": "[",
    "open parentheses": "(",
    "dashes": "-",
    "dots and digits": "1.1.1.",
    "short numbers": ".E12345678",
    "digits and spaces": "1 ",
    "groups of four digits": "4111 ",
    "eleven digits": "12345678901 ",
    "phones": "13912345670\n",
    "phones after words": "phone 13912345670 ",
    "phones with plus": "+14155550132 ",
    "phones in parentheses": "(415) 555-0132 ",
    "words before digits": "card 4111 ",
    "numbers with a word": "学号：2021001234........9434765870",
    "digits before words": "1234567 office",
    "IBANs": "DE75512108001245126198 ",
    "IP addresses": "10.0.0.1 ",
    "IP addresses after words": "ip addr 10.0.0.1 ",
    "dates": "2024-01-01 ",
    "at signs": "@",
    "logins with at": "a@",
    "e-mail addresses": "a.b@c.co ",
    "encoded at signs": "%40",
    "URLs with logins": "a://b:c@d ",
    "half URLs": "a://b:",
    "names of passwords": "password=",
    "names of passwords in quotes": 'password="',
    "names of passwords with values": "password: hunter2x ",
    "short names of passwords": "pw=",
    "types of passwords": "pass: str = ",
    "names of keys": "api_key=",
    "names of keys over lines": "api_key" + "\n" * 20,
    "values that hide each other": "CLIENT_SECRET=a8f5f167f44f4964",
    "joined names": "secret_key_token=",
    "options": "--token --token=",
    "dashed options": "--a-a-a-pass ",
    "options for logins": "-u a:b ",
    "logins and escaped breaks": "login" + "\\n" * 20,
    "numbered lines of logins": "login\n12: \n12: x\n# ",
    "schemes": "Bearer ",
    "sentences about passwords": "the password on a b c d e f is ",
    "requests to use a value": "use aaaaaaaa1 as ",
    "Chinese passwords": "密码：",
    "Chinese names of people": "姓名：王小明",
    "names of people": "Name: Ada Lovelace\n",
    "labelled names": "full_name: Ada ",
    "streets": "12 Oak Street, ",
    "Chinese streets": "建国路88号",
    "prefixes of keys": "sk-a",
    "prefixes of keys with underscores": "ghp_",
    "beginnings of tokens": "eyJ.",
    "heads of keys": "-----BEGIN PRIVATE KEY-----\n",
    "heads of keys without an end": "-----BEGIN PRIVATE KEY----",
    "ends of keys": "-----END PRIVATE KEY-----\n",
    "lines of keys": "MIIEowIBAAKCAQEAy8Dbv8prpJ/0kKhlGeJYozo2t60EG8L0561g13R29Lv\n",
    "beginnings of keys in base64": "LS0tLS1CRUdJTiBQ" + "a" * 30 + "\n",
    "heads of tables": "name,password\n",
    "columns of tables": "| password ",
    "open rows of SQL": "INSERT INTO t (id,password) VALUES (1, ",
    "open strings of SQL": "INSERT INTO t (id,password) VALUES (1, '",
    "open strings of SQL with a quote": "INSERT INTO t (pw) VALUES ('\\'",
    "seed words": "seed phrase: legal winner thank year ",
    "markup": "<password>a</password>",
    "commands": "mysql -u root -p",
    "piped commands": "echo a | sudo ",
    "variables of commands": "ENV API_KEY ",
    "prefixes of lines": "12: pw=\n",
    "beginnings of JSON": '[{"a":"',
    "beginnings of objects": '{"a":',
    "placeholders": "[REDACTED:PHONE]",
    "placeholders with rests": "[REDACTED:SECRET]abcd",
    "open placeholders": "[REDACTED:",
}


def _texts() -> Iterator[tuple[str, Maker]]:
    for name, unit in UNITS.items():

        def make(size: int, unit: str = unit) -> JsonValue:
            return (unit * (size // len(unit) + 1))[:size]

        yield name, make


# The items of arrays, and the beginnings of keys.
_ITEMS: Final[Mapping[str, JsonValue]] = {
    "numbers": 13912345670,
    "letters": "a",
    "passwords": "password",
    "assignments": "password=hunter2x",
    "phones": "13912345670",
    "options": "--password",
    "commands": "mysql",
    "brackets": "{",
    "empty objects": [{}],
    "pairs of a name and a value": ["password", "x1y2z3"],
    "pairs of strings": ["aaaa", "b1b1"],
    "pairs of names": ["password", "token1"],
    "objects with a name and a value": {"name": "password", "value": "x1y2z3"},
    "objects with names": {"name": "password", "name2": "token", "values": "x"},
    "objects with a key": {"password": "hunter2x"},
    "objects with a phone": {"phone": 13912345670},
    "tables": {"columns": ["user", "password"], "rows": [["a", "b1c2d3"]]},
    "command lines": ["mysql", "-u", "root", "-phunter2"],
    "documents": '{"password": "hunter2x"}',
    "broken documents": '{"password": "hunter2x"',
}
_KEYS: Final = (
    "a",
    "password",
    "phone",
    "value",
    "13912345670",
    "ann@corp.example.org",
    "CLIENT_SECRET=a8f5f167f44f4964",
    "密码",
    "[REDACTED:PHONE]",
)


def _arrays() -> Iterator[tuple[str, Maker]]:
    for name, item in _ITEMS.items():

        def array(size: int, item: JsonValue = item) -> JsonValue:
            return [item] * (size // (len(json.dumps(item)) + 2) + 1)

        yield f"array of {name}", array


def _keyed() -> Iterator[tuple[str, Maker]]:
    for key in _KEYS:

        def keys(size: int, key: str = key) -> JsonValue:
            count = size // (len(key) + 14) + 1
            return {f"{key}{number}": "x" for number in range(count)}

        def values(size: int, key: str = key) -> JsonValue:
            count = size // (len(key) + 24) + 1
            return {f"{number}{key}": "hunter2x" for number in range(count)}

        def long(size: int, key: str = key) -> JsonValue:
            return {(key * (size // len(key) + 1))[:size]: "hunter2x"}

        yield f"keys that begin with {key}", keys
        yield f"keys that end with {key}", values
        yield f"one long key of {key}", long


def _nested() -> Iterator[tuple[str, Maker]]:
    def table(size: int) -> JsonValue:
        rows: JsonValue = [["a", "b1c2d3"] for _ in range(size // 15)]
        return {"columns": ["user", "password"], "rows": rows}

    def wide_table(size: int) -> JsonValue:
        width = max(2, int((size / 20) ** 0.5))
        columns: JsonValue = [f"password{number}" for number in range(width)]
        rows: JsonValue = [["b1c2d3"] * width for _ in range(width)]
        return {"columns": columns, "rows": rows}

    def command(size: int) -> JsonValue:
        return ["mysql", *["-phunter2"] * (size // 13)]

    def flags(size: int) -> JsonValue:
        return ["--password", "hunter2x"] * (size // 26)

    def deep(size: int) -> JsonValue:
        values: JsonValue = []
        for _ in range(size // 600 + 1):
            value: JsonValue = "hunter2x"
            for _ in range(100):
                value = {"a": value}
            values.append(value)  # type: ignore[union-attr]  # a list
        return values

    def json_text(size: int) -> JsonValue:
        item = {"password": "hunter2x", "id": 13912345670}
        return json.dumps([item] * (size // 50 + 1))

    def json_lines(size: int) -> JsonValue:
        return '{"password": "hunter2x", "phone": "x"}\n' * (size // 39 + 1)

    def json_in_json(size: int) -> JsonValue:
        value = json.dumps({"password": "hunter2x", "text": "a" * (size // 32)})
        for _ in range(5):
            value = json.dumps({"password": "hunter2x", "text": value})
        return value

    def open_arrays(size: int) -> JsonValue:
        return "[" * size

    def json_of_units(size: int) -> JsonValue:
        return json.dumps({"text": "password=hunter2x " * (size // 18 + 1)})

    def broken_lines(size: int) -> JsonValue:
        return '{"password": "hunter2x"}\n' * (size // 25) + '{"a'

    def colored_backslashes(size: int) -> JsonValue:
        return "\x1b[0m" + "\\" * size

    def passwords_of_backslashes(size: int) -> JsonValue:
        return [{"password": "\\" * 1000 + "\x01"}] * (size // 1000 + 1)

    yield "backslashes behind a color", colored_backslashes
    yield "passwords of backslashes", passwords_of_backslashes
    yield "long table", table
    yield "wide table", wide_table
    yield "long command line", command
    yield "options in an array", flags
    yield "deep objects", deep
    yield "JSON in a text", json_text
    yield "JSON lines", json_lines
    yield "broken JSON lines", broken_lines
    yield "JSON in JSON", json_in_json
    yield "open arrays in a text", open_arrays
    yield "a text of secrets in JSON", json_of_units


INPUTS: Final[Mapping[str, Maker]] = {
    name: make for group in (_texts, _arrays, _keyed, _nested) for name, make in group()
}


class Taken(NamedTuple):
    """The cost of one input.

    seconds: of CPU per MB.
    refused: it exceeded the budget of work.
    """

    seconds: float
    refused: bool


def size_of(value: JsonValue) -> int:
    """Return the bytes of ``value``: of a text itself, otherwise of its JSON."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return len(text.encode())


def taken(redactor: Redactor, value: JsonValue) -> Taken:
    """Measure how long ``redactor`` takes for ``value``."""
    refused = False
    began = process_time()
    try:
        redactor.value({"content": value})
    except OverBudget:
        refused = True
    spent = process_time() - began
    return Taken(spent / size_of(value) * 1e6, refused)


def main() -> None:
    """Print a line for each input and engine, and those over the limit."""
    engines: tuple[EngineName, ...] = ("stdlib", "vectorscan")
    wanted = sys.argv[1:]
    for engine in engines if installed() else engines[:1]:
        redactor = Redactor(Plan(engine=engine))
        redactor.text("password: hunter2-in-plain")
        over = 0
        for name, make in INPUTS.items():
            if wanted and not any(part in name for part in wanted):
                continue
            small = taken(redactor, make(25_000))
            large = taken(redactor, make(100_000))
            note = "  refused" if large.refused else ""
            growth = large.seconds / max(small.seconds, 1e-9)
            if large.seconds > BOUND:
                over += 1
                note += "  over"
            print(
                f"{engine:10}  {name:40} {large.seconds:6.2f} s/MB {growth:5.1f}{note}"
            )
        print(f"{engine}: {over} inputs take more than {BOUND} s/MB")


if __name__ == "__main__":
    main()
