"""Keys that say by their first characters who issued them."""

from __future__ import annotations

import re
from typing import NamedTuple

from refold.redaction.keys import issued, mixed, varied
from refold.redaction.packs.parts import LEAD, WORD
from refold.redaction.packs.secrets.issuer import Issuer
from refold.redaction.packs.secrets.issuers import MACHINES
from refold.redaction.packs.secrets.issuers_more import OTHER_ISSUERS, SERVICES
from refold.redaction.rule import Rule, Validator

_HEAD = re.compile(r"(\[[^\]]+\])\{([0-9]+)")
# Longer ones would cost an automaton more than they spare it.
_ENOUGH = 20
_JUDGES: dict[str, Validator] = {"issued": issued, "varied": varied, "mixed": mixed}


class _Start(NamedTuple):
    gate: tuple[str, ...]
    then: str


def _start(issuer: Issuer) -> _Start:
    """Each prefix, and as many characters of its tail as every tail begins with."""
    head = _HEAD.match(issuer.tail)
    then = f"{head[1]}{{{min(int(head[2]), _ENOUGH)}}}" if head else ""
    return _Start(tuple(p.lower() for p in issuer.prefixes), issuer.then or then)


def _rule(issuer: Issuer) -> Rule:
    gate, then = _start(issuer)
    prefixes = "|".join(re.escape(prefix) for prefix in issuer.prefixes)
    first = issuer.prefixes[0]
    return Rule(
        id=f"key.{issuer.name}",
        type="API_KEY",
        gate=gate,
        lead=LEAD,
        then=then,
        pattern=rf"{WORD}(?:{prefixes}){issuer.tail}(?<!\.)(?![A-Za-z0-9])",
        validator=_JUDGES[issuer.judge],
        priority=80,
        examples=tuple(f"is «{prefix}{issuer.sample}»." for prefix in issuer.prefixes),
        counter_examples=(
            f"x{first}{issuer.sample}",
            first + "x" * len(issuer.sample),
        ),
    )


VENDORS = tuple(_rule(issuer) for issuer in (*MACHINES, *SERVICES))
OTHER_VENDORS = tuple(_rule(issuer) for issuer in OTHER_ISSUERS)
