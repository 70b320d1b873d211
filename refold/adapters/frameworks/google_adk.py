"""The session service of Google's ADK: events as items, state folded of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pydantic_core import to_jsonable_python

from refold.adapters.frameworks import as_stored, erased, needed, settled, unstored
from refold.adapters.importers import base, messages
from refold.domain.envelope import Draft, Format, Native
from refold.domain.errors import StaleSession
from refold.projections.items import NativeItem
from refold.store.session.session import Session
from refold.store.store import SessionStore

if not TYPE_CHECKING:
    needed("google.adk.sessions.base_session_service", "adk")
import google.adk.sessions.base_session_service as adk
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.platform.uuid import new_uuid
from google.adk.sessions.session import Session as AdkSession

_NAME: Final = "google-adk"
_APP, _USER, _TEMP, _SECRET = "app:", "user:", "temp:", "secret:"


class _Place(NamedTuple):
    app: str
    user_id: str
    name: str


def _view(kind: str, value: Any, calls: Mapping[str, Any]) -> Iterator[Draft]:
    if kind != "event":
        return
    origin = base.Origin(
        "",
        ts=datetime.fromtimestamp(value["timestamp"], UTC),
        request_id=value.get("invocation_id"),
        agent=None if value.get("author") == "user" else value.get("author"),
        usage=value.get("usage_metadata"),
    )
    parts = (value.get("content") or {}).get("parts") or []
    yield from base.typed(_found(value, parts, calls), origin)


def _found(
    value: Mapping[str, Any], parts: list[Any], calls: Mapping[str, Any]
) -> Iterator[base.Found]:
    texts = [one["text"] for one in parts if one.get("text") and not one.get("thought")]
    thoughts = [one["text"] for one in parts if one.get("text") and one.get("thought")]
    thinking = [{"type": "thinking", "thinking": text} for text in thoughts]
    if value.get("author") != "user":
        yield from messages.answered(texts, thinking)
    elif texts:
        yield messages.said(texts)
    for part in parts:
        if call := part.get("function_call"):
            yield messages.called(call["id"], call["name"], call.get("args"))
        back = part.get("function_response")
        if back and back["id"] in calls:
            yield messages.returned(back["id"], back.get("response"))
    if code := value.get("error_code"):
        said = value.get("error_message") or ""
        yield base.Piece("error", {"code": code, "message": said})


FORMAT = Format(_NAME, _view)


def _step(known: Any, item: NativeItem) -> Any:
    """What is known of a session, and of what sessions share, after an item.

    ``to_share`` is what an item of a session said last of the latter.
    """
    value = item.value
    if item.format != _NAME:
        return known
    if item.kind == "event":
        value = {"at": value["timestamp"], "state": _changed(value)}
    new, at = value["state"], value["at"]
    if item.kind == "shared":
        times, late = known["times"], value.get("late")
        new = {key: new[key] for key in new if not late or times.get(key, at) <= at}
        known = {**known, "times": times | dict.fromkeys(new, at)}
    elif shared := _of(new, _APP, _USER):
        new = _but(new, _APP, _USER)
        known = {**known, "to_share": {"key": item.id, "at": at, "state": shared}}
    return {**known, "at": at, "state": {**known["state"], **new}}


def _changed(event: Mapping[str, Any]) -> dict[str, Any]:
    return (event.get("actions") or {}).get("state_delta") or {}


def _of(state: Mapping[str, Any], *scopes: str) -> dict[str, Any]:
    return {key: one for key, one in state.items() if key.startswith(scopes)}


def _but(state: Mapping[str, Any], *scopes: str) -> dict[str, Any]:
    return {key: one for key, one in state.items() if not key.startswith(scopes)}


def _folded(session: Session) -> Any:
    start = {"at": 0.0, "state": {}, "times": {}, "to_share": None}
    return session.native.fold(_NAME, step=_step, start=start, version=2)


class RefoldSessionService(adk.BaseSessionService):
    """Keeps the sessions of all apps and users: ``Runner(session_service=…)`` takes it.

    What code reads back of a state is redacted too; what must come back as it was goes
    under ``secret:``, which stays in this process.
    """

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._secrets: dict[_Place, dict[str, Any]] = {}
        self._did_share: dict[_Place, str | None] = {}  # the last of their items

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
        place, given = _Place(app_name, user_id, name), state or {}
        told = to_jsonable_python(_but(given, _TEMP, _SECRET), fallback=str)

        def create() -> Any:
            made = {"at": self._store.clock() / 1e6, "state": told}
            begun = [Native(FORMAT, "created", None, made)]
            try:
                self._session(place).native.append(
                    FORMAT, begun, expected_seq=0, unscanned="stub"
                )
            except StaleSession:
                raise AlreadyExistsError(f"Session {name} already exists.") from None
            self._hide(place, given)
            self._share(place, None, made)
            return self._read(place)

        return await settled(create)

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: Any = None
    ) -> Any:
        """The session with its events, or the last of them; None if there is none."""
        place = _Place(app_name, user_id, session_id.strip())
        return await settled(lambda: self._read(place, config))

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> Any:
        """The sessions of a user, or of all, without events, the oldest first."""

        def listed() -> list[Any]:
            users = {info.user_id for info in self._store.sessions(user_id)}
            found = [one for user in users for one in self._listed(app_name, user)]
            return sorted(found, key=lambda x: (x.last_update_time, x.user_id, x.id))

        return adk.ListSessionsResponse(sessions=await settled(listed))

    async def delete_session(
        self, *, app_name: str, user_id: str, session_id: str
    ) -> None:
        """Erase a session; it may begin again.  Raises OnHold under a legal hold."""
        place = _Place(app_name, user_id, session_id.strip())
        self._secrets.pop(place, None)
        self._did_share.pop(place, None)
        await settled(lambda: erased(self._session(place), "the ADK"))

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """What all sessions of a user share, without the prefix."""
        told = await settled(lambda: _folded(self._shared(app_name, user_id)))
        return {key.removeprefix(_USER): one for key, one in told["state"].items()}

    async def append_event(self, session: Any, event: Any) -> Any:
        """Append an event, once.  Raises StaleSessionError, SessionNotFoundError."""
        if event.partial:
            return event
        event.id = event.id or Event.new_id()
        place = _Place(session.app_name, session.user_id, session.id)
        changed = event.actions.state_delta
        session.state |= _of(changed, _TEMP, _SECRET)
        event.actions.state_delta = _but(changed, _TEMP, _SECRET)
        await settled(lambda: self._append(place, session, event))
        self._hide(place, changed)
        if all(one.id != event.id for one in reversed(session.events)):
            self._commit_event_to_session(session, event)
        session.last_update_time = event.timestamp
        return event

    async def before_model_callback(
        self, callback_context: Any, llm_request: Any
    ) -> None:
        """For an agent: the model is sent what the log may keep."""
        one = callback_context.session
        session = self._session(_Place(one.app_name, one.user_id, one.id))
        config, contents = llm_request.config, llm_request.contents
        dumped = [one.model_dump(mode="json", exclude_none=True) for one in contents]
        texts = [{"content": one} for one in dumped]

        def known() -> Iterator[Any]:
            events = session.native.read(kind="event")
            return ({"content": one.value.get("content")} for one in events)

        rest = await settled(lambda: as_stored(session, FORMAT, texts, known=known))
        if isinstance(prompt := config.system_instruction, str):
            config.system_instruction = await settled(
                lambda: unstored(session, FORMAT, prompt)
            )
        llm_request.contents = [
            type(one).model_validate(new["content"])
            for one, new in zip(contents, rest, strict=True)
        ]

    def _append(self, place: _Place, session: Any, event: Any) -> None:
        kept, marker = self._session(place), session._storage_update_marker
        head = self._store.log.head(kept.stream).seq
        if not head:
            raise SessionNotFoundError(f"Session {place.name} not found.")
        if not marker:
            self._share_late(place, _folded(kept))
        value = event.model_dump(mode="json", exclude_none=True)
        items, seq = [Native(FORMAT, "event", event.id, value)], int(marker or head)
        try:
            receipt = kept.native.append(
                FORMAT, items, expected_seq=seq, unscanned="stub"
            )
        except StaleSession:
            raise StaleSessionError(
                f"Session {place.name} was modified in storage since it was loaded."
            ) from None
        changed = {"at": event.timestamp, "state": _changed(value)}
        self._share(place, event.id, changed)
        session._storage_update_marker = str(receipt.last_seq)

    def _share(self, place: _Place, key: str | None, made: Mapping[str, Any]) -> None:
        """Keep what other sessions see of a state.

        If this process dies before, who reads the session next does it.
        """
        name = key or self._session(place).session_id
        for scope, user_id in ((_APP, None), (_USER, place.user_id)):
            if state := _of(made["state"], scope):
                native = Native(FORMAT, "shared", name, {**made, "state": state})
                self._shared(place.app, user_id).native.append(
                    FORMAT, [native], unscanned="stub"
                )
        if _of(made["state"], _APP, _USER):
            self._did_share[place] = key

    def _share_late(self, place: _Place, known: Mapping[str, Any]) -> None:
        last = known["to_share"]
        if last and self._did_share.get(place, "") != last["key"]:
            late = {"at": last["at"], "state": last["state"], "late": True}
            self._share(place, last["key"], late)

    def _hide(self, place: _Place, state: Mapping[str, Any]) -> None:
        """Keep secrets in this process."""
        if secrets := _of(state, _SECRET):
            self._secrets.setdefault(place, {}).update(secrets)

    def _read(self, place: _Place, config: Any = None) -> Any:
        session = self._session(place)
        if (found := self._told(session, place, share=True)) is None:
            return None
        found.state |= self._secrets.get(place, {})
        config = config or adk.GetSessionConfig()
        newest, since = config.num_recent_events, config.after_timestamp or 0
        items = session.native.read(kind="event", newest=newest)
        events = [Event.model_validate(one.value) for one in items]
        found.events = [one for one in events if one.timestamp >= since]
        return found

    def _told(self, session: Session, place: _Place, *, share: bool = False) -> Any:
        """The session without its events."""
        head = self._store.log.head(session.stream).seq
        if not head:
            return None
        known = _folded(session)
        if share:
            self._share_late(place, known)
        shared = _folded(self._shared(place.app, None))
        of_user = _folded(self._shared(place.app, place.user_id))
        made = AdkSession(
            app_name=place.app,
            user_id=place.user_id,
            id=place.name,
            state={**known["state"], **shared["state"], **of_user["state"]},
            last_update_time=known["at"],
        )
        made._storage_update_marker = str(head)
        return made

    def _listed(self, app: str, user_id: str) -> Iterator[Any]:
        label = {"framework": _NAME, "adk_app": app}
        for info in self._store.sessions(user_id, label=label):
            session = self._store.session(user_id=user_id, session_id=info.session_id)
            name = session.labels()["adk_session"]
            yield self._told(session, _Place(app, user_id, name))

    def _session(self, place: _Place) -> Session:
        labels = {"framework": _NAME, "adk_app": place.app, "adk_session": place.name}
        name = f"{_NAME}\0{place.app}\0{place.name}"
        return self._store.named(name, user_id=place.user_id, labels=labels)

    def _shared(self, app: str, user_id: str | None) -> Session:
        """What keeps the state of a user's sessions, or of all sessions of an app."""
        owner = f"adk-app:{app}" if user_id is None else user_id
        labels = {"framework": f"{_NAME}-state", "adk_app": app}
        return self._store.named(f"{_NAME}-state\0{app}", user_id=owner, labels=labels)
