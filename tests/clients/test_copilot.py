"""``refold run`` records the Copilot CLI."""

from __future__ import annotations

from tests.clients.contract import ClientContract
from tests.clients.programs import COPILOT
from tests.support.provider import Failure


class TestCopilot(ClientContract):
    """The scenarios of all clients."""

    program = COPILOT
    failure = Failure(429, retry_after=0.1)
