"""The parts of each event type that stay byte for byte, and signed thinking."""

import re
from base64 import b64encode
from hashlib import sha256
from json import dumps, loads
from random import Random
from typing import Any
from uuid import UUID

import pytest

from refold.redaction.chokepoint import recorded_id, redact_payload, skipped
from refold.redaction.plan import tagger
from refold.redaction.redactor import Redactor
from refold.redaction.values import Tally

MAIL = "a@example.org"
GONE = "[REDACTED:EMAIL]"
_LETTERS = "Zx8Qw2Lp9Vb4Nm7Kc3Jh6Gf1Dd5Ss0Aa"
SECRETS = [
    f"ghp_{(_LETTERS * 2)[:36]}",
    f"github_pat_{_LETTERS[:22]}_{(_LETTERS * 2)[:59]}",
    f"sk-ant-api03-{(_LETTERS * 3)[:93]}AA",
    "AKIAQ3EGRZ5TX7YLBMWN",
]
redactor = Redactor()
ada = tagger(b"k" * 32)


DIGEST = sha256(b"x").hexdigest()
SEALED = b64encode(Random(5).randbytes(300)).decode()


@pytest.mark.parametrize(
    ("kind", "payload", "path"),
    [
        (
            "agent_response",
            {"thinking": [{"signature": SEALED}]},
            "thinking 0 signature",
        ),
        ("agent_response", {"thinking": [{}, {"data": SEALED}]}, "thinking 1 data"),
        (
            "provider_edit",
            {"blocks": [{"encrypted_content": SEALED}]},
            "blocks 0 encrypted_content",
        ),
        (
            "provider_edit",
            {"blocks": [{"content": [{"encrypted_content": SEALED}]}]},
            "blocks 0 content 0 encrypted_content",
        ),
        ("summary", {"source_digest": DIGEST}, "source_digest"),
        ("summary", {"strategy": {"fingerprint": DIGEST}}, "strategy fingerprint"),
        ("request", {"digest": DIGEST, "system_digest": None}, "digest"),
        ("fork", {"session_id": MAIL}, "session_id"),
        ("user_input", {"attachments": [{"sha256": DIGEST}]}, "attachments 0 sha256"),
        ("redaction_applied", {"hashes": [DIGEST], "stream": ""}, "hashes 0"),
    ],
)
def test_values_in_their_claimed_form_are_skipped(
    kind: str, payload: dict[str, Any], path: str
) -> None:
    assert skipped(kind, payload) == {tuple(path.split())}
    assert redact_payload(redactor, kind, payload)[0] is payload


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("agent_response", {"thinking": [{"type": "thinking", "signature": "{}"}]}),
        ("agent_response", {"thinking": [{"type": "redacted_thinking", "data": "{}"}]}),
        ("provider_edit", {"blocks": [{"encrypted_content": "{}"}]}),
        ("provider_edit", {"blocks": [{"signature": "{}"}, {"data": "{}"}]}),
        ("summary", {"source_digest": "{}", "prompt_digest": "{}"}),
        ("summary", {"strategy": {"fingerprint": "{}"}}),
        ("request", {"digest": "{}", "system_digest": "{}", "tools_digest": "{}"}),
        ("user_input", {"attachments": [{"sha256": "{}"}]}),
        ("redaction_applied", {"hashes": ["{}"], "digest": "{}"}),
    ],
)
def test_values_not_in_their_claimed_form_are_redacted(
    kind: str, payload: dict[str, Any], secret: str
) -> None:
    planted = loads(dumps(payload).replace("{}", secret))

    clean, counts, _ = redact_payload(redactor, kind, planted)

    assert secret not in dumps(clean)
    assert counts


@pytest.mark.parametrize(
    "claimed",
    [
        SEALED[:60],
        SEALED[:80] + "." + SEALED,
        b64encode(b"password: Winter2024, user: ada " * 4).decode(),
        "LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0t" + SEALED,
        "4" * 80,
    ],
)
def test_a_signature_that_is_no_cipher_is_scanned(claimed: str) -> None:
    assert not skipped("agent_response", {"thinking": [{"signature": claimed}]})


@pytest.mark.parametrize(
    "call_id",
    [
        "c1",
        "toolu_01A09q90qw90lq917835lq9",
        "call/ü 3",
        str(UUID(int=7)),
        DIGEST,
        "9:9",
    ],
)
def test_an_id_without_a_finding_is_kept_whatever_its_shape(call_id: str) -> None:
    call: Any = {"call_id": call_id, "tool_name": "t", "arguments": {"to": MAIL}}

    clean, _, _ = redact_payload(redactor, "tool_call", call, tag=ada)

    assert clean == {**call, "arguments": {"to": GONE}}


@pytest.mark.parametrize(
    "given", [MAIL, *SECRETS, f"call-{SECRETS[0]}", "+8613812345678"]
)
def test_an_id_with_a_finding_is_one_name_in_call_and_result(given: str) -> None:
    call: Any = {"call_id": given, "tool_name": "t", "arguments": {}}
    result: Any = {"call_id": given, "tool_name": "ocr", "content": MAIL}

    called, tally, _ = redact_payload(redactor, "tool_call", call, tag=ada)
    answered, _, _ = redact_payload(redactor, "tool_result", result, tag=ada)

    assert called["call_id"] == answered["call_id"] != given
    assert re.fullmatch(r"redacted_[a-z2-7]{8}", str(called["call_id"]))
    assert sum(tally.types.values()) == 1
    assert redact_payload(redactor, "tool_call", called, tag=ada)[0] is called
    others = redact_payload(redactor, "tool_call", call, tag=tagger(b"o" * 32))[0]
    assert others["call_id"] != called["call_id"]


def test_an_id_is_judged_by_itself() -> None:
    misread = "110101199003071234"
    result: Any = {"call_id": misread, "content": MISREAD, "untrusted": True}

    clean, tally, _ = redact_payload(redactor, "tool_result", result, tag=ada)

    assert clean["call_id"] == recorded_id(redactor, misread, ada)
    assert tally.types["ID_CARD"] >= 1


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("user_input", {"call_id": MAIL}),
        ("user_input", {"signature": MAIL, "data": MAIL}),
        ("tool_result", {"content": {"call_id": MAIL, "signature": MAIL}}),
        ("summary", {"fingerprint": MAIL}),
        ("some_new_type", {"digest": MAIL}),
        ("request", {"fingerprint": MAIL}),
    ],
)
def test_the_same_names_elsewhere_are_redacted(
    kind: str, payload: dict[str, Any]
) -> None:
    clean, _, _ = redact_payload(redactor, kind, payload)

    assert MAIL not in str(clean)


@pytest.mark.parametrize(
    ("kind", "field"), [("agent_response", "thinking"), ("provider_edit", "blocks")]
)
def test_a_signed_block_with_a_finding_is_dropped_completely(
    kind: str, field: str
) -> None:
    signed = {"type": "thinking", "thinking": f"mail {MAIL}", "signature": "c2ln"}
    fine = {"type": "thinking", "thinking": "go on", "signature": "c2ln"}
    payload: Any = {"text": "ok", field: [signed, fine, signed]}

    clean, counts, warnings = redact_payload(redactor, kind, payload)

    assert clean == {"text": "ok", field: [fine]}
    assert counts.types == {"EMAIL": 2}
    assert warnings == ["thinking_dropped"]
    assert payload[field] == [signed, fine, signed]


MISREAD = "王小明 110101199003071234，汉族"


@pytest.mark.parametrize("content", [MISREAD, {"pages": [{"text": MISREAD}]}])
@pytest.mark.parametrize("marks", [{"untrusted": True}, {"tool_name": "read_ocr"}])
def test_an_identity_number_with_a_wrong_digit_is_found_in_untrusted_text(
    content: Any, marks: dict[str, Any]
) -> None:
    trusted = {"untrusted": False, "tool_name": "read_file", "content": content}

    _, tally, _ = redact_payload(redactor, "tool_result", {**trusted, **marks})
    _, left, _ = redact_payload(redactor, "tool_result", trusted)

    assert tally.types == {"ID_CARD": 1}
    assert not left


def test_an_unsigned_block_is_redacted_in_place() -> None:
    payload: Any = {
        "thinking": [{"type": "thinking", "thinking": MAIL, "signature": None}]
    }

    clean, _, warnings = redact_payload(redactor, "agent_response", payload)

    assert clean == {
        "thinking": [{"type": "thinking", "thinking": GONE, "signature": None}]
    }
    assert not warnings


def test_a_clean_payload_is_returned_itself() -> None:
    payload: Any = {"thinking": [{"thinking": "hm", "signature": "c2ln"}], "text": "hi"}

    assert redact_payload(redactor, "agent_response", payload) == (payload, Tally(), [])
    assert redact_payload(redactor, "agent_response", payload)[0] is payload


@pytest.mark.parametrize("blocks", ["text", None, 5, ["text", None]])
def test_blocks_of_another_shape_are_redacted_like_anything(blocks: Any) -> None:
    clean, _, _ = redact_payload(
        redactor, "agent_response", {"thinking": blocks, "text": MAIL}
    )

    assert clean == {"thinking": blocks, "text": GONE}
