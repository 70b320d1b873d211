"""Proofs of the tree as JSON: of one event, and that one tree begins with another.

They hold no text of an event, and of other events nothing but hashes.
``refold/auditor.py`` checks them without a store.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from pydantic import JsonValue

from refold.adapters.recorder import Tree
from refold.adapters.rows import EncryptedEvent
from refold.adapters.sql.recorder import Recorder
from refold.domain.chain import consistency_proof, inclusion_proof
from refold.domain.events import JsonObject
from refold.domain.ids import StreamId
from refold.domain.seals import Seal, TreeHead

EVENT: Final = "refold event proof 1"
GROWTH: Final = "refold consistency proof 1"
_PAGE: Final = 500


def event_proof(
    tree: Tree, recorder: Recorder, stream: StreamId, seq: int, *, size: int | None
) -> JsonObject:
    """The proof that the event is in the tree of that size, or in the newest.

    Raises LookupError if there is no such tree, or it does not cover the event.
    """
    head = _head(tree, size)
    seal = next((s for s in tree.seals(stream) if s.seq >= seq), None)
    if seal is None or seal.leaf >= head.size:
        raise LookupError(
            f"seq {seq} is not sealed in a tree of {head.size} leaves: `refold seal` "
            "seals what is new"
        )
    first, *links = _chain(recorder, stream, seq, seal)
    leaves = _leaves(tree, head.size)
    return {
        "proof": EVENT,
        "event": first,
        "chain": [[link["header"], link["body"]] for link in links],
        "leaf": {
            "index": seal.leaf,
            "positions": seal.positions.hex(),
            "receipts": seal.receipts.hex(),
        },
        "inclusion": _hex(inclusion_proof(leaves, seal.leaf)),
        "tree_head": head.to_json(),
    }


def growth_proof(tree: Tree, old: int, new: int) -> JsonObject:
    """The proof that the tree of size ``new`` begins with that of size ``old``.

    Raises LookupError if one of them has no tree head, ValueError if old is larger.
    """
    first, second = _head(tree, old), _head(tree, new)
    leaves = _leaves(tree, new)
    return {
        "proof": GROWTH,
        "old": first.to_json(),
        "new": second.to_json(),
        "consistency": _hex(consistency_proof(leaves, old)),
    }


def _head(tree: Tree, size: int | None) -> TreeHead:
    heads = tree.heads(after=-1 if size is None else size - 1)
    wanted = heads[-1:] if size is None else [h for h in heads[:1] if h.size == size]
    if not wanted:
        which = "no tree head yet" if size is None else f"no tree head of size {size}"
        raise LookupError(
            f"there is {which}: `refold seal --list` lists those there are"
        )
    return wanted[0]


def _leaves(tree: Tree, size: int) -> list[bytes]:
    leaves = [hash_ for _, hash_ in tree.leaves(upto=size)]
    if len(leaves) != size:
        raise LookupError(f"{size - len(leaves)} leaves are missing: `refold verify`")
    return leaves


def _chain(
    recorder: Recorder, stream: StreamId, seq: int, seal: Seal
) -> list[JsonObject]:
    """The event with its columns, then the links up to the event that was sealed."""
    found: list[JsonObject] = []
    after = seq - 1
    while page := recorder.select_events(stream, gt=after, lte=seal.seq, limit=_PAGE):
        found += [
            _link(row) if found or n else _event(row) for n, row in enumerate(page)
        ]
        after = page[-1].seq
    if len(found) != seal.seq - seq + 1:
        raise LookupError(f"there is no event {seq}, or one behind it is missing")
    return found


def _event(row: EncryptedEvent) -> JsonObject:
    header = row.header
    return {
        **header.stream._asdict(),
        "seq": header.seq,
        "type": header.type,
        "ts": header.ts,
        "event_id": str(header.event_id),
        "token_estimate": header.token_estimate,
        "schema_version": header.schema_version,
        "prev_hash": row.prev_hash.hex(),
        "body": _body(row),
    }


def _link(row: EncryptedEvent) -> JsonObject:
    return {"header": sha256(row.context).hexdigest(), "body": _body(row)}


def _body(row: EncryptedEvent) -> str:
    """The digest of the first ciphertext, which is what the chain was made of."""
    return (row.first_digest or sha256(row.state).digest()).hex()


def _hex(hashes: tuple[bytes, ...]) -> list[JsonValue]:
    return [hash_.hex() for hash_ in hashes]
