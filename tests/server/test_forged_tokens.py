"""No forged, mixed-up, expired or replayed token is accepted."""

import base64
import hmac
import json
import random
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from hypothesis import given, strategies as st

from refold.adapters.server.access_tokens import TokenRefused, Verifier
from tests.support.issuing import (
    ALGORITHMS,
    ISSUER,
    NOW,
    Clock,
    claims,
    each_kind,
    jwk,
    part,
    private_key,
    signed,
    token,
    verifier,
)

SECRET = "a secret of this machine, 32 bytes or more"
ROUNDS = 40
"""How often each way to forge is tried for each kind of key."""


@dataclass(frozen=True)
class TargetServer:
    """A server that accepts tokens of one algorithm, and a source of good tokens."""

    algorithm: str
    verifier: Verifier
    clock: Clock
    random: random.Random

    @property
    def key(self) -> Any:
        """The key that signs its tokens."""
        return SECRET.encode() if self.secret else private_key(self.algorithm)

    @property
    def secret(self) -> bool:
        return self.algorithm == "HS256"

    @property
    def kid(self) -> str | None:
        return None if self.secret else self.algorithm

    def good_token(self, **changed: Any) -> str:
        """Return an acceptable token of a random user."""
        named = {"sub": f"user-{self.random.randrange(10**6)}"} | changed
        return self.signed_token({}, **named)

    def signed_token(
        self, header: dict[str, Any], key: Any = None, **changed: Any
    ) -> str:
        """Return a token with another header, key or claims."""
        return token(
            self.algorithm, key=key or self.key, kid=self.kid, header=header, **changed
        )


Forgery = Callable[[TargetServer, str], str]
"""From a victim and a token that it lets in to one that it must not."""


def other_key(victim: TargetServer, good: str) -> str:
    key = b"another secret, as long as it takes" if victim.secret else None
    return victim.signed_token({}, key or private_key(victim.algorithm, "forger"))


def key_of_another_kind(victim: TargetServer, good: str) -> str:
    other = victim.random.choice([a for a in ALGORITHMS if a != victim.algorithm])
    return token(
        other, kid=victim.random.choice([victim.kid, other]), key=_forgers_key(other)
    )


def other_algorithm_of_the_key(victim: TargetServer, good: str) -> str:
    others = {"RS256": ["RS384", "RS512", "PS256"], "HS256": ["HS384", "HS512"]}
    if victim.algorithm in others:
        other = claimed = victim.random.choice(others[victim.algorithm])
    else:
        other = victim.algorithm
        claimed = victim.random.choice(["ES384", "Ed25519"])
    return signed(
        _header_of(victim, alg=claimed), _random_user_claims(victim), other, victim.key
    )


def another_algorithm_named(victim: TargetServer, good: str) -> str:
    others = [
        "HS256",
        "HS384",
        "RS384",
        "PS256",
        "ES512",
        "Ed448",
        "rs256",
        "eddsa",
        "x",
    ]
    others = [other for other in others if other != victim.algorithm]
    return _with_header(victim, good, alg=victim.random.choice([*others, 7, [], None]))


def no_algorithm(victim: TargetServer, good: str) -> str:
    spelt = "".join(victim.random.choice([c, c.upper()]) for c in "none")
    name = victim.random.choice(
        [spelt, spelt, "", " none", "none ", "none\x00", "NULL"]
    )
    body = part(_random_user_claims(victim))
    ending = victim.random.choice(["", "", good.split(".")[2], part(b"none")])
    kid = victim.random.choice([victim.kid, "", None])
    header = {"alg": name, "typ": "JWT"} | ({} if kid is None else {"kid": kid})
    return f"{part(header)}.{body}.{ending}"


def algorithm_left_out(victim: TargetServer, good: str) -> str:
    header = {k: v for k, v in _header_of(victim).items() if k != "alg"}
    return signed(header, _random_user_claims(victim), victim.algorithm, victim.key)


def public_key_as_a_secret(victim: TargetServer, good: str) -> str:
    """Sign with HS256 and the public key as its secret, in each form of bytes."""
    algorithm = victim.random.choice(ALGORITHMS)
    bytes_ = victim.random.choice(list(_public_forms(private_key(algorithm))))
    algorithm_name = victim.random.choice(["HS256", "HS384", "HS512"])
    kid = victim.random.choice([algorithm, victim.kid])
    header = {"alg": algorithm_name, "typ": "JWT"} | (
        {} if kid is None else {"kid": kid}
    )
    text = f"{part(header)}.{part(_random_user_claims(victim))}"
    return f"{text}.{part(_hmac(algorithm_name, bytes_, text))}"


def key_name_like_a_path_or_query(victim: TargetServer, good: str) -> str:
    kid = victim.random.choice(
        [
            "../../../dev/null",
            "/dev/null",
            "/proc/sys/kernel/randomize_va_space",
            "file:///dev/null",
            "https://evil.example/keys",
            "x' UNION SELECT 'key' --",
            "'; DROP TABLE keys; --",
            "EdDSA\x00",
            "EdDSA ",
            "eddsa",
            "__class__",
            "$(cat key)",
            "x" * victim.random.randrange(1000, 6000),
        ]
    )
    empty = victim.random.choice([b"", b"0", b"key", b"2\n"])
    header = {"alg": victim.random.choice(["HS256", victim.algorithm]), "kid": kid}
    text = f"{part(header)}.{part(_random_user_claims(victim))}"
    return f"{text}.{part(_hmac('HS256', empty, text))}"


def key_name_that_is_no_text(victim: TargetServer, good: str) -> str:
    kid = victim.random.choice([7, ["EdDSA"], {"EdDSA": 1}, True, 1.5])
    return victim.signed_token({"kid": kid})


def forgers_key_in_the_header(victim: TargetServer, good: str) -> str:
    forger = _forgers_key(victim.algorithm)
    own = (
        {"kty": "oct", "k": part(forger)}
        if victim.secret
        else jwk(forger, victim.kid, use="sig")
    )
    url = "https://evil.example/jwks.json"
    headers: list[dict[str, Any]] = [{"jwk": own}, {"jku": url}, {"x5u": url}]
    header = victim.random.choice([*headers, {"x5c": [part(b"x")], "jwk": own}])
    return victim.signed_token(header, victim.random.choice([forger, victim.key]))


def unknown_critical_extension(victim: TargetServer, good: str) -> str:
    headers: list[dict[str, Any]] = [
        {"crit": ["exp"], "exp": NOW},
        {"crit": []},
        {"crit": ["b64"], "b64": False},
        {"b64": False},
        {"zip": "DEF"},
        {"enc": "A128GCM"},
    ]
    return victim.signed_token(victim.random.choice(headers))


def claims_of_another_token(victim: TargetServer, good: str) -> str:
    other = victim.good_token(scope="admin erase").split(".")
    head, _, signature = good.split(".")
    return f"{head}.{other[1]}.{signature}"


def claims_edited(victim: TargetServer, good: str) -> str:
    head, body, signature = good.split(".")
    payload = json.loads(base64.urlsafe_b64decode(body + "=="))
    edit = victim.random.choice(
        [{"sub": "eve"}, {"scope": "append read admin"}, {"exp": NOW + 7200}, {"x": 1}]
    )
    return f"{head}.{part(payload | edit)}.{signature}"


def header_edited(victim: TargetServer, good: str) -> str:
    edits: list[dict[str, Any]] = [{"typ": "at+jwt"}, {"cty": "JWT"}, {"x": [1]}]
    edit = victim.random.choice(edits)
    return _with_header(victim, good, **edit)


def header_encoded_differently(victim: TargetServer, good: str) -> str:
    head, rest = good.split(".", 1)
    header = json.loads(base64.urlsafe_b64decode(head + "=="))
    return (
        f"{part(json.dumps(header, indent=victim.random.randrange(9)).encode())}.{rest}"
    )


def signature_of_another_token(victim: TargetServer, good: str) -> str:
    return good.rpartition(".")[0] + "." + victim.good_token(jti="other").split(".")[2]


def constant_signature(victim: TargetServer, good: str) -> str:
    """Sign with zeros or ones, which a careless ECDSA implementation accepts."""
    size = len(base64.urlsafe_b64decode(good.split(".")[2] + "=="))
    order = (1 << 256) - 432420386565659656852420866394968145599
    signatures = [
        bytes(size),
        b"\xff" * size,
        b"\x01" * size,
        b"",
        bytes(size - 1) + b"\x01",
    ]
    signatures.append(order.to_bytes(32, "big") * 2)
    return good.rpartition(".")[0] + "." + part(victim.random.choice(signatures))


def truncated(victim: TargetServer, good: str) -> str:
    at = victim.random.randrange(1, len(good))
    return victim.random.choice([good[:at], good[at:], good[: -at % 5 - 1]])


def missing_or_extra_part(victim: TargetServer, good: str) -> str:
    head, body, signature = good.split(".")
    return victim.random.choice(
        [
            f"{head}.{body}",
            f"{head}.{body}.",
            f"{head}..{signature}",
            f".{body}.{signature}",
            f"{good}.{signature}",
            f"{head}.{head}.{body}.{body}.{signature}",
            f".{good}",
            f"{good}.",
            f"{good}.{good}",
        ]
    )


def changed_character(victim: TargetServer, good: str) -> str:
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    at = victim.random.randrange(len(good))
    other = victim.random.choice([c for c in alphabet if c != good[at]])
    return good[:at] + other + good[at + 1 :]


def same_bytes_in_another_base64(victim: TargetServer, good: str) -> str:
    """Return a text that a lenient decoder takes for the same token."""
    at = victim.random.randrange(1, len(good))
    junk = victim.random.choice(["\n", " ", "!", "=", "\r\n", "%", "\x00", "é", "\t"])
    standard = good.replace("-", "+").replace("_", "/")
    last = good[-1]
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    loose = good[:-1] + alphabet[alphabet.index(last) ^ 1]
    variants = [
        good[:at] + junk + good[at:],
        good + "=",
        good + "==",
        " " + good,
        loose,
    ]
    variants += [good + "\n", f"Bearer {good}", good.replace(".", "=.", 1)]
    return victim.random.choice([*variants, standard] if standard != good else variants)


def repeated_claim(victim: TargetServer, good: str) -> str:
    payload = json.dumps(_random_user_claims(victim))[:-1]
    name = victim.random.choice(['"sub": "eve"', '"scope": "admin"', '"aud": "refold"'])
    body = f"{payload}, {name}}}".encode()
    return signed(_header_of(victim), body, victim.algorithm, victim.key)


def for_another_service(victim: TargetServer, good: str) -> str:
    others = ["other", "refold.example", ["a", "b"], "", ..., 7, None, ["refold "]]
    return victim.signed_token({}, aud=victim.random.choice(others))


def of_another_issuer(victim: TargetServer, good: str) -> str:
    others = ["https://issuer.example.evil", ISSUER.upper(), "", ..., [ISSUER], None]
    return victim.signed_token({}, iss=victim.random.choice(others))


def without_a_user(victim: TargetServer, good: str) -> str:
    nobody = [
        "",
        ...,
        None,
        7,
        True,
        ["ada"],
        {"a": 1},
        "a" * 201,
        "a\n",
        "\u202e\u0000",
    ]
    return victim.signed_token({}, sub=victim.random.choice(nobody))


def without_scopes(victim: TargetServer, good: str) -> str:
    nothing = [
        "",
        ...,
        None,
        7,
        "root *",
        "readappend",
        ["admin"],
        "ADMIN",
        "read,erase",
    ]
    return victim.signed_token({}, scope=victim.random.choice(nothing))


def not_yet(victim: TargetServer, good: str) -> str:
    later = NOW + victim.random.choice([31, 60, 3600, 10**9])
    return victim.signed_token({}, **{victim.random.choice(["nbf", "iat"]): later})


def expired(victim: TargetServer, good: str) -> str:
    return victim.signed_token(
        {}, exp=NOW - victim.random.choice([30, 31, 3600, 10**9, NOW])
    )


def without_an_end(victim: TargetServer, good: str) -> str:
    ends: list[Any] = [
        NOW + 86_431,
        10**10,
        10**12,
        2**53,
        2**63,
        10**400,
        1e300,
        1e308,
    ]
    ends += [float("inf"), float("nan"), -1, True, str(NOW + 60), [NOW + 60], None, ...]
    return victim.signed_token({}, exp=victim.random.choice(ends))


def too_large(victim: TargetServer, good: str) -> str:
    return victim.signed_token({}, pad="x" * victim.random.randrange(8192, 20_000))


def no_token(victim: TargetServer, good: str) -> str:
    deep = part(b"[" * 5000)
    text = "".join(victim.random.choices("ab.-_{}[] =\x00é\ud800", k=60))
    return victim.random.choice(["", ".", "..", "...", text, f"{deep}.e30.x"])


FALSE = {"malformed", "algorithm", "unknown_key", "signature"}
FORGERIES: dict[Forgery, set[str]] = {
    other_key: {"signature"},
    key_of_another_kind: {"algorithm", "unknown_key", "signature"},
    other_algorithm_of_the_key: {"algorithm"},
    another_algorithm_named: {"algorithm"},
    no_algorithm: {"algorithm", "unknown_key"},
    algorithm_left_out: {"algorithm"},
    public_key_as_a_secret: {"algorithm", "unknown_key", "signature"},
    key_name_like_a_path_or_query: {"unknown_key"},
    key_name_that_is_no_text: {"malformed"},
    forgers_key_in_the_header: {"malformed"},
    unknown_critical_extension: {"malformed"},
    claims_of_another_token: {"signature"},
    claims_edited: {"signature"},
    header_edited: {"signature"},
    header_encoded_differently: {"signature"},
    signature_of_another_token: {"signature"},
    constant_signature: {"signature"},
    truncated: FALSE,
    missing_or_extra_part: FALSE,
    changed_character: FALSE,
    same_bytes_in_another_base64: {"malformed", "signature"},
    repeated_claim: {"malformed"},
    for_another_service: {"audience"},
    of_another_issuer: {"issuer"},
    without_a_user: {"subject"},
    without_scopes: {"scope"},
    not_yet: {"not_yet"},
    expired: {"expired"},
    without_an_end: {"malformed", "too_long"},
    too_large: {"too_long"},
    no_token: {"malformed", "unknown_key"},
}
"""Each way to forge, and for what the forged may be refused."""


def _header_of(victim: TargetServer, **more: Any) -> dict[str, Any]:
    named = {} if victim.kid is None else {"kid": victim.kid}
    return {"alg": victim.algorithm, "typ": "JWT"} | named | more


def _with_header(victim: TargetServer, good: str, **more: Any) -> str:
    """Return the token with another header and its old signature."""
    return f"{part(_header_of(victim, **more))}.{good.split('.', 1)[1]}"


def _random_user_claims(victim: TargetServer) -> dict[str, Any]:
    return claims(sub=f"user-{victim.random.randrange(10**6)}", scope="admin read")


def _forgers_key(algorithm: str) -> Any:
    if algorithm == "HS256":
        return b"what a forger likes, of enough bytes"
    return private_key(algorithm, "forger")


def _hmac(algorithm: str, key: bytes, text: str) -> bytes:
    """Compute the HMAC by hand: the library refuses to sign with a public key."""
    return hmac.digest(key, text.encode(), f"sha{algorithm[2:]}")


def _public_forms(key: Any) -> Iterator[bytes]:
    public = key.public_key()
    encoding = serialization.Encoding
    info = serialization.PublicFormat.SubjectPublicKeyInfo
    pem = public.public_bytes(encoding.PEM, info)
    yield from (pem, pem.rstrip(), pem.replace(b"\n", b"\r\n"), pem[27:-26])
    yield public.public_bytes(encoding.DER, info)
    ssh = public.public_bytes(encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    yield from (ssh, ssh + b"\n")
    fields = jwk(key, "x")
    yield json.dumps(fields).encode()
    yield json.dumps(fields, separators=(",", ":")).encode()
    for name in ("n", "x", "y"):
        if name in fields:
            yield fields[name].encode()
            yield base64.urlsafe_b64decode(fields[name] + "==")


@pytest.fixture(params=[*ALGORITHMS, "HS256"])
def victim(request: pytest.FixtureRequest, tmp_path: Path) -> TargetServer:
    algorithm: str = request.param
    clock = Clock()
    path = tmp_path / "jwks.json"
    path.write_bytes(each_kind())
    source = {"TOKEN_SECRET": SECRET} if algorithm == "HS256" else {"JWKS": path}
    strict = verifier(clock, **source, TOKEN_ISSUER=ISSUER)
    return TargetServer(algorithm, strict, clock, random.Random(f"20 {algorithm}"))


def refusal(victim: TargetServer, shown: str) -> str | None:
    try:
        victim.verifier.verify(shown)
    except TokenRefused as refused:
        return refused.reason
    return None


def test_thousands_of_forged_tokens_are_all_refused(victim: TargetServer) -> None:
    refusals: dict[str, Counter[str | None]] = defaultdict(Counter)

    for forge in FORGERIES:
        for n in range(ROUNDS):
            good = victim.good_token()
            if n % 2:  # one forged from a cached token, and one from a token never seen
                assert refusal(victim, good) is None
            forged = forge(victim, good)
            assert forged != good
            refusals[forge.__name__][refusal(victim, forged)] += 1
            assert refusal(victim, good) is None

    assert not [name for name, reasons in refusals.items() if None in reasons]
    assert not [
        f.__name__ for f in FORGERIES if set(refusals[f.__name__]) - FORGERIES[f]
    ]
    assert sum(reasons.total() for reasons in refusals.values()) == 1240


def test_a_careless_verifier_accepts_some_of_them() -> None:
    victim = TargetServer("RS256", verifier(), Clock(), random.Random(20))
    pem = next(_public_forms(victim.key))

    def accepted_by_careless_verifier(shown: str) -> bool:
        """Trust the header: no signature, the token's own key, any use of a key."""
        head, body, signature = shown.split(".")
        header = json.loads(base64.urlsafe_b64decode(head + "=="))
        if header["alg"].strip(" \x00").lower() in ("none", "null", ""):
            return True
        if header["alg"].startswith("HS"):
            expected = _hmac(header["alg"], pem, f"{head}.{body}")
            return part(expected) == signature
        how = jwt.get_algorithm_by_name(header["alg"])
        key = (
            how.from_jwk(header["jwk"]) if "jwk" in header else victim.key.public_key()
        )
        raw = base64.urlsafe_b64decode(signature + "==")
        return how.verify(f"{head}.{body}".encode(), key, raw)

    fallen = {
        forge.__name__
        for forge in (no_algorithm, public_key_as_a_secret, other_algorithm_of_the_key,
                      forgers_key_in_the_header, expired, for_another_service)
        for _ in range(ROUNDS)
        if accepted_by_careless_verifier(forge(victim, victim.good_token()))
    }  # fmt: skip

    assert len(fallen) == 6


def test_an_accepted_token_is_refused_after_its_end(victim: TargetServer) -> None:
    for _ in range(100):
        victim.clock.now = NOW
        ends = NOW + victim.random.randrange(1, 86_400)
        good = victim.good_token(exp=ends)
        assert refusal(victim, good) is None

        victim.clock.now = ends + 29
        assert refusal(victim, good) is None
        victim.clock.now = ends + 30 + victim.random.choice([0, 1, 10**6])
        assert refusal(victim, good) == "expired"
        assert refusal(victim, good) == "expired"


@given(st.data())
def test_a_changed_token_is_refused(data: st.DataObject) -> None:
    strict = verifier(TOKEN_SECRET=SECRET)
    good = token("HS256", key=SECRET.encode(), kid=None)
    at = data.draw(st.integers(0, len(good) - 1))
    end = data.draw(st.integers(at, min(at + 4, len(good))))
    put = data.draw(st.text(max_size=3) | st.from_regex(r"\A[\w.=-]{0,3}\Z"))
    changed = good[:at] + put + good[end:]

    assert strict.verify(good)
    if changed != good:
        with pytest.raises(TokenRefused):
            strict.verify(changed)
