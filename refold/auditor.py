"""Check a Refold proof with only this file, Python 3.9 or later and ``cryptography``.

    python auditor.py PROOF.json --public-key KEY.pem [--anchor ANCHOR.jsonl]

It needs no store, no user's key and no network.  The exit code is 0 if the proof holds,
1 if it does not, and 2 if a file cannot be read or is not what it should be.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Dict, Set, Tuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

_KEY_PREFIX = bytes.fromhex("302a300506032b6570032100")  # of an Ed25519 key in DER
_STREAM = ("user_id", "session_id", "stream")
_Roots = Dict[Tuple[str, int], Set[bytes]]  # by store and size
_COLUMNS = ("seq", "type", "ts", "event_id", "token_estimate", "schema_version")


class Refused(Exception):
    """Raised for a proof that does not hold; the message gives the reason."""


def check(proof: Any, public_key: bytes, anchored: Iterable[Any] | None = None) -> str:
    """Check a proof and return a sentence with what it proves.

    proof:      the parsed output of ``refold prove``.
    public_key: 32 bytes, from somebody you trust, and not from the proof's author.
    anchored:   the tree heads of an anchor.  They must contain the tree head of an
                event proof, or the smaller one of a consistency proof.  None if you
                have no anchor.

    Raises Refused if the proof does not hold, ValueError for malformed arguments.
    """
    roots = _anchored_roots(anchored or ())
    try:
        if proof["proof"] == "refold event proof 1":
            _check_anchored(proof["tree_head"], roots, required=anchored is not None)
            return _check_event(proof, public_key)
        if proof["proof"] == "refold consistency proof 1":
            _check_anchored(proof["old"], roots, required=anchored is not None)
            _check_anchored(proof["new"], roots, required=False)
            return _check_growth(proof, public_key)
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise ValueError(f"this is not a proof: {type(error).__name__}") from None
    raise ValueError("unknown kind of proof")


def _check_event(proof: Any, public_key: bytes) -> str:
    """Check that an event is in a signed tree."""
    event = proof["event"]
    tree_head = proof["tree_head"]
    root = _signed_root(tree_head, public_key)
    # The hash chain leads from the event to the end of its stream, which is the leaf.
    header = _header_digest(event)
    chain_hash = _event_hash(_hash(event["prev_hash"]), header, _hash(event["body"]))
    for header_hash, body_hash in proof["chain"]:
        chain_hash = _event_hash(chain_hash, _hash(header_hash), _hash(body_hash))
    leaf = proof["leaf"]  # has digests of the new events' positions and receipts
    positions = _hash(leaf["positions"])
    receipts = _hash(leaf["receipts"])
    leaf_hash = _sha256(b"\0refold:leaf:1", chain_hash, positions, receipts)
    siblings = [_hash(text) for text in proof["inclusion"]]
    if not _is_included(leaf_hash, leaf["index"], tree_head["size"], siblings, root):
        raise Refused("the event is not in the tree: the event or a hash was changed")
    stream = ", ".join(f"{name} {event[name]!r}" for name in _STREAM)
    subject = f"event {event['seq']} ({event['type']}) of {stream}"
    return f"holds: {subject} was in the log that {_described(tree_head)} covers"


def _check_growth(proof: Any, public_key: bytes) -> str:
    """Check that a tree begins with the leaves of a smaller one."""
    old = proof["old"]
    new = proof["new"]
    old_root = _signed_root(old, public_key)
    new_root = _signed_root(new, public_key)
    if old["store_id"] != new["store_id"]:
        raise Refused("the tree heads come from different stores")
    hashes = [_hash(text) for text in proof["consistency"]]
    if not _is_consistent(old["size"], old_root, new["size"], new_root, hashes):
        raise Refused("the larger tree does not begin with the smaller one")
    return (
        f"holds: the log that {_described(old)} covers is the unchanged beginning of "
        f"the log that {_described(new)} covers"
    )


def _described(head: Any) -> str:
    """Return a tree head in words."""
    sealed_at = time.gmtime(head["sealed_at"] // 1_000_000)  # from microseconds
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", sealed_at)
    return f"the tree head of size {head['size']} (signed at {moment})"


def _anchored_roots(anchored: Iterable[Any]) -> _Roots:
    """Return an anchor's roots.  Raises ValueError if an entry is not a tree head."""
    roots: _Roots = {}
    for number, head in enumerate(anchored, 1):
        try:
            tree = (head["store_id"], head["size"])
            roots.setdefault(tree, set()).add(_hash(head["root"]))
        except (KeyError, TypeError, ValueError):
            raise ValueError(f"anchor entry {number} is not a tree head") from None
    return roots


def _check_anchored(head: Any, roots: _Roots, *, required: bool) -> None:
    """Raise Refused if the anchor contradicts a tree head, or lacks a required one."""
    anchored = roots.get((head["store_id"], head["size"]), set())
    if required and not anchored:
        raise Refused(f"the anchor has no tree of {head['size']} leaves of that store")
    if anchored - {_hash(head["root"])}:
        raise Refused(f"the anchor has another tree of {head['size']} leaves")


def _signed_root(head: Any, public_key: bytes) -> bytes:
    """Return the root of a tree head after a check of its signature."""
    root = _hash(head["root"])
    for name in ("size", "sealed_at", "position"):
        if type(head[name]) is not int:
            raise ValueError(f"this is not a proof: {name} is not a whole number")
    lines = [
        "refold tree head 1",
        head["store_id"],
        str(head["size"]),
        root.hex(),
        str(head["sealed_at"]),
        str(head["position"]),
        "",
    ]
    message = "\n".join(lines).encode()
    signature = bytes.fromhex(head["signature"])
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        raise Refused(
            f"the tree head of {head['size']} leaves was not signed with this key"
        ) from None
    return root


def _header_digest(event: Any) -> bytes:
    """Return the digest of an event's unencrypted columns, each after its length."""
    parts = []
    for name in (*_STREAM, *_COLUMNS):
        column = str(event[name]).encode()
        if name == "event_id":
            column = bytes.fromhex(event[name].replace("-", ""))
        parts += [len(column).to_bytes(4, "big"), column]
    return _sha256(*parts)


def _event_hash(prev_hash: bytes, header: bytes, body: bytes) -> bytes:
    """Return an event's hash, made of the previous hash, its header and its body."""
    return _sha256(b"refold:event:1", prev_hash, header, body)


def _hash(text: str) -> bytes:
    """Return the hash with these 64 hex digits.  Raises ValueError for other texts."""
    value = bytes.fromhex(text)
    if (len(value), len(text)) != (32, 64):  # fromhex ignores spaces
        raise ValueError("this is not a proof: a hash has 64 hex digits")
    return value


def _sha256(*parts: bytes) -> bytes:
    """Return the SHA-256 of the joined parts."""
    return hashlib.sha256(b"".join(parts)).digest()


def _node(left: bytes, right: bytes) -> bytes:
    """Return the hash of a node from those of its children."""
    return _sha256(b"\1", left, right)


def _left_siblings(index: int, last: int) -> list[bool]:
    """Return, for each sibling from a leaf to the root, whether it is the left child.

    last: the index of the last leaf.

    The walk is that of RFC 9162, sections 2.1.3.2 and 2.1.4.2.
    """
    are_left = []
    while last:
        is_left = bool(index & 1) or index == last
        are_left.append(is_left)
        # A last node with an even index moves up until it has a sibling, on the left.
        while is_left and index and not index & 1:
            index >>= 1
            last >>= 1
        index >>= 1
        last >>= 1
    return are_left


def _is_included(
    leaf: bytes, index: int, size: int, siblings: list[bytes], root: bytes
) -> bool:
    """Whether the siblings lead from a leaf to the root of a tree of this size."""
    if type(index) is not int or not 0 <= index < size:
        return False
    are_left = _left_siblings(index, size - 1)
    node = leaf
    for is_left, sibling in zip(are_left, siblings):  # noqa: B905  # not in Python 3.9
        node = _node(sibling, node) if is_left else _node(node, sibling)
    return len(are_left) == len(siblings) and node == root


def _is_consistent(
    old_size: int, old_root: bytes, size: int, root: bytes, proof: list[bytes]
) -> bool:
    """Whether the proof leads to the roots of both trees."""
    if not 0 < old_size <= size:
        return False
    if old_size == size:
        return not proof and old_root == root
    hashes = list(proof)
    is_power_of_two = old_size & (old_size - 1) == 0
    if is_power_of_two:  # then the old root is a node of the new tree
        hashes.insert(0, old_root)
    if not hashes:
        return False
    # Begin at the largest complete subtree that ends with the last old leaf.
    index = old_size - 1
    last = size - 1
    while index & 1:
        index >>= 1
        last >>= 1
    are_left = _left_siblings(index, last)
    first, *siblings = hashes
    old_node = first
    new_node = first
    for is_left, sibling in zip(are_left, siblings):  # noqa: B905  # not in Python 3.9
        if is_left:
            old_node = _node(sibling, old_node)
            new_node = _node(sibling, new_node)
        else:  # a node of leaves that the old tree does not have
            new_node = _node(new_node, sibling)
    is_complete = len(are_left) == len(siblings)
    return is_complete and old_node == old_root and new_node == root


def read_key(text: str) -> bytes:
    """Return an Ed25519 key in PEM, hex or base64.  Raises ValueError for others."""
    text = text.strip()
    if "BEGIN PUBLIC KEY" in text:
        body = "".join(line for line in text.splitlines() if "-" not in line)
        der = base64.b64decode(body, validate=True)
        key = der[len(_KEY_PREFIX) :] if der.startswith(_KEY_PREFIX) else b""
    elif len(text) == 64:
        key = bytes.fromhex(text)
    else:
        key = base64.b64decode(text, validate=True)
    if len(key) != 32:
        raise ValueError("this is not an Ed25519 public key")
    return key


def main(arguments: list[str] | None = None) -> int:
    """Check the proof in a file and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("proof", type=Path, help="output of `refold prove`")
    parser.add_argument(
        "--public-key", type=Path, required=True, help="PEM, hex or base64"
    )
    parser.add_argument("--anchor", type=Path, help="tree heads of the anchor")
    options = parser.parse_args(arguments)
    try:
        proof = json.loads(options.proof.read_text("utf-8"))
        key = read_key(options.public_key.read_text("utf-8"))
        heads = None
        if options.anchor is not None:
            lines = options.anchor.read_text("utf-8").splitlines()
            heads = [json.loads(line) for line in lines if line.strip()]
        outcome = check(proof, key, heads)
        code = 0
    except Refused as refused:
        outcome = f"does not hold: {refused}"
        code = 1
    except (OSError, ValueError, RecursionError) as error:
        print(f"cannot be checked: {error}", file=sys.stderr)
        return 2
    encoding = sys.stdout.encoding or "ascii"  # may lack some characters of an id
    print(outcome.encode(encoding, "backslashreplace").decode(encoding))
    return code


if __name__ == "__main__":
    sys.exit(main())
