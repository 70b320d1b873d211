"""A session service for Google's ADK: events are items, and states are folds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydantic_core import to_jsonable_python

from refold.adapters.frameworks import (
    as_stored,
    erase_session,
    import_extra,
    in_thread,
    redact_unstored,
)
from refold.adapters.importers import base, messages
from refold.domain.envelope import Draft, Format, Mark, Native
from refold.domain.errors import StaleSession
from refold.domain.events import ProviderEdit
from refold.projections.items import NativeItem
from refold.store.session.session import Session
from refold.store.store import SessionStore

if not TYPE_CHECKING:
    import_extra("google.adk.sessions.base_session_service", "adk")
import google.adk.sessions.base_session_service as adk
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.platform.uuid import new_uuid
from google.adk.sessions.session import Session as AdkSession

_NAME: Final = "google-adk"
_VERSION: Final = 2  # of the folded state
# Prefixes of keys of a state, which name the sessions that share a value.
_APP: Final = "app:"
_USER: Final = "user:"
_TEMP: Final = "temp:"
_SECRET: Final = "secret:"  # noqa: S105  # a prefix, no password


class _Place(NamedTuple):
    """The app, the user and the name that identify a session of the ADK."""

    app: str
    user_id: str
    name: str


def _events_of(kind: str, value: Any, calls: Mapping[str, Any]) -> Iterator[Draft]:
    """Yield the events of an ADK event; items of other kinds have none."""
    if kind != "event":
        return
    author = value.get("author")
    origin = base.Origin(
        "",
        ts=datetime.fromtimestamp(value["timestamp"], UTC),
        request_id=value.get("invocation_id"),
        agent=None if author == "user" else author,
        usage=value.get("usage_metadata"),
    )
    yield from base.drafts_of(_pieces(value, calls), origin)


def _compaction_of(value: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the compaction that an ADK event records; None for other events."""
    compaction: Mapping[str, Any] | None = base.at(value, "actions", "compaction")
    return compaction or None


def _summary(compaction: Mapping[str, Any]) -> Iterator[base.PieceOrSkipped]:
    """Yield the content that the ADK sends in place of the events that it compacted."""
    texts: list[str] = []
    for part in base.each(compaction, "compacted_content", "parts"):
        text = base.text(part, "text")
        if text:
            texts.append(text)
    yield from messages.response(texts)


def _pieces(
    value: Mapping[str, Any], calls: Mapping[str, Any]
) -> Iterator[base.PieceOrSkipped]:
    """Yield the pieces of an ADK event: texts, calls, results, a summary, an error.

    calls: the open calls, by their ids.
    """
    parts = (value.get("content") or {}).get("parts") or []
    texts = []
    thinking = []
    for part in parts:
        text = part.get("text")
        if text and part.get("thought"):
            thinking.append({"type": "thinking", "thinking": text})
        elif text:
            texts.append(text)
    if value.get("author") != "user":
        yield from messages.response(texts, thinking)
    elif texts:
        yield messages.user_input(texts)

    for part in parts:
        call = part.get("function_call")
        if call:
            yield messages.tool_call(call["id"], call["name"], call.get("args"))
        result = part.get("function_response")
        if result and result["id"] in calls:
            yield messages.tool_result(result["id"], result.get("response"))

    compaction = _compaction_of(value)
    if compaction is not None:
        yield from _summary(compaction)

    code = value.get("error_code")
    if code:
        error_message = value.get("error_message") or ""
        yield base.Piece("error", {"code": code, "message": error_message})


FORMAT = Format(_NAME, _events_of)


def _step(state: Any, item: NativeItem) -> Any:
    """Fold an item into the state of a session, or into a state that sessions share.

    ``at`` is the time of the last change.  ``times`` has the time at which each shared
    key was last changed.  ``to_share`` is the newest item of a session that changed
    shared keys: other sessions need to see it.
    """
    if item.format != _NAME:
        return state
    if item.kind == "event":
        at = item.value["timestamp"]
        changed = _state_delta(item.value)
    else:
        at = item.value["at"]
        changed = item.value["state"]

    folded = {**state, "at": at}
    if item.kind == "shared":
        times = state["times"]
        if item.value.get("late"):
            # Another process may have changed the key since.
            changed = {key: changed[key] for key in changed if times.get(key, at) <= at}
        folded["times"] = times | dict.fromkeys(changed, at)
    else:
        shared = _with_prefix(changed, _APP, _USER)
        if shared:
            changed = _without_prefix(changed, _APP, _USER)
            folded["to_share"] = {"key": item.id, "at": at, "state": shared}
    folded["state"] = {**state["state"], **changed}
    return folded


def _native(event_id: str | None, value: Any) -> Native:
    """Return an ADK event as an item."""
    return Native(FORMAT, "event", event_id, value)


def _edit_of(session: Session, event_id: str, value: Mapping[str, Any]) -> Draft | None:
    """Return the edit of the history that an ADK event makes; None without one.

    A rewind leaves out the events from an invocation on, a compaction those of a time.
    """
    invocation = base.text(value, "actions", "rewind_before_invocation_id")
    compaction = _compaction_of(value)
    if invocation is None and compaction is None:
        return None
    key = _native(event_id, None).key or ""
    left_out: list[str] = []
    is_rewound = False
    for item in session.native.read(kind="event"):
        if item.id is None or item.id == event_id:
            continue
        if invocation is not None:
            same = item.value.get("invocation_id") == invocation
            is_rewound = is_rewound or same
            is_left_out = is_rewound
        else:
            start = base.number(compaction, "start_timestamp") or 0.0
            end = base.number(compaction, "end_timestamp") or 0.0
            is_left_out = start <= item.value["timestamp"] <= end
        if is_left_out:
            left_out.append(_native(item.id, None).key or "")
    edit_key = f"{key}\0edit"
    if invocation is not None:
        edit = ProviderEdit(reason="rewind")
        return Draft(edit, key=edit_key, mark=Mark(left_out=tuple(left_out)))
    edit = ProviderEdit(reason="compaction")
    mark = Mark(left_out=tuple(left_out), in_place=(key,))
    return Draft(edit, key=edit_key, mark=mark)


def _state_delta(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that an event changes, with their new values."""
    return (event.get("actions") or {}).get("state_delta") or {}


def _with_prefix(state: Mapping[str, Any], *prefixes: str) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key.startswith(prefixes)}


def _without_prefix(state: Mapping[str, Any], *prefixes: str) -> dict[str, Any]:
    return {key: value for key, value in state.items() if not key.startswith(prefixes)}


def _folded(session: Session) -> Any:
    start = {"at": 0.0, "state": {}, "times": {}, "to_share": None}
    return session.native.fold(_NAME, step=_step, start=start, version=_VERSION)


class RefoldSessionService(adk.BaseSessionService):
    """Stores the sessions of all apps and users.

    Pass it to ``Runner(session_service=…)``.  Code reads back a redacted state.  A
    value under ``secret:`` is returned unchanged, and never leaves this process.
    """

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._secrets: dict[_Place, dict[str, Any]] = {}
        # The newest item of each session whose shared state this process has shared.
        self._last_shared: dict[_Place, str | None] = {}

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: Mapping[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Any:
        """Begin a session.  Raises AlreadyExistsError."""
        name = (session_id or "").strip() or new_uuid()
        place = _Place(app_name, user_id, name)
        start_state = state or {}
        stored_state = to_jsonable_python(
            _without_prefix(start_state, _TEMP, _SECRET), fallback=str
        )

        def create() -> Any:
            change = {"at": self._store.clock() / 1e6, "state": stored_state}
            created = Native(FORMAT, "created", None, change)
            try:
                self._session(place).native.append(
                    FORMAT, [created], expected_seq=0, unscanned="stub"
                )
            except StaleSession:
                raise AlreadyExistsError(f"Session {name} already exists.") from None
            self._keep_secrets(place, start_state)
            self._share(place, None, change)
            return self._read(place)

        return await in_thread(create)

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: Any = None
    ) -> Any:
        """Return the session with all or the newest events; None if there is none."""
        place = _Place(app_name, user_id, session_id.strip())
        return await in_thread(lambda: self._read(place, config))

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> Any:
        """Return the sessions of a user or of all, without events, the oldest first."""

        def read_all() -> list[Any]:
            owners = {info.user_id for info in self._store.sessions(user_id)}
            sessions: list[Any] = []
            for owner in owners:
                sessions += self._listed(app_name, owner)
            sessions.sort(
                key=lambda session: (
                    session.last_update_time,
                    session.user_id,
                    session.id,
                )
            )
            return sessions

        return adk.ListSessionsResponse(sessions=await in_thread(read_all))

    async def delete_session(
        self, *, app_name: str, user_id: str, session_id: str
    ) -> None:
        """Erase a session; its id can be used again.

        Raises OnHold under a legal hold.
        """
        place = _Place(app_name, user_id, session_id.strip())
        self._secrets.pop(place, None)
        self._last_shared.pop(place, None)
        await in_thread(lambda: erase_session(self._session(place), "the ADK"))

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Return the state that a user's sessions share; its keys have no prefix."""
        shared = await in_thread(lambda: _folded(self._shared(app_name, user_id)))
        return {
            key.removeprefix(_USER): value for key, value in shared["state"].items()
        }

    async def append_event(self, session: Any, event: Any) -> Any:
        """Append an event, once.

        Raises StaleSessionError if another writer was first since the session was
        loaded, and SessionNotFoundError.
        """
        if event.partial:
            return event
        event.id = event.id or Event.new_id()
        place = _Place(session.app_name, session.user_id, session.id)
        delta = event.actions.state_delta
        session.state |= _with_prefix(delta, _TEMP, _SECRET)
        event.actions.state_delta = _without_prefix(delta, _TEMP, _SECRET)
        await in_thread(lambda: self._append(place, session, event))
        self._keep_secrets(place, delta)
        if all(earlier.id != event.id for earlier in reversed(session.events)):
            self._commit_event_to_session(session, event)
        session.last_update_time = event.timestamp
        return event

    async def before_model_callback(
        self, callback_context: Any, llm_request: Any
    ) -> None:
        """Redact a request to the model; a callback for an agent."""
        adk_session = callback_context.session
        session = self._session(
            _Place(adk_session.app_name, adk_session.user_id, adk_session.id)
        )

        def read_stored() -> Iterator[Any]:
            for item in session.native.read(kind="event"):
                yield {"content": item.value.get("content")}

        contents = llm_request.contents
        dumped = [
            {"content": content.model_dump(mode="json", exclude_none=True)}
            for content in contents
        ]
        redacted_contents = await in_thread(
            lambda: as_stored(session, FORMAT, dumped, read_stored=read_stored)
        )

        config = llm_request.config
        instruction = config.system_instruction
        if isinstance(instruction, str):
            config.system_instruction = await in_thread(
                lambda: redact_unstored(session, FORMAT, instruction)
            )
        llm_request.contents = [
            type(content).model_validate(redacted["content"])
            for content, redacted in zip(contents, redacted_contents, strict=True)
        ]

    def _append(self, place: _Place, adk_session: Any, event: Any) -> None:
        """Append an event, and share the keys of its state that other sessions see."""
        session = self._session(place)
        head = self._store.log.head(session.stream).seq
        if not head:
            raise SessionNotFoundError(f"Session {place.name} not found.")
        marker = adk_session._storage_update_marker
        if not marker:
            self._share_unshared(place, _folded(session))
        value = event.model_dump(mode="json", exclude_none=True)
        items: list[Native | Draft] = [_native(event.id, value)]
        edit = _edit_of(session, event.id, value)
        if edit is not None:
            items.append(edit)
        try:
            receipt = session.native.append(
                FORMAT,
                items,
                expected_seq=int(marker or head),
                unscanned="stub",
            )
        except StaleSession:
            raise StaleSessionError(
                f"Session {place.name} was modified in storage since it was loaded."
            ) from None
        change = {"at": event.timestamp, "state": _state_delta(value)}
        self._share(place, event.id, change)
        adk_session._storage_update_marker = str(receipt.last_seq)

    def _share(
        self, place: _Place, item_id: str | None, change: Mapping[str, Any]
    ) -> None:
        """Append the shared keys of a change to the states that sessions share.

        If this process dies before, the next process that reads the session shares it.

        item_id: the item that has the change; None for the creation of the session.
        """
        name = item_id or self._session(place).session_id
        for prefix, user_id in ((_APP, None), (_USER, place.user_id)):
            state = _with_prefix(change["state"], prefix)
            if state:
                native = Native(FORMAT, "shared", name, {**change, "state": state})
                self._shared(place.app, user_id).native.append(
                    FORMAT, [native], unscanned="stub"
                )
        if _with_prefix(change["state"], _APP, _USER):
            self._last_shared[place] = item_id

    def _share_unshared(self, place: _Place, folded: Mapping[str, Any]) -> None:
        """Share the newest change of a session, unless this process has shared it.

        The process that appended it may have died before it shared it.
        """
        unshared = folded["to_share"]
        if unshared and self._last_shared.get(place, "") != unshared["key"]:
            change = {"at": unshared["at"], "state": unshared["state"], "late": True}
            self._share(place, unshared["key"], change)

    def _keep_secrets(self, place: _Place, state: Mapping[str, Any]) -> None:
        """Keep the secrets of a state in this process."""
        secrets = _with_prefix(state, _SECRET)
        if secrets:
            self._secrets.setdefault(place, {}).update(secrets)

    def _read(self, place: _Place, config: Any = None) -> Any:
        """The session with its events; None if it does not exist."""
        session = self._session(place)
        adk_session = self._without_events(session, place, share=True)
        if adk_session is None:
            return None
        adk_session.state |= self._secrets.get(place, {})
        config = config or adk.GetSessionConfig()
        since = config.after_timestamp or 0
        events = []
        for item in session.native.read(kind="event", newest=config.num_recent_events):
            event = Event.model_validate(item.value)
            if event.timestamp >= since:
                events.append(event)
        adk_session.events = events
        return adk_session

    def _without_events(
        self, session: Session, place: _Place, *, share: bool = False
    ) -> Any:
        """The session without its events; None if it does not exist.

        share: first share the newest change (see ``_share_unshared``).
        """
        head = self._store.log.head(session.stream).seq
        if not head:
            return None
        own = _folded(session)
        if share:
            self._share_unshared(place, own)
        of_app = _folded(self._shared(place.app, None))
        of_user = _folded(self._shared(place.app, place.user_id))
        adk_session = AdkSession(
            app_name=place.app,
            user_id=place.user_id,
            id=place.name,
            state={**own["state"], **of_app["state"], **of_user["state"]},
            last_update_time=own["at"],
        )
        adk_session._storage_update_marker = str(head)
        return adk_session

    def _listed(self, app: str, user_id: str) -> Iterator[Any]:
        """Yield the sessions of a user in an app, without their events."""
        label = {"framework": _NAME, "adk_app": app}
        for info in self._store.sessions(user_id, label=label):
            session = self._store.session(user_id=user_id, session_id=info.session_id)
            name = session.labels()["adk_session"]
            yield self._without_events(session, _Place(app, user_id, name))

    def _session(self, place: _Place) -> Session:
        """Return the session of the store for a session of the ADK."""
        labels = {"framework": _NAME, "adk_app": place.app, "adk_session": place.name}
        name = f"{_NAME}\0{place.app}\0{place.name}"
        return self._store.named(name, user_id=place.user_id, labels=labels)

    def _shared(self, app: str, user_id: str | None) -> Session:
        """The session for the state that a user's sessions share.

        Without a user, it is for the state that all sessions of the app share.
        """
        owner = f"adk-app:{app}" if user_id is None else user_id
        labels = {"framework": f"{_NAME}-state", "adk_app": app}
        return self._store.named(f"{_NAME}-state\0{app}", user_id=owner, labels=labels)
