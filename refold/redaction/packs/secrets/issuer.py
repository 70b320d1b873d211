"""What a prefix gives away: the form of a key, and of a sample.

Each tail begins with a class and how often it stands at least; ``then`` says so for
tails that begin otherwise.  Samples are made up.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

MIXED = "q7Zt0Kx3Vb9Lm2Np5Rs8Wd1Yf4Hj6CgTuEaXoIiGkMzPnQvSyBwDcFrJhLeUt5A8" * 5
LOWER = "7f3a9c1e5b8d2046ace8137f95bd0462" * 6
UPPER = "Q7ZT4KX3VB6LM2NP5RSW" * 9
ALNUM, TOKEN, HEX = "[A-Za-z0-9]", r"[A-Za-z0-9_\-]", "[A-Fa-f0-9]"
B64 = "[A-Za-z0-9+/]"


class Issuer(NamedTuple):
    """``tail`` follows one of ``prefixes``; ``sample`` is one, made up.

    judge: how closely the whole is looked at, by how seldom the prefix is by chance.
    """

    name: str
    prefixes: tuple[str, ...]
    tail: str
    sample: str
    judge: Literal["issued", "varied", "mixed"] = "issued"
    then: str = ""
