"""Who may ask the server: an access token is believed if a configured key signed it."""

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

SECRET = "a secret of this machine, 32 bytes or more"
KEPT_KEYS = "new keys could not be loaded, the previous ones stay in use"
NO_URL = "REFOLD_JWKS is a file, https://HOST"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "jwks.json"
    path.write_bytes(each_kind())
    return path


@pytest.fixture
def site() -> Iterator[Site]:
    with serving(Site(each_kind())) as site:
        yield site


def replace(path: Path, content: bytes) -> None:
    """Put another file in its place, as a deployment does."""
    new = path.with_suffix(".new")
    new.write_bytes(content)
    new.replace(path)


def refused(verifier: Verifier, token: str) -> str:
    """Why the token is refused."""
    with pytest.raises(TokenRefused) as caught:
        verifier.verify(token)
    return caught.value.reason


# What a token says


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_token_names_its_user_scopes_and_end(algorithm: str, file: Path) -> None:
    caller = verifier(JWKS=file).verify(token(algorithm))

    assert caller == Caller("ada", frozenset({"append", "read"}), NOW + 3600, "t1")
    assert caller.may("append")
    assert not caller.may("erase")


def test_admin_implies_no_other_scope(file: Path) -> None:
    caller = verifier(JWKS=file).verify(token(scope="admin"))

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
def test_scopes_are_a_text_or_a_list_and_unknown_ones_are_passed_over(
    changed_claims: dict[str, Any], scopes: set[str], file: Path
) -> None:
    assert verifier(JWKS=file).verify(token(**changed_claims)).scopes == scopes


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
def test_a_claim_that_is_wrong_refuses_the_token(
    reason: str, changed: dict[str, Any], file: Path
) -> None:
    strict = verifier(JWKS=file, TOKEN_ISSUER=ISSUER)

    assert refused(strict, token(**changed)) == reason
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
def test_a_claim_at_its_bound_lets_in(changed: dict[str, Any], file: Path) -> None:
    assert verifier(JWKS=file, TOKEN_ISSUER=ISSUER).verify(token(**changed))


def test_an_issuer_matters_only_where_one_is_configured(file: Path) -> None:
    assert verifier(JWKS=file).verify(token(iss=...)).user_id == "ada"


def test_audience_leeway_and_lifetime_are_the_operators(file: Path) -> None:
    own = verifier(
        JWKS=file, TOKEN_AUDIENCE="runs", TOKEN_LEEWAY="0", TOKEN_LIFETIME="60"
    )

    assert own.verify(token(aud="runs", exp=NOW + 60)).until == NOW + 60
    assert refused(own, token(exp=NOW + 60)) == "audience"
    assert refused(own, token(aud="runs", exp=NOW + 61)) == "too_long"
    assert refused(own, token(aud="runs", exp=NOW)) == "expired"
    assert refused(own, token(aud="runs", exp=NOW + 60, nbf=NOW + 1)) == "not_yet"


def test_a_token_over_8_kib_is_not_looked_at(file: Path) -> None:
    strict = verifier(JWKS=file)
    fits = next(t for n in range(6000, 0, -1) if len(t := token(pad="x" * n)) <= 8192)

    assert strict.verify(fits)
    assert refused(strict, token(pad="x" * 7000)) == "too_long"
    assert refused(strict, "x" * 10_000_000) == "too_long"


def test_a_body_that_says_a_thing_twice_says_nothing(file: Path) -> None:
    twice = json.dumps(claims())[:-1] + ', "sub": "eve"}'
    header = {"alg": "EdDSA", "kid": "EdDSA"}

    assert refused(verifier(JWKS=file), signed(header, twice.encode(), "EdDSA")) == (
        "malformed"
    )


@pytest.mark.parametrize(
    "body", [b"[]", b"7", b"null", b"{", b"\xff", b"", b"[" * 5000]
)
def test_a_body_that_is_no_object_is_malformed_though_it_is_signed(
    body: bytes, file: Path
) -> None:
    header = {"alg": "EdDSA", "kid": "EdDSA"}

    assert refused(verifier(JWKS=file), signed(header, body, "EdDSA")) == "malformed"


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
def test_an_accepted_token_gives_its_own_user_and_scopes(
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
    assert refused(verifier(TOKEN_SECRET=SECRET), text) in REASONS


# Which keys verify


def unfit() -> dict[str, dict[str, Any]]:
    """Keys that must not verify, each with what signs for it."""
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


@pytest.mark.parametrize("which", unfit())
def test_a_key_that_is_not_fit_verifies_nothing(which: str, tmp_path: Path) -> None:
    alone, beside = tmp_path / "alone.json", tmp_path / "beside.json"
    key = {"kid": "unfit"} | unfit()[which]
    alone.write_bytes(jwks(key))
    beside.write_bytes(jwks(key, jwk(private_key("EdDSA"), "EdDSA")))

    with pytest.raises(InvalidConfiguration, match="no JWKS of public keys"):
        verifier(JWKS=alone)
    assert verifier(JWKS=beside).verify(token())
    for algorithm in ALGORITHMS:
        assert refused(verifier(JWKS=beside), token(algorithm, kid="unfit")) == (
            "unknown_key"
        )


def test_a_token_need_not_name_the_only_key_but_one_of_several(tmp_path: Path) -> None:
    one_key, two_keys = tmp_path / "one.json", tmp_path / "two.json"
    first, second = private_key("EdDSA"), private_key("EdDSA", "second")
    one_key.write_bytes(jwks(jwk(first, "a")))
    two_keys.write_bytes(jwks(jwk(first, "a"), jwk(second, "b")))

    assert verifier(JWKS=one_key).verify(token(kid=None))
    assert verifier(JWKS=one_key).verify(token(kid="a"))
    assert refused(verifier(JWKS=one_key), token(kid="b")) == "unknown_key"
    assert verifier(JWKS=two_keys).verify(token(kid="a"))
    assert refused(verifier(JWKS=two_keys), token(kid="b")) == "signature"
    assert refused(verifier(JWKS=two_keys), token(kid=None)) == "unknown_key"


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
def test_a_jwks_of_anything_is_taken_or_refused_in_a_sentence(
    algorithm: str, changed: dict[str, Any]
) -> None:
    body = jwks({**jwk(private_key(algorithm), algorithm), **changed})

    with suppress(InvalidConfiguration):
        keys, _ = access_tokens._parse_jwks(body, "it")
        assert {how for how, _ in keys.values()} == {algorithm}


# Keys that change


def test_a_file_that_changes_is_read_again(file: Path, clock: Clock) -> None:
    checks = verifier(clock, JWKS=file)
    old, new = token(), token(key=private_key("EdDSA", "new"), kid="new")
    assert checks.verify(old)
    assert refused(checks, new) == "unknown_key"

    second = jwk(private_key("EdDSA", "new"), "new")
    replace(file, jwks(jwk(private_key("EdDSA"), "EdDSA"), second))
    assert checks.verify(old)
    assert checks.verify(new)

    replace(file, jwks(second))
    assert checks.verify(new)
    assert refused(checks, old) == "unknown_key"


def test_a_key_of_the_same_name_takes_the_place_of_the_old(file: Path) -> None:
    checks, old = verifier(JWKS=file), token()
    assert checks.verify(old)

    replace(file, each_kind("new"))

    assert refused(checks, old) == "signature"
    assert checks.verify(token(key=private_key("EdDSA", "new")))


@pytest.mark.parametrize("content", [b"", b"{", jwks(), None])
def test_a_file_that_breaks_keeps_its_keys_and_says_so(
    content: bytes | None, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checks = verifier(JWKS=file)

    if content is None:
        file.unlink()
    else:
        replace(file, content)

    assert checks.verify(token())
    assert checks.verify(token(jti="t2"))
    assert [r.getMessage().partition(":")[0] for r in caplog.records] == [KEPT_KEYS]


def test_a_site_is_asked_when_the_first_token_comes_and_then_no_more(
    site: Site,
) -> None:
    checks = verifier(JWKS=site.url)
    assert site.asked == 0

    for algorithm in ALGORITHMS * 5:
        assert checks.verify(token(algorithm))

    assert site.asked == 1


def test_a_new_key_of_a_site_is_taken_when_a_token_names_it(
    site: Site, clock: Clock
) -> None:
    checks = verifier(clock, JWKS=site.url)
    checks.verify(token())
    second = jwk(private_key("EdDSA", "new"), "new")
    site.body = jwks(jwk(private_key("EdDSA"), "EdDSA"), second)
    clock.now += 11

    assert checks.verify(token(key=private_key("EdDSA", "new"), kid="new"))
    assert site.asked == 2


def test_a_key_that_left_a_site_is_refused_after_five_minutes(
    site: Site, clock: Clock
) -> None:
    checks, old = verifier(clock, JWKS=site.url), token()
    assert checks.verify(old)
    site.body = jwks(jwk(private_key("EdDSA", "new"), "new"))

    clock.now += 299
    assert checks.verify(old)
    clock.now += 1
    assert refused(checks, old) == "unknown_key"


@pytest.mark.parametrize("step", [0.1, -0.1, 60, -60])
def test_forged_names_of_keys_do_not_hammer_a_site(
    step: float, site: Site, clock: Clock
) -> None:
    elapsed = Clock()
    checks = verifier(clock, elapsed, JWKS=site.url)

    for n in range(500):
        assert refused(checks, token(kid=f"forged-{n}")) == "unknown_key"
        clock.now += step
        elapsed.now += 0.1

    assert site.asked == 5  # in 50 seconds, one in 10


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
def test_an_outage_of_a_site_keeps_the_known_keys(
    outage: dict[str, Any], site: Site, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    checks = verifier(clock, JWKS=site.url)
    assert checks.verify(token())
    good = {name: getattr(site, name) for name in outage}

    for name, value in outage.items():
        setattr(site, name, value)
    for minutes in range(6, 60, 6):
        clock.now = NOW + 60 * minutes
        assert checks.verify(token(exp=NOW + 7200))
        assert refused(checks, token(kid="other")) == "unknown_key"
    assert {r.getMessage().partition(":")[0] for r in caplog.records} == {KEPT_KEYS}

    for name, value in good.items():
        setattr(site, name, value)
    site.body = each_kind("new")
    clock.now += 11
    assert refused(checks, token(kid="other", exp=NOW + 7200)) == "unknown_key"
    assert refused(checks, token(exp=NOW + 7200)) == "signature"
    assert checks.verify(token(key=private_key("EdDSA", "new"), exp=NOW + 7200))


def test_without_a_site_nobody_is_let_in_until_it_is_back(
    site: Site, clock: Clock
) -> None:
    checks = verifier(clock, JWKS=site.url)
    site.status = 503

    assert refused(checks, token()) == "unknown_key"
    site.status = 200
    assert refused(checks, token()) == "unknown_key"
    clock.now += 10
    assert checks.verify(token())


def test_a_site_that_sends_elsewhere_is_not_followed(site: Site) -> None:
    with serving(Site(each_kind())) as elsewhere:
        site.status, site.headers = 302, {"Location": elsewhere.url}

        assert refused(verifier(JWKS=site.url), token()) == "unknown_key"
        assert (site.asked, elsewhere.asked) == (1, 0)


def test_a_site_that_drips_is_cut_off(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_tokens, "_FETCH_TIMEOUT", 0.2)
    cut = threading.Event()

    def drip(asking: BaseHTTPRequestHandler) -> None:
        try:
            while True:
                asking.wfile.write(b"HTTP/1.0 200 OK\r\nX: " if not cut else b"x")
                threading.Event().wait(0.01)
        finally:
            cut.set()

    site.before = drip

    assert refused(verifier(JWKS=site.url), token()) == "unknown_key"
    assert cut.wait(60)


def test_many_at_once_ask_a_site_once(site: Site) -> None:
    checks = verifier(JWKS=site.url)
    tokens = [token(jti=f"t{n}") for n in range(16)]
    site.go.clear()

    with ThreadPoolExecutor(16) as pool:
        asking = [pool.submit(checks.verify, each) for each in tokens]
        assert site.reached.wait(60)
        site.go.set()
        assert {future.result().user_id for future in asking} == {"ada"}

    assert site.asked == 1


def test_a_known_key_verifies_without_waiting_for_a_site_that_is_down(
    site: Site, clock: Clock
) -> None:
    checks = verifier(clock, JWKS=site.url)
    checks.verify(token())
    site.status = 503
    clock.now += 300
    checks.verify(token())
    site.reached.clear()
    site.go.clear()
    clock.now += 10

    with pytest.raises(StopIteration) as ended:  # at its first step: it never waits
        checks.averify(token(jti="t2")).send(None)

    assert ended.value.value.token_id == "t2"
    assert site.reached.wait(60)


def test_a_slow_site_gets_no_second_request(site: Site, clock: Clock) -> None:
    checks = verifier(clock, JWKS=site.url)
    site.go.clear()

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(checks.verify, token())
        assert site.reached.wait(60)
        clock.now += 10
        first = checks.keys.renew(token(kid="other"), clock())
        assert first is not None
        assert not first.done()
        assert checks.keys.renew(token(kid="another"), clock()) is first
        site.go.set()
        first.result(60)
        assert asking.result()

    assert site.asked == 1


@pytest.mark.parametrize("jump", [3_000, -3_000])
def test_a_clock_that_is_set_does_not_change_how_long_keys_are_kept(
    jump: float, site: Site, clock: Clock
) -> None:
    elapsed = Clock()
    checks, old = (
        verifier(clock, elapsed, JWKS=site.url),
        token(iat=..., exp=NOW + 7200),
    )
    assert checks.verify(old)
    site.body = jwks(jwk(private_key("EdDSA", "new"), "new"))

    clock.now += jump
    elapsed.now += 299

    assert checks.verify(old)
    assert site.asked == 1
    elapsed.now += 1
    assert refused(checks, old) == "unknown_key"


def test_a_token_ends_by_the_wall_clock(clock: Clock) -> None:
    elapsed = Clock()
    own = verifier(clock, elapsed)
    shown = own.mint("ada", ["read"], 60)
    elapsed.now += 86_400
    assert own.verify(shown)

    clock.now += 91

    assert refused(own, shown) == "expired"


def test_the_event_loop_is_not_blocked_while_keys_are_fetched(
    site: Site, clock: Clock
) -> None:
    checks = verifier(clock, JWKS=site.url)
    new = token(key=private_key("EdDSA", "new"), kid="new")

    async def both() -> tuple[Caller, Caller]:
        first = await checks.averify(token())
        site.body = jwks(jwk(private_key("EdDSA", "new"), "new"))
        site.reached.clear()
        site.go.clear()
        clock.now += 10
        waiting = asyncio.create_task(checks.averify(new))
        await asyncio.to_thread(site.reached.wait, 60)
        assert await checks.averify(token()) is first
        assert not waiting.done()
        site.go.set()
        return first, await waiting

    assert [caller.user_id for caller in asyncio.run(both())] == ["ada", "ada"]
    assert site.asked == 2


def test_a_client_that_stops_waiting_blocks_nobody(site: Site) -> None:
    checks = verifier(JWKS=site.url)
    site.go.clear()

    async def two() -> Caller:
        gone = asyncio.create_task(checks.averify(token()))
        stays = asyncio.create_task(checks.averify(token()))
        await asyncio.to_thread(site.reached.wait, 60)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        site.go.set()
        return await stays

    assert asyncio.run(two()).user_id == "ada"


def test_averify_refuses_as_verify_does(file: Path) -> None:
    with pytest.raises(TokenRefused, match="audience"):
        asyncio.run(verifier(JWKS=file).averify(token(aud="other")))


@pytest.mark.parametrize("trusted", [True, False])
def test_a_site_by_https_must_have_a_certificate_that_is_trusted(
    trusted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = _certificate(tmp_path)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate)

    with serving(Site(each_kind()), tls) as site:
        checks = verifier(JWKS=site.url)
        if trusted:
            assert checks.verify(token())
        else:
            assert refused(checks, token()) == "unknown_key"


def _certificate(place: Path) -> Path:
    """A certificate of localhost by itself, with its key, in one file."""
    key, name = private_key("ES256"), x509.Name.from_rfc4514_string("CN=localhost")
    builder = x509.CertificateBuilder(name, name, key.public_key(), 1)
    builder = builder.not_valid_before(datetime.now(UTC) - timedelta(days=1))
    builder = builder.not_valid_after(datetime.now(UTC) + timedelta(days=1))
    names = x509.SubjectAlternativeName([x509.DNSName("localhost")])
    certificate = builder.add_extension(names, critical=False).sign(
        key, hashes.SHA256()
    )
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    path = place / "localhost.pem"
    path.write_bytes(
        certificate.public_bytes(encoding)
        + key.private_bytes(encoding, form, serialization.NoEncryption())
    )
    return path


# What is remembered


def test_a_token_is_verified_once_until_it_ends(
    file: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified, real = list[str](), access_tokens._claims

    def noted(token: str, algorithm: str, key: Any) -> dict[str, Any]:
        verified.append(token)
        return real(token, algorithm, key)

    monkeypatch.setattr(access_tokens, "_claims", noted)
    checks, shown = verifier(clock, JWKS=file), token()

    for _ in range(100):
        assert checks.verify(shown).user_id == "ada"
    assert verified == [shown]

    clock.now += 3600
    checks.verify(shown)
    checks.verify(shown)
    assert verified == [shown] * 3  # only its leeway is left

    clock.now += 30
    assert refused(checks, shown) == "expired"


def test_no_more_than_a_bound_is_remembered(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_tokens, "_MOST_CALLERS", 10)
    checks = verifier(JWKS=file)

    for n in range(100):
        assert checks.verify(token(jti=f"t{n}")).token_id == f"t{n}"
        assert len(checks.keys.current.callers) <= 10


def test_refused_tokens_are_not_remembered(file: Path) -> None:
    checks = verifier(JWKS=file)

    for _ in range(3):
        assert refused(checks, token(aud="other")) == "audience"

    assert checks.keys.current.callers == {}


def test_threads_share_a_verifier_while_keys_change(file: Path) -> None:
    checks = verifier(JWKS=file)
    by_key = {n: token(key=private_key("EdDSA", n)) for n in ("", "new")}
    stop = threading.Event()

    def ask() -> set[str]:
        outcomes = set()
        while not stop.is_set():
            for name, each in by_key.items():
                try:
                    outcomes.add(name + checks.verify(each).user_id)
                except TokenRefused as refusal:
                    outcomes.add(refusal.reason)
        return outcomes

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask) for _ in range(4)]
        for n in range(100):
            replace(file, each_kind("new" if n % 2 else ""))
        stop.set()
        assert set().union(*(each.result() for each in asking)) <= {
            "ada", "newada", "signature"
        }  # fmt: skip
    assert refused(checks, by_key[""]) == "signature"
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
    assert refused(verifier(clock), minted) == "signature"


def test_a_minted_token_lasts_no_longer_than_tokens_may(clock: Clock) -> None:
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
    by_file, by_variable = (
        verifier(TOKEN_SECRET_FILE=path),
        verifier(TOKEN_SECRET=SECRET),
    )

    assert by_file.configured
    assert by_file.verify(by_variable.mint("ada", ["read"])).user_id == "ada"
    assert by_variable.verify(by_file.mint("eve", ["read"])).user_id == "eve"


def test_a_secret_that_others_can_read_is_remarked_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "secret"
    path.write_text(SECRET)
    path.chmod(0o644)

    verifier(TOKEN_SECRET_FILE=path)

    assert "chmod 600" in caplog.text
    assert SECRET not in caplog.text


def test_keys_of_others_mint_nothing(file: Path) -> None:
    with pytest.raises(InvalidConfiguration, match="REFOLD_JWKS"):
        verifier(JWKS=file).mint("ada", ["read"])


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
        ({"TOKEN_SECRET_FILE": _pem("RS256")}, "and is no public key"),
        ({"TOKEN_SECRET_FILE": _pem("EdDSA")}, "and is no public key"),
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
def test_a_mistake_in_the_settings_is_reported_in_a_sentence(
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
def test_a_url_of_https_or_of_this_machine_is_taken_and_not_asked_at_once(
    url: str,
) -> None:
    assert verifier(JWKS=url).configured


def test_the_settings_are_those_of_the_process_if_none_are_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(os.environ, "REFOLD_TOKEN_SECRET", SECRET)

    assert access_tokens.verifier_of().configured


# What is told of a token


def test_no_message_quotes_a_token_or_a_secret(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    strict = verifier(JWKS=file)
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
                piece in text for text in messages for piece in _pieces(each)
            )
            assert refusal.__cause__ is None is refusal.__context__
    assert SECRET not in repr(own) + str(own)


def _pieces(token: str) -> list[str]:
    """What of a token would be known again."""
    return [token[n : n + 8] for n in range(0, len(token) - 8, 4)]


def test_a_reason_is_one_word_of_a_closed_list() -> None:
    assert len(REASONS) == 11
    assert all(reason.replace("_", "").isalpha() for reason in REASONS)
