"""Redaction of an event's payload: what each type keeps byte for byte."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from refold.redaction.engine import Redactor
from refold.redaction.plan import Tagger
from refold.redaction.values import NO_SKIP, JsonObject, JsonValue, Skip, Tally

# Ids that must match, digests, and what a provider signed or encrypted.
_SKIPS: Final[Mapping[str, Skip]] = {
    "user_input": frozenset({("attachments", "*", "sha256")}),
    "agent_response": frozenset(
        {("thinking", "*", "signature"), ("thinking", "*", "data")}
    ),
    "tool_call": frozenset({("call_id",)}),
    "tool_result": frozenset({("call_id",)}),
    "provider_edit": frozenset(
        {
            ("blocks", "*", "encrypted_content"),
            ("blocks", "*", "signature"),
            ("blocks", "*", "data"),
        }
    ),
    "summary": frozenset(
        {("source_digest",), ("prompt_digest",), ("strategy", "fingerprint")}
    ),
    "request": frozenset(
        {
            ("digest",),
            ("system_digest",),
            ("tools_digest",),
            ("fingerprint",),
            ("strategy", "fingerprint"),
        }
    ),
    "fork": frozenset({("session_id",)}),
    "redaction_applied": frozenset(
        {("stream",), ("hashes", "*"), ("first_hashes", "*"), ("digest",)}
    ),
}
# Where the blocks of a type stand that may be signed.
_BLOCKS: Final[Mapping[str, str]] = {
    "agent_response": "thinking",
    "provider_edit": "blocks",
}
# What of a type is kept apart from it, in blobs: many events hold the same.
_APART: Final[Mapping[str, str]] = {"request": "handed"}


def kept_apart(type: str) -> str:  # noqa: A002 - the event's own word for it
    """The field of ``type`` whose long texts are moved whole, or an empty name."""
    return _APART.get(type, "")


def skipped(type: str) -> Skip:  # noqa: A002 - the event's own word for it
    """The paths in a payload of ``type`` that redaction leaves alone."""
    return _SKIPS.get(type, NO_SKIP)


def redact_payload(
    redactor: Redactor,
    type: str,  # noqa: A002 - the event's own word for it
    payload: JsonObject,
    *,
    tag: Tagger | None = None,
) -> tuple[JsonObject, Tally, list[str]]:
    """Redact the payload of an event of ``type``, in which something may be.

    A provider refuses a signed block that was edited, so one in which something is
    found is dropped whole.

    Returns the payload, what was found, and codes of warnings:
    ``thinking_dropped``.  Raises RedactionError.
    """
    kept, dropped = _without_signed_findings(redactor, type, payload)
    clean, tally = redactor.value(kept, skip=skipped(type), tag=tag, prove=False)
    warnings = ["thinking_dropped"] if kept is not payload else []
    return clean, tally + dropped, warnings


def _without_signed_findings(
    redactor: Redactor,
    type: str,  # noqa: A002 - the event's own word for it
    payload: JsonObject,
) -> tuple[JsonObject, Tally]:
    tally = Tally()
    name = _BLOCKS.get(type, "")
    blocks = payload.get(name)
    if not isinstance(blocks, list):
        return payload, tally
    kept: list[JsonValue] = []
    for block in blocks:
        found = _in_signed(redactor, type, name, block)
        tally.update(found)
        if not found:
            kept.append(block)
    return ({**payload, name: kept} if len(kept) < len(blocks) else payload), tally


def _in_signed(
    redactor: Redactor,
    type: str,  # noqa: A002 - the event's own word for it
    name: str,
    block: JsonValue,
) -> Tally:
    """What is found in ``block`` if it is signed, in the place where it stands."""
    if not (isinstance(block, dict) and block.get("signature")):
        return Tally()
    return redactor.value({name: [block]}, skip=skipped(type))[1]
