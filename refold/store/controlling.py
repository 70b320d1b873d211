"""What a user, or who answers for one, can ask for: its part of the API."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

from refold.domain.certificate import Signed
from refold.domain.erasure import LegalHold, Whose
from refold.domain.ids import check_id
from refold.domain.keeping import FREEZE, Accesses
from refold.domain.retention import RetentionPolicy
from refold.domain.sizes import scope
from refold.store.audit_log import KeepsAudit
from refold.store.erasing import Eraser
from refold.store.exporting import Exported, export_user
from refold.store.forgetting import Forgets
from refold.store.retaining import How, Progress, Retained, Retainer
from refold.store.users import User
from refold.store.using import Uses


class Controls(Forgets, KeepsAudit):
    """The part of a store that hands out a user's data, keeps it, and lets it go."""

    _uses: Uses | None

    def user(self, user_id: str) -> User:
        """The user as a whole: what they allow.  Raises InvalidEvent for no name."""
        return User(self._writer, check_id("user_id", user_id))

    def export_user(self, user_id: str, out: str | os.PathLike[str]) -> Exported:
        """Write all that is kept of a user to a new directory, in plain, readable.

        Sessions, derived streams, whole texts, views, consent, holds and certificates,
        and a manifest with the digest of each file.  ``out`` appears at the end, whole;
        until then it is a hidden directory beside, which is removed if this fails.

        Raises Erased if the user, or one of the sessions, is erased meanwhile,
        SessionNotFound for a user who has none, ExportFailed if something is there.
        """
        return export_user(self._writer, check_id("user_id", user_id), Path(out))

    def freeze(self, user_id: str, reason: str, *, operator: str = "") -> Signed | None:
        """Keep all of a user as it is: to be read, and neither added to nor erased.

        The database refuses every append from when this returns on, whoever makes it:
        it raises Frozen.  Retention and ``erase`` leave the user alone.  Returns a
        certificate, None if the user is frozen already.

        Raises Erased.
        """
        check_id("user_id", user_id)
        said = Eraser(self._writer).redacted(reason, Whose(user_id))
        freeze = LegalHold(FREEZE, said, self._writer.clock())
        if not self._writer.log.keeping.freeze(user_id, freeze):
            return None
        return self._said("frozen", user_id, reason, operator)

    def unfreeze(
        self, user_id: str, reason: str, *, operator: str = ""
    ) -> Signed | None:
        """Let a user go on; returns a certificate, None if they were not frozen."""
        check_id("user_id", user_id)
        if not self._writer.log.keeping.unfreeze(user_id):
            return None
        return self._said("unfrozen", user_id, reason, operator)

    def is_frozen(self, user_id: str) -> bool:
        """Whether the user is frozen at present."""
        holds = self._writer.log.erasures.holds(check_id("user_id", user_id))
        return any(hold.name == FREEZE for hold in holds)

    def accesses(self, user_id: str | None = None) -> list[Accesses]:
        """How often sessions were read by name, and when last: of a user, or all.

        What other processes counted in the last half minute may not be in it.
        """
        if self._uses is not None:
            self._uses.flush()
        return self._writer.log.keeping.accesses(scope(user_id).user_id)

    def retain(
        self,
        policy: RetentionPolicy,
        *,
        dry_run: bool = False,
        operator: str = "",
        key_backups: timedelta | None = None,
        progress: Progress | None = None,
    ) -> Retained:
        """Erase what nobody used for as long as the policy says.

        Each erasure is complete, with its certificate; cut off, it is completed by the
        next call.  A session that is used meanwhile stays, and so do those of a user
        who is held or frozen, and those that a fork in use goes on from.

        dry_run:     say what would go, and change nothing.
        operator:    for the certificates; redacted.
        key_backups: how long backups of the key store survive, for them too.
        """
        if self._uses is not None:
            self._uses.flush()
        how = How(dry_run, operator, key_backups, progress)
        done = Retainer(self._writer, policy, how).run()
        if policy.audit is None or dry_run or self._trail is None:
            return done
        return done._replace(audit=self.purge_audit(policy.audit))
