"""Which calls of the public classes are recorded in the audit log, and as what."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from refold.store.audited import Call

_LOAD: Final = Call("session_load")

SESSION: Final[Mapping[str, Call]] = {
    "head": _LOAD,
    "events": _LOAD,
    "pages": _LOAD,
    "derived": _LOAD,
    "timeline": _LOAD,
    "streams": Call("session_load", "streams"),
    "state": Call("session_load", "keys"),
    "blob": Call("session_blob"),
    "context": Call("session_context"),
    "prepare": Call("session_context"),
    "advice": Call("memory_load"),
    "replay": Call("session_replay", "requests"),
    "compare": Call("session_compare"),
    "why": Call("session_why"),
    "verify": Call("session_verify"),
    "stats": Call("session_stats", "figures"),
    "catch_up": Call("session_catch_up", "views"),
    "review": Call("session_review"),
    "compact": Call("compaction", if_it_fails=True),
    "compactor": Call("compaction", if_it_fails=True),
}

USER: Final[Mapping[str, Call]] = {"status": Call("memory_load", "scopes")}

STORE: Final[Mapping[str, Call]] = {
    "sessions": Call("session_list", "sessions"),
    "memory": Call("memory_load"),
    "advice": Call("memory_load"),
    "shared_memory": Call("memory_load", named=False),
    "profile": Call("memory_load"),
    "reviews": Call("review_list", "questions"),
    "stats": Call("stats", "figures"),
    "catch_up": Call("catch_up", "views"),
    "recheck": Call("recheck", "sessions"),
    "reredact": Call("reredact", "sessions"),
    "rebuild": Call("rebuild", "sessions"),
    "repair": Call("repair", "streams"),
    "seal": Call("seal"),
    "verify_seals": Call("verify_seals"),
    "export_user": Call("export"),
    "rotate_master_key": Call("key_rotation", "keys"),
    "rotate_user_key": Call("key_rotation", "keys"),
    "rotate_session_key": Call("key_rotation"),
    "key_status": Call("key_status", "figures"),
    "erase": Call("erasure", named=False),
    "erase_due": Call("erasure", "erasures", named=False),
    "plan_erasure": Call("erasure_plan", named=False),
    "erasures": Call("erasure_list", "erasures"),
    "restore": Call("restore", named=False),
    "readmit": Call("readmit", named=False),
    "hold": Call("hold", named=False),
    "release_hold": Call("hold_release", named=False),
    "holds": Call("hold_list", "holds", named=False),
    "certificates": Call("certificate_list", "certificates", named=False),
    "freeze": Call("freeze", named=False),
    "unfreeze": Call("unfreeze", named=False),
    "is_frozen": Call("hold_list", named=False),
    "accesses": Call("access_list", "sessions"),
    "retain": Call("retention", named=False),
    "audit_records": Call("audit_read", "records"),
    "purge_audit": Call("audit_purge", "records"),
}

# Not recorded themselves, each for its reason; a test asks for all that is public.
ELSEWHERE: Final[Mapping[str, str]] = {
    "Session.append": "every append is recorded, by whatever it is made",
    "Session.append_async": "the same",
    "Session.close": "the same",
    "Session.record_request": "the same",
    "Session.attempt": "the same",
    "Session.decide": "the same",
    "User.consent": "the same",
    "User.withdraw": "the same",
    "User.opt_out": "the same",
    "User.opt_in": "the same",
    "User.forget": "the same",
    "User.prefer": "the same",
    "User.unprefer": "the same",
    "Session.fork": "it looks at the head, and appends",
    "Session.at": "it looks at the head",
    "SessionStore.verify": "each session is recorded, when it is proved",
    "SessionStore.session": "it reads nothing",
    "SessionStore.user": "it reads nothing",
    "SessionStore.public_key": "it is public",
    "SessionStore.flush_audit": "it reads nothing",
    "SessionStore.close": "what waits to be recorded is written by it",
}
