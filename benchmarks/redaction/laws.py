"""Laws that hold for every input, tried on many generated ones."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from benchmarks.redaction import prose, values
from benchmarks.redaction.events import Json
from benchmarks.redaction.values import ALNUM, SECRETS, VENDORS, run
from refold.redaction.redactor import Redactor


def shrunk(case: Json, shows: Callable[[Json], bool], *, tries: int) -> Json:
    """The smallest value found that still ``shows`` it, after at most ``tries``."""
    smaller = _smaller(case)
    while tries:
        tries -= 1
        candidate = next(smaller, _NONE)
        if candidate is _NONE:
            break
        if shows(candidate):
            case = candidate
            smaller = _smaller(candidate)
    return case


_NONE: dict[str, Json] = {}


def _smaller(case: Json) -> Iterator[Json]:
    """Yield values like ``case`` with parts removed, the largest part first."""
    if isinstance(case, str):
        yield from _shorter(case)
    elif isinstance(case, list):
        yield from case
        for at, child in enumerate(case):
            yield [*case[:at], *case[at + 1 :]]
            for less in _smaller(child):
                yield [*case[:at], less, *case[at + 1 :]]
    elif isinstance(case, dict):
        yield from case.values()
        for key, child in case.items():
            rest = {other: value for other, value in case.items() if other != key}
            yield rest
            for less in _smaller(child):
                yield {**case, key: less}
            for less in _shorter(key):
                yield {**rest, less: child}


def _shorter(text: str) -> Iterator[str]:
    step = (len(text) + 1) // 2
    while step:
        for at in range(0, len(text), step):
            yield text[:at] + text[at + step :]
        step //= 2


_GLUE = (
    " ",
    " ",
    "",
    "\n",
    ",",
    "，",
    "：",
    ": ",
    "=",
    '"',
    "'",
    "\\",
    "/",
    "-",
    "|",
    "[",
    "]",
    "{",
    "}",
    "(",
    "\t",
    "\u200b",
    "\u00a0",
    "．",
    "@",
    "\\n",
    "\\u3000",
)
_WORDS = (
    "phone",
    "手机号",
    "电话",
    "身份证号",
    "password",
    "密码",
    "token",
    "学号",
    "card",
    "SSN",
    "IBAN",
    "Authorization: Bearer",
    "Set-Cookie:",
    "api_key",
    "secret",
    "tel",
    "[REDACTED:EMAIL]",
    "[REDACTED:PHONE#abcd2345]",
    "[REDACTED:",
    "-----BEGIN",
    "１３８１２３４５６７８",
    "é",
    "🔑",
    "\ud83d",
    "https://",
    "postgres://u:",
    "ID",
)
_EXAMPLES = 20
_TRIES = 2000
_KEYS = ("text", "phone", "password", "id", "ts", "email", "values", "name", "token")


@dataclass(slots=True)
class Verdict:
    """How many cases were tried, and how often which law was broken, with examples."""

    cases: int = 0
    broken: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def note(self, law: str, case: Json) -> None:
        """Count that ``law`` was broken, by ``case`` if it is to be an example."""
        self.broken[law] += 1
        if case is not None:
            self.examples.append(f"{law}: {json.dumps(case)}")


def laws(
    redactors: Mapping[str, Redactor],
    cases: int,
    seed: int,
    *,
    also: Iterable[Json] = (),
) -> Verdict:
    """Try ``cases`` generated texts and values, and those in ``also``.

    The others are compared with the first of ``redactors``.
    """
    rng = random.Random(f"{seed}:laws")
    verdict = Verdict()
    generated = (text(rng) if n % 2 else value(rng, 3) for n in range(cases))
    for case in chain(generated, also):
        verdict.cases += 1
        for law in broken(redactors, case):
            few = len(verdict.examples) < _EXAMPLES
            verdict.note(law, _shrunk(redactors, case, law) if few else None)
    return verdict


def text(rng: random.Random) -> str:
    """Combine personal data, words that give context, placeholders, and rubbish."""
    return "".join(_fragment(rng) + rng.choice(_GLUE) for _ in range(rng.randint(1, 9)))


def value(rng: random.Random, depth: int) -> Json:
    """JSON with such texts as values, as keys, and as JSON in strings."""
    kind = rng.randrange(8 if depth else 4)
    match kind:
        case 0:
            return rng.choice((True, None, 1.5, 0, rng.randint(0, 2**63 - 1)))
        case 1:
            return rng.choice((13812345678, 4111111111111111, rng.random() * 1e12))
        case 2 | 3:
            return text(rng)
        case 4:
            return json.dumps(value(rng, depth - 1), ensure_ascii=rng.random() < 0.5)
        case 5:
            return [value(rng, depth - 1) for _ in range(rng.randint(0, 4))]
        case _:
            return {_key(rng): value(rng, depth - 1) for _ in range(rng.randint(0, 4))}


def _key(rng: random.Random) -> str:
    return rng.choice(_KEYS) if rng.random() < 0.7 else text(rng)


def _fragment(rng: random.Random) -> str:
    kind = rng.randrange(6)
    if kind == 0:
        return values.make(rng, rng.choice([*values.PERSONAL]))
    if kind == 1:
        return SECRETS[rng.choice([*SECRETS])](rng)
    if kind == 2:
        return rng.choice(VENDORS).make(rng)
    if kind == 3:
        return rng.choice((*prose.EN_THINGS, *prose.ZH_THINGS))
    if kind == 4:
        return run(rng, rng.randint(1, 24), rng.choice((ALNUM, "0123456789")))
    return rng.choice(_WORDS)


def broken(redactors: Mapping[str, Redactor], case: Json) -> list[str]:
    """The laws that do not hold for ``case``."""
    first, *others = redactors.values()
    try:
        clean = _redacted(first, case)
        again = _redacted(first, clean)
        differ = [other.engine for other in others if _redacted(other, case) != clean]
    except Exception as error:
        return [f"no error ({type(error).__name__})"]
    laws = {
        "idempotent": again == clean,
        "valid JSON": still_json(case, clean),
        "same shape": same_shape(case, clean),
    }
    wrong = [law for law, holds in laws.items() if not holds]
    return wrong + [f"{engine} equals {first.engine}" for engine in differ]


def _shrunk(redactors: Mapping[str, Redactor], case: Json, law: str) -> Json:
    """A shorter case that breaks ``law`` as ``case`` does."""
    return shrunk(case, lambda less: law in broken(redactors, less), tries=_TRIES)


def _redacted(redactor: Redactor, case: Json) -> Json:
    # A text that is JSON is redacted as such inside a value.
    if isinstance(case, str) and not _parses(case):
        return redactor.text(case)[0]
    return redactor.value(case)[0]


def still_json(before: Json, after: Json) -> bool:
    """Whether texts that were JSON are still JSON, or were replaced completely."""
    if isinstance(before, dict) and isinstance(after, dict):
        before = list(before.values())
        after = list(after.values())
    if isinstance(before, list) and isinstance(after, list):
        return all(map(still_json, before, after))
    if isinstance(before, str) and isinstance(after, str) and _parses(before):
        return _parses(after) or after.startswith("[REDACTED:")
    return True


def _parses(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict | list)
    except ValueError:
        return False


def same_shape(before: Json, after: Json) -> bool:
    """Whether only strings, and numbers that became strings, differ; keys in order."""
    if isinstance(before, dict) and isinstance(after, dict):
        before = list(before.values())
        after = list(after.values())
    if isinstance(before, list) and isinstance(after, list):
        return len(before) == len(after) and all(
            same_shape(old, new) for old, new in zip(before, after, strict=True)
        )
    if isinstance(before, str):
        return isinstance(after, str)
    if isinstance(before, int | float) and isinstance(after, str):
        return not isinstance(before, bool) and after.startswith("[")
    return type(before) is type(after) and (before == after)
