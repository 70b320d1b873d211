"""Random strings over the alphabets of secrets, and secrets that no vendor made."""

from __future__ import annotations

import base64
import json
import random
import string
from collections.abc import Callable, Mapping

LETTERS = string.ascii_letters
LOWER = string.ascii_lowercase
ALNUM = LETTERS + string.digits
HEX = "0123456789abcdef"
BASE32 = string.ascii_uppercase + "234567"
UPPER = string.ascii_uppercase + string.digits
BASE64 = ALNUM + "+/"
URL64 = ALNUM + "-_"


def run(rng: random.Random, length: int, alphabet: str = ALNUM) -> str:
    """``length`` characters of ``alphabet``."""
    return "".join(rng.choices(alphabet, k=length))


def uuid(rng: random.Random) -> str:
    """A UUID of version 4."""
    text = run(rng, 32, HEX)
    return f"{text[:8]}-{text[8:12]}-4{text[13:16]}-a{text[17:20]}-{text[20:]}"


def jwt(rng: random.Random) -> str:
    """A signed JSON web token with a header that says so."""
    header = {"alg": rng.choice(("HS256", "RS256")), "typ": "JWT"}
    claims = {
        "sub": str(rng.randint(1, 99999)),
        "iat": 1700000000 + rng.randint(0, 9**7),
    }
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
        for part in (header, claims)
    ]
    return ".".join((*parts, run(rng, 43, URL64)))


def private_key(rng: random.Random) -> str:
    """The text of a key in PEM, whole."""
    kind = rng.choice(("RSA ", "EC ", "OPENSSH ", ""))
    lines = "\n".join(run(rng, 64, BASE64) for _ in range(rng.randint(3, 12)))
    mark = f"{kind}PRIVATE KEY-----"
    return f"-----BEGIN {mark}\n{lines}\n-----END {mark}"


def password(rng: random.Random) -> str:
    """What a careful person or a generator makes up."""
    return rng.choice(
        (
            run(rng, 8, LOWER) + run(rng, 2, string.digits) + "!",
            run(rng, rng.randint(12, 20)),
            run(rng, 4).title() + rng.choice("@#%*") + run(rng, 6),
            "-".join(run(rng, 4, LOWER + string.digits) for _ in range(4)),
        )
    )


SECRETS: Mapping[str, Callable[[random.Random], str]] = {
    "JWT": jwt,
    "PRIVATE_KEY": private_key,
    "PASSWORD": password,
    "TOKEN": lambda rng: run(rng, rng.choice((24, 32, 40)), rng.choice((ALNUM, HEX))),
}
