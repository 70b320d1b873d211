"""Access tokens: the server accepts a token only if a configured key signed it."""

import asyncio
import json
import logging
import os
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa
from hypothesis import example, given, strategies as st

from refold.adapters.server import access_tokens
from refold.adapters.server.access_tokens import (
    REASONS,
    SCOPES,
    Caller,
    TokenRefused,
    Verifier,
)
from refold.domain.errors import InvalidConfiguration, InvalidEvent
from tests.support.issuing import (
    ALGORITHMS,
    ISSUER,
    NOW,
    Clock,
    Site,
    claims,
    each_kind,
    jwk,
    jwks,
    part,
    private_key,
    serving,
    signed,
    token,
    verifier,
)
from tests.support.waiting import PATIENCE_SEC

SECRET = "a secret of this machine, 32 bytes or more"
KEPT_KEYS = "new keys could not be loaded, the previous ones stay in use"
NO_URL = "REFOLD_JWKS is a file, https://HOST"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "jwks.json"
    path.write_bytes(each_kind())
    return path


@pytest.fixture
def key_site() -> Iterator[Site]:
    with serving(Site(each_kind())) as key_site:
        yield key_site


def replace_file(path: Path, content: bytes) -> None:
    """Replace the file atomically, as a deployment does."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.replace(path)


def refusal_reason(verifier: Verifier, token: str) -> str:
    """Return the reason for which the verifier refuses the token."""
    with pytest.raises(TokenRefused) as caught:
        verifier.verify(token)
    return caught.value.reason


# The claims of a token


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_token_names_its_user_scopes_and_end(algorithm: str, key_file: Path) -> None:
    caller = verifier(JWKS=key_file).verify(token(algorithm))

    assert caller == Caller("ada", frozenset({"append", "read"}), NOW + 3600, "t1")
    assert caller.may("append")
    assert not caller.may("erase")


def test_admin_implies_no_other_scope(key_file: Path) -> None:
    caller = verifier(JWKS=key_file).verify(token(scope="admin"))

    assert [scope for scope in SCOPES if caller.may(scope)] == ["admin"]


@pytest.mark.parametrize(
    ("changed_claims", "scopes"),
    [
        ({"scope": "read"}, {"read"}),
        ({"scope": "openid read  profile erase"}, {"read", "erase"}),
        ({"scope": ..., "scopes": ["review", "other"]}, {"review"}),
        ({"scope": ..., "scopes": ["review", 7, None, ["read"]]}, {"review"}),
    ],
)
def test_scopes_are_a_string_or_a_list_and_unknown_scopes_are_ignored(
    changed_claims: dict[str, Any], scopes: set[str], key_file: Path
) -> None:
    assert verifier(JWKS=key_file).verify(token(**changed_claims)).scopes == scopes


WRONG: list[tuple[str, dict[str, Any]]] = [
    ("malformed", {"exp": ...}),
    ("malformed", {"exp": None}),
    ("malformed", {"exp": str(NOW + 60)}),
    ("malformed", {"exp": True}),
    ("malformed", {"exp": [NOW + 60]}),
    ("malformed", {"exp": 10**400}),
    ("malformed", {"exp": float("inf")}),
    ("malformed", {"exp": float("nan")}),
    ("malformed", {"exp": -1}),
    ("malformed", {"nbf": "0"}),
    ("malformed", {"iat": None}),
    ("malformed", {"jti": 7}),
    ("expired", {"exp": NOW - 30}),
    ("expired", {"exp": 0}),
    ("too_long", {"exp": NOW + 86_400 + 31}),
    ("too_long", {"exp": 10**12}),
    ("not_yet", {"nbf": NOW + 31}),
    ("not_yet", {"iat": NOW + 31}),
    ("audience", {"aud": ...}),
    ("audience", {"aud": "refold2"}),
    ("audience", {"aud": "Refold"}),
    ("audience", {"aud": []}),
    ("audience", {"aud": ["other", ["refold"]]}),
    ("audience", {"aud": {"refold": 1}}),
    ("issuer", {"iss": ...}),
    ("issuer", {"iss": ISSUER + "/"}),
    ("issuer", {"iss": [ISSUER]}),
    ("subject", {"sub": ...}),
    ("subject", {"sub": ""}),
    ("subject", {"sub": 7}),
    ("subject", {"sub": ["ada"]}),
    ("subject", {"sub": "a" * 201}),
    ("subject", {"sub": "ada\n"}),
    ("subject", {"sub": "ada\x00"}),
    ("subject", {"sub": "\ud800"}),
    ("scope", {"scope": ...}),
    ("scope", {"scope": ""}),
    ("scope", {"scope": "APPEND readx"}),
    ("scope", {"scope": "read\tappend"}),
    ("scope", {"scope": ["read"]}),
    ("scope", {"scope": ..., "scopes": "read"}),
    ("scope", {"scope": ..., "scopes": {"read": 1}}),
    ("scope", {"scopes": ["read"]}),
]


@pytest.mark.parametrize(("reason", "changed"), WRONG)
def test_a_token_with_a_wrong_claim_is_refused(
    reason: str, changed: dict[str, Any], key_file: Path
) -> None:
    strict = verifier(JWKS=key_file, TOKEN_ISSUER=ISSUER)

    assert refusal_reason(strict, token(**changed)) == reason
    assert strict.verify(token()).user_id == "ada"


@pytest.mark.parametrize(
    "changed",
    [
        {"exp": NOW - 29},
        {"exp": NOW + 86_400 + 30},
        {"exp": NOW + 0.5},
        {"nbf": NOW + 30},
        {"iat": NOW + 30},
        {"iat": ...},
        {"aud": ["other", "refold"]},
        {"jti": ...},
        {"sub": "a" * 200},
        {"sub": "用户 1"},
        {"anything": {"else": [1]}},
    ],
)
def test_a_token_with_a_claim_at_its_limit_is_accepted(
    changed: dict[str, Any], key_file: Path
) -> None:
    assert verifier(JWKS=key_file, TOKEN_ISSUER=ISSUER).verify(token(**changed))


def test_an_issuer_is_checked_only_if_one_is_configured(key_file: Path) -> None:
    assert verifier(JWKS=key_file).verify(token(iss=...)).user_id == "ada"


def test_the_operator_sets_audience_leeway_and_lifetime(key_file: Path) -> None:
    own = verifier(
        JWKS=key_file, TOKEN_AUDIENCE="runs", TOKEN_LEEWAY="0", TOKEN_LIFETIME="60"
    )

    assert own.verify(token(aud="runs", exp=NOW + 60)).until == NOW + 60
    assert refusal_reason(own, token(exp=NOW + 60)) == "audience"
    assert refusal_reason(own, token(aud="runs", exp=NOW + 61)) == "too_long"
    assert refusal_reason(own, token(aud="runs", exp=NOW)) == "expired"
    assert (
        refusal_reason(own, token(aud="runs", exp=NOW + 60, nbf=NOW + 1)) == "not_yet"
    )


def test_a_token_over_8_kib_is_not_parsed(key_file: Path) -> None:
    strict = verifier(JWKS=key_file)
    fits = next(t for n in range(6000, 0, -1) if len(t := token(pad="x" * n)) <= 8192)

    assert strict.verify(fits)
    assert refusal_reason(strict, token(pad="x" * 7000)) == "too_long"
    assert refusal_reason(strict, "x" * 10_000_000) == "too_long"


def test_a_body_with_a_repeated_claim_is_refused(key_file: Path) -> None:
    twice = json.dumps(claims())[:-1] + ', "sub": "eve"}'
    header = {"alg": "EdDSA", "kid": "EdDSA"}

    assert refusal_reason(
        verifier(JWKS=key_file), signed(header, twice.encode(), "EdDSA")
    ) == ("malformed")


@pytest.mark.parametrize(
    "body", [b"[]", b"7", b"null", b"{", b"\xff", b"", b"[" * 5000]
)
def test_a_signed_body_that_is_no_object_is_malformed(
    body: bytes, key_file: Path
) -> None:
    header = {"alg": "EdDSA", "kid": "EdDSA"}

    assert (
        refusal_reason(verifier(JWKS=key_file), signed(header, body, "EdDSA"))
        == "malformed"
    )


_numbers = st.one_of(
    st.integers(int(NOW) - 200_000, int(NOW) + 200_000),
    st.floats(NOW - 60, NOW + 60),
    st.integers(),
    st.floats(),
    st.booleans(),
    st.none(),
    st.text(max_size=3),
)
_texts = st.one_of(st.sampled_from(["ada", "refold", ISSUER, ""]), st.text(max_size=5))
_any_claims = st.fixed_dictionaries(
    {},
    optional={
        **dict.fromkeys(("exp", "nbf", "iat"), _numbers),
        **dict.fromkeys(("sub", "iss", "jti"), _texts | _numbers),
        "aud": _texts | st.lists(_texts, max_size=2) | _numbers,
        "scope": st.lists(st.sampled_from([*SCOPES, "x", ""])).map(" ".join) | _numbers,
        "scopes": st.lists(st.sampled_from([*SCOPES, "x"])) | _numbers,
    },
)


@given(_any_claims, st.booleans())
@example({"exp": 1e308, "scopes": ["read"], "scope": ...}, True)
def test_an_accepted_token_gives_its_user_and_scopes(
    drawn: dict[str, Any], good: bool
) -> None:
    if good:
        drawn = claims(**drawn)
    strict = verifier(TOKEN_SECRET=SECRET, TOKEN_ISSUER=ISSUER)

    with suppress(TokenRefused):
        caller = strict.verify(
            signed({"alg": "HS256"}, drawn, "HS256", SECRET.encode())
        )
        assert caller.user_id == drawn["sub"]
        assert caller.scopes <= set(drawn.get("scope", "").split()) | set(
            drawn.get("scopes", ())
        )
        assert caller.scopes <= set(SCOPES) != frozenset() != caller.scopes
        assert NOW - 30 < caller.until == drawn["exp"] <= NOW + 86_430
        assert max(drawn.get("nbf", 0), drawn.get("iat", 0)) <= NOW + 30
        assert drawn["aud"] == "refold" or "refold" in drawn["aud"]
        assert drawn["iss"] == ISSUER


@given(st.text() | st.from_regex(r"\A[\w-]*\.[\w-]*\.[\w-]*\Z"))
@example("")
@example("..")
@example("\ud800.\ud800.\ud800")
@example(part(b"[" * 4000) + ".e30.")
@example(part({"alg": "HS256", "kid": ["x"]}) + ".e30.")
def test_any_text_that_is_no_token_is_refused(text: str) -> None:
    assert refusal_reason(verifier(TOKEN_SECRET=SECRET), text) in REASONS


# Keys that verify


def unfit_keys() -> dict[str, dict[str, Any]]:
    """Keys that must not verify, each with the key that signs for it."""
    rs, es, ed = (private_key(each) for each in ALGORITHMS)
    weak = rsa.generate_private_key(65537, 1024)  # noqa: S505  # it is to be refused
    oct_key = {"kty": "oct", "k": part(SECRET.encode())}
    ed_private = jwt.algorithms.OKPAlgorithm.to_jwk(ed, as_dict=True)
    return {
        "weak": jwk(weak),
        "to encrypt": jwk(rs, use="enc"),
        "to wrap": jwk(rs, key_ops=["wrapKey"]),
        "for RS512": jwk(rs, alg="RS512"),
        "for PS256": jwk(rs, alg="PS256"),
        "for HS256": jwk(rs, alg="HS256"),
        "for none": jwk(rs, alg="none"),
        "for another kind": jwk(rs, alg="ES256"),
        "of P-384": jwk(ec.generate_private_key(ec.SECP384R1())),
        "of P-384 for ES256": jwk(ec.generate_private_key(ec.SECP384R1()), alg="ES256"),
        "of secp256k1": jwk(ec.generate_private_key(ec.SECP256K1())),
        "of another curve than it says": jwk(es, crv="P-384"),
        "off its curve": jwk(es, x=part(b"\x01" * 32)),
        "of Ed448": jwk(ed448.Ed448PrivateKey.generate()),
        "symmetric": oct_key,
        "private": dict(ed_private),
        "without a kind": {k: v for k, v in jwk(es).items() if k != "kty"},
        "of a kind that is a list": jwk(es, kty=["EC"]),
        "of an exponent of one": jwk(rs, e="AQ"),
        "with a kid that is a number": jwk(es) | {"kid": 7},
        "with key_ops that are a number": jwk(es, key_ops=7),
    }


@pytest.mark.parametrize("which", unfit_keys())
def test_an_unfit_key_verifies_nothing(which: str, tmp_path: Path) -> None:
    unfit_only = tmp_path / "unfit_only.json"
    with_fit = tmp_path / "with_fit.json"
    key = {"kid": "unfit"} | unfit_keys()[which]
    unfit_only.write_bytes(jwks(key))
    with_fit.write_bytes(jwks(key, jwk(private_key("EdDSA"), "EdDSA")))

    with pytest.raises(InvalidConfiguration, match="no JWKS of public keys"):
        verifier(JWKS=unfit_only)
    assert verifier(JWKS=with_fit).verify(token())
    for algorithm in ALGORITHMS:
        assert refusal_reason(
            verifier(JWKS=with_fit), token(algorithm, kid="unfit")
        ) == ("unknown_key")


def test_a_token_names_its_key_if_there_are_several(tmp_path: Path) -> None:
    one_key = tmp_path / "one.json"
    two_keys = tmp_path / "two.json"
    first = private_key("EdDSA")
    second = private_key("EdDSA", "second")
    one_key.write_bytes(jwks(jwk(first, "a")))
    two_keys.write_bytes(jwks(jwk(first, "a"), jwk(second, "b")))

    assert verifier(JWKS=one_key).verify(token(kid=None))
    assert verifier(JWKS=one_key).verify(token(kid="a"))
    assert refusal_reason(verifier(JWKS=one_key), token(kid="b")) == "unknown_key"
    assert verifier(JWKS=two_keys).verify(token(kid="a"))
    assert refusal_reason(verifier(JWKS=two_keys), token(kid="b")) == "signature"
    assert refusal_reason(verifier(JWKS=two_keys), token(kid=None)) == "unknown_key"


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(
    st.sampled_from(ALGORITHMS),
    st.dictionaries(
        st.sampled_from(
            ["kty", "crv", "x", "y", "n", "e", "d", "alg", "use", "key_ops"]
        ),
        _json | st.sampled_from(["RSA", "EC", "OKP", "oct", "P-256", "sig", "AQAB"]),
        max_size=2,
    ),
)
def test_any_jwks_is_loaded_or_refused_with_a_clear_message(
    algorithm: str, changed: dict[str, Any]
) -> None:
    body = jwks({**jwk(private_key(algorithm), algorithm), **changed})

    with suppress(InvalidConfiguration):
        keys, _ = access_tokens._parse_jwks(body, "it")
        assert {how for how, _ in keys.values()} == {algorithm}


# Key rotation


def test_a_changed_file_is_read_again(key_file: Path, clock: Clock) -> None:
    checks = verifier(clock, JWKS=key_file)
    old = token()
    new = token(key=private_key("EdDSA", "new"), kid="new")
    assert checks.verify(old)
    assert refusal_reason(checks, new) == "unknown_key"

    second = jwk(private_key("EdDSA", "new"), "new")
    replace_file(key_file, jwks(jwk(private_key("EdDSA"), "EdDSA"), second))
    assert checks.verify(old)
    assert checks.verify(new)

    replace_file(key_file, jwks(second))
    assert checks.verify(new)
    assert refusal_reason(checks, old) == "unknown_key"


def test_a_new_key_replaces_the_old_key_with_the_same_name(key_file: Path) -> None:
    checks = verifier(JWKS=key_file)
    old = token()
    assert checks.verify(old)

    replace_file(key_file, each_kind("new"))

    assert refusal_reason(checks, old) == "signature"
    assert checks.verify(token(key=private_key("EdDSA", "new")))


@pytest.mark.parametrize("content", [b"", b"{", jwks(), None])
def test_a_broken_file_is_reported_and_the_old_keys_stay(
    content: bytes | None, key_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checks = verifier(JWKS=key_file)

    if content is None:
        key_file.unlink()
    else:
        replace_file(key_file, content)

    assert checks.verify(token())
    assert checks.verify(token(jti="t2"))
    assert [r.getMessage().partition(":")[0] for r in caplog.records] == [KEPT_KEYS]


def test_a_site_is_requested_for_the_first_token_only(
    key_site: Site,
) -> None:
    checks = verifier(JWKS=key_site.url)
    assert key_site.asked == 0

    for algorithm in ALGORITHMS * 5:
        assert checks.verify(token(algorithm))

    assert key_site.asked == 1


def test_a_new_key_of_a_site_is_loaded_when_a_token_names_it(
    key_site: Site, clock: Clock
) -> None:
    checks = verifier(clock, JWKS=key_site.url)
    checks.verify(token())
    second = jwk(private_key("EdDSA", "new"), "new")
    key_site.body = jwks(jwk(private_key("EdDSA"), "EdDSA"), second)
    clock.now += 11

    assert checks.verify(token(key=private_key("EdDSA", "new"), kid="new"))
    assert key_site.asked == 2


def test_a_key_that_a_site_removed_is_refused_after_five_minutes(
    key_site: Site, clock: Clock
) -> None:
    checks = verifier(clock, JWKS=key_site.url)
    old = token()
    assert checks.verify(old)
    key_site.body = jwks(jwk(private_key("EdDSA", "new"), "new"))

    clock.now += 299
    assert checks.verify(old)
    clock.now += 1
    assert refusal_reason(checks, old) == "unknown_key"


@pytest.mark.parametrize("step", [0.1, -0.1, 60, -60])
def test_forged_key_names_do_not_flood_a_site(
    step: float, key_site: Site, clock: Clock
) -> None:
    elapsed = Clock()
    checks = verifier(clock, elapsed, JWKS=key_site.url)

    for n in range(500):
        assert refusal_reason(checks, token(kid=f"forged-{n}")) == "unknown_key"
        clock.now += step
        elapsed.now += 0.1

    assert key_site.asked == 5  # in 50 seconds, one request in 10


@pytest.mark.parametrize(
    "outage",
    [
        {"status": 500},
        {"status": 404},
        {"status": 302, "headers": {"Location": "/keys"}},
        {"body": b""},
        {"body": b"<html>"},
        {"body": b'{"keys": []}'},
        {"body": b'{"keys": [' + b" " * 300_000 + each_kind()[10:]},
    ],
)
def test_known_keys_stay_during_an_outage_of_a_site(
    outage: dict[str, Any],
    key_site: Site,
    clock: Clock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    checks = verifier(clock, JWKS=key_site.url)
    assert checks.verify(token())
    good = {name: getattr(key_site, name) for name in outage}

    for name, value in outage.items():
        setattr(key_site, name, value)
    for minutes in range(6, 60, 6):
        clock.now = NOW + 60 * minutes
        assert checks.verify(token(exp=NOW + 7200))
        assert refusal_reason(checks, token(kid="other")) == "unknown_key"
    assert {r.getMessage().partition(":")[0] for r in caplog.records} == {KEPT_KEYS}

    for name, value in good.items():
        setattr(key_site, name, value)
    key_site.body = each_kind("new")
    clock.now += 11
    assert refusal_reason(checks, token(kid="other", exp=NOW + 7200)) == "unknown_key"
    assert refusal_reason(checks, token(exp=NOW + 7200)) == "signature"
    assert checks.verify(token(key=private_key("EdDSA", "new"), exp=NOW + 7200))


def test_every_token_is_refused_until_the_site_is_back(
    key_site: Site, clock: Clock
) -> None:
    checks = verifier(clock, JWKS=key_site.url)
    key_site.status = 503

    assert refusal_reason(checks, token()) == "unknown_key"
    key_site.status = 200
    assert refusal_reason(checks, token()) == "unknown_key"
    clock.now += 10
    assert checks.verify(token())


def test_a_redirect_of_a_site_is_not_followed(key_site: Site) -> None:
    with serving(Site(each_kind())) as elsewhere:
        key_site.status = 302
        key_site.headers = {"Location": elsewhere.url}

        assert refusal_reason(verifier(JWKS=key_site.url), token()) == "unknown_key"
        assert (key_site.asked, elsewhere.asked) == (1, 0)


def test_a_site_that_sends_too_slowly_is_disconnected(
    key_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_tokens, "_FETCH_TIMEOUT", 0.2)
    cut = threading.Event()

    def send_slowly(asking: BaseHTTPRequestHandler) -> None:
        try:
            while True:
                asking.wfile.write(b"HTTP/1.0 200 OK\r\nX: " if not cut else b"x")
                threading.Event().wait(0.01)
        finally:
            cut.set()

    key_site.before = send_slowly

    assert refusal_reason(verifier(JWKS=key_site.url), token()) == "unknown_key"
    assert cut.wait(PATIENCE_SEC)


def test_many_concurrent_tokens_cause_one_request(key_site: Site) -> None:
    checks = verifier(JWKS=key_site.url)
    tokens = [token(jti=f"t{n}") for n in range(16)]
    key_site.go.clear()

    with ThreadPoolExecutor(16) as pool:
        asking = [pool.submit(checks.verify, each) for each in tokens]
        assert key_site.reached.wait(PATIENCE_SEC)
        key_site.go.set()
        assert {future.result().user_id for future in asking} == {"ada"}

    assert key_site.asked == 1


def test_a_known_key_verifies_without_waiting_for_a_site_that_is_down(
    key_site: Site, clock: Clock
) -> None:
    checks = verifier(clock, JWKS=key_site.url)
    checks.verify(token())
    key_site.status = 503
    clock.now += 300
    checks.verify(token())
    key_site.reached.clear()
    key_site.go.clear()
    clock.now += 10

    with pytest.raises(
        StopIteration
    ) as ended:  # ends at its first step: it never waits
        checks.averify(token(jti="t2")).send(None)

    assert ended.value.value.token_id == "t2"
    assert key_site.reached.wait(PATIENCE_SEC)


def test_a_slow_site_gets_no_second_request(key_site: Site, clock: Clock) -> None:
    checks = verifier(clock, JWKS=key_site.url)
    key_site.go.clear()

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(checks.verify, token())
        assert key_site.reached.wait(PATIENCE_SEC)
        clock.now += 10
        first = checks.keys.renew(token(kid="other"), clock())
        assert first is not None
        assert not first.done()
        assert checks.keys.renew(token(kid="another"), clock()) is first
        key_site.go.set()
        first.result(PATIENCE_SEC)
        assert asking.result()

    assert key_site.asked == 1


@pytest.mark.parametrize("jump", [3_000, -3_000])
def test_setting_the_clock_does_not_change_how_long_keys_are_kept(
    jump: float, key_site: Site, clock: Clock
) -> None:
    elapsed = Clock()
    checks = verifier(clock, elapsed, JWKS=key_site.url)
    old = token(iat=..., exp=NOW + 7200)
    assert checks.verify(old)
    key_site.body = jwks(jwk(private_key("EdDSA", "new"), "new"))

    clock.now += jump
    elapsed.now += 299

    assert checks.verify(old)
    assert key_site.asked == 1
    elapsed.now += 1
    assert refusal_reason(checks, old) == "unknown_key"


def test_a_token_ends_by_the_wall_clock(clock: Clock) -> None:
    elapsed = Clock()
    own = verifier(clock, elapsed)
    shown = own.mint("ada", ["read"], 60)
    elapsed.now += 86_400
    assert own.verify(shown)

    clock.now += 91

    assert refusal_reason(own, shown) == "expired"


def test_the_event_loop_is_not_blocked_while_keys_are_fetched(
    key_site: Site, clock: Clock
) -> None:
    checks = verifier(clock, JWKS=key_site.url)
    new = token(key=private_key("EdDSA", "new"), kid="new")

    async def verify_two() -> tuple[Caller, Caller]:
        first = await checks.averify(token())
        key_site.body = jwks(jwk(private_key("EdDSA", "new"), "new"))
        key_site.reached.clear()
        key_site.go.clear()
        clock.now += 10
        waiting = asyncio.create_task(checks.averify(new))
        await asyncio.to_thread(key_site.reached.wait, 60)
        assert await checks.averify(token()) is first
        assert not waiting.done()
        key_site.go.set()
        return first, await waiting

    assert [caller.user_id for caller in asyncio.run(verify_two())] == ["ada", "ada"]
    assert key_site.asked == 2


def test_a_cancelled_client_does_not_block_others(key_site: Site) -> None:
    checks = verifier(JWKS=key_site.url)
    key_site.go.clear()

    async def verify_two() -> Caller:
        gone = asyncio.create_task(checks.averify(token()))
        stays = asyncio.create_task(checks.averify(token()))
        await asyncio.to_thread(key_site.reached.wait, 60)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        key_site.go.set()
        return await stays

    assert asyncio.run(verify_two()).user_id == "ada"


def test_averify_refuses_the_same_tokens_as_verify(key_file: Path) -> None:
    with pytest.raises(TokenRefused, match="audience"):
        asyncio.run(verifier(JWKS=key_file).averify(token(aud="other")))


@pytest.mark.parametrize("trusted", [True, False])
def test_an_https_site_needs_a_trusted_certificate(
    trusted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = _self_signed_certificate(tmp_path)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)

    with serving(Site(each_kind()), tls) as key_site:
        checks = verifier(JWKS=key_site.url)
        if trusted:
            assert checks.verify(token())
        else:
            assert refusal_reason(checks, token()) == "unknown_key"


def _self_signed_certificate(place: Path) -> Path:
    """Write a self-signed certificate of localhost and its key into one file."""
    key = private_key("ES256")
    name = x509.Name.from_rfc4514_string("CN=localhost")
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1)
    builder = builder.not_valid_before(datetime.now(UTC) - timedelta(days=1))
    builder = builder.not_valid_after(datetime.now(UTC) + timedelta(days=1))
    names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    certificate = builder.add_extension(names, critical=False).sign(
        key, hashes.SHA256()
    )
    encoding = serialization.Encoding.PEM
    form = serialization.PrivateFormat.PKCS8
    path = place / "localhost.pem"
    path.write_bytes(
        certificate.public_bytes(encoding)
        + key.private_bytes(encoding, form, serialization.NoEncryption())
    )
    return path


# The cache of verified tokens


def test_a_token_is_verified_once_until_it_ends(
    key_file: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified = list[str]()
    real = access_tokens._claims

    def count_decodes(token: str, algorithm: str, key: Any) -> dict[str, Any]:
        verified.append(token)
        return real(token, algorithm, key)

    monkeypatch.setattr(access_tokens, "_claims", count_decodes)
    checks = verifier(clock, JWKS=key_file)
    shown = token()

    for _ in range(100):
        assert checks.verify(shown).user_id == "ada"
    assert verified == [shown]

    clock.now += 3600
    checks.verify(shown)
    checks.verify(shown)
    assert verified == [shown] * 3  # only the leeway remains

    clock.now += 30
    assert refusal_reason(checks, shown) == "expired"


def test_the_number_of_cached_tokens_is_bounded(
    key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_tokens, "_MOST_CALLERS", 10)
    checks = verifier(JWKS=key_file)

    for n in range(100):
        assert checks.verify(token(jti=f"t{n}")).token_id == f"t{n}"
        assert len(checks.keys.current.callers) <= 10


def test_refused_tokens_are_not_cached(key_file: Path) -> None:
    checks = verifier(JWKS=key_file)

    for _ in range(3):
        assert refusal_reason(checks, token(aud="other")) == "audience"

    assert checks.keys.current.callers == {}


def test_threads_share_a_verifier_while_keys_change(key_file: Path) -> None:
    checks = verifier(JWKS=key_file)
    by_key = {n: token(key=private_key("EdDSA", n)) for n in ("", "new")}
    stop = threading.Event()

    def verify_all() -> set[str]:
        outcomes = set()
        while not stop.is_set():
            for name, each in by_key.items():
                try:
                    outcomes.add(name + checks.verify(each).user_id)
                except TokenRefused as refusal:
                    outcomes.add(refusal.reason)
        return outcomes

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(verify_all) for _ in range(4)]
        for n in range(100):
            replace_file(key_file, each_kind("new" if n % 2 else ""))
        stop.set()
        assert set().union(*(each.result() for each in asking)) <= {
            "ada", "newada", "signature"
        }  # fmt: skip
    assert refusal_reason(checks, by_key[""]) == "signature"
    assert checks.verify(by_key["new"])


# A secret instead of keys


def test_without_keys_a_secret_of_this_process_mints_and_verifies(clock: Clock) -> None:
    own = verifier(clock)

    minted = own.mint("ada", ["read", "admin"])

    assert not own.configured
    caller = own.verify(minted)
    assert caller.user_id == "ada"
    assert caller.scopes == {"read", "admin"}
    assert caller.until == NOW + 86_400
    assert len(caller.token_id) == 16
    assert refusal_reason(verifier(clock), minted) == "signature"


def test_a_minted_token_lasts_no_longer_than_the_limit(clock: Clock) -> None:
    own = verifier(clock, TOKEN_LIFETIME="60", TOKEN_ISSUER="me", TOKEN_AUDIENCE="us")

    assert own.verify(own.mint("ada", ["read"])).until == NOW + 60
    assert own.verify(own.mint("ada", ["read"], lifetime=5)).until == NOW + 5


def test_no_token_is_minted_for_an_invalid_user_id() -> None:
    with pytest.raises(InvalidEvent):
        verifier().mint("a\nb", ["read"])


def test_a_secret_is_shared_by_file_or_variable(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(SECRET + "\n")
    path.chmod(0o600)
    by_file = verifier(TOKEN_SECRET_FILE=path)
    by_variable = verifier(TOKEN_SECRET=SECRET)

    assert by_file.configured
    assert by_file.verify(by_variable.mint("ada", ["read"])).user_id == "ada"
    assert by_variable.verify(by_file.mint("eve", ["read"])).user_id == "eve"


def test_a_secret_that_other_users_can_read_causes_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "secret"
    path.write_text(SECRET)
    path.chmod(0o644)

    verifier(TOKEN_SECRET_FILE=path)

    assert "chmod 600" in caplog.text
    assert SECRET not in caplog.text


def test_a_verifier_with_public_keys_mints_nothing(key_file: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="REFOLD_JWKS"):
        verifier(JWKS=key_file).mint("ada", ["read"])


# Mistakes in configuration


def _pem(algorithm: str) -> bytes:
    return bytes(
        private_key(algorithm)
        .public_key()
        .public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )


_TWICE = jwks(jwk(private_key("ES256"), "a"), jwk(private_key("EdDSA"), "a"))
_UNNAMED = jwks(jwk(private_key("ES256"), "a"), jwk(private_key("EdDSA")))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"TOKEN_SECRET": "short"}, "32 bytes or more, not 5"),
        ({"TOKEN_SECRET": "x" * 31}, "32 bytes or more, not 31"),
        ({"TOKEN_SECRET_FILE": b""}, "32 bytes or more, not 0"),
        ({"TOKEN_SECRET_FILE": b"x" * 31 + b"\n"}, "32 bytes or more, not 31"),
        ({"TOKEN_SECRET_FILE": _pem("RS256")}, "and is not a public key"),
        ({"TOKEN_SECRET_FILE": _pem("EdDSA")}, "and is not a public key"),
        ({"TOKEN_SECRET_FILE": "absent"}, "absent cannot be read: No such file"),
        ({"TOKEN_SECRET_FILE": "."}, "cannot be read: Is a directory"),
        ({"JWKS": "absent"}, "absent cannot be read: No such file"),
        ({"JWKS": b""}, "is no JWKS"),
        ({"JWKS": b"[]"}, "is no JWKS"),
        ({"JWKS": b'{"keys": {}}'}, "is no JWKS"),
        ({"JWKS": b'{"keys": 7}'}, "is no JWKS"),
        ({"JWKS": b"[" * 100_000}, "is no JWKS"),
        ({"JWKS": _pem("RS256")}, "is no JWKS"),
        ({"JWKS": _TWICE}, "each with its own kid"),
        ({"JWKS": _UNNAMED}, "each with its own kid"),
        ({"JWKS": "http://issuer.example/keys"}, NO_URL),
        ({"JWKS": "http://127.0.0.1.example/keys"}, NO_URL),
        ({"JWKS": "http://127.0.0.1@issuer.example/keys"}, NO_URL),
        ({"JWKS": "https://ada:word@issuer.example/keys"}, NO_URL),
        ({"JWKS": "https://"}, NO_URL),
        ({"JWKS": "https://issuer.example:port/keys"}, NO_URL),
        ({"JWKS": "https://issuer.example/keys\r\nX: y"}, NO_URL),
        ({"JWKS": "file:///etc/jwks.json"}, NO_URL),
        ({"JWKS": "ftp://issuer.example/keys"}, NO_URL),
        ({"JWKS": "https://a.example", "TOKEN_SECRET": SECRET}, "keep one of them"),
        ({"TOKEN_SECRET_FILE": "f", "TOKEN_SECRET": SECRET}, "keep one of them"),
        (
            {"TOKEN_LEEWAY": "121"},
            "REFOLD_TOKEN_LEEWAY is a number of seconds, 0 to 120",
        ),
        ({"TOKEN_LEEWAY": "-1"}, "REFOLD_TOKEN_LEEWAY"),
        ({"TOKEN_LEEWAY": "nan"}, "REFOLD_TOKEN_LEEWAY"),
        ({"TOKEN_LEEWAY": "30s"}, "REFOLD_TOKEN_LEEWAY"),
        ({"TOKEN_LIFETIME": "inf"}, "REFOLD_TOKEN_LIFETIME"),
    ],
)
def test_a_wrong_setting_is_reported_in_a_sentence(
    settings: dict[str, Any], sentence: str, tmp_path: Path
) -> None:
    for name, value in settings.items():
        if isinstance(value, bytes):
            settings = {**settings, name: tmp_path / "given"}
            (tmp_path / "given").write_bytes(value)

    with pytest.raises(InvalidConfiguration) as caught:
        verifier(**settings)

    assert sentence in str(caught.value)
    assert SECRET not in str(caught.value)
    assert "word" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "https://issuer.example",
        "https://issuer.example:8443/realms/a/certs?x=1",
        "http://localhost:1/keys",
        "http://127.0.0.1:1/keys",
        "http://[::1]:1/keys",
    ],
)
def test_an_https_or_local_url_is_accepted_without_a_first_request(
    url: str,
) -> None:
    assert verifier(JWKS=url).configured


def test_settings_default_to_those_of_the_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(os.environ, "REFOLD_TOKEN_SECRET", SECRET)

    assert access_tokens.verifier_of().configured


# Messages about tokens


def test_no_message_quotes_a_token_or_a_secret(
    key_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    strict = verifier(JWKS=key_file)
    own = verifier(TOKEN_SECRET=SECRET)
    shown = [token(aud="x", **changed) for _, changed in WRONG if "aud" not in changed]
    shown += [token()[:-9], token()[9:], "Zm9v" + token(), token() + "x"]

    for each in shown:
        for checks in (strict, own):
            with pytest.raises(TokenRefused) as caught:
                checks.verify(each)
            refusal = caught.value
            messages = [str(refusal), repr(refusal), repr(vars(refusal)), caplog.text]
            assert not any(
                piece in text
                for text in messages
                for piece in _recognizable_parts(each)
            )
            assert refusal.__cause__ is None is refusal.__context__
    assert SECRET not in repr(own) + str(own)


def _recognizable_parts(token: str) -> list[str]:
    """Return the parts of a token by which somebody could recognize it."""
    return [token[n : n + 8] for n in range(0, len(token) - 8, 4)]


def test_a_reason_is_one_word_of_a_fixed_list() -> None:
    assert len(REASONS) == 11
    assert all(reason.replace("_", "").isalpha() for reason in REASONS)
