"""``refold run`` records Qwen Code."""

from __future__ import annotations

from tests.clients.contract import ClientContract
from tests.clients.programs import QWEN_CODE
from tests.support.provider import Failure


class TestQwenCode(ClientContract):
    """The scenarios of all clients."""

    program = QWEN_CODE
    failure = Failure(429, retry_after=0.1)
