"""What tools print all day that is nobody's data: each finding in it is a false one."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Mapping

from benchmarks.redaction.shapes import filled


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


def _base64(rng: random.Random) -> str:
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
    "base64": _base64,
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
