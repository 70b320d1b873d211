"""What each type of event keeps byte for byte, and what happens to signed thinking."""

from typing import Any

import pytest

from refold.redaction.chokepoint import redact_payload
from refold.redaction.redactor import Redactor
from refold.redaction.values import Tally

MAIL = "a@example.org"
GONE = "[REDACTED:EMAIL]"
redactor = Redactor()


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        ("tool_call", {"call_id": MAIL}),
        ("tool_result", {"call_id": MAIL}),
        ("agent_response", {"thinking": [{"type": "thinking", "signature": MAIL}]}),
        ("agent_response", {"thinking": [{"type": "redacted_thinking", "data": MAIL}]}),
        ("provider_edit", {"blocks": [{"encrypted_content": MAIL, "signature": MAIL}]}),
        ("provider_edit", {"blocks": [{"type": "redacted_thinking", "data": MAIL}]}),
        ("summary", {"source_digest": MAIL, "prompt_digest": MAIL}),
        ("summary", {"strategy": {"fingerprint": MAIL}}),
        ("request", {"digest": MAIL, "system_digest": MAIL, "tools_digest": MAIL}),
        ("request", {"fingerprint": MAIL, "strategy": {"fingerprint": MAIL}}),
        ("fork", {"session_id": MAIL}),
        ("user_input", {"attachments": [{"sha256": MAIL}]}),
        ("redaction_applied", {"hashes": [MAIL]}),
    ],
)
def test_ids_digests_and_signatures_pass_untouched(
    kind: str, kept: dict[str, Any]
) -> None:
    clean, counts, warnings = redact_payload(redactor, kind, {**kept, "note": MAIL})

    assert clean == {**kept, "note": GONE}
    assert counts.types == {"EMAIL": 1}
    assert not warnings


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        ("user_input", {"call_id": MAIL}),
        ("user_input", {"signature": MAIL, "data": MAIL}),
        ("tool_result", {"content": {"call_id": MAIL, "signature": MAIL}}),
        ("summary", {"fingerprint": MAIL}),
        ("some_new_type", {"digest": MAIL}),
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
def test_a_signed_block_with_a_finding_is_dropped_whole(kind: str, field: str) -> None:
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
@pytest.mark.parametrize("said", [{"untrusted": True}, {"tool_name": "read_ocr"}])
def test_an_identity_number_with_a_wrong_digit_is_found_in_untrusted_text(
    content: Any, said: dict[str, Any]
) -> None:
    trusted = {"untrusted": False, "tool_name": "read_file", "content": content}

    _, found, _ = redact_payload(redactor, "tool_result", {**trusted, **said})
    _, left, _ = redact_payload(redactor, "tool_result", trusted)

    assert found.types == {"ID_CARD": 1}
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
