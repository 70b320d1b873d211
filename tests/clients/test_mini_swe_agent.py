"""``refold run`` records mini-swe-agent."""

from __future__ import annotations

from tests.clients.contract import ClientContract
from tests.clients.programs import MINI_SWE_AGENT
from tests.support.provider import Failure


class TestMiniSweAgent(ClientContract):
    """The scenarios of all clients."""

    program = MINI_SWE_AGENT
    failure = Failure(429, retry_after=0.1)
