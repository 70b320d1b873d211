"""What every event log must do, as a test suite to inherit; and a log in memory.

    class TestMine(EventLogContract):
        @pytest.fixture
        def log(self):
            return my_log()

The suite uses nothing but the port, and fails on a log that does nothing.
"""

from refold.testing.erasure import (
    ErasuresContract as ErasuresContract,
    RepairsContract as RepairsContract,
    RetentionContract as RetentionContract,
    SealsContract as SealsContract,
)
from refold.testing.event_log import (
    ADA as ADA,
    BOB as BOB,
    NOW as NOW,
    EventLogContract as EventLogContract,
    append_to as append_to,
    memory_database as memory_database,
    memory_log as memory_log,
    memory_recorder as memory_recorder,
    said as said,
    texts as texts,
    write as write,
)
from refold.testing.ports import (
    AccessSinkContract as AccessSinkContract,
    AnchorContract as AnchorContract,
    MasterKeyContract as MasterKeyContract,
)
