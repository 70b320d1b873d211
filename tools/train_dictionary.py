"""Train the dictionary that compresses rows, on generated events.

``python -m tools.train_dictionary`` writes ``events-1.zdict`` next to the SQL.  The
events consist of shapes and phrases that agents often use, and of nobody's session.
A released dictionary never changes, because rows need it to be read; the next one gets
another number.
"""

from __future__ import annotations

import random
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import orjson
import zstandard

from refold.redaction.redactor import Redactor

_DATA: Final = Path(__file__).parent.parent / "refold/adapters/sql/data"
PLACE: Final = _DATA / "events-1.zdict"
SIZE: Final = 16_384
_SAMPLES: Final = 12_000
_SEED: Final = 20_261_123

_TEXTS: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
_INPUTS: Final = _TEXTS["said"].strip("\n").splitlines()
_ANSWERS: Final = _TEXTS["answered"].strip("\n").splitlines()
_CHINESE: Final = _TEXTS["chinese"].strip("\n").splitlines()
_CITIES: Final = _TEXTS["cities"].strip("\n").splitlines()
_CODE: Final = _TEXTS["code"].strip("\n").splitlines()
_WORDS: Final = _TEXTS["words"].split()
_KEYS: Final = _TEXTS["keys"].split()
_TOOLS: Final = _TEXTS["tools"].split()
# The rules that most rows name, until the rules change.
_RULES: Final = Redactor().rule_set

Json = Any
Make = Callable[[random.Random], Json]


def _id(rng: random.Random, size: int = 24) -> str:
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    return "".join(rng.choices(letters, k=size))


def _uuid(rng: random.Random) -> str:
    digits = f"{rng.getrandbits(128):032x}"
    return "-".join(
        digits[a:b] for a, b in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))
    )


def _prose(rng: random.Random) -> str:
    words = rng.choices(_WORDS, k=rng.randrange(6, 16))
    return f"{' '.join(words).capitalize()}."


def _text(rng: random.Random) -> str:
    pools = rng.choices(
        (_INPUTS, _ANSWERS, _CHINESE, None), (4, 6, 1, 5), k=rng.randrange(1, 7)
    )
    sentences = [rng.choice(pool) if pool else _prose(rng) for pool in pools]
    return rng.choice((" ", "\n", "\n\n", "\n- ")).join(sentences)


def _lines(rng: random.Random) -> Iterator[str]:
    start = rng.randrange(1, 400)
    for number in range(start, start + rng.randrange(4, 30)):
        line = _filled(rng, rng.choice(_CODE))
        yield f"{number:6d}→{line}"


def _code(rng: random.Random) -> str:
    lines = [*_lines(rng)]
    style = rng.randrange(4)
    if style == 0:
        return "\n".join(lines)
    plain = [line.partition("→")[2] for line in lines]
    if style == 1:
        return "\n".join(plain)
    if style == 2:
        return "\n".join(f"{n}:{line}" for n, line in enumerate(plain, 1))
    name = f"{rng.choice(_WORDS)}/{rng.choice(_KEYS)}.py"
    marked = "\n".join(rng.choice((" ", " ", "+", "-")) + line for line in plain)
    head = f"diff --git a/{name} b/{name}\n--- a/{name}\n+++ b/{name}"
    return f"{head}\n@@ -1,7 +1,9 @@\n{marked}"


def _listing(rng: random.Random) -> str:
    kinds = rng.choices(_TEXTS["listed"], (7, 3), k=rng.randrange(3, 15))
    return f"total {rng.randrange(999)}\n" + "\n".join(_filled(rng, k) for k in kinds)


def _output(rng: random.Random) -> str:
    return _filled(rng, rng.choice(_TEXTS["outputs"]))


def _page(rng: random.Random) -> str:
    parts = rng.choices(_TEXTS["pages"], k=rng.randrange(2, 9))
    return "\n".join(_filled(rng, part) for part in parts)


class _Filling(dict[str, str]):
    """Generates the values of a template's placeholders as they are needed."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng

    def __missing__(self, name: str) -> str:
        rng = self._rng
        generators: dict[str, Callable[[], object]] = {
            "Word": lambda: rng.choice(_WORDS).capitalize(),
            "word": lambda: rng.choice(_WORDS),
            "key": lambda: rng.choice(_KEYS),
            "number": lambda: rng.randrange(1000),
            "two": lambda: f"{rng.randrange(10, 29)}",
            "error": lambda: rng.choice(_TEXTS["errors"].split()),
            "said": lambda: _prose(rng),
            "told": lambda: rng.choice(_ANSWERS),
            "code": lambda: _code(rng),
        }
        value = str(generators[name]())
        self[name] = value
        return value


def _filled(rng: random.Random, template: str) -> str:
    return template.format_map(_Filling(rng))


def _scalar(rng: random.Random) -> Json:
    return rng.choice(
        (
            rng.randrange(2000),
            round(rng.random() * 1000, 2),
            True,
            False,
            None,
            _id(rng, 8),
            rng.choice(_WORDS),
            rng.choice(_CITIES),
            f"2024-05-{rng.randrange(1, 29):02d}",
            f"2024-05-{rng.randrange(1, 29):02d}T{rng.randrange(24):02d}:00:00Z",
            "[REDACTED:EMAIL]",
            "[REDACTED:PHONE]",
            "available",
            "active",
            "completed",
            "pending",
            "success",
            "failed",
            rng.choice(("USA", "UK", "DE", "CN", "EUR", "USD", "GBP", "CNY")),
            _prose(rng),
        )
    )


def _object(rng: random.Random, depth: int = 0) -> Json:
    fields: dict[str, Json] = {}
    for key in rng.sample(_KEYS, rng.randrange(2, 7)):
        is_nested = depth < 2 and rng.random() < 0.25
        fields[key] = _nested(rng, depth + 1) if is_nested else _scalar(rng)
    return fields


def _nested(rng: random.Random, depth: int) -> Json:
    if rng.random() < 0.5:
        return _object(rng, depth)
    keys = rng.sample(_KEYS, 5)
    return [{key: _scalar(rng) for key in keys} for _ in range(rng.randrange(1, 6))]


def _result(rng: random.Random) -> Json:
    make = rng.choice(
        (_code, _listing, _output, _output, _output, _page, _text, _object, _object)
    )
    value = make(rng)
    if isinstance(value, dict) and rng.random() < 0.6:
        return orjson.dumps(value).decode()
    return value


def _call_id(rng: random.Random) -> str:
    return rng.choice(("toolu_01", "call_", "toolu_")) + _id(rng)


def _arguments(rng: random.Random) -> Json:
    name = f"/app/src/{rng.choice(_WORDS)}/{rng.choice(_KEYS)}.py"
    return rng.choice(
        (
            {
                "command": f"cd /app && python -m pytest {name} -q 2>&1 | tail -20",
                "description": _prose(rng),
            },
            {"command": f'grep -rn "{rng.choice(_KEYS)}" --include=*.py . | head -50'},
            {"file_path": name},
            {"file_path": name, "limit": 100, "offset": 1},
            {
                "file_path": name,
                "old_string": _code(rng)[:200],
                "new_string": _code(rng)[:200],
            },
            {"content": _code(rng), "file_path": name},
            {"path": name},
            {"query": _prose(rng)},
            {"pattern": rng.choice(_KEYS), "path": "/app", "output_mode": "content"},
            {"url": f"https://www.example.com/{rng.choice(_WORDS)}"},
            {"thought": _text(rng)},
            {"user_id": f"{rng.choice(_WORDS)}_{rng.randrange(9999)}"},
            {"expression": "250 + 30 * 2"},
            {"date": "2024-05-20", "query": rng.choice(_WORDS)},
            _object(rng),
            {
                "todos": [
                    {
                        "content": _prose(rng),
                        "status": rng.choice(("pending", "in_progress", "completed")),
                        "activeForm": _prose(rng),
                    }
                    for _ in range(3)
                ]
            },
        )
    )


def _usage(rng: random.Random) -> Json:
    return rng.choice(
        (
            {
                "cache_creation": {
                    "ephemeral_1h_input_tokens": 0,
                    "ephemeral_5m_input_tokens": rng.randrange(999),
                },
                "cache_creation_input_tokens": rng.randrange(999),
                "cache_read_input_tokens": rng.randrange(99999),
                "input_tokens": rng.randrange(9999),
                "output_tokens": rng.randrange(999),
                "service_tier": "standard",
            },
            {"input_tokens": rng.randrange(9999), "output_tokens": rng.randrange(999)},
            {
                "input_tokens": rng.randrange(9999),
                "input_tokens_cache_read": rng.randrange(999),
                "output_tokens": rng.randrange(999),
                "reasoning_tokens": 0,
                "total_tokens": rng.randrange(9999),
            },
            {
                "completion_tokens": rng.randrange(999),
                "prompt_tokens": rng.randrange(9999),
                "total_tokens": rng.randrange(9999),
            },
        )
    )


def _payload(rng: random.Random) -> Json:
    tool = rng.choice(_TOOLS)
    result = {
        "call_id": _call_id(rng),
        "content": _result(rng),
        "status": rng.choice(("ok", "ok", "ok", "error")),
        "tool_name": tool,
        "untrusted": False,
    }
    call = {"arguments": _arguments(rng), "call_id": _call_id(rng), "tool_name": tool}
    strategy = {
        "fingerprint": f"{rng.getrandbits(256):064x}",
        "name": "turn_window",
        "params": {},
        "version": 1,
    }
    return rng.choice(
        (
            result,
            result,
            result,
            call,
            call,
            call,
            {"attachments": [], "text": _text(rng)},
            {"attachments": [], "text": _text(rng)},
            {
                "stop_reason": rng.choice(("end_turn", "tool_use", "stop")),
                "text": _text(rng),
                "thinking": [],
            },
            {"text": _text(rng), "thinking": [], "usage": _usage(rng)},
            {
                "text": _text(rng),
                "thinking": [
                    {
                        "signature": _id(rng, 200),
                        "thinking": _text(rng),
                        "type": "thinking",
                    }
                ],
            },
            {"closed": False, "text": _text(rng)},
            {"iteration": 1, "plan": _object(rng)},
            {
                "confidence": 0.8,
                "issues": [_prose(rng)],
                "pass_": True,
                "suggestion": _prose(rng),
            },
            {"outcome": "success", "reward": 1.0, "text": _text(rng)},
            {
                "advised": [],
                "derived_seq": 0,
                "digest": f"{rng.getrandbits(256):064x}",
                "handed": {},
                "matches": True,
                "model": "claude-opus-4-5-20251101",
                "strategy": strategy,
                "through_seq": rng.randrange(999),
                "tokens": rng.randrange(9999),
                "window_tokens": 200000,
            },
            {
                "abridged": "",
                "absorbs": [],
                "appended_at_seq": 21,
                "decided_at_seq": 20,
                "duration_ms": 1.5,
                "first_seq": 1,
                "kind": "session",
                "last_seq": 12,
                "level": 1,
                "omitted": [],
                "source_digest": f"{rng.getrandbits(256):064x}",
                "source_event_count": 12,
                "strategy": strategy,
                "summarizer": {"kind": "offline", "params": {}},
                "text": _text(rng),
                "tokens_after": 200,
                "tokens_before": 4000,
            },
            {"message": _prose(rng), "code": "timeout", "retryable": True},
            {
                "bundle": _object(rng),
                "question": _prose(rng),
                "severity": "medium",
                "trigger": "low_confidence",
            },
            {"set": _object(rng), "unset": []},
        )
    )


def _meta(rng: random.Random) -> Json:
    source = rng.choice(
        (
            {
                "format": "claude-code",
                "id": _uuid(rng),
                "parent": _uuid(rng),
                "place": f"line {rng.randrange(999)}",
            },
            {"format": "openai", "place": f"messages[{rng.randrange(99)}]"},
            {"format": "anthropic", "place": f"messages[{rng.randrange(99)}]"},
            {
                "format": "tau-bench",
                "place": f"[{rng.randrange(50)}] traj[{rng.randrange(60)}]",
            },
            {"format": "swe-agent", "place": f"history[{rng.randrange(99)}]"},
            {"format": "letta", "place": f"messages[{rng.randrange(99)}]"},
            {
                "format": "inspect",
                "id": _id(rng, 22),
                "place": f"samples[0] messages[{rng.randrange(99)}]",
            },
        )
    )
    meta: dict[str, Json] = {"source": source}
    if rng.random() < 0.4:
        meta |= {
            "model": rng.choice(
                ("claude-opus-4-5-20251101", "claude-sonnet-4-5-20250929", "gpt-4o")
            ),
            "response_id": rng.choice(
                (f"msg_01{_id(rng, 22)}", f"msg:{rng.randrange(99)}")
            ),
        }
    if rng.random() < 0.2:
        meta["usage"] = _usage(rng)
    if rng.random() < 0.3:
        meta["scenario"] = f"task-{rng.randrange(50)}"
    return meta


def content(rng: random.Random) -> bytes:
    """Return the content of a row before its compression."""
    findings = rng.choice(
        ({"n": 0}, {"n": 0}, {"n": 0}, {"n": 1, "types": {"EMAIL": 1}})
    )
    engine = rng.choice(("vectorscan/0.9.1", "vectorscan/0.9.1", "stdlib"))
    rules = f"custom-2:{rng.getrandbits(48):012x}" if rng.random() < 0.1 else _RULES
    row: dict[str, Json] = {
        "payload": _payload(rng),
        "redaction": {"engine": engine, **findings, "rules": rules},
    }
    if rng.random() < 0.5:
        row["meta"] = _meta(rng)
    if rng.random() < 0.2:
        row["agent"] = rng.choice(("main", "planner", "worker"))
    if rng.random() < 0.1:
        row["request_id"] = _uuid(rng)
    return orjson.dumps(row, option=orjson.OPT_SORT_KEYS)


def trained() -> bytes:
    """Return the dictionary; one version of the library always gives the same bytes."""
    rng = random.Random(_SEED)
    samples: list[Any] = [content(rng) for _ in range(_SAMPLES)]
    dictionary = zstandard.train_dictionary(
        SIZE, samples, k=400, d=8, level=3, dict_id=1
    )
    return dictionary.as_bytes()


if __name__ == "__main__":
    PLACE.parent.mkdir(exist_ok=True)
    PLACE.write_bytes(trained())
    print(f"{PLACE}: {PLACE.stat().st_size} bytes")
