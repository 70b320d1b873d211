"""A persistence module for applications of the eventsourcing library.

``PERSISTENCE_MODULE=refold.adapters.eventsourcing`` and ``REFOLD_DB`` are all that an
application needs.  What it stores is encrypted; it is not redacted.
"""

from refold.adapters.eventsourcing.factory import Factory, SessionLog
from refold.adapters.eventsourcing.recorders import (
    SqlAggregateRecorder,
    SqlApplicationRecorder,
    SqlProcessRecorder,
    SqlTrackingRecorder,
)

__all__ = [
    "Factory",
    "SessionLog",
    "SqlAggregateRecorder",
    "SqlApplicationRecorder",
    "SqlProcessRecorder",
    "SqlTrackingRecorder",
]
