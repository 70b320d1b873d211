"""The acts of an attacker who has the database, or its keys as well."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, Final

import orjson
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from sqlalchemy import text

from refold.adapters.keys.ring import decrypt, encrypt
from refold.adapters.rows import pack, unpack
from refold.adapters.streams import decrypted_head, encrypted_head
from refold.domain.chain import Frontier, event_hash
from refold.domain.erasure import Signed
from refold.domain.seals import Leaf
from tests.support.tampered import MAIN, OLD_SEQ, SEALED_SEQ, Tampered, log_of

_S1: Final = "user_id='ada' AND session_id='s-1' AND stream='main'"
# The changed row of a table; the first row for tables that are not listed.
_ROWS: Final = {
    "events": f"WHERE {_S1} AND seq=3",
    "heads": f"WHERE {_S1}",
    "seals": f"WHERE {_S1} AND seq={OLD_SEQ}",
    "leaves": "WHERE leaf=1",
    "tree_heads": "ORDER BY size LIMIT 1",
    "views": "WHERE user_id='ada' AND session_id='s-1'",
    "certificates": "WHERE body LIKE '%erased%'",
    "subjects": "WHERE status='erased' AND ref=user_ref",
    "holds": "WHERE name='a hold'",
}
_SETTINGS: Final = {"settings": "WHERE name='store_id'"}


def flip(column: str) -> Callable[[Tampered], None]:
    """Change one value of this column, and nothing else."""
    table, name = column.split(".")

    def act(case: Tampered) -> None:
        where = {**_ROWS, **_SETTINGS}.get(table, "LIMIT 1")
        if column == "seals.leaf":
            where = f"WHERE {_S1} AND seq={SEALED_SEQ}"
        row = case.row(f"SELECT * FROM {table} {where}")
        old_values = {
            f"old_{key}": value for key, value in row.items() if value is not None
        }
        here = " AND ".join(f"{key[4:]}=:{key}" for key in old_values)
        statement = f"UPDATE {table} SET {name}=:new WHERE {here}"
        case.do(statement, new=_flipped(name, row[name]), **old_values)

    return act


def _flipped(name: str, value: Any) -> Any:
    if value is None:
        return bytes(32) if name == "first_digest" else "x"
    if isinstance(value, int):
        return value ^ 1024
    if isinstance(value, bytes | memoryview):
        whole = bytes(value)
        middle = len(whole) // 2
        return whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
    if name in ("main_spans", "derived_spans"):
        return "[[1, 2]]"
    if name == "status":
        return "closed"
    middle = len(value) // 2
    other = "x" if value[middle] != "x" else "y"
    return value[:middle] + other + value[middle + 1 :]


def set_setting(name: str, value: Callable[[int], int]) -> Callable[[Tampered], None]:
    """Change a numeric setting."""

    def act(case: Tampered) -> None:
        where = f"WHERE name='{name}'"
        number = int(case.row(f"SELECT value FROM settings {where}")["value"])
        case.do(f"UPDATE settings SET value=:new {where}", new=str(value(number)))

    return act


def lower_floor(case: Tampered) -> None:
    """Remove the floor, and every row that is newer than the deleted ones."""
    floor = case.row("SELECT value FROM settings WHERE name='floor'")["value"]
    case.do(
        "DELETE FROM events WHERE position>=:floor",
        "DELETE FROM settings WHERE name='floor'",
        floor=int(floor),
    )


def swap(case: Tampered) -> None:
    """Exchange two rows."""
    move = f"UPDATE events SET seq=:to WHERE {_S1} AND seq=:here"
    for here, to in ((3, 900), (4, 3), (900, 4)):
        case.do(move, here=here, to=to)


def delete_row(case: Tampered) -> None:
    case.do(f"DELETE FROM events WHERE {_S1} AND seq=3")


def insert_row(case: Tampered) -> None:
    """Append a copy of an event."""
    row = case.row(f"SELECT * FROM events WHERE {_S1} AND seq=3")
    row |= {"seq": SEALED_SEQ + 2, "position": row["position"] + 10_000}
    case.do(_insert("events", row), **row)


def _insert(table: str, row: dict[str, Any]) -> str:
    marks = ", ".join(f":{name}" for name in row)
    return f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})"


def renumber(case: Tampered) -> None:
    case.do(f"UPDATE events SET seq=seq+1000 WHERE {_S1} AND seq>=5")


def encrypt_again(case: Tampered) -> None:
    """Change an event, and make the chain and the head fit, with the keys."""
    with case.store() as store:
        log = log_of(store)
        key = log.key(MAIN)
        head = log.recorder.head_row(MAIN)
        assert head is not None
        state = decrypted_head(MAIN, head, key).state
        prev = b""
        changed: list[dict[str, Any]] = []
        for row in log.recorder.select_events(MAIN, gt=2):
            packed = decrypt(key.cipher, row.state[1:], row.context)
            content: Any = orjson.loads(unpack(packed))
            if row.seq == 3:
                content["payload"]["text"] = "something else"
            sealed = encrypt(key.cipher, pack(orjson.dumps(content)), row.context)
            body = row.state[:1] + sealed
            prev = event_hash(prev or row.prev_hash, row.context, body)
            changed.append({"seq": row.seq, "hash": prev, "body": body})
        head = encrypted_head(head._replace(hash=prev), state, key)
    for values in changed:
        case.do(
            f"UPDATE events SET hash=:hash, body=:body WHERE {_S1} AND seq=:seq",
            **values,
        )
    case.do(
        f"UPDATE heads SET hash=:hash, state=:state WHERE {_S1}",
        hash=head.hash,
        state=head.state,
    )


def cut_tail(case: Tampered) -> None:
    case.do(f"DELETE FROM events WHERE {_S1} AND seq>{OLD_SEQ}")


def cut_tail_and_head(case: Tampered) -> None:
    """Restore the backup of that time, for this session alone."""
    _cut(case, OLD_SEQ, case.old)


def cut_tail_head_and_seals(case: Tampered) -> None:
    cut_tail_and_head(case)
    case.do(f"DELETE FROM seals WHERE {_S1} AND seq>{OLD_SEQ}")
    case.do("DELETE FROM seals WHERE session_id='s-1' AND stream<>'main'")


def cut_unsealed_tail(case: Tampered) -> None:
    _cut(case, SEALED_SEQ, case.sealed, others=False)


def _cut(
    case: Tampered, seq: int, head: dict[str, Any], *, others: bool = True
) -> None:
    case.do(
        f"DELETE FROM events WHERE {_S1} AND seq>{seq}",
        f"DELETE FROM receipts WHERE {_S1} AND last_seq>{seq}",
        f"DELETE FROM heads WHERE {_S1}",
    )
    case.do(_insert("heads", head), **head)
    if others:
        case.do(
            "DELETE FROM events WHERE session_id='s-1' AND stream<>'main'",
            "DELETE FROM heads WHERE session_id='s-1' AND stream<>'main'",
            "DELETE FROM views WHERE session_id='s-1'",
        )


def roll_head_back(case: Tampered) -> None:
    case.do(f"DELETE FROM heads WHERE {_S1}")
    case.do(_insert("heads", case.old), **case.old)


def remove_session(case: Tampered) -> None:
    for table in ("events", "heads", "receipts", "views"):
        case.do(f"DELETE FROM {table} WHERE session_id='s-2'")


def remove_sealed_session(case: Tampered) -> None:
    remove_session(case)
    case.do("DELETE FROM seals WHERE session_id='s-2'")


def remove_as_erased(case: Tampered) -> None:
    certificate = case.row(
        "SELECT certificate_id FROM certificates WHERE body LIKE '%erased%'"
    )
    case.do(
        "UPDATE leaves SET erasure=:said WHERE leaf IN "
        "(SELECT leaf FROM seals WHERE session_id='s-2')",
        said=certificate["certificate_id"],
    )
    remove_sealed_session(case)


def mark_erased(case: Tampered) -> None:
    case.do("UPDATE heads SET status='erased' WHERE session_id='s-2'")


def delete_seals(case: Tampered) -> None:
    case.do("DELETE FROM seals WHERE session_id='s-2'")


def delete_label(case: Tampered) -> None:
    case.do("DELETE FROM labels")


def insert_label(case: Tampered) -> None:
    row = case.row("SELECT * FROM labels")
    case.do(
        "INSERT INTO labels (user_id, session_id, name, address)"
        " VALUES (:user_id, 's-2', :name, :address)",
        **{key: row[key] for key in ("user_id", "name", "address")},
    )


def delete_receipt(case: Tampered) -> None:
    case.do(f"DELETE FROM receipts WHERE {_S1} AND last_seq={OLD_SEQ}")


def insert_receipt(case: Tampered) -> None:
    row = case.row("SELECT * FROM receipts LIMIT 1")
    row |= {"address": os.urandom(32), "first_seq": 2, "last_seq": 2}
    case.do(_insert("receipts", row), **row)


def delete_blob(case: Tampered) -> None:
    case.do("DELETE FROM blobs")


def delete_view(case: Tampered) -> None:
    case.do("DELETE FROM views")


def edit_view(case: Tampered) -> None:
    """Make the view claim that the session has fewer tokens."""
    with case.store() as store:
        log = log_of(store)
        (name,) = log.view_names("ada", "s-1")
        stored = log.load_view(MAIN, name)
        assert stored is not None
        body: Any = stored.body
        body["outline"]["raw_tokens"] = 1
        assert log.save_view(MAIN, name, stored, replaces=stored.through_seq)


def old_backup(case: Tampered) -> None:
    case.put_back("old", home=False)


def remove_tree(case: Tampered) -> None:
    case.do("DELETE FROM leaves", "DELETE FROM seals", "DELETE FROM tree_heads")


def sign_again(case: Tampered) -> None:
    """Rewrite an event, its leaves, and every tree head, with all existing keys."""
    encrypt_again(case)
    with case.store() as store:
        seals: Any = store.seals
        tree = seals.tree
        signer = seals.signer()
        leaves = dict(tree.leaves())
        for seal in tree.seals(MAIN):
            leaf = Leaf(seal.now, seal.positions, seal.receipts).hashed()
            leaves[seal.leaf] = leaf
        heads = []
        for head in tree.heads():
            frontier = Frontier().add(leaves[at] for at in range(head.size))
            new = head._replace(root=frontier.root)
            signature = signer.sign(new.message())
            heads.append((head.size, frontier, signature))
    for leaf, hash_ in leaves.items():
        case.do("UPDATE leaves SET hash=:hash WHERE leaf=:leaf", leaf=leaf, hash=hash_)
    for size, frontier, signature in heads:
        case.do(
            "UPDATE tree_heads SET root=:root, peaks=:peaks, signature=:signature "
            "WHERE size=:size",
            size=size,
            root=frontier.root,
            peaks=b"".join(frontier.peaks),
            signature=signature,
        )


def change_anchor(case: Tampered) -> None:
    first, *rest = case.anchor.read_text().splitlines()
    head = json.loads(first)
    head["root"] = "00" * 32
    case.anchor.write_text("\n".join([json.dumps(head), *rest, ""]))


def cut_anchor(case: Tampered) -> None:
    case.anchor.write_text("\n".join(case.anchor.read_text().splitlines()[1:]) + "\n")


def remove_anchor(case: Tampered) -> None:
    case.anchor.unlink()


def forge_certificate(case: Tampered) -> None:
    """Replace a statement by another, signed with another key, which it names."""
    row = case.row("SELECT * FROM certificates WHERE body LIKE '%erased%'")
    whole = json.loads(row["body"])
    key = Ed25519PrivateKey.generate()
    signed = Signed.read(row["body"])
    signed.statement["reason"] = "never asked"
    public = key.public_key().public_bytes_raw()
    forged = signed._replace(public_key=public, signature=key.sign(signed.message()))
    assert whole != forged.to_json()
    row["body"] = json.dumps(forged.to_json())
    case.do(
        "UPDATE certificates SET body=:body WHERE certificate_id=:certificate_id",
        body=row["body"],
        certificate_id=row["certificate_id"],
    )


def remove_certificate(case: Tampered) -> None:
    case.do("DELETE FROM certificates WHERE body LIKE '%erased%'")


def replace_session_key(case: Tampered) -> None:
    """Exchange the wrapped keys of two sessions."""
    _mix_up(case, "session_keys", "session_ref")


def replace_user_key(case: Tampered) -> None:
    case.keys(
        "UPDATE user_keys SET wrapped=:new WHERE wrapped IS NOT NULL", new=bytes(60)
    )


def _mix_up(case: Tampered, table: str, ref: str) -> None:
    case.keys(
        f"UPDATE {table} SET wrapped=(SELECT max(wrapped) FROM {table} o "
        f"WHERE o.{ref}<>{table}.{ref})"
    )


def replace_signing_key(case: Tampered) -> None:
    """Replace the signing key by a new one."""
    case.keys("DELETE FROM settings WHERE name='signing key'")
    with case.store() as store:
        assert store.seals.public_key()


def remove(table: str, where: str) -> Callable[[Tampered], None]:
    """Delete rows of a table."""
    return lambda case: case.do(f"DELETE FROM {table} WHERE {where}")


def mark_frozen(case: Tampered) -> None:
    case.do("UPDATE heads SET status='frozen' WHERE session_id='s-2'")


def thaw(case: Tampered) -> None:
    case.do("UPDATE heads SET status='open' WHERE session_id='cold'")


def move_blob(case: Tampered) -> None:
    case.do("UPDATE blobs SET session_id='s-2'")


def remove_freeze(case: Tampered) -> None:
    """Remove every sign that the user was frozen."""
    thaw(case)
    case.do(
        "DELETE FROM holds WHERE name='freeze'",
        "UPDATE subjects SET status='live' WHERE status='frozen'",
        "DELETE FROM certificates WHERE body LIKE '%frozen%'",
    )


def revive(case: Tampered) -> None:
    case.do("UPDATE subjects SET status='live' WHERE status='erased'")


def drop_triggers(case: Tampered) -> None:
    with case.connected() as connection:
        if case.sqlite:
            connection.execute(text("DROP TRIGGER events_refuse_update"))
            connection.execute(text("DROP TRIGGER events_refuse_delete"))
        else:
            drop = "DROP TRIGGER events_refuse_change ON refold.events"
            connection.execute(text(drop))


def disarm_trigger(case: Tampered) -> None:
    with case.connected() as connection:
        if case.sqlite:
            connection.execute(text("DROP TRIGGER events_refuse_update"))
            connection.exec_driver_sql(
                "CREATE TRIGGER events_refuse_update BEFORE UPDATE ON events "
                "BEGIN SELECT 1; END"
            )
        else:
            off = "ALTER TABLE refold.events DISABLE TRIGGER events_refuse_change"
            connection.execute(text(off))


def add_trigger(case: Tampered) -> None:
    with case.connected() as connection:
        connection.exec_driver_sql(
            "CREATE TRIGGER events_more AFTER INSERT ON events "
            "BEGIN DELETE FROM receipts; END"
            if case.sqlite
            else "CREATE TRIGGER events_more BEFORE INSERT ON refold.events "
            "FOR EACH STATEMENT EXECUTE FUNCTION refold.refuse_change()"
        )


def say_rewriting(case: Tampered) -> None:
    case.do("INSERT INTO settings (name, value) VALUES ('rewriting', 'on')")


def lower_generation(case: Tampered) -> None:
    case.do("UPDATE settings SET value='0' WHERE name='key_generation'")


def remove_seals_and_anchor(case: Tampered) -> None:
    remove_tree(case)
    remove_anchor(case)
