"""Keys that say by their first characters who issued them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from refold.redaction.checks import Validator
from refold.redaction.checks.names import LEXICON
from refold.redaction.checks.secrets import issued, mixed, varied
from refold.redaction.rules.rule import LEAD, WORD, Rule, words

# Samples are made of these, so that none is anybody's.
MIXED = "q7Zt0Kx3Vb9Lm2Np5Rs8Wd1Yf4Hj6CgTuEaXoIiGkMzPnQvSyBwDcFrJhLeUt5A8" * 5
LOWER = "7f3a9c1e5b8d2046ace8137f95bd0462" * 6

_SHORT: Final[Mapping[str, str]] = {
    "ALNUM": "[A-Za-z0-9]",
    "TOKEN": r"[A-Za-z0-9_\-]",
    "HEX": "[A-Fa-f0-9]",
    "B64": "[A-Za-z0-9+/]",
}
_JUDGES: Final[Mapping[str, Validator]] = {
    "issued": issued,
    "varied": varied,
    "mixed": mixed,
}
_CLASS = re.compile(r"(\[[^\]]+\])\{([0-9]+)(?:,([0-9]+))?\}")
# Prefixes that may be the end of another name.
_WORDS: Final = frozenset(words("key api mob sdk live test secret standard pat pubkey"))
# Longer ones would cost an automaton more than they spare it.
_ENOUGH: Final = 20


def _rules(table: str) -> tuple[Rule, ...]:
    return tuple(_rule(name, *entry) for name, entry in LEXICON[table].items())


def _rule(name: str, judge: str, tail: str, marks: str) -> Rule:
    prefixes = marks.split()
    for short, members in _SHORT.items():
        tail = tail.replace(f"{short}{{", f"{members}{{")
    loose = [p for p in prefixes if judge == "issued" and _tells(p)]
    strict = [p for p in prefixes if p not in loose]
    ways = [rf"{WORD}(?:{'|'.join(map(re.escape, strict))})"] if strict else []
    if loose:
        # Behind another word, names of files may look like one, without a digit.
        some = r"(?=[A-Za-z0-9_+/.%$\-]{0,64}[0-9])"
        anywhere = "|".join(map(re.escape, loose))
        ways.append(rf"(?:{anywhere}){some}")
        ways.append(rf"{WORD}(?:{anywhere})")
    # As many characters of the tail as every tail begins with.
    head = _CLASS.match(tail)
    then = f"{head[1]}{{{min(int(head[2]), _ENOUGH)}}}" if head else ""
    sample = _sample(tail)
    return Rule(
        id=f"key.{name}",
        type="API_KEY",
        gate=tuple(prefix.lower() for prefix in prefixes),
        lead="" if loose else LEAD,
        then=then,
        pattern=rf"(?:{'|'.join(ways)}){tail}"
        r"(?<!\.)(?![A-Za-z0-9])",
        validator=_JUDGES[judge],
        priority=80,
        examples=tuple(f"is «{prefix}{sample}»." for prefix in prefixes),
        counter_examples=(
            *([] if loose else [f"x{prefixes[0]}{sample}"]),
            prefixes[0] + "x" * len(sample),
        ),
    )


def _tells(prefix: str) -> bool:
    """Whether it tells by itself: a key may stand right behind another word."""
    return (
        len(prefix) > 3
        and bool(re.search("[^A-Za-z]", prefix[-1]) or len(prefix) > 7)
        and prefix.rstrip("_-") not in _WORDS
    )


def _sample(tail: str) -> str:
    """What matches ``tail``: each class as often as it must be, or 24 times."""
    needed = re.sub(r"\(\?:.*\)\?|=\{0,[0-9]\}", "", tail)
    return _CLASS.sub(_members, needed).replace("\\", "")


def _members(found: re.Match[str]) -> str:
    members, least, most = found.groups()
    often = min(max(int(least), 24), int(most or least))
    return "".join(re.findall(members, MIXED * 2))[:often]


VENDORS = _rules("issuers")
OTHER_VENDORS = _rules("others")
