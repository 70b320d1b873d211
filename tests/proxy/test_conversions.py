"""Conversions of messages are remembered within their bounds."""

from __future__ import annotations

import pytest

from refold.adapters.proxy.conversation import WireMessage
from refold.adapters.proxy.protocols import reading
from refold.adapters.proxy.protocols.reading import Conversions, Notes


def test_a_message_that_two_threads_convert_at_once_counts_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "_MOST_BYTES", 30)
    conversions = Conversions()
    message = {"role": "user", "id": 1}  # more than half of the bytes
    converted = WireMessage("user", ())

    def convert_as_another_thread_does() -> WireMessage:
        conversions.message(message, Notes(), lambda: converted)
        return converted

    def convert_again() -> WireMessage:
        raise AssertionError("the message was forgotten")

    conversions.message(message, Notes(), convert_as_another_thread_does)

    assert conversions.message(message, Notes(), convert_again) is converted
