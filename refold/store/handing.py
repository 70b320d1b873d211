"""What a caller hands in for one context: checked, and redacted like all we keep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from refold.domain.errors import RedactionFailed
from refold.domain.events import JsonObject
from refold.projections.context.assembly import NO_BUDGETS, Budgets
from refold.projections.context.extras import NO_EXTRAS, Extras, HandedIn
from refold.redaction.engine import RedactionError
from refold.store.writing import Writer


class Handed(NamedTuple):
    """What was handed in as it is recorded, and the tools as they are sent."""

    extras: Extras = NO_EXTRAS
    tools: tuple[JsonObject, ...] = ()
    budgets: Budgets = NO_BUDGETS


def take(writer: Writer, user_id: str, given: HandedIn) -> Handed:
    """``given``, redacted as its request will be when it is recorded.

    So what a model is sent is what the log holds, and can be shown again.  Tools alone
    are sent as they are: they are of the program, not of the user.

    Raises InvalidEvent, RedactionFailed.
    """
    if not given:
        return Handed()
    extras = Extras.of(given)
    clean = _redacted(writer, user_id, extras.dump())
    try:
        kept = Extras.load(clean, extras.window_tokens)
    except ValueError:
        reason = "what was handed in is no JSON any more"
        raise RedactionFailed("request", reason=reason) from None
    return Handed(kept, extras.tools, given.get("budgets") or NO_BUDGETS)


def _redacted(
    writer: Writer, user_id: str, sections: Mapping[str, str]
) -> dict[str, str]:
    """In the place and the form in which the event of the request holds them."""
    try:
        clean: Any = writer.redactor.value(
            {"handed": {**sections}}, tag=writer.tagger(user_id)
        )[0]
    except RedactionError as error:
        raise RedactionFailed("request", reason=str(error)) from None
    return {name: str(text) for name, text in clean["handed"].items()}
