"""Every way of tampering with a store, and what ``refold verify`` reports.

``docs/reference/tampering.md`` is generated from this list; the tests do all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from refold.adapters.sql import tables
from tests.support import tampering_acts as acts
from tests.support.tampered import Tampered

Act = Callable[[Tampered], None]


class Tampering(NamedTuple):
    """One way of tampering, and the code of the problem that reports it.

    code:    of a problem; ``opening`` if the store does not open; empty if it is not
             found.
    why:     the consequence if it is not found, or the check that finds it.
    session: whose problem it is, if it is of one.
    engine:  the only engine on which it can be done; empty for both.
    """

    what: str
    act: Act
    code: str
    why: str = ""
    session: str | None = None
    engine: str = ""


_BLOB_TIME: Final = (
    "an earlier time lets retention drop the text early, a later one keeps it longer"
)
_LEASE: Final = (
    "work is done later or twice; a write names its `owner`, so none is lost or doubled"
)
# For each column of each table: the problem, or the reason why none is reported.
COLUMNS: Final[dict[str, tuple[str, str]]] = {
    "settings.name": ("opening", ""),
    "settings.value": ("opening", ""),
    "heads.user_id": ("head", ""),
    "heads.session_id": ("head", ""),
    "heads.stream": ("head", ""),
    "heads.seq": ("head", ""),
    "heads.hash": ("head", ""),
    "heads.status": ("head", ""),
    "heads.state": ("head", ""),
    "heads.key_check": ("head", ""),
    "heads.tokens": ("head", ""),
    "heads.created_at": ("head", ""),
    "heads.updated_at": ("head", ""),
    "heads.before": ("head", ""),
    "events.position": ("seal", "once it is sealed"),
    "events.user_id": ("gap", ""),
    "events.session_id": ("gap", ""),
    "events.stream": ("gap", ""),
    "events.seq": ("gap", ""),
    "events.type": ("chain", ""),
    "events.ts": ("chain", ""),
    "events.event_id": ("chain", ""),
    "events.token_estimate": ("chain", ""),
    "events.schema_version": ("chain", ""),
    "events.hash": ("chain", ""),
    "events.body": ("chain", ""),
    "events.first_digest": ("chain", ""),
    "blobs.user_id": ("blob", ""),
    "blobs.address": ("blob", ""),
    "blobs.size": ("blob", ""),
    "blobs.created_at": ("", _BLOB_TIME),
    "blobs.body": ("blob", ""),
    "blobs.session_id": ("stray", ""),
    "receipts.user_id": ("receipt", ""),
    "receipts.session_id": ("receipt", ""),
    "receipts.stream": ("receipt", ""),
    "receipts.address": ("seal", "once it is sealed"),
    "receipts.first_seq": ("receipt", ""),
    "receipts.last_seq": ("receipt", ""),
    "views.user_id": ("stray", ""),
    "views.session_id": ("stray", ""),
    "views.name": ("view", ""),
    "views.through_seq": ("view", ""),
    "views.derived_seq": ("view", ""),
    "views.body": ("view", ""),
    "views.main_spans": ("view", ""),
    "views.derived_spans": ("view", ""),
    "leases.user_id": ("stray", ""),
    "leases.session_id": ("stray", ""),
    "leases.stream": ("", _LEASE),
    "leases.owner": ("", _LEASE),
    "leases.expires_at": ("", _LEASE),
    "leases.period": ("", _LEASE),
    "leases.pending": ("", _LEASE),
    "labels.user_id": ("label", ""),
    "labels.session_id": ("label", ""),
    "labels.name": ("label", ""),
    "labels.address": ("label", "a part of it that was redacted is not compared"),
    "leaves.leaf": ("leaf", ""),
    "leaves.hash": ("root", ""),
    "leaves.erasure": ("erasure", ""),
    "seals.user_id": ("seal", ""),
    "seals.session_id": ("seal", ""),
    "seals.stream": ("seal", ""),
    "seals.seq": ("seal", ""),
    "seals.leaf": ("seal", ""),
    "seals.positions": ("seal", ""),
    "seals.receipts": ("seal", ""),
    "tree_heads.size": ("signature", ""),
    "tree_heads.root": ("signature", ""),
    "tree_heads.sealed_at": ("signature", ""),
    "tree_heads.position": ("signature", ""),
    "tree_heads.key_id": ("signature", ""),
    "tree_heads.signature": ("signature", ""),
    "tree_heads.peaks": ("root", ""),
    "certificates.certificate_id": ("certificate", ""),
    "certificates.user_ref": ("certificate", ""),
    "certificates.created_at": ("certificate", ""),
    "certificates.body": ("certificate", ""),
    "subjects.ref": ("subject", ""),
    "subjects.user_ref": ("subject", ""),
    "subjects.status": ("subject", ""),
    "subjects.epoch": ("subject", ""),
    "holds.user_ref": ("hold", ""),
    "holds.name": ("hold", ""),
    "holds.reason": ("hold", ""),
    "holds.created_at": ("", "its certificate has the time"),
}
_UNDER_WAY: Final = (
    "erasures in progress. A changed `due_at` moves the end of a grace period, and a "
    "changed `stage` repeats or skips steps. If the row is deleted, the user stays "
    "locked, and `refold erase --due` names them. The certificate at the end is signed"
)
_ACCESS_LOG: Final = (
    "the access log. Somebody with SQL can change or delete its records: also send "
    "them to a sink elsewhere. Old records are deleted"
)
_ACCESSES: Final = (
    "how often and when each session was read. If retention counts from the last read, "
    "a later time keeps a session longer, and an earlier time deletes it earlier"
)
_EXPORTS: Final = (
    "the exports with copies of a user's data. Somebody with SQL can delete a row, and "
    "the report of an erasure then does not name that copy. The report does name a row "
    "that cannot be decrypted"
)
# Columns of a table, and the reason why nothing proves them.
NOT_PROVED: Final[dict[str, tuple[str, str]]] = {
    "erasures": ("job_id user_ref stage due_at body", _UNDER_WAY),
    "audit": (
        "record_id ts event user_hash session_hash request_hash state_version "
        "event_type duration_us status error_code meta",
        _ACCESS_LOG,
    ),
    "accesses": ("user_id session_id reads last_at", _ACCESSES),
    "exports": ("user_id export_id created_at body", _EXPORTS),
}


def flipped() -> Iterator[Tampering]:
    """Yield a change of each column that is proved."""
    for name, (code, why) in COLUMNS.items():
        yield Tampering(f"a flipped bit in `{name}`", acts.flip(name), code, why)


OTHERS: Final = (
    Tampering("two rows swapped", acts.swap, "chain", session="s-1"),
    Tampering("a row deleted", acts.delete_row, "gap", session="s-1"),
    Tampering("a row inserted behind the end", acts.insert_row, "head", session="s-1"),
    Tampering("rows renumbered", acts.renumber, "gap", session="s-1"),
    Tampering(
        "an event encrypted again by somebody with the keys, and the chain with it",
        acts.encrypt_again,
        "seal",
        "once it is sealed",
        "s-1",
    ),
    Tampering("the tail cut off", acts.cut_tail, "head", session="s-1"),
    Tampering(
        "the tail cut off, an old head row put back",
        acts.cut_tail_and_head,
        "seal",
        "once it is sealed",
        "s-1",
    ),
    Tampering(
        "the same, and its seals deleted",
        acts.cut_tail_head_and_seals,
        "leaf",
        "once it is sealed",
    ),
    Tampering(
        "the events after the last seal cut off, an old head row put back",
        acts.cut_unsealed_tail,
        "",
        "the bound: seal often",
    ),
    Tampering(
        "a session removed, except its seals", acts.remove_session, "seal", "", "s-2"
    ),
    Tampering("a session removed with its seals", acts.remove_sealed_session, "leaf"),
    Tampering(
        "the same, its leaves marked as erased", acts.remove_as_erased, "erasure"
    ),
    Tampering("a session marked as erased", acts.mark_erased, "head", session="s-2"),
    Tampering("a stream's seals deleted", acts.delete_seals, "leaf"),
    Tampering("a receipt deleted", acts.delete_receipt, "receipt", session="s-1"),
    Tampering("a label deleted", acts.delete_label, "label", session="s-3"),
    Tampering("a label inserted", acts.insert_label, "label", session="s-2"),
    Tampering("a receipt inserted", acts.insert_receipt, "receipt", session="s-1"),
    Tampering("a blob deleted", acts.delete_blob, "blob", session="s-1"),
    Tampering(
        "a stored view deleted", acts.delete_view, "", "it is folded again when needed"
    ),
    Tampering(
        "a stored view edited by somebody with the keys",
        acts.edit_view,
        "view",
        session="s-1",
    ),
    Tampering("a head rolled back", acts.roll_head_back, "head", session="s-1"),
    Tampering("an old backup in place of the database", acts.old_backup, "anchor"),
    Tampering("tree heads and leaves removed", acts.remove_tree, "anchor"),
    Tampering(
        "history and tree written again and signed by somebody with all keys",
        acts.sign_again,
        "anchor",
        "as long as the anchor is out of reach",
    ),
    Tampering("a line of the anchor changed", acts.change_anchor, "anchor"),
    Tampering("a line of the anchor removed", acts.cut_anchor, "anchor"),
    Tampering("the anchor removed", acts.remove_anchor, "anchor"),
    Tampering("a certificate forged", acts.forge_certificate, "certificate"),
    Tampering("a certificate removed", acts.remove_certificate, "erasure"),
    Tampering("a session's key replaced", acts.replace_session_key, "key", "", "s-1"),
    Tampering("a user's key replaced", acts.replace_user_key, "key", "", "s-1"),
    Tampering("the signing key replaced", acts.replace_signing_key, "signature"),
    Tampering("a session marked as frozen", acts.mark_frozen, "head", "", "s-2"),
    Tampering("a frozen session marked as open", acts.thaw, "head", "", "cold"),
    Tampering("a blob assigned to another session", acts.move_blob, "blob", "", "s-1"),
    Tampering("a legal hold removed", acts.remove("holds", "name='a hold'"), "hold"),
    Tampering("a freeze removed", acts.remove("holds", "name='freeze'"), "hold"),
    Tampering("all of a freeze removed", acts.remove_freeze, "certificate"),
    Tampering(
        "the certificate of a legal hold removed",
        acts.remove("certificates", "body LIKE '%legal hold%'"),
        "certificate",
    ),
    Tampering(
        "the certificate of a freeze removed",
        acts.remove("certificates", "body LIKE '%frozen%'"),
        "certificate",
    ),
    Tampering("an erased user marked as live", acts.revive, "subject"),
    Tampering("the triggers dropped", acts.drop_triggers, "guard"),
    Tampering(
        "a trigger replaced with one that does nothing", acts.disarm_trigger, "guard"
    ),
    Tampering("a trigger added", acts.add_trigger, "guard"),
    Tampering("events marked as rewritten", acts.say_rewriting, "guard"),
    Tampering("the generation of keys lowered", acts.lower_generation, "key"),
    Tampering(
        "the generation of keys raised",
        acts.set_setting("key_generation", lambda number: number + 1),
        "opening",
    ),
    Tampering(
        "the version of the schema lowered",
        acts.set_setting("schema_version", lambda number: number - 1),
        "",
        "the last step of the schema is taken again when the store opens",
    ),
    Tampering(
        "the version of the schema raised",
        acts.set_setting("schema_version", lambda number: number + 1),
        "opening",
    ),
    Tampering(
        "the floor of positions raised",
        acts.set_setting("floor", lambda number: number + 10),
        "guard",
        "positions are left out, which harms nothing",
        engine="sqlite",
    ),
    Tampering(
        "the floor of positions lowered, and the newest rows cut off",
        acts.lower_floor,
        "guard",
        "a position could be used twice, and a follower could miss an event",
        engine="sqlite",
    ),
    Tampering(
        "the floor of positions lowered below rows that are there",
        acts.set_setting("floor", lambda number: number - 1),
        "",
        "newer rows exist, so no position is used twice",
        engine="sqlite",
    ),
    Tampering("seals and anchor removed", acts.remove_seals_and_anchor, "anchor"),
)


def every() -> list[Tampering]:
    """Return all of them, in the order of the table."""
    return [*OTHERS, *flipped()]


def columns() -> Iterator[str]:
    """Yield the existing columns."""
    for table in tables.build(None, rowid=True).metadata.sorted_tables:
        yield from (f"{table.name}.{column.name}" for column in table.columns)
