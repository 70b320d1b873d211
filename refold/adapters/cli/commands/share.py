"""``refold share``: a run for somebody else, as one HTML file or as a link."""

from __future__ import annotations

import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

import typer

from refold.adapters import config
from refold.adapters.cli import options, output
from refold.adapters.cli.commands.operate import Language
from refold.adapters.cli.files import Destination
from refold.adapters.display import values
from refold.domain.canonical import repaired
from refold.domain.errors import (
    InvalidConfiguration,
    RefoldError,
    ShareNotFound,
    counted,
)
from refold.domain.events import UserInput
from refold.store.session.forking import lineage

if TYPE_CHECKING:
    from refold.redaction.policy import Policy
    from refold.store import SessionStore
    from refold.store.session.session import Session

_MOST_FINDINGS: Final = 5  # places that the error names
_GREW: Final = (
    "the run was not shared: it got new events after the check of its redaction; share "
    "it again"
)


def share(
    call: options.Call,
    user: Annotated[
        str | None,
        options.user_option(
            "Name of the user.  Default: the only user; --expires and --revoke need it."
        ),
    ] = None,
    session: Annotated[
        str | None,
        options.session_option("Name of the session.  --list and --revoke need none."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write to this file, completely or not at all."
        ),
    ] = None,
    expires: Annotated[
        timedelta | None,
        typer.Option(
            metavar="TIME",
            parser=_lifetime,
            help="Print a link that `refold serve` answers for this time: 1m to 365d.",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            callback=_checked_url,
            help="Address of `refold serve`, such as https://host, for the link.",
        ),
    ] = None,
    listing: Annotated[
        bool,
        typer.Option("--list", help="List the links that have not expired."),
    ] = False,
    revoke: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Make the link with this id show nothing."),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Share without asking for confirmation.")
    ] = False,
    lang: Annotated[
        Language | None, typer.Option(help="Language of the file.  Default: en.")
    ] = None,
) -> output.Result:
    """Share a run with somebody else, after a check of its redaction.

    --out writes one HTML file, which opens without a network and cannot expire.
    --expires prints a link to a page of `refold serve`; it shows the run as it is now,
    without a login, until it expires or --revoke ends it.

    Searches the run with the rules of all packs, also those that the policy leaves
    out.  If they find something, shares nothing.  Then shows what the file or page will
    contain, and asks for confirmation on a terminal; elsewhere it needs --yes.

    The access log records the export, and each creation, opening and revocation of a
    link.  A later erasure names the file, and deletes the links.
    """
    _check_options(
        {
            "--out": out,
            "--expires": expires,
            "--list": listing,
            "--revoke": revoke,
        },
        only_with={
            "--url": (url, "--expires"),
            "--lang": (lang, "--out"),
        },
    )
    if listing:
        return _list_links(call, user, session)
    if user is None and out is None:
        raise typer.BadParameter("--expires and --revoke need --user")
    if revoke is not None and user is not None:
        return _revoke_link(call, user, session, revoke)
    if session is None:
        raise typer.BadParameter("name the session with --session")
    if out is not None:
        return _write_to_file(call, user, session, out, lang or "en", yes=yes)
    if expires is not None and user is not None:
        return _create_link(call, user, session, expires, url or "", yes=yes)
    raise AssertionError("unreachable: _check_options requires one of the four")


def _lifetime(text: str) -> timedelta:
    """Return the lifetime of a link.  Raises BadParameter for other texts."""
    from refold.store.shares import check_lasts

    try:
        return check_lasts(options.duration(text))
    except (InvalidConfiguration, OverflowError):
        raise typer.BadParameter(
            "a share lasts at least a minute and at most 365 days: write 1m to 365d"
        ) from None


def _checked_url(url: str | None) -> str | None:
    """Return the value of ``--url`` without a slash at its end.

    Raises BadParameter for anything else than the address of a server.
    """
    if url is None:
        return None
    try:
        parts = urlsplit(url)
        is_address = bool(
            parts.scheme in ("http", "https")
            and parts.hostname
            and parts.port != 0
            and not (parts.username or parts.query or parts.fragment)
            and url.isprintable()
            and " " not in url
        )
    except ValueError:
        is_address = False
    if not is_address:
        raise typer.BadParameter("write the address of the server, as https://host")
    return url.rstrip("/")


def _check_options(
    actions: Mapping[str, object], *, only_with: Mapping[str, tuple[object, str]]
) -> None:
    """Raise BadParameter unless exactly one action is chosen, with its own options.

    only_with: options, each with its value and the action that it belongs to.
    """
    chosen = list(options.used(actions))
    names = list(actions)
    listed_names = f"{', '.join(names[:-1])} or {names[-1]}"
    if not chosen:
        raise typer.BadParameter(
            "choose one of these: --out FILE writes the run to an HTML file, "
            "--expires TIME creates a link that ends, --list lists the links, "
            "--revoke ID ends one"
        )
    if len(chosen) > 1:
        raise typer.BadParameter(
            f"{' and '.join(chosen)} exclude each other: give one of {listed_names}"
        )
    for name, (value, action) in only_with.items():
        if value is not None and action not in chosen:
            raise typer.BadParameter(f"{name} belongs to {action}")


def _write_to_file(
    call: options.Call,
    user: str | None,
    session: str,
    out: Path,
    lang: Language,
    *,
    yes: bool,
) -> output.Result:
    """Write the run to a file."""
    store, opened = _open(call, user, session)
    names = lineage(opened)
    with Destination(out) as destination:
        checked_upto = opened.head().seq
        preview = _preview(opened)
        _check_redaction(store, opened.user_id, names)
        _confirm(call, preview, "Write the file?", yes=yes)
        size = _write_page(store, opened, destination, out, lang, names, checked_upto)
    path, _ = repaired(str(out))
    value = {"out": path, "bytes": size, "expires": None, **preview}

    def show(screen: output.Screen) -> None:
        if yes:
            _show_preview(screen, preview)
        screen.line(f"wrote {values.size(size)} to {values.visible(str(out))}")
        screen.line("the file cannot expire: delete it when it is no longer needed")

    return output.Result(value, show, changed=True)


def _create_link(
    call: options.Call,
    user: str,
    session: str,
    expires: timedelta,
    url: str,
    *,
    yes: bool,
) -> output.Result:
    """Store a share, and print its link."""
    store, opened = _open(call, user, session)
    name = opened.session_id
    checked_upto = opened.head().seq
    preview = _preview(opened)
    _check_redaction(store, user, lineage(opened))
    _confirm(call, preview, "Create the link?", yes=yes)
    new = store.shares.create(
        user, session_id=name, lasts=expires, creator=options.operator(None)
    )
    if new.share.seq != checked_upto:
        store.shares.revoke(user, new.share.share_id, session_id=name)
        raise RefoldError(_GREW)
    link = f"{url}/shared/{new.token}"
    value = {"link": link, **new.share.to_json(), **preview}

    def show(screen: output.Screen) -> None:
        if yes:
            _show_preview(screen, preview)
        screen.line(link)
        if not url:
            screen.line("put the address of `refold serve` before it, or give --url")
        until = values.moment(new.share.expires_at)
        screen.line(f"everybody with this link can read the run until {until} UTC")
        screen.line(
            f"`refold share --user {shlex.quote(user)} --revoke "
            f"{new.share.share_id}` ends it earlier"
        )

    return output.Result(value, show, changed=True)


def _list_links(
    call: options.Call, user: str | None, session: str | None
) -> output.Result:
    """List the links of a user or of one session."""
    store = call.store()
    if session is not None:
        opened = options.found_session(store, user, session)
        user = opened.user_id
        session = opened.session_id
    user = options.chosen_user(store, user)
    shares = store.shares.list(user, session_id=session)

    def show(screen: output.Screen) -> None:
        if not shares:
            screen.line("no links: none was created, or all have expired")
        for share in shares:
            until = values.moment(share.expires_at)
            screen.line(f"{share.share_id}  until {until} UTC  seq {share.seq}")
            creator = f", by {values.visible(share.creator)}" if share.creator else ""
            at = values.moment(share.created_at)
            name = output.shown_in_line(share.session_id)
            screen.line(f"  session {name}, shared {at} UTC{creator}")

    return output.Result([share.to_json() for share in shares], show)


def _revoke_link(
    call: options.Call, user: str, session: str | None, share_id: str
) -> output.Result:
    """Delete a link."""
    store = call.store()
    session = options.optional_session_name(store, user, session)
    try:
        store.shares.revoke(user, share_id, session_id=session)
    except ShareNotFound:
        raise RefoldError(
            "there is no share of that id: `refold share --list` shows all of a user"
        ) from None
    value = {"revoked": share_id}
    return output.Result(value, "the link shows nothing any more", changed=True)


def _open(
    call: options.Call, user: str | None, session: str
) -> tuple[SessionStore, Session]:
    """Open the store with the rules of all packs, and a session that exists."""
    from refold.adapters.server import check_page_extra

    check_page_extra()
    store = call.store(policy=_strictest())
    opened = options.found_session(store, user, session)
    opened.head()  # raises if the session was erased
    return store, opened


def _strictest() -> Policy:
    """Return the policy of the settings with all packs."""
    from refold.redaction.policy import Policy
    from refold.redaction.rules import PACKS

    policy = config.policy(None) or Policy(version=1)
    return policy.with_packs(tuple(dict.fromkeys([*policy.packs, *PACKS])))


def _preview(session: Session) -> dict[str, Any]:
    """Return the numbers of what others will be able to read."""
    from refold.store.files import file_histories, with_sub_agents

    events = 0
    images = 0
    attachments = 0
    redacted: Counter[str] = Counter()
    for envelope in session.history.pages():
        events += 1
        types = envelope.redaction.get("types")
        if isinstance(types, dict):
            redacted.update({str(name): int(str(n)) for name, n in types.items()})
        if isinstance(envelope.payload, UserInput):
            for attachment in envelope.payload.attachments:
                if attachment.kind == "image":
                    images += 1
                else:
                    attachments += 1
    histories = file_histories(with_sub_agents(session)[:1])
    return {
        "events": events,
        "files": len(histories.files),
        "images": images,
        "attachments": attachments,
        "redacted": dict(redacted),
        "findings": 0,
    }


def _check_redaction(store: SessionStore, user: str, sessions: Sequence[str]) -> None:
    """Raise RefoldError if the rules of all packs find something in the sessions.

    sessions: the shared one, and those from which it was forked.
    """
    for session in sessions:
        _check_session(store, user, session)


def _check_session(store: SessionStore, user: str, session: str) -> None:
    """Raise RefoldError if the rules of all packs find something in the session."""
    for rechecked in store.recheck(user, session_id=session):
        if rechecked.problem is not None:
            raise RefoldError(f"the run was not shared: {rechecked.problem}")
        if not rechecked.exposures:
            continue
        counts: Counter[str] = Counter()
        for exposure in rechecked.exposures:
            counts.update(exposure.types)
        found_at = [
            "names in its state" if exposure.seq is None else f"seq {exposure.seq}"
            for exposure in rechecked.exposures
        ]
        places = ", ".join(found_at[:_MOST_FINDINGS])
        if len(found_at) > _MOST_FINDINGS:
            places += f" and {len(found_at) - _MOST_FINDINGS} more"
        packs = ",".join(_strictest().packs)
        run = f"--user {shlex.quote(user)} --session {shlex.quote(session)}"
        raise RefoldError(
            f"the run was not shared: the rules of all packs find "
            f"{values.type_counts(counts)} ({places}).  Redact it again first: `refold "
            f"redact --recheck --apply {run} --packs {packs}`"
        )


def _confirm(
    call: options.Call, preview: dict[str, Any], question: str, *, yes: bool
) -> None:
    """Show what others will be able to read, and ask; raises an error for a no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise typer.BadParameter(
            "others will be able to read the run: add --yes if you mean it"
        )
    call.remark(lambda screen: _show_preview(screen, preview))
    typer.confirm(question, abort=True, err=True)


def _show_preview(screen: output.Screen, preview: dict[str, Any]) -> None:
    parts = [
        counted(preview["events"], "event"),
        f"names and texts of {counted(preview['files'], 'file')}",
        counted(preview["attachments"], "other attachment"),
    ]
    screen.line("contains ", ", ".join(parts))
    if preview["images"]:
        screen.line("leaves out ", counted(preview["images"], "image"))
    redacted = values.type_counts(preview["redacted"]) or "nothing"
    screen.line(f"redacted: {redacted}; the rules of all packs find nothing more")


def _write_page(
    store: SessionStore,
    session: Session,
    destination: Destination,
    out: Path,
    lang: Language,
    names: tuple[str, ...],
    checked_upto: int,
) -> int:
    """Write the file, and record the copy; return its bytes.

    names:        the sessions whose events the file shows.
    checked_upto: the last seq of the session whose redaction was checked.

    Raises RefoldError if the session has later events, which may be in the file.
    """
    from refold.adapters.server.run_pages import html_file
    from refold.store.exports import CopyRecords
    from refold.store.recorded import recorded_as

    copies = CopyRecords(store.writer, "share", out, sessions=names)
    copies.record(session.user_id)
    with copies.dropped_on_failure():
        with recorded_as("export"):
            page = html_file(session, lang, shared=True).encode() + b"\n"
        if session.head().seq != checked_upto:
            raise RefoldError(_GREW)
        destination.write(page)
        destination.commit()
    if copies.unrecorded:
        output.complain(f"a later erasure cannot name this file: {copies.unrecorded}")
    return len(page)
