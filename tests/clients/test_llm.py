"""``refold run`` records the command llm."""

from __future__ import annotations

from tests.clients.contract import ClientContract
from tests.clients.programs import LLM
from tests.support.provider import Failure


class TestLlm(ClientContract):
    """The scenarios of all clients."""

    program = LLM
    failure = Failure(429, retry_after=0.1)
