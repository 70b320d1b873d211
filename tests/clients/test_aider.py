"""``refold run`` records aider."""

from __future__ import annotations

from tests.clients.contract import ClientContract
from tests.clients.programs import AIDER
from tests.support.provider import Failure


class TestAider(ClientContract):
    """The scenarios of all clients."""

    program = AIDER
    failure = Failure(429, retry_after=0.1)
