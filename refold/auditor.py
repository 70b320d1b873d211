"""Checks proofs of Refold without Refold: this file, Python 3.9 and ``cryptography``.

    python auditor.py PROOF.json --public-key KEY.pem [--anchor ANCHOR.jsonl]

It needs no store, user's key or network.  Exit code 0: it holds, 1: it does not, 2: a
file is no such file.
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
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

_PEM = bytes.fromhex("302a300506032b6570032100")  # what precedes the key in DER
_PLACE = ("user_id", "session_id", "stream")
_HEADER = ("seq", "type", "ts", "event_id", "token_estimate", "schema_version")
_PLACED = len(_PLACE) + _HEADER.index("event_id")  # of which the bytes count


class Refused(Exception):
    """The proof does not hold; the message says where."""


def check(proof: Any, public_key: bytes, anchored: Iterable[Any] | None = None) -> str:
    """What ``proof`` shows, as a sentence.

    proof:      as ``refold prove`` wrote it, parsed.
    public_key: 32 bytes, from somebody you trust: not from who gave you the proof.
    anchored:   tree heads that were kept elsewhere, which must name the proof's, of a
                growth the smaller one; None: there are none to compare with.

    Raises Refused if it does not hold, ValueError if it is no proof.
    """
    heads = anchored if anchored is None else list(anchored)
    try:
        if proof["proof"] == "refold event proof 1":
            _known(proof["tree_head"], heads)
            return _check_event(proof, public_key)
        if proof["proof"] == "refold consistency proof 1":
            _known(proof["old"], heads)
            _known(proof["new"], heads, must=False)
            return _check_growth(proof, public_key)
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        raise ValueError(f"this is not a proof: {type(error).__name__}") from None
    raise ValueError("this is not a proof that this program knows")


def _check_event(proof: Any, public_key: bytes) -> str:
    event, head = proof["event"], proof["tree_head"]
    root = _tree_head(head, public_key)
    found = _linked(bytes.fromhex(event["prev_hash"]), _header(event), event["body"])
    for header, body in proof["chain"]:
        found = _linked(found, bytes.fromhex(header), body)
    leaf = proof["leaf"]
    parts = [bytes.fromhex(leaf[name]) for name in ("positions", "receipts")]
    hashed = _sha256(b"\0refold:leaf:1", found, *_all_32(parts))
    siblings = _all_32([bytes.fromhex(part) for part in proof["inclusion"]])
    if not _included(hashed, leaf["index"], head["size"], siblings, root):
        raise Refused("the event is not in the tree: it, or a hash, is another")
    of = ", ".join(f"{name} {event[name]!r}" for name in _PLACE)
    what = f"event {event['seq']} ({event['type']}) of {of}"
    return f"holds: {what} was in the log when {_said(head)}"


def _check_growth(proof: Any, public_key: bytes) -> str:
    old, new = proof["old"], proof["new"]
    roots = [_tree_head(head, public_key) for head in (old, new)]
    if old["store_id"] != new["store_id"]:
        raise Refused("the tree heads are of two stores")
    parts = _all_32([bytes.fromhex(part) for part in proof["consistency"]])
    if not _consistent(old["size"], roots[0], new["size"], roots[1], parts):
        raise Refused("the larger tree does not begin with the smaller one")
    return f"holds: what was sealed when {_said(old)}, is unchanged when {_said(new)}"


def _said(head: Any) -> str:
    sealed = time.gmtime(head["sealed_at"] // 1_000_000)
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", sealed)
    return f"the tree head of size {head['size']} was signed, {when}"


def _known(head: Any, anchored: list[Any] | None, *, must: bool = True) -> None:
    """That the anchor has this tree head, or at least no other in its place."""
    name = (head["store_id"], head["size"])
    roots = [o["root"] for o in anchored or () if (o["store_id"], o["size"]) == name]
    if anchored is not None and must and not roots:
        raise Refused(f"the anchor has no tree of {head['size']} leaves of that store")
    if any(root != head["root"] for root in roots):
        raise Refused(f"the anchor has another tree of {head['size']} leaves")


def _tree_head(head: Any, public_key: bytes) -> bytes:
    """The root of a tree head, its signature checked."""
    root = bytes.fromhex(head["root"])
    numbers = [head[name] for name in ("size", "sealed_at", "position")]
    if any(type(number) is not int for number in numbers):
        raise ValueError("this is not a proof: a size is not a number")
    size, *rest = map(str, numbers)
    lines = ("refold tree head 1", head["store_id"], size, root.hex(), *rest, "")
    message = "\n".join(lines).encode()
    signature = bytes.fromhex(head["signature"])
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        raise Refused(
            f"the tree head of {head['size']} leaves has not this key's mark"
        ) from None
    return root


def _header(event: Any) -> bytes:
    """The digest of an event's plain columns: each behind its length."""
    parts = [str(event[name]).encode() for name in (*_PLACE, *_HEADER)]
    parts[_PLACED] = bytes.fromhex(event["event_id"].replace("-", ""))
    return _sha256(*(len(part).to_bytes(4, "big") + part for part in parts))


def _linked(before: bytes, header: bytes, body: str) -> bytes:
    """The hash of an event, of the one before it and of what it holds."""
    parts = _all_32([before, header, bytes.fromhex(body)])
    return _sha256(b"refold:event:1", *parts)


def _all_32(parts: list[bytes]) -> list[bytes]:
    if any(len(part) != 32 for part in parts):
        raise ValueError("this is not a proof: a hash has 32 bytes")
    return parts


def _sha256(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def _node(left: bytes, right: bytes) -> bytes:
    return _sha256(b"\1", left, right)


def _turns(place: int, last: int) -> list[bool]:
    """Whether each sibling on the way from a leaf to the root stands on the left.

    RFC 9162, sections 2.1.3.2 and 2.1.4.2.
    """
    turns = []
    while last:
        turns.append(bool(place & 1) or place == last)
        while turns[-1] and not place & 1 and place:
            place, last = place >> 1, last >> 1
        place, last = place >> 1, last >> 1
    return turns


def _included(
    leaf: bytes, index: int, size: int, proof: list[bytes], root: bytes
) -> bool:
    if type(index) is not int or not 0 <= index < size:
        return False
    found, turns = leaf, _turns(index, size - 1)
    for is_left, part in zip(turns, proof):  # noqa: B905  # not in Python 3.9
        found = _node(part, found) if is_left else _node(found, part)
    return len(turns) == len(proof) and found == root


def _consistent(
    old_size: int, old_root: bytes, size: int, root: bytes, proof: list[bytes]
) -> bool:
    if not 0 < old_size <= size:
        return False
    if old_size == size:
        return not proof and old_root == root
    hashes = list(proof)
    if old_size & (old_size - 1) == 0:
        hashes.insert(0, old_root)
    if not hashes:
        return False
    place, last = old_size - 1, size - 1
    while place & 1:
        place, last = place >> 1, last >> 1
    old = new = hashes[0]
    turns = _turns(place, last)
    for is_left, part in zip(turns, hashes[1:]):  # noqa: B905  # the same
        old = _node(part, old) if is_left else old
        new = _node(part, new) if is_left else _node(new, part)
    return len(turns) == len(hashes) - 1 and (old, new) == (old_root, root)


def read_key(text: str) -> bytes:
    """An Ed25519 public key from PEM, hex or base64; raises ValueError."""
    text = text.strip()
    if "BEGIN PUBLIC KEY" in text:
        body = "".join(line for line in text.splitlines() if "-" not in line)
        der = base64.b64decode(body, validate=True)
        key = der[len(_PEM) :] if der.startswith(_PEM) else b""
    else:
        key = bytes.fromhex(text) if len(text) == 64 else base64.b64decode(text)
    if len(key) != 32:
        raise ValueError("this is not an Ed25519 public key")
    return key


def main(arguments: list[str] | None = None) -> int:
    """Check the proof that the arguments name; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("proof", type=Path, help="what `refold prove` wrote")
    add("--public-key", type=Path, required=True, help="PEM, hex or base64")
    add("--anchor", type=Path, help="tree heads that were kept elsewhere")
    given = parser.parse_args(arguments)
    try:
        proof = json.loads(given.proof.read_text("utf-8"))
        key = read_key(given.public_key.read_text("utf-8"))
        lines = given.anchor and given.anchor.read_text("utf-8").splitlines()
        heads = None if lines is None else [json.loads(line) for line in lines]
        print(check(proof, key, heads))
    except Refused as refused:
        print(f"does not hold: {refused}")
        return 1
    except (OSError, ValueError, RecursionError) as error:
        print(f"cannot be checked: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
