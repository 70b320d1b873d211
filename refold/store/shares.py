"""Served shares: links that show one run to everybody who has them, until they expire.

A served share is stored as a view of its session, encrypted with the session's key, and
is deleted and erased with the session.  The link names the user, the session and the
share, encrypted with a key of the store.  So the stored share does not reveal the link,
and the link reveals no names.
"""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

import orjson

from refold.domain import errors, ids, ports
from refold.domain.canonical import repaired
from refold.domain.envelope import Envelope
from refold.domain.erasure import timestamp
from refold.domain.events import JsonObject
from refold.domain.ids import MAIN, StreamId
from refold.domain.model import repr_without_texts
from refold.domain.ports import SHARE_PREFIX, Head, StoredView
from refold.store.appends import Writer
from refold.store.recorded import recorded
from refold.store.session.session import Session

SHORTEST: Final = timedelta(minutes=1)
LONGEST: Final = timedelta(days=365)
_FORM: Final = 1  # of the stored share
_ID_BYTES: Final = 16  # of a random id
_BLOCK: Final = 128  # the length of a link shows that of its names only roughly
_LONGEST_TOKEN: Final = 8_192  # characters
_MICROSECOND: Final = timedelta(microseconds=1)
_T = TypeVar("_T")


@repr_without_texts
class Share(NamedTuple):
    """A run that a link shows, with its state at the time of sharing.

    creator: the name of the person who shared it, redacted.
    ends:    the seq of each stream of the session at that time, by stream.
    head:    the session's status, tokens, and last write at that time.
    created_at, expires_at: microseconds since 1970, by the store's time.
    """

    share_id: str
    user_id: str
    session_id: str
    created_at: int
    expires_at: int
    creator: str
    ends: Mapping[str, int]
    head: JsonObject

    @property
    def seq(self) -> int:
        """The seq at which the run was shared; later events are not shown."""
        return self.ends[MAIN]

    def shows(self, envelope: Envelope) -> bool:
        """Whether the event was in the session when it was shared."""
        return envelope.seq <= self.ends.get(envelope.stream, 0)

    def head_of(self, head: Head) -> Head:
        """Return the session's head at the time when the run was shared.

        head: its head now.
        """
        facts: Any = self.head
        return head._replace(
            state=head.state._replace(head_seq=self.seq),
            status=facts["status"],
            tokens=facts["tokens"],
            updated_at=facts["updated_at"],
        )

    def to_json(self) -> JsonObject:
        """Return the JSON that ``refold share --list --json`` prints."""
        return {
            "share": self.share_id,
            "user_id": self.user_id,
            "session_id": self.session_id,
            "seq": self.seq,
            "created_at": timestamp(self.created_at),
            "expires_at": timestamp(self.expires_at),
            "creator": self.creator,
        }


class NewShare(NamedTuple):
    """A new share, and the token of its link, which is stored nowhere."""

    share: Share
    token: str


def _new_share_seq(new: NewShare) -> tuple[int | None, Mapping[str, int]]:
    return new.share.seq, {}


def _revoked_shares(share: Share | None) -> tuple[int | None, Mapping[str, int]]:
    return None, {"shares": 0 if share is None else 1}


class Shares:
    """The served shares of a store.

    ``create`` does not search the run for values: ``refold share`` does so before.
    """

    def __init__(self, writer: Writer, open_session: Callable[..., Session]) -> None:
        self.writer = writer
        self._open_session = open_session

    @recorded("share", measure=_new_share_seq)
    def create(
        self, user_id: str, *, session_id: str, lasts: timedelta, creator: str = ""
    ) -> NewShare:
        """Share a session as it is now, for this time.

        Raises InvalidConfiguration for a time below a minute or above 365 days,
        SessionNotFound, Erased, Frozen, and StoreUnavailable for a read-only store.
        """
        check_lasts(lasts)
        session = self._open_session(user_id=user_id, session_id=session_id)
        head = session.head()
        if head.frozen:
            raise errors.Frozen("the user")
        ends = {MAIN: head.seq}
        for name in self.writer.log.streams(user_id, session_id):
            if name != MAIN:
                stream = session.stream._replace(stream=name)
                ends[name] = self.writer.log.head(stream).seq
        now = self.writer.time.observe().now
        storable_creator, _ = repaired(creator)
        redacted_creator, _ = self.writer.redactor.text(storable_creator)
        share = Share(
            share_id=secrets.token_hex(_ID_BYTES),
            user_id=user_id,
            session_id=session_id,
            created_at=now,
            expires_at=now + lasts // _MICROSECOND,
            creator=redacted_creator,
            ends=ends,
            head={
                "status": head.status,
                "tokens": head.tokens,
                "updated_at": head.updated_at,
            },
        )
        name = SHARE_PREFIX + share.share_id
        view = StoredView(head.seq, 0, _dumped(share))
        if not self.writer.log.save_view(session.stream, name, view, replaces=0):
            session.head()  # raises Erased
            raise errors.StoreUnavailable(
                "the share was not stored, because the database is read-only or the "
                "session is being encrypted again",
                remedy="share the run from a process that may write, or try again",
            )
        return NewShare(share, self._token(share))

    @recorded("share_list", "shares")
    def list(self, user_id: str, *, session_id: str | None = None) -> list[Share]:
        """Return the shares of a user, or of one session, that have not expired.

        Deletes expired ones, unless the database is read-only.

        Raises Erased.
        """
        ids.check_id("user_id", user_id)
        self.writer.log.erasures.refuse_erased(user_id)
        now = self.writer.time.now()
        shares: list[Share] = []
        for place in self._places(user_id, session_id):
            share = None
            with suppress(errors.Erased):
                share = self._load(place)
            if share is None:
                continue
            if share.expires_at > now:
                shares.append(share)
                continue
            stream = StreamId(user_id, place.session_id, MAIN)
            with suppress(errors.StoreUnavailable):
                self.writer.log.drop_view(stream, place.name)
        return shares

    @recorded("share_revoke", measure=_revoked_shares)
    def revoke(
        self, user_id: str, share_id: str, *, session_id: str | None = None
    ) -> Share | None:
        """Delete a share; its link shows nothing from now on.

        Returns the deleted share; None for one that cannot be read any more.

        Raises ShareNotFound, and StoreUnavailable for a read-only store.
        """
        ids.check_id("user_id", user_id)
        log = self.writer.log
        for place in self._places(user_id, session_id):
            if place.name != SHARE_PREFIX + share_id:
                continue
            share = None
            with suppress(errors.Erased):
                share = self._load(place)
            log.drop_view(StreamId(user_id, place.session_id, MAIN), place.name)
            if place in self._places(user_id, place.session_id):
                raise errors.StoreUnavailable(
                    "the share was not deleted, because the database is read-only",
                    remedy="revoke it from a process that may write",
                )
            return share
        raise errors.ShareNotFound

    def open(self, token: str, render: Callable[[Session, Share], _T]) -> _T:
        """Return what ``render`` makes of the shared run.

        The access log records one opening, whatever ``render`` reads.

        token: from ``create``.

        Raises ShareNotFound, without the reason: for a token that is not one of this
        store, and for a share that was revoked, has expired, or was erased.
        """
        place = self._place_of(token)
        if place is None:
            self._refuse()
        return self._rendered(
            user_id=place.user_id,
            session_id=place.session_id,
            name=place.name,
            render=render,
        )

    @recorded("share_open")
    def _refuse(self) -> NoReturn:
        """Raise ShareNotFound; the record names nobody."""
        raise errors.ShareNotFound

    @recorded("share_open", "characters")
    def _rendered(
        self,
        *,
        user_id: str,
        session_id: str,
        name: str,
        render: Callable[[Session, Share], _T],
    ) -> _T:
        try:
            stream = StreamId(user_id, session_id, MAIN)
            self.writer.log.head(stream)  # raises Erased, also in a grace period
            share = self._load(ports.Place(user_id, session_id, name))
            if share is None or share.expires_at <= self.writer.time.now():
                raise errors.ShareNotFound
            session = self._open_session(user_id=user_id, session_id=session_id)
            return render(session, share)
        except (errors.Erased, errors.SessionNotFound):
            raise errors.ShareNotFound from None

    def _places(self, user_id: str, session_id: str | None) -> Sequence[ports.Place]:
        """Return the places of the shares of a user, or of one session."""
        log = self.writer.log
        if session_id is None:
            return log.share_places(user_id)
        places: tuple[ports.Place, ...] = ()
        for name in log.view_names(user_id, session_id):
            if name.startswith(SHARE_PREFIX):
                places += (ports.Place(user_id, session_id, name),)
        return places

    def _load(self, place: ports.Place) -> Share | None:
        """Return the share that is stored in this place; None if none can be read."""
        stream = StreamId(place.user_id, place.session_id, MAIN)
        view = self.writer.log.load_view(stream, place.name)
        if view is None or view.body.get("form") != _FORM:
            return None
        stored: Any = view.body
        return Share(
            share_id=place.name.removeprefix(SHARE_PREFIX),
            user_id=place.user_id,
            session_id=place.session_id,
            created_at=stored["created_at"],
            expires_at=stored["expires_at"],
            creator=stored["creator"],
            ends=stored["ends"],
            head=stored["head"],
        )

    def _token(self, share: Share) -> str:
        """Return the token of a link to a share."""
        names = orjson.dumps([share.user_id, share.session_id, share.share_id])
        padded = names.ljust(-(-len(names) // _BLOCK) * _BLOCK)
        return _encoded(self.writer.log.encrypt_link(padded))

    def _place_of(self, token: str) -> ports.Place | None:
        """Return the place of the share that a token names; None for other texts."""
        if len(token) > _LONGEST_TOKEN:
            return None
        try:
            padding = "=" * (-len(token) % 4)
            ciphertext = base64.b64decode(token + padding, b"-_", validate=True)
        except (ValueError, binascii.Error):
            return None
        if _encoded(ciphertext) != token:  # several texts encode the same bytes
            return None
        names = self.writer.log.decrypt_link(ciphertext)
        if names is None:
            return None
        user_id, session_id, share_id = orjson.loads(names)
        return ports.Place(user_id, session_id, SHARE_PREFIX + share_id)


def check_lasts(lasts: timedelta) -> timedelta:
    """Return the time for which a run is shared.

    Raises InvalidConfiguration for a time below a minute or above 365 days.
    """
    if not SHORTEST <= lasts <= LONGEST:
        raise errors.InvalidConfiguration(
            "a share lasts at least a minute and at most 365 days, such as 7d"
        )
    return lasts


def _encoded(ciphertext: bytes) -> str:
    return base64.urlsafe_b64encode(ciphertext).rstrip(b"=").decode()


def _dumped(share: Share) -> JsonObject:
    """Return the stored form of a share."""
    return {
        "form": _FORM,
        "created_at": share.created_at,
        "expires_at": share.expires_at,
        "creator": share.creator,
        "ends": dict(share.ends),
        "head": dict(share.head),
    }
