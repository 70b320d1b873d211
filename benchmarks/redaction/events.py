"""516 results of tools, as an agent's session holds them: thirteen kinds of output."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Mapping
from typing import TypeAlias

import orjson

from benchmarks.redaction import personal, prose, vocabulary as words
from benchmarks.redaction.credentials import ALNUM, run
from benchmarks.redaction.shapes import filled, path, sentence, stamp

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
EVENTS = 516
# Bytes of JSON, so that the median is near 6.4 KB and one in twenty is over 32 KB.
_MEDIAN, _SPREAD, _LEAST, _MOST = 6100, 1.0, 300, 60_000


def events(rng: random.Random, count: int = EVENTS) -> list[dict[str, Json]]:
    """``count`` tool results, each kind in turn."""
    kinds = list(_KINDS.items())
    made = []
    for number in range(count):
        name, output = kinds[number % len(kinds)]
        size = int(min(_MOST, max(_LEAST, rng.lognormvariate(0, _SPREAD) * _MEDIAN)))
        made.append(_event(rng, number, name, output(rng, size)))
    return made


def small_event(rng: random.Random) -> dict[str, Json]:
    """An event of 174 bytes: a word from a user, with its envelope."""
    event: dict[str, Json] = {"type": "user_input", "text": ""}
    event["meta"] = {"agent": "coder", "turn": rng.randint(10, 99)}
    room = 174 - len(orjson.dumps(event))
    text = prose.english(rng, room).replace('"', "").encode()[:room]
    event["text"] = text.decode(errors="ignore").ljust(room, ".")
    while (over := size(event) - 174) > 0:
        event["text"] = str(event["text"])[:-over]
    return event


def small_leaves(rng: random.Random) -> list[Json]:
    """A hundred rows of short values, as a database answers."""
    return [_row(rng, number) for number in range(100)]


def size(value: Json) -> int:
    """Bytes of ``value`` as JSON."""
    return len(orjson.dumps(value))


def _event(rng: random.Random, number: int, tool: str, output: Json) -> dict[str, Json]:
    return {
        "type": "tool_result",
        "call_id": f"toolu_{run(rng, 24)}",
        "tool": tool,
        "turn": number // 4,
        "ok": rng.random() < 0.95,
        "duration_ms": round(rng.expovariate(1 / 300), 3),
        "output": output,
    }


def _lines(
    line: Callable[[random.Random, int], str],
) -> Callable[[random.Random, int], Json]:
    def output(rng: random.Random, size: int) -> Json:
        made: list[str] = []
        total = 0
        while total < size:
            made.append(line(rng, len(made)))
            total += len(made[-1].encode()) + 2
        return "\n".join(made)

    return output


def _ls(rng: random.Random, _: int) -> str:
    size = rng.randint(10, 9_999_999)
    return filled(f"-rw-r--r-- 1 dev staff {size:8} Oct {{d1}}  2025 {{path}}", rng)


def _commit(rng: random.Random, _: int) -> str:
    who = f"{rng.choice(words.GIVEN)} {rng.choice(words.FAMILY)}"
    head = filled("commit {h40}", rng)
    when = filled("Tue Mar {d1} 10:{d2}:44 2026 +0100", rng)
    body = prose.english(rng, 200).strip().replace("\n", "\n    ")
    return (
        f"{head}\nAuthor: {who} <{personal.email(rng)}>\nDate:   {when}\n\n"
        f"    {sentence(rng)}\n\n    {body}\n"
    )


def _grep(rng: random.Random, _: int) -> str:
    line = rng.choice(rng.choice(prose.library())[1].splitlines())
    line = "" if prose.suspicious(line) else line
    return f"{path(rng)}:{rng.randint(1, 2000)}:{line}"


def _access(rng: random.Random, _: int) -> str:
    request = "GET /{word}/{word}/{word}?page={n} HTTP/1.1"
    rest = f'[{{stamp}}] "{request}" {{status}} {{d5}} "-" "Mozilla/5.0" 0.{{d3}}'
    return f"{personal.ip4(rng)} - - {filled(rest, rng)}"


def _app(rng: random.Random, number: int) -> str:
    level = rng.choice(("INFO ", "DEBUG", "WARN ", "ERROR"))
    line = filled(f"{{stamp}} {level} [worker-{{d1}}] {{word}}: {{sentence}}", rng)
    return f"{line} user={personal.email(rng)}" if number % 40 == 17 else line


def _env(rng: random.Random, number: int) -> str:
    name = "_".join(rng.choices(words.SYMBOLS, k=2)).upper()
    match number % 30:
        case 11:
            return filled(f"{name}_API_KEY=sk-proj-{{A48}}", rng)
        case 23:
            return filled("DATABASE_URL=postgres://app:{A14}@db.internal:5432/app", rng)
        case _:
            return f"{name}={filled(rng.choice(('{path}', '{n}', '{l8}')), rng)}"


def _csv(rng: random.Random, number: int) -> str:
    return f"{number}," + ",".join(f"{rng.gauss(0, 100):.6f}" for _ in range(8))


def _html(rng: random.Random, number: int) -> str:
    text = prose.english(rng, 60).strip()
    return f'  <li class="item-{number}"><a href="/{path(rng)}">{text}</a></li>'


def _base64(rng: random.Random, size: int) -> Json:
    data = base64.b64encode(rng.randbytes(size * 3 // 4)).decode()
    return {"name": path(rng), "encoding": "base64", "data": data}


def _code(rng: random.Random, size: int) -> Json:
    library = prose.library()
    start = rng.randrange(len(library))
    lines: list[str] = []
    while sum(map(len, lines)) < size:
        text = library[start % len(library)][1]
        lines += [line for line in text.splitlines(True) if not prose.suspicious(line)]
        start += 1
    return "".join(lines)[:size]


def _rows(rng: random.Random, size: int) -> Json:
    return [_row(rng, number) for number in range(max(1, size // 190))]


def _row(rng: random.Random, number: int) -> Json:
    row: dict[str, Json] = {
        "id": 100_000 + number,
        "sku": run(rng, 8, ALNUM.upper()),
        "name": rng.choice(words.EN_THINGS),
        "amount": round(rng.uniform(1, 999), 2),
        "created_at": stamp(rng),
        "state": rng.choice(("new", "paid", "sent")),
        "note": rng.choice(words.ZH_THINGS),
    }
    if number % 10 == 3:
        row["email"] = personal.email(rng)
    if number % 10 == 7:
        row["phone"] = personal.mobile_cn(rng)
    return row


def _chinese(rng: random.Random, size: int) -> Json:
    return prose.chinese(rng, size)


_KINDS: Mapping[str, Callable[[random.Random, int], Json]] = {
    "ls": _lines(_ls),
    "git_log": _lines(_commit),
    "grep": _lines(_grep),
    "query": _rows,
    "access_log": _lines(_access),
    "app_log": _lines(_app),
    "env": _lines(_env),
    "csv": _lines(_csv),
    "read_binary": _base64,
    "fetch": _lines(_html),
    "read_file": _code,
    "notes": _chinese,
    "tests": _lines(lambda rng, n: f"{path(rng)}::test_{n} PASSED [{n % 100:3}%]"),
}
