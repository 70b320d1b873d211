"""``refold run`` records the Gemini CLI."""

from __future__ import annotations

from tests.clients.contract import ClientContract
from tests.clients.programs import GEMINI_CLI
from tests.support.provider import Failure


class TestGeminiCli(ClientContract):
    """The scenarios of all clients."""

    program = GEMINI_CLI
    failure = Failure(429, retry_after=0.1)
