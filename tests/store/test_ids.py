"""Ids from the caller are redacted like text, and results still match their calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from pydantic import BaseModel, JsonValue
from sqlalchemy import select

import refold
from refold.adapters.claude.tools import result_of
from refold.adapters.sql.database import NOBODY
from refold.domain.envelope import Draft, Meta
from refold.domain.events import EVENT_CLASSES
from refold.projections.context.text import violations
from refold.redaction.chokepoint import redact
from refold.redaction.guard import Limits
from refold.redaction.plan import tagger
from refold.redaction.redactor import Redactor
from refold.store import SessionStore
from refold.store.session.imports import extend
from tests.support.operations import log_of
from tests.support.redacting import MAIL, aware, unaware
from tests.support.stores import prepare

ID = f"call-{MAIL}"
CALL = refold.ToolCall(call_id=ID, tool_name="t")
RESULT = refold.ToolResult(call_id=ID, content="done")
# Only Refold writes these fields: a parent's name, a stream's name.
_NAMES = {("fork", "session_id"), ("redaction_applied", "stream")}
Opened = Callable[[Redactor], SessionStore]


@pytest.fixture
def opened(store_url: str, tmp_path: Path) -> Iterator[Opened]:
    stores: list[SessionStore] = []

    def open_(redactor: Redactor) -> SessionStore:
        stores.append(refold.open(prepare(store_url, tmp_path), redactor=redactor))
        return stores[-1]

    yield open_
    for store in stores:
        store.close()


def call_ids(store: SessionStore, name: str = "s", user: str = "ada") -> list[str]:
    events: Any = [
        event.payload for event in store.session(user_id=user, session_id=name).events()
    ]
    return [event.call_id for event in events if hasattr(event, "call_id")]


@pytest.mark.parametrize("together", [True, False])
def test_a_redacted_call_still_matches_its_result(
    opened: Opened, together: bool
) -> None:
    session = opened(aware()).session(user_id="ada", session_id="s")
    session.append([CALL, RESULT] if together else CALL)
    if not together:
        session.append(RESULT)

    called, answered = call_ids(opened(aware()))

    assert called == answered
    assert MAIL not in str([event.to_json() for event in session.events()])
    assert violations(session.context().messages) == []
    assert not session.head().state.open_calls
    assert result_of(session, ID) == session.events()[-1]
    assert session.verify().problems == []


def test_a_late_result_finds_its_call_after_a_restart_and_in_a_fork(
    opened: Opened,
) -> None:
    opened(aware()).session(user_id="ada", session_id="s").append(CALL)
    after = opened(aware())
    fork = after.session(user_id="ada", session_id="s").fork(at=1, session_id="f")

    fork.append(RESULT)
    after.session(user_id="ada", session_id="s").append(RESULT, idempotency_key="k")
    again = after.session(user_id="ada", session_id="s").append(
        RESULT, idempotency_key="k"
    )

    assert again.duplicate
    assert call_ids(after, "f")[-1] == call_ids(after)[-1] == call_ids(after)[0]


def test_an_id_cannot_be_open_twice(opened: Opened) -> None:
    session = opened(aware()).session(user_id="ada", session_id="s")
    session.append(CALL)

    with pytest.raises(refold.errors.InvalidEvent, match="one call, one call_id"):
        session.append(CALL)
    with pytest.raises(refold.errors.InvalidEvent, match="no open call"):
        session.append(RESULT.model_copy(update={"call_id": f"other-{MAIL}"}))


def test_a_redacted_id_is_specific_to_the_user(opened: Opened) -> None:
    store = opened(aware())
    for user in ("ada", "bob"):
        store.session(user_id=user, session_id="s").append(CALL)

    assert call_ids(store, user="ada") != call_ids(store, user="bob")


def test_an_import_continues_at_an_open_call(opened: Opened) -> None:
    drafts = [
        Draft(event, meta=Meta(source={"format": "x"})) for event in (CALL, RESULT)
    ]
    session = opened(aware()).session(user_id="ada", session_id="s")

    done = [extend(session, drafts[:upto], where="x").events for upto in (1, 2, 2)]

    assert done == [1, 1, 0]
    assert len(set(call_ids(opened(aware())))) == 1


def test_recorded_ids_are_redacted_by_later_rules(opened: Opened) -> None:
    opened(unaware()).session(user_id="ada", session_id="s").append(
        [CALL, RESULT, CALL]
    )
    after = opened(aware())

    list(after.reredact())
    after.session(user_id="ada", session_id="s").append(RESULT)

    assert len(set(call_ids(after))) == 1
    assert MAIL not in str(call_ids(after))
    assert after.session(user_id="ada", session_id="s").verify().problems == []


def value_of(annotation: Any) -> Any:
    """Return a value of that type, with an address in every text."""
    origin = get_origin(annotation)
    parts = get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation(**field_values(annotation))
    if annotation in (int, float, bool):
        return annotation(1)
    if origin is Literal:
        return parts[0]
    if origin is tuple:
        return tuple(value_of(part) for part in parts if part is not ...)
    if origin is dict:
        return {MAIL: value_of(parts[1])}
    if origin in (Annotated, Union, UnionType) and annotation is not JsonValue:
        return value_of(parts[0])
    return MAIL


def field_values(kind: type[BaseModel]) -> dict[str, Any]:
    return {
        name: value_of(field.annotation) for name, field in kind.model_fields.items()
    }


@pytest.mark.parametrize("kind", EVENT_CLASSES)
def test_every_text_of_every_event_is_scanned(kind: str) -> None:
    names = {name: "main" for of, name in _NAMES if of == kind}
    event: Any = EVENT_CLASSES[kind](**{**field_values(EVENT_CLASSES[kind]), **names})
    meta: Any = {"source": {MAIL: MAIL}, MAIL: [MAIL]}
    draft = Draft(event, None, MAIL, MAIL, Meta(**meta))
    key = tagger(b"k" * 32)

    clean = redact(draft, now=1, redactor=aware(), limits=Limits(), tag=key)

    assert MAIL in str(event.payload()) or kind in ("fork", "pin")
    assert MAIL not in clean.data.decode()


def test_no_table_holds_personal_data_from_a_name(opened: Opened) -> None:
    store = opened(aware())
    day = timedelta(days=1)
    session = store.session(user_id="ada", session_id="s")
    session.append(
        [CALL, RESULT],
        idempotency_key=MAIL,
        agent=MAIL,
        request_id=MAIL,
        meta={MAIL: MAIL},
    )
    session.fork(at=2, session_id="f").append(refold.UserInput(text=MAIL))
    store.user("ada").consent("declarative_memory", reason=MAIL)
    store.erasures.hold("ada", MAIL, MAIL, operator=MAIL)
    store.erasures.freeze("ada", MAIL, operator=MAIL)
    store.erasures.unfreeze("ada", MAIL, operator=MAIL)
    store.erasures.release("ada", MAIL, MAIL, operator=MAIL)
    store.erasures.hold("ada", f"another {MAIL}", MAIL)
    store.session(user_id="bob", session_id="b").append(refold.UserInput(text=MAIL))
    store.erase("bob", MAIL, operator=MAIL, grace=day)
    store.session(user_id="carol", session_id="c").append(refold.UserInput(text=MAIL))
    store.erase("carol", MAIL, operator=MAIL)
    store.erasures.readmit("carol", MAIL, operator=MAIL)

    rows = [str(row) for row in every_row(store)]

    assert len(rows) > 20
    assert [row for row in rows if MAIL in row] == []
    assert not any(
        MAIL in str(certificate.texts) for certificate in store.erasures.certificates()
    )


def every_row(store: SessionStore) -> list[Any]:
    database = log_of(store).recorder.database
    tables = database.tables.metadata.sorted_tables
    return [row for table in tables for row in database.read(NOBODY, select(table))]
