"""What every event log must do, as a test suite to inherit; and a log in memory.

    class TestMine(EventLogContract):
        @pytest.fixture
        def log(self):
            return my_log()

The suite uses nothing but the port, and fails on a log that does nothing.
"""

from refold.testing.erasure import (
    ErasuresContract,
    RepairsContract,
    RetentionContract,
    SealsContract,
)
from refold.testing.event_log import (
    ADA,
    BOB,
    NOW,
    EventLogContract,
    append_to,
    memory_database,
    memory_log,
    memory_recorder,
    said,
    texts,
    write,
)
from refold.testing.ports import AccessSinkContract, AnchorContract, MasterKeyContract

__all__ = [
    "ADA",
    "BOB",
    "NOW",
    "AccessSinkContract",
    "AnchorContract",
    "ErasuresContract",
    "EventLogContract",
    "MasterKeyContract",
    "RepairsContract",
    "RetentionContract",
    "SealsContract",
    "append_to",
    "memory_database",
    "memory_log",
    "memory_recorder",
    "said",
    "texts",
    "write",
]
