"""A process that applies a retention policy a year from now, and dies at one step."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from typing import Any, Final

import refold
from refold.adapters.erasure import StoredErasureSteps, StoredRetention
from refold.domain.erasure import RetentionPolicy
from refold.store import SessionStore
from refold.store.store import now
from tests.support.rewriter import die

YEAR: Final = 365 * 24 * 3600 * 1_000_000
POLICY: Final = RetentionPolicy(sessions=timedelta(days=30))
# The steps of a retention in order, and whether the process dies after the step.
STEPS: Final[dict[str, tuple[Any, str, bool]]] = {
    "nothing is done": (StoredRetention, "begin_unused", False),
    "heads are marked": (StoredRetention, "begin_unused", True),
    "keys are destroyed": (StoredErasureSteps, "destroy_keys", True),
    "rows are counted": (StoredErasureSteps, "delete", False),
    "some are deleted": (time, "sleep", False),  # between two transactions
    "all are deleted": (StoredErasureSteps, "certify", False),
    "it is certified": (StoredErasureSteps, "certify", True),
}


def in_a_year(store: SessionStore) -> SessionStore:
    """Return the same store a year from now."""
    writer = store.writer
    return SessionStore(
        store.log, writer.redactor, writer.limits, clock=lambda: now() + YEAR
    )


def main(url: str, step: str) -> None:
    """Apply the policy to the store at ``url`` up to ``step``, then die."""
    owner, name, after = STEPS[step]
    die(owner, name, after=after)
    with refold.open(url) as store:
        in_a_year(store).erasures.retain(POLICY)


if __name__ == "__main__":
    main(*sys.argv[1:])
