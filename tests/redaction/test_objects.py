"""A hint at a secret in an object counts in a value as it does in its text."""

import json
from typing import Any

import pytest

from refold.redaction.engines import EngineName
from refold.redaction.plan import Plan
from refold.redaction.redactor import Redactor

TOKEN = "q7Zt0Kx3Vb9Lm2Np5Rs8Wd1Y"
CHOSEN = "Amber_River42"
ENGINES: tuple[EngineName, ...] = ("vectorscan", "stdlib")
REDACTORS = {engine: Redactor(Plan(engine=engine)) for engine in ENGINES}
engines = pytest.mark.parametrize("engine", ENGINES)


@engines
@pytest.mark.parametrize(
    "value",
    [
        {"passwords": {"db": CHOSEN, "vpn": TOKEN}},
        {"secrets": [CHOSEN, TOKEN]},
        {"tokens": {"a": {"value": TOKEN}}},
        {"credentials": {"user": "ada", "main": CHOSEN}},
        {"auth": ["bob", CHOSEN]},
        {"question": "What's the password?", "answer": CHOSEN},
        {"q": "What's the password?", "a": CHOSEN},
        {"kv": [{"k": "password", "v": CHOSEN}]},
        {"id": "api_key", "content": TOKEN},
        {"label": "Password", "answer": CHOSEN},
        {"element": "Password textbox", "ref": "e12", "text": CHOSEN},
        {"tool": "type", "selector": "input[name=password]", "value": CHOSEN},
        {"cookies": [{"name": "sid", "path": "/", "value": TOKEN}]},
        {"session": TOKEN},
        {"Jwt": {"Key": TOKEN}},
        {"github-oauth": {"github.com": TOKEN}},
        {"kty": "EC", "d": TOKEN + TOKEN},
        {"kind": "Secret", "data": {"main": "YmVhci03N1FxMQ=="}},
        {"env": {"API_KEYS": [TOKEN]}},
        {"password": {"sensitive": True, "value": CHOSEN}},
        {"recovery_codes": ["a1b2c3d4", "e5f6a7b8"]},
        {"identifier": [{"type": {"text": "MRN"}, "value": "75057112"}]},
    ],
)
def test_a_secret_is_found_in_the_value_in_its_text_and_behind_other_text(
    value: Any, engine: EngineName
) -> None:
    redactor = REDACTORS[engine]
    text = json.dumps(value)

    clean = redactor.value(value)[0]
    wrapped: Any = redactor.value({"t": text})[0]
    in_text = json.loads(wrapped["t"])
    behind = redactor.text(f"$ show\n{text}")[0]

    secrets = (TOKEN, CHOSEN, "YmVhci03N1FxMQ==", "a1b2c3d4", "75057112")
    for secret in secrets:
        assert secret not in json.dumps(clean)
        assert secret not in json.dumps(in_text)
        assert secret not in behind
    json.loads(behind.partition("\n")[2])
    assert redactor.value(clean)[0] == clean


@engines
@pytest.mark.parametrize(
    "value",
    [
        {"tokens": {"input": 12, "output": "many2"}},
        {"secrets": ["GITHUB_TOKEN", "NPM_TOKEN"]},
        {"credentials": {"user": "ada77", "region": "us-east-1"}},
        {"auth": ["oauth2", "basic"]},
        {"name": "password", "type": "string", "content": "the new one"},
        {"kind": "SecretStore", "data": {"main": "YmVhci03N1FxMQ=="}},
        {"kty": "RSA", "n": TOKEN + TOKEN, "e": "AQAB"},
        {"password": {"type": "string", "pattern": "^[a-z0-9]{8}$"}},
        {"sessionId": "7f3a9c1e-5b8d-4046-ace8-137f95bd0462"},
    ],
)
def test_what_only_looks_like_one_stays(value: Any, engine: EngineName) -> None:
    assert REDACTORS[engine].value(value)[0] == value


@engines
@pytest.mark.parametrize(
    "value",
    [
        {"passwords": (CHOSEN, TOKEN)},
        {"tokens": {"a": (TOKEN,)}},
        {"auth": ("bob", CHOSEN)},
        {"kv": ({"k": "password", "v": CHOSEN},)},
        {"columns": ("user", "password"), "rows": (("ada", CHOSEN),)},
    ],
)
def test_a_tuple_is_judged_as_an_array(value: Any, engine: EngineName) -> None:
    redactor = REDACTORS[engine]
    as_arrays = json.loads(json.dumps(value))

    clean = redactor.value(value)[0]

    assert json.loads(json.dumps(clean)) == redactor.value(as_arrays)[0]
    assert clean != value
