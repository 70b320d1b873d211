"""``refold run`` records opencode."""

from __future__ import annotations

from tests.clients.contract import ClientContract
from tests.clients.programs import OPENCODE


class TestOpencode(ClientContract):
    """The scenarios of all clients."""

    program = OPENCODE
