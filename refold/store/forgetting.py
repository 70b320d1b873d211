"""What a store forgets, lets in again, and may not forget: its part of the API."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import uuid4

from refold.domain.certificate import SALT, Signed, timestamp
from refold.domain.erasure import Job, LegalHold, Whose
from refold.domain.errors import InvalidEvent, NotErased
from refold.domain.ids import USER_SESSION, check_id, check_session_id
from refold.domain.keeping import FREEZE
from refold.domain.ports import Problem, SessionInfo
from refold.domain.sizes import scope
from refold.store.erasing import Ask, Eraser, Erasure, ErasurePlan, Progress
from refold.store.verifying import Verified
from refold.store.writing import Writer

_RETURNED = "erased before; a backup of the database brought rows back"


class Forgets:
    """The part of a store that erases."""

    _writer: Writer

    def erase(
        self,
        user_id: str,
        reason: str,
        *,
        session_id: str | None = None,
        operator: str = "",
        grace: timedelta | None = None,
        key_backups: timedelta | None = None,
        vacuum: bool = False,
        progress: Progress | None = None,
    ) -> Erasure:
        """Forget a user for good: keys destroyed, rows deleted, a certificate signed.

        Nothing of the user can be read or written from the moment on that the call has
        marked the heads.  Cut off, it is completed by the next one; done, it does
        nothing more.  What runs meanwhile ends with Erased.

        session_id:  forget only this session, and what was forked from it.
        reason, operator: for the certificate; redacted, and the user's name taken out.
        grace:       unreadable at once, but destroyed only after this time, and until
                     then ``restore`` undoes it.
        key_backups: how long backups of the key store survive: until then somebody who
                     has both backups can read what was erased.
        vacuum:      have the engine write its tables anew, so that no deleted byte is
                     left in its files; others wait meanwhile.
        progress:    is told table, rows deleted of it, and how many there are.

        Raises OnHold, SessionNotFound, StoreUnavailable, InvalidConfiguration for a
        time of less than nothing or of more than 999999 days.
        """
        whose = _whose(user_id, session_id)
        ask = Ask(whose, reason, operator, grace, key_backups, vacuum)
        return Eraser(self._writer, progress).erase(ask)

    def plan_erasure(self, user_id: str, session_id: str | None = None) -> ErasurePlan:
        """What ``erase`` would delete, and which holds forbid it; changes nothing."""
        return Eraser(self._writer).plan(_whose(user_id, session_id))

    def erasures(self) -> list[Job]:
        """Erasures that are not done: cut off, or held back until their date."""
        return self._writer.log.erasures.jobs()

    def _unfinished(
        self, user_id: str | None
    ) -> Iterator[tuple[SessionInfo, Verified]]:
        """Erasures that were cut off, as problems of what they are of."""
        for job in self._writer.log.erasures.jobs(user_id):
            owner, names = job.whose
            if job.stage != "held" and user_id in (None, owner):
                name = names[0] if names else "_user"
                detail = "its erasure was cut off: `refold erase --due` completes it"
                problem = Problem(owner, name, "main", None, "erasure", detail)
                info = SessionInfo(owner, name, 0, "erased", 0, 0, 0)
                yield info, Verified(0, 0, 0, [problem])

    def erase_due(
        self, *, vacuum: bool = False, progress: Progress | None = None
    ) -> Iterator[Erasure]:
        """Complete every erasure that was cut off, or whose time has come.

        Users who were erased and whose rows a backup of the database brought back are
        erased again.
        """
        now, eraser = self._writer.clock(), Eraser(self._writer, progress)
        for job in self.erasures():
            if job.stage == "restoring":
                eraser.restored(job)
            elif job.stage != "held" or (job.due_at or 0) <= now:
                yield eraser.run(job, vacuum=vacuum)
        for user_id in self._writer.log.erasures.returned():
            yield eraser.erase(Ask(Whose(user_id), _RETURNED, "", vacuum=vacuum))

    def restore(self, user_id: str, reason: str, *, operator: str = "") -> Signed:
        """Undo the erasures of a user that are held back; a certificate says so.

        Raises NotErased if there is none.
        """
        eraser, signed = Eraser(self._writer), None
        whose = _whose(user_id, None)
        for job in self._writer.log.erasures.jobs(user_id):
            if job.stage in ("held", "restoring"):
                said = {
                    "restored_for": eraser.redacted(reason, whose),
                    "restored_by": eraser.redacted(operator, whose),
                }
                job = replace(job, facts={**job.facts, **said})
                signed = eraser.restored(job) or signed
        if signed is None:
            raise NotErased("there is no erasure of that user that could be undone")
        return signed

    def readmit(self, user_id: str, reason: str, *, operator: str = "") -> Signed:
        """Let a user who was erased come back: with a new key, in a new epoch.

        Nothing of before comes back.  Raises NotErased.
        """
        check_id("user_id", user_id)
        epoch = self._writer.log.erasures.readmit(user_id, now=self._writer.clock())
        return self._said("readmitted", user_id, reason, operator, epoch=epoch)

    def hold(
        self, user_id: str, name: str, reason: str, *, operator: str = ""
    ) -> Signed | None:
        """Forbid to erase a user, by a legal hold of this name; None if it was there.

        It keeps an erasure from beginning, not one that is under way.
        """
        check_id("user_id", user_id)
        _check_hold(name)
        eraser = Eraser(self._writer)
        said = eraser.redacted(reason, _whose(user_id, None))
        hold = LegalHold(check_id("name", name), said, self._writer.clock())
        if not self._writer.log.erasures.hold(user_id, hold):
            return None
        return self._said("legal hold", user_id, reason, operator, hold=name)

    def release_hold(
        self, user_id: str, name: str, reason: str, *, operator: str = ""
    ) -> Signed:
        """End a legal hold.  Raises NotErased if there is none of that name."""
        _check_hold(name)
        check_id("user_id", user_id)
        if not self._writer.log.erasures.release(user_id, check_id("name", name)):
            raise NotErased(f"there is no legal hold {name!r} on that user")
        return self._said("legal hold released", user_id, reason, operator, hold=name)

    def holds(self, user_id: str) -> list[LegalHold]:
        """The legal holds on a user."""
        return self._writer.log.erasures.holds(check_id("user_id", user_id))

    def certificates(self, user_id: str | None = None) -> list[Signed]:
        """What was signed, of a user or all, the oldest first."""
        return self._writer.log.erasures.certificates(scope(user_id).user_id)

    def public_key(self) -> bytes:
        """What certificates and tree heads are checked with: 32 bytes of Ed25519."""
        return self._writer.log.erasures.public_key()

    def _said(
        self, act: str, user_id: str, reason: str, operator: str, **facts: Any
    ) -> Signed:
        """Sign and keep that something was done."""
        eraser, whose = Eraser(self._writer), _whose(user_id, None)
        now = self._writer.clock()
        statement = {
            **eraser.statement(act, str(uuid4()), whose, os.urandom(SALT)),
            "completed_at": timestamp(now),
            "reason": eraser.redacted(reason, whose),
            "operator": eraser.redacted(operator, whose),
            **facts,
        }
        signed = eraser.erasures.certify(None, user_id, statement, now=now)
        assert signed is not None  # noqa: S101  # there is no job that others could end
        return signed


def _check_hold(name: str) -> None:
    if name == FREEZE:
        raise InvalidEvent(f"{name!r} names no legal hold: store.freeze and unfreeze")


def _whose(user_id: str, session_id: str | None) -> Whose:
    check_id("user_id", user_id)
    if session_id is None:
        return Whose(user_id)
    if session_id == USER_SESSION:
        raise InvalidEvent(f"{USER_SESSION!r} is of the whole user: erase the user")
    return Whose(user_id, (check_session_id(session_id),))
