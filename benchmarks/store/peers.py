"""Other session stores, unmodified, if they are installed."""

from __future__ import annotations

import logging
import os
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any

from benchmarks.store import payloads
from benchmarks.store.contestants import Contestant, Engine

_NAMESPACE = uuid.UUID(int=0)


def _settings_of_library(engine: Engine, url: str) -> dict[str, str]:
    """The settings of the eventsourcing library's own module for this database."""
    if engine.server is None:
        path = url.removeprefix("sqlite:///")
        return {"PERSISTENCE_MODULE": "eventsourcing.sqlite", "SQLITE_DBNAME": path}
    from psycopg.conninfo import conninfo_to_dict

    parts = conninfo_to_dict(url)
    return {
        "PERSISTENCE_MODULE": "eventsourcing.postgres",
        "POSTGRES_DBNAME": str(parts["dbname"]),
        "POSTGRES_HOST": str(parts.get("host", "")),
        "POSTGRES_PORT": str(parts.get("port", 5432)),
        "POSTGRES_USER": str(parts.get("user", "")),
        "POSTGRES_PASSWORD": str(parts.get("password", "")),
        "POSTGRES_POOL_SIZE": "16",
    }


class Eventsourcing(Contestant):
    """The application recorder of the eventsourcing library: rows, without a mapper."""

    name = "eventsourcing"

    async def open(self) -> None:
        from eventsourcing.persistence import InfrastructureFactory, StoredEvent
        from eventsourcing.utils import Environment

        environment = Environment("bench", _settings_of_library(self.engine, self.url))
        self._event = StoredEvent
        self._factory: Any = InfrastructureFactory.construct(environment)
        self._recorder = self._factory.application_recorder()
        self._seqs: dict[str, int] = {}

    def batch(self, session: str, numbers: Sequence[int]) -> None:
        first = self._seqs.get(session, 0) + 1
        self._seqs[session] = first + len(numbers) - 1
        id_ = uuid.uuid5(_NAMESPACE, session)
        self._recorder.insert_events(
            [
                self._event(id_, seq, "said", payloads.text(number).encode())
                for seq, number in enumerate(numbers, first)
            ]
        )

    def read(self, session: str) -> Any:
        return list(self._recorder.select_events(uuid.uuid5(_NAMESPACE, session)))

    async def close(self) -> None:
        self._factory.close()


@cache
def _account_class() -> Any:
    """An aggregate, whose class the library registers once in a process."""
    from eventsourcing.domain import Aggregate, event

    class Account(Aggregate):
        @event("Opened")
        def __init__(self, owner: str) -> None:
            self.owner = owner
            self.balance = 0

        @event("Paid")
        def pay(self, amount: int) -> None:
            self.balance += amount

    return Account


@contextmanager
def saving_application(
    engine: Engine, *, ours: bool
) -> Iterator[Callable[[int], object]]:
    """Work that saves a new aggregate of three events with an application.

    ours: whether its events are kept by Refold's module, or by the library's own.
    """
    from eventsourcing.application import Application

    account_class = _account_class()
    url = engine.fresh()
    settings = _settings_of_library(engine, url)
    if ours:
        settings = {
            "PERSISTENCE_MODULE": "refold.adapters.eventsourcing",
            "REFOLD_DB": url,
        }
    application: Any = Application(env=settings)

    def save(number: int) -> object:
        account = account_class("ada")
        account.pay(number)
        account.pay(number)
        return application.save(account)

    try:
        yield save
    finally:
        application.close()


class GoogleAdk(Contestant):
    """``DatabaseSessionService``; it adds one event at a time."""

    name = "google-adk"
    style = "asyncio"
    batches = False
    most = 10_000

    async def open(self) -> None:
        from google.adk.events import Event
        from google.adk.sessions import DatabaseSessionService
        from google.genai import types

        self._event = Event
        self._types = types
        self._service = DatabaseSessionService(_asynchronous(self.url))
        self._sessions: dict[str, Any] = {}

    async def begin(self, session: str) -> None:
        self._sessions[session] = await self._service.create_session(
            app_name="bench", user_id="ada", session_id=session
        )

    def append(self, session: str, number: int) -> Any:
        part = self._types.Part(text=payloads.text(number))
        content = self._types.Content(role="user", parts=[part])
        event = self._event(author="user", invocation_id="i", content=content)
        return self._service.append_event(self._sessions[session], event)

    async def batch(self, session: str, numbers: Sequence[int]) -> None:
        for number in numbers:
            await self.append(session, number)

    def read(self, session: str) -> Any:
        return self._service.get_session(
            app_name="bench", user_id="ada", session_id=session
        )

    async def close(self) -> None:
        await self._service.close()


class OpenAiAgents(Contestant):
    """``SQLAlchemySession``."""

    name = "openai-agents"
    style = "asyncio"

    async def open(self) -> None:
        from agents.extensions.memory import SQLAlchemySession
        from sqlalchemy.ext.asyncio import create_async_engine

        self._class = SQLAlchemySession
        self._engine = create_async_engine(_asynchronous(self.url), pool_size=16)
        self._sessions: dict[str, Any] = {}

    async def begin(self, session: str) -> None:
        opened = self._class(session, engine=self._engine, create_tables=True)
        await opened.get_items(limit=1)
        self._sessions[session] = opened

    def batch(self, session: str, numbers: Sequence[int]) -> Any:
        items = [
            {"role": "user", "content": payloads.text(number)} for number in numbers
        ]
        return self._sessions[session].add_items(items)

    def read(self, session: str) -> Any:
        return self._sessions[session].get_items()

    async def close(self) -> None:
        await self._engine.dispose()


class LangGraph(Contestant):
    """``PostgresSaver`` or ``SqliteSaver``: a checkpoint holds all earlier messages.

    So a message costs more the longer the history is.  A thread is started again after
    a hundred messages: the first hundred of a conversation are measured.
    """

    name = "langgraph"
    most = 10_000
    _LONGEST = 100

    async def open(self) -> None:
        from langchain_core.messages import HumanMessage
        from langgraph.checkpoint.base import empty_checkpoint

        self._message = HumanMessage
        self._empty = empty_checkpoint
        self._opened = ExitStack()
        self._saver: Any = self._opened.enter_context(self._connected())
        self._saver.setup()
        self._threads: dict[str, tuple[dict[str, Any], list[Any]]] = {}

    @contextmanager
    def _connected(self) -> Any:
        if self.engine.server is None:
            from langgraph.checkpoint.sqlite import SqliteSaver

            path = self.url.removeprefix("sqlite:///")
            with SqliteSaver.from_conn_string(path) as saver:
                yield saver
            return
        from langgraph.checkpoint.postgres import PostgresSaver
        from psycopg.rows import dict_row
        from psycopg_pool import ConnectionPool

        how = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
        with ConnectionPool(self.url, min_size=16, max_size=16, kwargs=how) as pool:
            pool.wait()
            yield PostgresSaver(pool)

    def batch(self, session: str, numbers: Sequence[int]) -> None:
        config, messages = self._threads.get(session, ({}, []))
        if not config or (len(messages) >= self._LONGEST and len(numbers) == 1):
            config = _thread(f"{session}-{uuid.uuid4()}")
            messages = []
        messages += [self._message(payloads.text(number)) for number in numbers]
        version = f"{len(messages):08}.0"
        checkpoint = self._empty()
        checkpoint["channel_values"] = {"messages": messages}
        checkpoint["channel_versions"] = {"messages": version}
        metadata = {"source": "loop", "step": len(messages), "parents": {}}
        config = self._saver.put(config, checkpoint, metadata, {"messages": version})
        self._threads[session] = config, messages

    async def fill(self, session: str, count: int) -> None:
        self.batch(session, range(count))

    def read(self, session: str) -> Any:
        thread = self._threads[session][0]["configurable"]["thread_id"]
        return self._saver.get_tuple(_thread(thread))

    async def close(self) -> None:
        self._opened.close()


def _thread(name: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": name, "checkpoint_ns": ""}}


def _asynchronous(url: str) -> str:
    """The URL with the driver that these stores name in their documentation."""
    url = url.replace("sqlite:", "sqlite+aiosqlite:", 1)
    return url.replace("postgresql:", "postgresql+asyncpg:", 1)


PEERS: tuple[type[Contestant], ...] = (
    Eventsourcing,
    OpenAiAgents,
    GoogleAdk,
    LangGraph,
)


async def peers(engine: Engine, note: Callable[[str], None]) -> list[Contestant]:
    """Those that are installed, opened; the others are named."""
    _quiet()
    available: list[Contestant] = []
    for kind in PEERS:
        peer = kind(engine)
        try:
            await peer.open()
        except ImportError as error:
            note(
                f"{kind.name}: not measured, it is not installed ({error.name} is "
                "missing): `make bench` installs it into an environment of its own"
            )
        else:
            available.append(peer)
    return available


def _quiet() -> None:
    os.environ.setdefault("OPENAI_AGENTS_DISABLE_TRACING", "1")
    logging.getLogger("google_adk").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
