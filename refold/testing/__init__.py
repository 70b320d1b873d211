"""What every event log must do, as a test suite to inherit; and a log in memory.

    class TestMine(EventLogContract):
        @pytest.fixture
        def log(self):
            return my_log()

The suite uses nothing but the port, and fails on a log that does nothing.
"""

from refold.testing.event_log import EventLogContract
from refold.testing.support import (
    ADA,
    BOB,
    NOW,
    append_to,
    memory_log,
    said,
    texts,
    write,
)

__all__ = [
    "ADA",
    "BOB",
    "NOW",
    "EventLogContract",
    "append_to",
    "memory_log",
    "said",
    "texts",
    "write",
]
