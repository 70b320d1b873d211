"""The tokens and dollars of the answers in sessions."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC
from typing import Literal

from refold.domain.errors import InvalidConfiguration
from refold.domain.ids import StreamId
from refold.domain.ports import EventLog, SessionInfo
from refold.projections.models import Answer, Spending, answers
from refold.store.history import read_pages

# The unit that each sum of costs covers.
By = Literal["session", "user", "day"]


def spending(log: EventLog, infos: Iterable[SessionInfo], by: By) -> list[Spending]:
    """Return the spending of these sessions, summed by session, user or day.

    Raises InvalidConfiguration for any other ``by``.
    """
    if by not in ("session", "user", "day"):
        raise InvalidConfiguration("costs are summed by session, user or day")
    totals: dict[tuple[str, ...], Spending] = {}
    for info in infos:
        for name in log.streams(info.user_id, info.session_id):
            stream = StreamId(info.user_id, info.session_id, name)
            for answer in answers(read_pages(log, stream)):
                nothing_spent = _nothing_spent(info, answer, by)
                key = _key(nothing_spent)
                totals[key] = totals.get(key, nothing_spent).with_answer(answer)
    return [totals[key] for key in sorted(totals)]


def _key(spending: Spending) -> tuple[str, ...]:
    """Return the names that distinguish a sum from the others."""
    names = (spending.user_id, spending.session_id, spending.day)
    return tuple(name for name in names if name)


def _nothing_spent(info: SessionInfo, answer: Answer, by: By) -> Spending:
    """Return the sum to which this answer belongs, before any answer is added."""
    match by:
        case "session":
            return Spending(info.user_id, info.session_id)
        case "user":
            return Spending(info.user_id)
        case "day":
            day = answer.first.ts.astimezone(UTC)
            return Spending(day=f"{day:%Y-%m-%d}")
