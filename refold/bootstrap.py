"""Opening a store: the one place that chooses the adapters for a URL."""

from __future__ import annotations

import base64
import binascii
import logging
import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

from refold import config
from refold.domain.errors import InvalidConfiguration, KeyUnavailable

if TYPE_CHECKING:
    from refold.adapters.keys import KeyStore, MasterKey
    from refold.adapters.recorder import Recorder
    from refold.adapters.sql.dialect import Dialect
    from refold.projections.context.summarizer import Summarizer
    from refold.redaction.engine import Redactor
    from refold.redaction.guard import Limits
    from refold.redaction.policy import Policy
    from refold.redaction.recognizer import Recognizer
    from refold.redaction.registered import Registered
    from refold.store import SessionStore
    from refold.store.upkeep import Automatic

log = logging.getLogger("refold")


def open_store(
    url: str | None = None,
    *,
    policy: str | os.PathLike[str] | Policy | None = None,
    registered: Registered | None = None,
    recognizer: Recognizer | None = None,
    redactor: Redactor | None = None,
    limits: Limits | None = None,
    keys: str | KeyStore | None = None,
    master: MasterKey | None = None,
    compact: Automatic = "off",
    summarizer: Summarizer | None = None,
) -> SessionStore:
    """Open the store at ``url``, and make it if it is new.

    url:    ``sqlite:///file.db``, ``postgresql://…``, or ``memory://`` for tests;
            None is ``REFOLD_DB``, else ``sqlite:///refold.db``.
    policy: what is redacted: a file, or a ``Policy``; None is ``REFOLD_POLICY``, else
            the default.
    registered: exact values that are redacted wherever they stand.
    recognizer: a model of your own, asked after the rules, within the policy's limits.
    redactor: a redactor made elsewhere, in place of the three above.
    limits: of the size guard, in bytes; None is the policy's.
    keys:   where wrapped keys are kept; None is ``REFOLD_KEYS``, else a file under
            ``REFOLD_HOME``.  PostgreSQL needs one that all its clients reach.
    master: what wraps the keys; None is ``REFOLD_MASTER_KEY``, else a file there.
    compact: what an append that ends a turn sets off: nothing (``off``), a compaction
            if one is due in a thread (``background``), or before it returns (``wait``).
    summarizer: what writes summaries where a call names no other; None needs no model.

    Raises InvalidConfiguration, StoreUnavailable, IncompatibleStore, KeyUnavailable.
    """
    from refold.adapters.factory import LogFactory
    from refold.adapters.keys import KeyRing
    from refold.redaction.guard import Limits
    from refold.store import SessionStore
    from refold.store.upkeep import Upkeep

    config.register_models()
    upkeep = Upkeep(compact, summarizer)
    if redactor and any(
        given is not None for given in (policy, registered, recognizer)
    ):
        raise InvalidConfiguration(
            "a redactor has its own policy, registered values and recognizer: give "
            "either it or those"
        )
    chosen = None if redactor else config.policy(policy)
    if redactor is None:
        redactor = make_redactor(chosen, registered=registered, recognizer=recognizer)
    limits = limits or (chosen.limits() if chosen else Limits())
    url = url or config.database()
    if url.startswith("postgres") and not (keys or os.environ.get("REFOLD_KEYS")):
        raise InvalidConfiguration(
            "PostgreSQL needs REFOLD_KEYS, a database for keys that all its clients "
            "reach (a key file of one host would lock out the others)"
        )
    with ExitStack() as opened:
        recorder, store_id = _recorder(url)
        opened.callback(recorder.close)
        filled = recorder.has_sessions()
        key_store = _key_store(url, store_id, keys, filled=filled)
        opened.callback(key_store.close)
        fresh = key_store.get_setting("pepper") is None
        if fresh and filled:
            raise KeyUnavailable(
                "the key store of this database is empty, the database is not",
                remedy="point REFOLD_KEYS or REFOLD_HOME at the one it was made with",
            )
        ring = KeyRing(key_store, master or master_key(url, create=fresh))
        opened.pop_all()
    sealed = LogFactory(recorder, ring).log()
    return SessionStore(sealed, redactor, limits, upkeep=upkeep)


def make_redactor(
    policy: Policy | None = None,
    *,
    registered: Registered | None = None,
    recognizer: Recognizer | None = None,
) -> Redactor:
    """The redactor that a policy describes; None is the default policy.

    Raises InvalidConfiguration if its engine is not installed.
    """
    from refold.redaction.engine import Redactor
    from refold.redaction.recognizer import Guard

    if policy:
        guard = policy.guard(recognizer)
    else:
        guard = Guard(recognizer) if recognizer else None
    plan = policy.plan() if policy else None
    try:
        return Redactor(plan, registered=registered, recognizer=guard)
    except ModuleNotFoundError as error:
        raise InvalidConfiguration(
            f"the policy's engine is not installed ({error.name} is missing): "
            'engine = "auto" takes the best there is'
        ) from None


def _recorder(url: str) -> tuple[Recorder, str]:
    if url == "memory://":
        from refold.adapters.memory import MemoryRecorder

        return MemoryRecorder(), "memory"
    from refold.adapters.sql.migrations import migrate
    from refold.adapters.sql.recorder import SqlRecorder

    dialect = _dialect(url)
    try:
        store_id = migrate(dialect)
    except BaseException:
        dialect.close()
        raise
    return SqlRecorder(dialect), store_id


def _dialect(url: str) -> Dialect:
    from refold.adapters.sql.urls import engine_of

    match engine_of(url):
        case "sqlite", parsed:
            from refold.adapters.sql.sqlite import SqliteDialect

            return SqliteDialect(parsed)
        case "postgresql", parsed:
            from refold.adapters.sql.postgres import PostgresDialect

            return PostgresDialect(parsed)
        case _:
            raise InvalidConfiguration(
                "this is no database URL that Refold knows: sqlite:///agent.db or "
                "postgresql://user:password@host/database"
            )


def _key_store(
    url: str, store_id: str, keys: str | KeyStore | None, *, filled: bool
) -> KeyStore:
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
        from refold.adapters.memory import MemoryKeyStore

        return MemoryKeyStore()
    path = config.home() / "keys" / f"{store_id}.db"
    if filled and not path.exists():
        raise KeyUnavailable(
            f"the key store of this database, {path}, is not there",
            remedy="restore it, or set REFOLD_HOME or REFOLD_KEYS to where it is",
        )
    return SqlKeyStore(f"sqlite:///{path}")


def master_key(url: str, *, create: bool) -> MasterKey:
    """What wraps keys: ``REFOLD_MASTER_KEY``, else a file, made by ``create``.

    Raises InvalidConfiguration, KeyUnavailable.
    """
    from refold.adapters.keys import LocalMasterKey

    if url == "memory://":
        return LocalMasterKey(os.urandom(32), origin="memory")
    if given := os.environ.get("REFOLD_MASTER_KEY"):
        key = _decoded(given)
        if len(key) != 32:
            raise InvalidConfiguration(
                "REFOLD_MASTER_KEY must be 32 bytes, in base64 or hex"
            )
        return LocalMasterKey(key, origin="REFOLD_MASTER_KEY")
    path = config.home() / "master.key"
    if create:
        from refold.adapters.sql.keystore import create_private

        text = base64.b64encode(os.urandom(32)) + b"\n"
        if create_private(path, text):
            log.warning(
                "made a new master key at %s (mode 0600): back it up apart from the "
                "database, without it nothing can be read",
                path,
            )
    try:
        return LocalMasterKey(_decoded(path.read_text()), origin=str(path))
    except OSError as error:
        raise KeyUnavailable(
            f"the master key {path} cannot be read ({error.strerror})",
            remedy="restore it, or set REFOLD_MASTER_KEY or REFOLD_HOME",
        ) from None


def _decoded(text: str) -> bytes:
    text = text.strip()
    try:
        if len(text) == 64:
            return bytes.fromhex(text)
        return base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return b""
