"""Errors of the proxy, in the forms that providers use, so that clients show them."""

from __future__ import annotations

from typing import Any, Final

import orjson

BAD_GATEWAY: Final = 502
UPGRADE_REQUIRED: Final = 426


def error_body(protocol: str, message: str) -> bytes:
    """Return the body of an error.

    protocol: the name of the protocol or upstream of the request.
    """
    return orjson.dumps(_error(protocol, message))


def _error(protocol: str, message: str) -> dict[str, Any]:
    """Return an error in the form of a protocol; in that of OpenAI for others."""
    if protocol.startswith("anthropic"):
        return {"type": "error", "error": {"type": "api_error", "message": message}}
    if protocol.startswith("gemini"):
        return {
            "error": {
                "code": BAD_GATEWAY,
                "message": message,
                "status": "UNAVAILABLE",
            }
        }
    if protocol == "ollama":
        return {"error": message}
    return {
        "error": {
            "message": message,
            "type": "server_error",
            "param": None,
            "code": "refold_proxy",
        }
    }
