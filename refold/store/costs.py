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

By = Literal["session", "user", "day"]


def spending(log: EventLog, infos: Iterable[SessionInfo], by: By) -> list[Spending]:
    """Return the spending of all answers of these sessions, one entry for each key.

    Raises InvalidConfiguration for another ``by``.
    """
    if by not in ("session", "user", "day"):
        raise InvalidConfiguration("costs are summed by session, user or day")
    totals: dict[tuple[str, ...], Spending] = {}
    for info in infos:
        for name in log.streams(info.user_id, info.session_id):
            stream = StreamId(info.user_id, info.session_id, name)
            for answer in answers(read_pages(log, stream)):
                empty = _empty(info, answer, by)
                key = tuple(part for part in empty[:3] if part)
                totals[key] = totals.get(key, empty).with_answer(answer)
    return [totals[key] for key in sorted(totals)]


def _empty(info: SessionInfo, answer: Answer, by: By) -> Spending:
    match by:
        case "session":
            return Spending(info.user_id, info.session_id)
        case "user":
            return Spending(info.user_id)
        case "day":
            day = answer.first.ts.astimezone(UTC)
            return Spending(day=f"{day:%Y-%m-%d}")
