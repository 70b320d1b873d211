"""Functions that open, move and reconcile stores, with the adapters for their URLs.

``redact`` redacts one value; ``for_agent`` returns a strategy.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast, overload

from refold.adapters import config
from refold.adapters.sql.urls import engine_of, url_of_file
from refold.domain.errors import (
    InvalidConfiguration,
    KeyUnavailable,
    RefoldError,
    StoreUnavailable,
    remedy_for,
)

if TYPE_CHECKING:
    from refold.adapters.keys.master import MasterKey
    from refold.adapters.keys.ring import KeyRing
    from refold.adapters.log import EncryptedLog
    from refold.adapters.sql.database import Database
    from refold.adapters.sql.keystore import SqlKeyStore
    from refold.adapters.sql.postgres import PostgresDatabase
    from refold.adapters.sql.recorder import Recorder
    from refold.domain.access_log import AccessSink, AccessTrail
    from refold.domain.clocks import StoreTime
    from refold.domain.ports import Transcript
    from refold.domain.seals import Anchor, Seals
    from refold.projections.context.compaction import Summarizer
    from refold.projections.context.strategy import Strategy
    from refold.redaction.guard import Limits
    from refold.redaction.plan import Plan
    from refold.redaction.policy import Policy
    from refold.redaction.recognizers import Guard, Recognizer
    from refold.redaction.redactor import Redactor
    from refold.redaction.registered import Registered
    from refold.store import SessionStore
    from refold.store.upkeep import Automatic
    from refold.store.vault import Vault

logger = logging.getLogger("refold")


def open_store(
    url: str | os.PathLike[str] | None = None,
    *,
    policy: str | os.PathLike[str] | Policy | None = None,
    registered: Registered | None = None,
    recognizer: Recognizer | None = None,
    redactor: Redactor | None = None,
    limits: Limits | None = None,
    keys: str | SqlKeyStore | None = None,
    master: MasterKey | None = None,
    make_key: bool = False,
    anchor: str | os.PathLike[str] | Anchor | None = None,
    compact: Automatic = "off",
    summarizer: Summarizer | None = None,
    remember: Automatic = "off",
    shared_memory: bool | None = None,
    count_uses: bool = True,
    vault: Vault | None = None,
    access_log: str | AccessSink | None = None,
) -> SessionStore:
    """Open the store at ``url``, and create it if it is new.

    url:           ``sqlite:///file.db`` or the file's path, ``postgresql://…``, or
                   ``memory://`` for tests.  Default: ``REFOLD_DB``, else
                   ``sqlite:///refold.db``.
    policy:        the policy of redaction, or its file.  Default: ``REFOLD_POLICY``,
                   else Refold's policy.
    registered:    exact values that are redacted everywhere.
    recognizer:    your own model, called after the rules, within the policy's limits.
    redactor:      a redactor, in place of policy, registered values and recognizer.
    limits:        the limits of the size guard, in bytes.  Default: those of the
                   policy; with ``redactor``, those of Refold.
    keys:          the key store, which contains the wrapped keys.  Default:
                   ``REFOLD_KEYS``, else a file under ``REFOLD_HOME``.  A PostgreSQL
                   store needs one that all its clients can reach.
    master:        the master key, which wraps the keys.  Default:
                   ``REFOLD_MASTER_KEY``, else a file under ``REFOLD_HOME``, which is
                   created with a new SQLite store.
    make_key:      also create the file of the master key with a new PostgreSQL store.
                   Copy the file to all clients of the store.
    anchor:        where signed tree heads are stored outside of the database: a file,
                   or an ``Anchor``.  Default: ``REFOLD_ANCHOR``, else a file under
                   ``REFOLD_HOME``; none for ``memory://``.
    compact:       whether an append that ends a turn also compacts, if a compaction is
                   pending: never (``off``), in another thread (``background``), or
                   before the append returns (``wait``).
    summarizer:    the summarizer for calls that name none.  The default needs no model.
    remember:      whether an append updates the user's memory, with the choices of
                   ``compact``.  It does so after the end of a run, a human's decision,
                   or a failure.
    shared_memory: allow ``store.memory.shared``, which combines the sessions of many
                   users.  Default: ``REFOLD_SHARED_MEMORY``, else no.
    count_uses:    count how often each session is read by its id, for retention.  The
                   counts are written later, in batches.
    vault:         keeps in memory the values that numbered placeholders replace.
                   Without a vault, tools get redacted personal values.
    access_log:    where each use of the store is recorded: ``table``, ``log``,
                   ``file:PATH``, several of these with commas, ``off``, or your own
                   sink.  Default: ``REFOLD_ACCESS_LOG``, else ``off``.

    Raises InvalidConfiguration, StoreUnavailable, IncompatibleStore, KeyUnavailable.
    """
    from refold.adapters.keys.belonging import check_belongs
    from refold.adapters.keys.ring import KeyRing
    from refold.adapters.log import LogFactory
    from refold.adapters.sql.recorder import Subjects
    from refold.redaction.guard import Limits
    from refold.store import SessionStore
    from refold.store.upkeep import Upkeep

    config.register_models()
    config.register_lifetimes()
    upkeep = Upkeep(compact, remember, summarizer)
    parts_of_redactor = (policy, registered, recognizer)
    has_parts = any(part is not None for part in parts_of_redactor)
    if redactor and has_parts:
        raise InvalidConfiguration(
            "a redactor has its own policy, registered values and recognizer: pass "
            "either redactor, or policy, registered and recognizer"
        )
    # An object with keys, values or a model stays in this process.  So another process
    # can open the store only if these arguments are texts or left out.
    objects = (redactor, registered, recognizer, master, vault, keys, access_log)
    is_portable = all(part is None or isinstance(part, str) for part in objects)
    if shared_memory is None:
        shared_memory = config.shared_memory()
    loaded_policy: Policy | None = None
    if redactor is None:
        loaded_policy = config.policy(policy)
        redactor = make_redactor(
            loaded_policy, registered=registered, recognizer=recognizer
        )
    if limits is None:
        limits = loaded_policy.limits() if loaded_policy else Limits()
    if isinstance(url, os.PathLike):
        url = url_of_file(url)
    url = url or config.database()
    if url.startswith("postgres") and not (keys or os.environ.get("REFOLD_KEYS")):
        raise InvalidConfiguration(
            "PostgreSQL needs a key store that all its clients can reach: set "
            "REFOLD_KEYS or keys= to a database (a key file of one host would lock "
            "out the others)"
        )
    with _file_errors(), ExitStack() as cleanup:
        recorder, store_id = open_recorder(url)
        cleanup.callback(recorder.close)
        database = recorder.database
        if database.readonly:
            logger.warning(
                "%s is read-only: no views, no counts of uses and no access log are "
                "written to it",
                database.shown_name,
            )
        filled = recorder.has_sessions()
        key_store = _key_store(url, store_id, keys, filled=filled)
        cleanup.callback(key_store.close)
        is_new = key_store.get_setting("pepper") is None
        if is_new and filled:
            raise _no_keys()
        if master is None:
            master = master_key(url, create=is_new, make_key=make_key)
        ring = KeyRing(key_store, master)
        subjects = Subjects(database)
        check_belongs(key_store, subjects, store_id=store_id, filled=filled)
        time = database.store_time()
        sink = access_log or config.access_log()
        open_trail = partial(_access_trail, sink, database, ring, time)
        # With ``off`` nothing is recorded; the trail is opened only when it is read.
        audit: AccessTrail | Callable[[], AccessTrail] = open_trail
        if sink != "off":
            audit = open_trail()
        log = LogFactory(recorder, ring).log
        settings = config.context_settings()
        seals = _seals_opener(log, anchor, store_id)
        cleanup.pop_all()
    open_again: Callable[[], SessionStore] | None = None
    if log.shared and is_portable:
        # Other processes sign nothing, so they do not need an anchor that is an object.
        has_anchor_path = isinstance(anchor, str | os.PathLike)
        open_again = partial(
            open_store,
            url,
            policy=policy,
            limits=limits,
            keys=keys,
            anchor=anchor if has_anchor_path else None,
            shared_memory=shared_memory,
            count_uses=False,
            access_log=access_log,
        )
    return SessionStore(
        log,
        redactor,
        limits,
        time=time,
        upkeep=upkeep,
        settings=settings,
        seals=seals,
        audit=audit,
        count_uses=count_uses and not database.readonly,
        shared_memory=shared_memory,
        vault=vault,
        transcripts=_transcripts,
        open_again=open_again,
    )


open = open_store  # noqa: A001  # refold.open reads well


@contextmanager
def _file_errors() -> Iterator[None]:
    """Raise StoreUnavailable for errors of the file system in the block."""
    try:
        yield
    except OSError as error:
        place = error.filename or "a file of the store"
        raise StoreUnavailable(
            f"{place} cannot be used ({error.strerror or error})",
            remedy=remedy_for(error),
        ) from None


def _transcripts(
    path: Path, format_name: str, session_id: str | None, *, strict: bool
) -> Iterator[tuple[str, Transcript]]:
    """Yield the transcripts in a file, each with the id of its session."""
    from refold.adapters.importers import read_named

    return read_named(path, format_name, session_id, strict=strict)


def _access_trail(
    sink: str | AccessSink, database: Database, ring: KeyRing, time: StoreTime
) -> AccessTrail:
    """Open the access log."""
    from refold.adapters.sql.access_log import AccessTable, open_trail
    from refold.store.store import now

    table = AccessTable(database)
    return open_trail(sink, table, ring, clock=lambda: time.stamp(now()))


def _seals_opener(
    log: EncryptedLog, anchor: str | os.PathLike[str] | Anchor | None, store_id: str
) -> Callable[[], Seals] | None:
    """Return a function that opens the seals, or None if the store has no seals.

    A store in memory has seals only if an anchor is given.
    """
    if anchor is None and not log.shared:
        return None
    if anchor is None or isinstance(anchor, (str, os.PathLike)):
        default = config.home() / "anchors" / f"{store_id}.jsonl"
        anchor = Path(anchor or os.environ.get("REFOLD_ANCHOR") or default)
    return partial(_tree_seals, log, anchor)


def _tree_seals(log: EncryptedLog, anchor: Path | Anchor) -> Seals:
    """Open the seals of a log."""
    from refold.adapters.seals import FileAnchor, TreeSeals

    if isinstance(anchor, Path):
        anchor = FileAnchor(anchor)
    return TreeSeals(log.tree, log.recorder, log.erasures, anchor, log.keys.signer)


def reconcile_keys(url: str | None = None, *, keys: str | None = None) -> int:
    """Destroy the keys of erased users that a restored backup brought back.

    Returns the number of destroyed keys.  Raises the errors of ``open_store``, but
    accepts a key store that is older than the database.
    """
    from refold.adapters.keys.belonging import reconcile
    from refold.adapters.sql.recorder import Subjects
    from refold.store.store import now

    url = url or config.database()
    with _file_errors(), ExitStack() as cleanup:
        recorder, store_id = open_recorder(url)
        cleanup.callback(recorder.close)
        filled = recorder.has_sessions()
        key_store = _key_store(url, store_id, keys, filled=filled)
        cleanup.callback(key_store.close)
        return reconcile(key_store, Subjects(recorder.database), now=now())


def move(
    url: str | None = None,
    *,
    to: str,
    keys: str | None = None,
    keys_to: str | None = None,
    on_progress: Callable[[int], object] | None = None,
) -> dict[str, int]:
    """Move the store to the PostgreSQL database ``to``, while other processes write.

    After an interruption, call this again.  At the end, the old store refuses writes.

    url:         the old store.  Default: ``REFOLD_DB``, else ``sqlite:///refold.db``.
    to:          the URL of an empty PostgreSQL database.
    keys:        the key store of the old store, with the default of ``open_store``.
    keys_to:     a key store to which the wrapped keys are copied; None leaves them in
                 ``keys``.
    on_progress: called after each round with the number of rows that it copied.

    Returns the number of copied rows by table, or an empty dict if an earlier call
    moved the store there.

    Raises InvalidConfiguration for a database that is not empty, StoreUnavailable,
    IncompatibleStore, KeyUnavailable, and RefoldError if the copy differs.
    """
    from refold.adapters.sql.move import Move

    if not to.startswith("postgres"):
        raise InvalidConfiguration("the target of a move must be a postgresql:// URL")
    if keys_to == "memory://":
        raise _bad_target_of_keys()
    url = url or config.database()
    with _file_errors(), ExitStack() as cleanup:
        source = _database(url)
        cleanup.callback(source.close)
        target = cast("PostgresDatabase", _database(to))
        cleanup.callback(target.close)
        cleanup.enter_context(target.lock_for_move())
        store_move = Move(source, target, on_progress)
        needs_copy = store_move.begin()
        if not needs_copy:
            if keys_to:
                _check_keys_moved(source, to, keys_to)
            return {}
        copy_keys: Callable[[], None] | None = None
        if keys_to:
            old, new = _key_stores(source, url, keys, to, keys_to, cleanup)
            copy_keys = partial(_copy_keys, old, new)
        store_move.copy()
        return store_move.end(copy_keys)


def _check_keys_moved(source: Database, to: str, keys_to: str) -> None:
    """Raise InvalidConfiguration if a store was moved without its keys.

    source:  the old store.
    keys_to: the key store that should have the keys.
    """
    from refold.adapters.sql.schema import settings_of

    store_id = settings_of(source)["store_id"]
    with closing(_key_store(to, store_id, keys_to, filled=True)) as new:
        _check_no_other_keys(new, store_id)
        if not new.get_setting(f"store {store_id}"):
            raise InvalidConfiguration(
                "the store was moved there before, without its keys: they are still "
                "in the old key store"
            )


def _key_stores(
    source: Database,
    url: str,
    keys: str | None,
    to: str,
    keys_to: str,
    cleanup: ExitStack,
) -> tuple[SqlKeyStore, SqlKeyStore]:
    """Open the old and the new key store of a move; ``cleanup`` closes them.

    Raises InvalidConfiguration if both are the same, or if the new one has keys of
    another store.  Raises KeyUnavailable if the old one has no keys.
    """
    from refold.adapters.keys.belonging import check_belongs
    from refold.adapters.sql.recorder import Subjects
    from refold.adapters.sql.schema import settings_of

    store_id = settings_of(source)["store_id"]
    new = _key_store(to, store_id, keys_to, filled=True)
    cleanup.callback(new.close)
    _check_no_other_keys(new, store_id)
    old = _key_store(url, store_id, keys, filled=True)
    cleanup.callback(old.close)
    if not old.get_setting("pepper"):
        raise _no_keys()
    check_belongs(old, Subjects(source), store_id=store_id, filled=True)
    # Two URLs may name the same key store.  Then the old one has this mark, too.  The
    # copy of the settings removes the mark.
    mark = os.urandom(8)
    new.set_setting("copying", mark)
    if old.get_setting("copying") == mark:
        new.delete_settings("copying")
        raise _bad_target_of_keys()
    return old, new


def _check_no_other_keys(key_store: SqlKeyStore, store_id: str) -> None:
    """Raise InvalidConfiguration if a key store has only keys of other stores."""
    has_keys = key_store.get_setting("pepper")
    has_keys_of_store = key_store.get_setting(f"store {store_id}")
    if has_keys and not has_keys_of_store:
        raise InvalidConfiguration("the target key store has keys of another store")


def _bad_target_of_keys() -> InvalidConfiguration:
    """Return the error for a key store to which keys cannot be moved."""
    return InvalidConfiguration(
        "keys_to must be a persistent key store, not the old one"
    )


def _no_keys() -> KeyUnavailable:
    """Return the error for an empty key store of a store with events."""
    return KeyUnavailable(
        "the key store of this database is empty, but the database has events",
        remedy="point REFOLD_KEYS or REFOLD_HOME at the key store that "
        "the database was created with",
    )


def _copy_keys(old: SqlKeyStore, new: SqlKeyStore) -> None:
    """Copy all tables of a key store; the keys stay wrapped."""
    from refold.adapters.sql.move import TableOf, sync_table

    for name, table in old.tables.items():
        sync_table(TableOf(old, table), TableOf(new, new.tables[name]))


def make_redactor(
    policy: Policy | None = None,
    *,
    registered: Registered | None = None,
    recognizer: Recognizer | None = None,
) -> Redactor:
    """Return the redactor that a policy describes; None means Refold's policy.

    Raises InvalidConfiguration if the policy's engine is not installed.
    """
    from refold.adapters import rule_cache
    from refold.redaction.redactor import Redactor

    # Read compiled rules from the cache, but store none.
    rule_cache.use(fills=False)
    recognizer_guard: Guard | None = None
    plan: Plan | None = None
    if policy is not None:
        recognizer_guard = policy.guard(recognizer)
        plan = policy.plan()
    elif recognizer is not None:
        from refold.redaction.recognizers import Guard

        recognizer_guard = Guard(recognizer)
    try:
        return Redactor(plan, registered=registered, recognizer=recognizer_guard)
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(
            f"the policy's engine is not installed ({error.name} is missing): "
            'set engine = "auto" to use the best installed engine'
        ) from None


def open_recorder(url: str) -> tuple[Recorder, str]:
    """Open the recorder, which reads and writes rows; return it and the store's id."""
    from refold.adapters.sql.recorder import Recorder
    from refold.adapters.sql.schema import migrate

    database = _database(url)
    try:
        store_id = migrate(database)
        return Recorder(database), store_id
    except BaseException:
        database.close()
        raise


def _database(url: str) -> Database:
    """Return the database at ``url``.

    Raises InvalidConfiguration for an unknown URL.
    """
    from refold.adapters.sql.sqlite import SqliteDatabase, SqliteInMemory

    if url == "memory://":
        return SqliteInMemory()
    match engine_of(url):
        case "sqlite", parsed:
            return SqliteDatabase(parsed)
        case "postgresql", parsed:
            from refold.adapters.sql.citus import postgresql_at

            return postgresql_at(parsed)
        case _:
            raise InvalidConfiguration(
                "this is not a database URL that Refold knows: write a file as "
                "sqlite:///agent.db or sqlite:////folder/agent.db, and a server as "
                "postgresql://user:password@host/database"
            )


def _key_store(
    url: str, store_id: str, keys: str | SqlKeyStore | None, *, filled: bool
) -> SqlKeyStore:
    """Open the key store of a store.

    filled: whether the store has sessions; then its key store must exist.

    Raises KeyUnavailable.
    """
    if keys is not None and not isinstance(keys, str):
        return keys
    from refold.adapters.sql.keystore import SqlKeyStore

    key_url = keys or os.environ.get("REFOLD_KEYS")
    if key_url:
        if key_url == url:
            logger.warning(
                "keys are kept in the database they protect: a restored backup of it "
                "makes erased data readable"
            )
        return SqlKeyStore(key_url)
    if url == "memory://":
        return SqlKeyStore(url)
    path = config.home() / "keys" / f"{store_id}.db"
    if filled and not path.exists():
        raise KeyUnavailable(
            f"the key store of this database, {path}, is not there",
            remedy="restore it, or set REFOLD_HOME or REFOLD_KEYS to where it is",
        )
    return SqlKeyStore(url_of_file(path))


def master_key(url: str, *, create: bool, make_key: bool = False) -> MasterKey:
    """Return the master key: ``REFOLD_MASTER_KEY``, else the key in a file.

    create:   create the file if it does not exist.
    make_key: also create it for PostgreSQL; the caller copies it to the other hosts.

    Raises InvalidConfiguration, KeyUnavailable.
    """
    from refold.adapters.keys import master

    if url == "memory://":
        return master.LocalMasterKey(os.urandom(32), origin="memory")
    key = os.environ.get(master.VARIABLE)
    if key:
        return master.from_environment(key)
    file = master.MasterKeyFile()
    if create:
        if url.startswith("postgres") and not make_key and not file.path.exists():
            raise InvalidConfiguration(
                "PostgreSQL needs REFOLD_MASTER_KEY, 32 bytes in base64 or hex that "
                "all its clients have; --make-key (make_key=True in Python) makes "
                f"{file.path} on this machine"
            )
        file.create()
    return file.open()


_MAX_CACHED_REDACTORS: Final = 8
# Making a redactor takes tenths of a second, so ``redact`` keeps redactors by the path
# or ``id`` of their policy.  Each is stored with its policy, because Python gives the
# ``id`` of a deleted object to another one.
_redactors: Final[dict[str | int | None, tuple[Redactor, object]]] = {}


@overload
def redact(value: str, policy: str | os.PathLike[str] | Policy | None = ...) -> str: ...


@overload
def redact(value: Any, policy: str | os.PathLike[str] | Policy | None = ...) -> Any: ...


def redact(value: Any, policy: str | os.PathLike[str] | Policy | None = None) -> Any:
    """Return a text or a JSON value, redacted like the texts of an append.

    policy: the policy, or its file, which a process reads once.  Default:
            ``REFOLD_POLICY``, else Refold's policy.

    Raises RefoldError for a value that cannot be redacted, and InvalidConfiguration for
    a policy that cannot be used.
    """
    from refold.redaction.values import RedactionError

    key: str | int | None
    if policy is None or isinstance(policy, str | os.PathLike):
        path = policy
        if path is None:
            path = os.environ.get("REFOLD_POLICY") or None
        # A relative path names another file in another folder.
        key = None if path is None else os.path.abspath(path)
    else:
        key = id(policy)
    # One lookup: another thread may clear the cache.
    cached = _redactors.get(key)
    if cached is None:
        cached = (make_redactor(config.policy(policy)), policy)
        if len(_redactors) >= _MAX_CACHED_REDACTORS:
            _redactors.clear()
        _redactors[key] = cached
    redactor, _ = cached
    try:
        clean, _ = redactor.value(value)
    except RedactionError as error:
        raise RefoldError(f"the value could not be redacted ({error})") from None
    return clean


def for_agent(agent: str, strategy: str | Strategy | None = None) -> Strategy:
    """Return a strategy for one of several agents in a session.

    strategy: the strategy for the events of this agent.  Default: the strategy in the
              settings file, else ``keep_all``.
    """
    return config.context_settings().for_agent(agent, strategy)
