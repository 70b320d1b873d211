"""Contracts of the ports, as test suites to inherit, and an event log in memory.

    class TestMine(EventLogContract):
        @pytest.fixture
        def log(self):
            return my_log()

A suite uses only its port, and fails for an implementation that does nothing.
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
    texts as texts,
    user_inputs as user_inputs,
    write as write,
)
from refold.testing.ports import (
    AccessSinkContract as AccessSinkContract,
    AnchorContract as AnchorContract,
    MasterKeyContract as MasterKeyContract,
)
