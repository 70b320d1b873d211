"""Opening a store: the one place that chooses the adapters for a URL."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast, overload

from refold.adapters import config
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
    from refold.redaction.policy import Policy
    from refold.redaction.recognizers import Recognizer
    from refold.redaction.redactor import Redactor
    from refold.redaction.registered import Registered
    from refold.store import SessionStore
    from refold.store.upkeep import Automatic
    from refold.store.vault import Vault

log = logging.getLogger("refold")


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
    """Open the store at ``url``, and make it if it is new.

    url:    ``sqlite:///file.db`` or its path, ``postgresql://…``, or ``memory://`` for
            tests; None is ``REFOLD_DB``, else ``sqlite:///refold.db``.
    policy: what is redacted: a file, or a ``Policy``; None is ``REFOLD_POLICY``, else
            the default.
    registered: exact values that are redacted wherever they stand.
    recognizer: a model of your own, asked after the rules, within the policy's limits.
    redactor: a redactor made elsewhere, in place of the three above.
    limits: of the size guard, in bytes; None is the policy's.
    keys:   where wrapped keys are kept; None is ``REFOLD_KEYS``, else a file under
            ``REFOLD_HOME``.  PostgreSQL needs one that all its clients reach.
    master: what wraps the keys; None is ``REFOLD_MASTER_KEY``, else a file there.
    make_key: make that file for a new PostgreSQL store too; all its clients need it.
    anchor: where signed tree heads are kept outside the database: a file, or an Anchor;
            None is ``REFOLD_ANCHOR``, else a file under ``REFOLD_HOME``.
    compact: what an append that ends a turn sets off: nothing (``off``), a compaction
            if one is due in a thread (``background``), or before it returns (``wait``).
    summarizer: what writes summaries where a call names no other; None needs no model.
    remember: the same choice for the user's memory, which an append may make worth
            making anew: the end of a run, a human's decision, what went wrong.
    shared_memory: allow ``store.memory.shared``: what many users' sessions show; None
            is ``REFOLD_SHARED_MEMORY``, else no.
    access_log: where each use of the store is recorded: ``table``, ``log``,
            ``file:PATH``, several with commas, or ``off``; or a sink of your own.  None
            is ``REFOLD_ACCESS_LOG``, else ``off``.
    vault:  what numbered placeholders stand for, in memory (Vault); None keeps what is
            personal and puts nothing into the arguments of tools.
    count_uses: count how often each session is read by its name, for retention; the
            counts are written late, in batches.

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
    parts = (policy, registered, recognizer)
    if redactor and any(given is not None for given in parts):
        raise InvalidConfiguration(
            "a redactor has its own policy, registered values and recognizer: give "
            "either it or those"
        )
    objects = redactor, registered, recognizer, master, vault, keys, access_log
    shares = config.shared_memory() if shared_memory is None else shared_memory
    chosen = None if redactor else config.policy(policy)
    if redactor is None:
        redactor = make_redactor(chosen, registered=registered, recognizer=recognizer)
    limits = limits or (chosen.limits() if chosen else Limits())
    if isinstance(url, os.PathLike):
        url = f"sqlite:///{os.fspath(url)}"
    url = url or config.database()
    if url.startswith("postgres") and not (keys or os.environ.get("REFOLD_KEYS")):
        raise InvalidConfiguration(
            "PostgreSQL needs REFOLD_KEYS, a database for keys that all its clients "
            "reach (a key file of one host would lock out the others)"
        )
    with _file_errors(), ExitStack() as opened:
        recorder, store_id = open_recorder(url)
        opened.callback(recorder.close)
        if readonly := recorder.database.readonly:
            log.warning(
                "%s can only be read where it lies: no views, no counts of uses and no "
                "access log are written to it",
                recorder.database.what,
            )
        filled = recorder.has_sessions()
        key_store = _key_store(url, store_id, keys, filled=filled)
        opened.callback(key_store.close)
        fresh = key_store.get_setting("pepper") is None
        if fresh and filled:
            raise _no_keys()
        wraps = master or master_key(url, create=fresh, asked=make_key)
        ring = KeyRing(key_store, wraps)
        subjects = Subjects(recorder.database)
        check_belongs(key_store, subjects, store_id=store_id, filled=filled)
        time = recorder.database.store_time()
        chosen_log = access_log or config.access_log()
        trail: AccessTrail | Callable[[], AccessTrail]
        trail = partial(_access_trail, chosen_log, recorder.database, ring, time)
        if chosen_log != "off":
            trail = trail()
        opened.pop_all()
    events = LogFactory(recorder, ring).log
    # What another process can be told: no object that holds keys, values or a model.
    opens = None
    if events.shared and all(one is None or isinstance(one, str) for one in objects):
        same: Any = {"policy": policy, "limits": limits, "access_log": access_log}
        opens = partial(open_store, url, keys=keys, count_uses=False, **same)
    return SessionStore(
        events,
        redactor,
        limits,
        time=time,
        upkeep=upkeep,
        settings=config.contexts(),
        seals=_seals(events, anchor, store_id),
        audit=trail,
        count_uses=count_uses and not readonly,
        shared_memory=shares,
        vault=vault,
        transcripts=_transcripts,
        opens=opens,
    )


@contextmanager
def _file_errors() -> Iterator[None]:
    """Raise StoreUnavailable for what the file system refuses while a store opens."""
    try:
        yield
    except OSError as error:
        place = error.filename or "a file of the store"
        raise StoreUnavailable(
            f"{place} cannot be used ({error.strerror or error})",
            remedy=remedy_for(error),
        ) from None


open = open_store  # noqa: A001  # refold.open reads well


def _transcripts(
    path: Path, form: str, session_id: str | None, *, strict: bool
) -> Sequence[tuple[str, Transcript]]:
    from refold.adapters.importers import read_named

    return read_named(path, form, session_id, strict=strict)


def _access_trail(
    chosen: str | AccessSink, database: Database, ring: KeyRing, time: StoreTime
) -> AccessTrail:
    from refold.adapters.sql.access_log import AccessTable, open_trail
    from refold.store.store import now

    table = AccessTable(database)
    return open_trail(chosen, table, ring, clock=lambda: time.stamp(now()))


def _seals(
    log: EncryptedLog, anchor: str | os.PathLike[str] | Anchor | None, store_id: str
) -> Callable[[], Seals] | None:
    """Return a function that opens the seals; None for a store without an anchor."""
    if anchor is None and not log.shared:
        return None
    if anchor is None or isinstance(anchor, (str, os.PathLike)):
        default = config.home() / "anchors" / f"{store_id}.jsonl"
        anchor = Path(anchor or os.environ.get("REFOLD_ANCHOR") or default)
    return partial(_tree_seals, log, anchor)


def _tree_seals(log: EncryptedLog, anchor: Path | Anchor) -> Seals:
    from refold.adapters.seals import FileAnchor, TreeSeals

    if isinstance(anchor, Path):
        anchor = FileAnchor(anchor)
    return TreeSeals(log.tree, log.recorder, log.erasures, anchor, log.keys.signer)


def reconcile_keys(url: str | None = None, *, keys: str | None = None) -> int:
    """Destroy again the keys that an older key store brought back; returns how many.

    Raises what ``open_store`` raises, but not that the key store is older.
    """
    from refold.adapters.keys.belonging import reconcile
    from refold.adapters.sql.recorder import Subjects
    from refold.store.store import now

    url = url or config.database()
    with _file_errors(), ExitStack() as opened:
        recorder, store_id = open_recorder(url)
        opened.callback(recorder.close)
        filled = recorder.has_sessions()
        key_store = _key_store(url, store_id, keys, filled=filled)
        opened.callback(key_store.close)
        return reconcile(key_store, Subjects(recorder.database), now=now())


def move(
    url: str | None = None,
    *,
    to: str,
    keys: str | None = None,
    keys_to: str | None = None,
    told: Callable[[int], object] = bool,
) -> dict[str, int]:
    """Move the store to the PostgreSQL database ``to``, as it is, while others write.

    Killed, it goes on when called again; in the end the old store refuses every write.
    Returns how many rows each table has; none if it was moved there before.  Wrapped
    keys are copied to ``keys_to``, if that is given; ``told`` hears after each round
    how many rows it copied.

    Raises InvalidConfiguration for a database that is not empty, StoreUnavailable,
    IncompatibleStore, KeyUnavailable, RefoldError if the copy is not the same.
    """
    from refold.adapters.keys.belonging import check_belongs
    from refold.adapters.sql.move import Move
    from refold.adapters.sql.recorder import Subjects
    from refold.adapters.sql.schema import settings_of

    if not to.startswith("postgres"):
        raise InvalidConfiguration("a store moves to a database postgresql://…")
    same = InvalidConfiguration("keys are copied to another key store, or stay")
    if keys_to == "memory://":
        raise same
    url = url or config.database()
    with _file_errors(), ExitStack() as opened:
        source, target = _database(url), cast("PostgresDatabase", _database(to))
        opened.callback(source.close)
        opened.callback(target.close)
        opened.enter_context(target.filling())
        moving = Move(source, target, told)
        begun, also = moving.begin(), cast("Callable[[], object]", dict)
        if keys_to:
            store_id = settings_of(source)["store_id"]
            new = _key_store(to, store_id, keys_to, filled=True)
            opened.callback(new.close)
            mine = new.get_setting(f"store {store_id}")
            if new.get_setting("pepper") and not mine:
                raise InvalidConfiguration("the key store to copy to has others' keys")
            if begun:
                old = _key_store(url, store_id, keys, filled=True)
                opened.callback(old.close)
                if not old.get_setting("pepper"):
                    raise _no_keys()
                check_belongs(old, Subjects(source), store_id=store_id, filled=True)
                new.remember("copying", mark := os.urandom(8))  # the copy ends it
                if old.get_setting("copying") == mark:
                    raise same
                also = partial(_copy_keys, old, new)
            elif not mine:
                what = "the store was moved there before, without its keys"
                raise InvalidConfiguration(f"{what}: they are where they were")
        if not begun:
            return {}
        moving.copy()
        return moving.end(also)


def _no_keys() -> KeyUnavailable:
    return KeyUnavailable(
        "the key store of this database is empty, the database is not",
        remedy="point REFOLD_KEYS or REFOLD_HOME at the one it was made with",
    )


def _copy_keys(old: SqlKeyStore, new: SqlKeyStore) -> None:
    """Copy all wrapped keys as they are: they open what they opened."""
    from refold.adapters.sql.move import Place, level

    for name, table in old.tables.items():
        level(Place(old, table), Place(new, new.tables[name]))


def make_redactor(
    policy: Policy | None = None,
    *,
    registered: Registered | None = None,
    recognizer: Recognizer | None = None,
) -> Redactor:
    """The redactor that a policy describes; None is the default policy.

    Raises InvalidConfiguration if its engine is not installed.
    """
    from refold.redaction.recognizers import Guard
    from refold.redaction.redactor import Redactor

    if policy:
        guard, plan = policy.guard(recognizer), policy.plan()
    else:
        guard, plan = Guard(recognizer) if recognizer else None, None
    try:
        return Redactor(plan, registered=registered, recognizer=guard)
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(
            f"the policy's engine is not installed ({error.name} is missing): "
            'engine = "auto" takes the best that is installed'
        ) from None


def open_recorder(url: str) -> tuple[Recorder, str]:
    """The rows of the store at ``url``, without its keys, and the store's id."""
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
    from refold.adapters.sql.database import engine_of
    from refold.adapters.sql.sqlite import SqliteDatabase, SqliteInMemory

    match ("memory", None) if url == "memory://" else engine_of(url):
        case "memory", _:
            return SqliteInMemory()
        case "sqlite", parsed:
            return SqliteDatabase(parsed)
        case "postgresql", parsed:
            from refold.adapters.sql.citus import postgresql_at

            return postgresql_at(parsed)
        case _:
            raise InvalidConfiguration(
                "this is not a database URL that Refold knows: sqlite:///agent.db or "
                "postgresql://user:password@host/database"
            )


def _key_store(
    url: str, store_id: str, keys: str | SqlKeyStore | None, *, filled: bool
) -> SqlKeyStore:
    if keys is not None and not isinstance(keys, str):
        return keys
    from refold.adapters.sql.keystore import SqlKeyStore

    chosen = keys or os.environ.get("REFOLD_KEYS")
    if chosen:
        if chosen == url:
            log.warning(
                "keys are kept in the database they protect: whoever restores a backup "
                "of it can read what was erased"
            )
        return SqlKeyStore(chosen)
    if url == "memory://":
        return SqlKeyStore(url)
    path = config.home() / "keys" / f"{store_id}.db"
    if filled and not path.exists():
        raise KeyUnavailable(
            f"the key store of this database, {path}, is not there",
            remedy="restore it, or set REFOLD_HOME or REFOLD_KEYS to where it is",
        )
    return SqlKeyStore(f"sqlite:///{path}")


def master_key(url: str, *, create: bool, asked: bool = False) -> MasterKey:
    """What wraps keys: ``REFOLD_MASTER_KEY``, else a file, made by ``create``.

    For PostgreSQL, whose clients are on many hosts, it is made only if ``asked``.

    Raises InvalidConfiguration, KeyUnavailable.
    """
    from refold.adapters.keys import master

    if url == "memory://":
        return master.LocalMasterKey(os.urandom(32), origin="memory")
    if given := os.environ.get(master.VARIABLE):
        return master.from_environment(given)
    file = master.MasterKeyFile()
    if create:
        if url.startswith("postgres") and not asked and not file.path.exists():
            raise InvalidConfiguration(
                "PostgreSQL needs REFOLD_MASTER_KEY, 32 bytes in base64 or hex that "
                "all its clients have; --make-key (make_key=True in Python) makes "
                f"{file.path} on this machine"
            )
        file.create()
    return file.open()


# A redactor takes some tenths of a second to make.
_REMEMBERED: Final = 8
# Each with its policy, so that no other takes that one's ``id``.
_made: Final[dict[str | int | None, tuple[Redactor, object]]] = {}


@overload
def redact(value: str, policy: str | os.PathLike[str] | Policy | None = ...) -> str: ...


@overload
def redact(value: Any, policy: str | os.PathLike[str] | Policy | None = ...) -> Any: ...


def redact(value: Any, policy: str | os.PathLike[str] | Policy | None = None) -> Any:
    """A text, or a value of JSON, as an event would hold it: redacted.

    ``policy`` is a file, or a ``Policy``; None is ``REFOLD_POLICY``, else the default.
    A process reads a file once.

    Raises RefoldError if it cannot be redacted, InvalidConfiguration for a policy that
    cannot be used.
    """
    from refold.redaction.policy import Policy
    from refold.redaction.redactor import RedactionError

    key: str | int | None
    if policy is None:
        key = os.environ.get("REFOLD_POLICY")
    else:
        key = id(policy) if isinstance(policy, Policy) else os.fspath(policy)
    if key not in _made:
        redactor = make_redactor(config.policy(policy))
        if len(_made) >= _REMEMBERED:
            _made.clear()
        _made[key] = redactor, policy
    try:
        clean, _ = _made[key][0].value(value)
    except RedactionError as error:
        raise RefoldError(f"the value could not be redacted ({error})") from None
    return clean


def for_agent(agent: str, strategy: str | Strategy | None = None) -> Strategy:
    """``strategy`` as one of several agents in a session is shown it.

    Left out, it is the settings file's as it is now, else everything raw.
    """
    return config.contexts().for_agent(agent, strategy)
