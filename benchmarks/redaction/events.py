"""Tool outputs: 516 results as sessions store them, and noise."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Mapping
from typing import TypeAlias

import orjson

from benchmarks.redaction import prose, values
from benchmarks.redaction.values import ALNUM, filled, path, run, sentence, stamp

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
EVENTS = 516
# Bytes of JSON, so that the median is near 6.4 KB and one in twenty is over 32 KB.
_MEDIAN = 6100
_SPREAD = 1.0
_LEAST = 300
_MOST = 60_000


def events(rng: random.Random, count: int = EVENTS) -> list[dict[str, Json]]:
    """``count`` tool results, each kind in turn."""
    kinds = list(_KINDS.items())
    results = []
    for number in range(count):
        name, output = kinds[number % len(kinds)]
        size = int(min(_MOST, max(_LEAST, rng.lognormvariate(0, _SPREAD) * _MEDIAN)))
        results.append(_event(rng, number, name, output(rng, size)))
    return results


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
        lines: list[str] = []
        total = 0
        while total < size:
            lines.append(line(rng, len(lines)))
            total += len(lines[-1].encode()) + 2
        return "\n".join(lines)

    return output


def _ls(rng: random.Random, _: int) -> str:
    size = rng.randint(10, 9_999_999)
    return filled(f"-rw-r--r-- 1 dev staff {size:8} Oct {{d1}}  2025 {{path}}", rng)


def _commit(rng: random.Random, _: int) -> str:
    who = f"{rng.choice(prose.GIVEN)} {rng.choice(prose.FAMILY)}"
    head = filled("commit {h40}", rng)
    when = filled("Tue Mar {d1} 10:{d2}:44 2026 +0100", rng)
    body = prose.english(rng, 200).strip().replace("\n", "\n    ")
    return (
        f"{head}\nAuthor: {who} <{values.email(rng)}>\nDate:   {when}\n\n"
        f"    {sentence(rng)}\n\n    {body}\n"
    )


def _grep(rng: random.Random, _: int) -> str:
    line = rng.choice(rng.choice(prose.library())[1].splitlines())
    line = "" if prose.suspicious(line) else line
    return f"{path(rng)}:{rng.randint(1, 2000)}:{line}"


def _access(rng: random.Random, _: int) -> str:
    request = "GET /{word}/{word}/{word}?page={n} HTTP/1.1"
    rest = f'[{{stamp}}] "{request}" {{status}} {{d5}} "-" "Mozilla/5.0" 0.{{d3}}'
    return f"{values.ip4(rng)} - - {filled(rest, rng)}"


def _app(rng: random.Random, number: int) -> str:
    level = rng.choice(("INFO ", "DEBUG", "WARN ", "ERROR"))
    line = filled(f"{{stamp}} {level} [worker-{{d1}}] {{word}}: {{sentence}}", rng)
    return f"{line} user={values.email(rng)}" if number % 40 == 17 else line


def _env(rng: random.Random, number: int) -> str:
    name = "_".join(rng.choices(prose.SYMBOLS, k=2)).upper()
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
        "name": rng.choice(prose.EN_THINGS),
        "amount": round(rng.uniform(1, 999), 2),
        "created_at": stamp(rng),
        "state": rng.choice(("new", "paid", "sent")),
        "note": rng.choice(prose.ZH_THINGS),
    }
    if number % 10 == 3:
        row["email"] = values.email(rng)
    if number % 10 == 7:
        row["phone"] = values.mobile_cn(rng)
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


def noise(rng: random.Random, size: int) -> dict[str, str]:
    """About ``size`` bytes in all, an equal part of each kind."""
    makers = {**_MADE, **{kind: _drawn(lines) for kind, lines in _LINES.items()}}
    return {
        kind: _text(rng, make, size // len(makers)) for kind, make in makers.items()
    }


def _text(rng: random.Random, make: Callable[[random.Random], str], size: int) -> str:
    lines: list[str] = []
    total = 0
    while total < size:
        lines.append(make(rng))
        total += len(lines[-1]) + 1
    return "\n".join(lines)


def _drawn(lines: str) -> Callable[[random.Random], str]:
    templates = [line for line in lines.split("\n") if line]
    return lambda rng: filled(rng.choice(templates), rng)


def _floats(rng: random.Random) -> str:
    forms: tuple[str, ...] = ("{:.15f}", "{:.6e}", "{:.3f}", "{:.10g}")
    numbers = (rng.gauss(0, 10 ** rng.randint(-3, 9)) for _ in range(8))
    return f"[{', '.join(rng.choice(forms).format(number) for number in numbers)}]"


def _base64_line(rng: random.Random) -> str:
    return base64.b64encode(rng.randbytes(57)).decode()


def _diff(rng: random.Random) -> str:
    head = (
        "diff --git a/{word}.py b/{word}.py\nindex {h7}..{h7} 100644\n"
        "@@ -{n},4 +{n},5 @@ def {word}({word}):"
    )
    code = _drawn(_LINES["code"])
    body = (f"{rng.choice(' +-')}    {code(rng)}" for _ in range(4))
    return "\n".join((filled(head, rng), *body))


_MADE: Mapping[str, Callable[[random.Random], str]] = {
    "floats": _floats,
    "base64": _base64_line,
    "diffs": _diff,
}
_LINES = {
    "hashes": """
{h40}  {path}
{h64}  {path}
{h32} *{path}
md5:{h32} sha1:{h40}
{h12} {h7} {h40}
""",
    "commits": """
{h7} {sentence}
{h40} {sentence}
commit {h40} (tag: v{n}.1)
Merge: {h10} {h10}
""",
    "uuids": """
{uuid} {word}
{"id": "{uuid}", "parent": "{uuid}"}
request_id={uuid} {word}={n}
""",
    "epochs": """
{"ts": {milli}, "n": {n}}
{"created": {second}, "updatedAt": {milli}}
start={second} end={second} seq={d8}
{milli},{milli},{n}
{milli}000 {word} {second}.{d6}
time={milli}000000 id={milli}
""",
    "identifiers": """
order {d10} shipped in {n} parts
订单号 {d14} 已发货
build #{d7} took {d5} ms
pid {d5} rss {d9} bytes
{"id": {d17}, "user_id": {d8}}
ISBN 978-3-16-{d6}-0, page {n}
trace={h32} span={h16}
inode {d10} size {d11}
lat -{d2}.{d7} lon {d2}.{d7}
{n}.{n}.{n}-{d8}
0x{h16} {n}:{d10}
AS{d5} {n}/{d6} blocks, offset {d11}
""",
    "lock files": """
      "integrity": "sha512-{b86}==",
{word}=={n}.{d2}.1 \\
    --hash=sha256:{h64}
{ file = "{h2}/{word}-{n}.whl", hash = "sha256:{h64}" }
    "node_modules/{word}": { "version": "{d2}.{d2}.1", "license": "MIT" },
{word} v{n}.1.0 h1:{b43}=
checksum = "{h64}"
{ name = "{word}", size = {d7}, upload-time = "{stamp}" },
""",
    "logs": """
{stamp} INFO  [{uuid}] {sentence}
[{d5}.{d6}] usb {d1}-1: new device {h4}:{h4}
{milli} DEBUG gc {d2}K->{d2}K
E0312 10:11:12.{d6} {d4} {path}:{n}] {sentence}
token count {d5}, max_tokens={d4}, cost 0.{d5}
password field left empty; session_id is None; retrying in {d2}s
{stamp} WARN {word}: key {word} not found, token expired, card skipped
phone home disabled; {n} of {d6} calls left at {second}
""",
    "listings": """
drwxr-xr-x {d2} root root {d10} Oct {d1}  2025 {path}
{d8}: {h4} {h4} {h4} {h4} {h4} {h4} {h4} {h4}  {A16}
{d5} root  20   0 {d7} {d5} S 0.{d1} {d2}:{d2}.{d2} python3
sha256:{h64}  {d3}MB  {d1} months ago
  File "/usr/lib/python3/{path}", line {n}, in {word}
tcp 0 0 0.0.0.0:{d4} 0.0.0.0:* LISTEN {d5}/{word}
""",
    "code": """
MAX_{word}_TOKENS = {n}
def {word}(self, token: str, password: str | None = None) -> bool:
token = os.environ["{word}_TOKEN"]
password = getpass.getpass()
api_key: ${{ secrets.{word}_API_KEY }}
const secretName = config.get('{word}.{word}');
if user.password != hash_password({word}): raise {word}Error({n})
self.{word}_key = key_of({word})  # see {word}.py:{n}
headers["Authorization"] = f"Bearer {token}"
@{word}.{word}(timeout={n})
git clone git@github.com:{word}/{word}.git
import { {word} } from '@{word}/{word}-{n}';
url = f"postgres://{user}:{password}@{host}/{word}"
PASSWORD_MIN_LENGTH={n}
credentials = load_credentials({word}_path, {word})
secretKeyRef: { name: {word}-{word}, key: {word} }
auth_token = None
token = next(tokens)
color: #{h6}; width: {n}px;
assert tokens == [{n}, {n}, {n}], {word}
client_secret=settings.{word}_client_secret,
password: {type: string, minLength: {d1}},
""",
}
