"""The page for people: a user's sessions, runs, memory, reviews and erasure, as HTML.

Each page is whole without a script.  What changes something is a form with the CSRF
token of who is shown it, and asks for its scope again when it is sent.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Annotated, Any, Final, cast
from urllib.parse import parse_qsl, quote, unquote_plus, urlencode

import orjson
from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from refold.adapters.keys.signatures import public_pem
from refold.adapters.server import run
from refold.adapters.server.refusals import Refusal, headers_of, refusal_of
from refold.adapters.server.routes import asked, labels_of
from refold.domain import errors
from refold.domain.events import check_types
from refold.projections.memory import advice, profile
from refold.projections.review.incidents import DECISIONS, Decision
from refold.store import SessionStore
from refold.store.history import uncut
from refold.store.session.session import Session

LISTED: Final = 50  # sessions of a page
_LANG: Final = "refold_lang"
_YEAR: Final = 31_536_000
_Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class Here:
    """Who looks at a page, at whose data, and in which language."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.caller: Any = getattr(request.state, "caller", None)
        self.store: SessionStore = request.app.state.store
        self.named = request.query_params.get("user", "")
        self.user: str = self.named or (self.caller.user_id if self.caller else "")

    def may(self, scope: str) -> None:
        """Refuse who has not this scope, or names another user without being admin.

        Raises HTTPException.
        """
        asked(self.request, scope, self.named or None)

    @property
    def lang(self) -> run.Lang:
        """What was chosen, now or before, else what the browser asks for first."""
        given = self.request.headers.get("accept-language", "").split(",")
        chosen = self.request.query_params.get("lang"), self.request.cookies.get(_LANG)
        told = (*chosen, *(one.strip()[:2].lower() for one in given), "en")
        return cast(run.Lang, next(one for one in told if one in ("en", "zh")))

    def link(self, *path: object, **query: object) -> str:
        """A page of this server, about whom this one is."""
        place = "/".join(quote(str(one), safe="") for one in path)
        return f"/{place}{_query({'user': self.named, **query}.items())}"

    def also(self, **query: object) -> str:
        """This page with some of its query changed."""
        given = self.request.query_params.multi_items()
        kept = [(name, value) for name, value in given if name not in query]
        return _query([*kept, *query.items()]) or "?"

    @property
    def wants_panel(self) -> bool:
        """Whether htmx asks for a part of the page alone."""
        headers = self.request.headers
        return "hx-request" in headers and "hx-history-restore-request" not in headers

    def session(self, quoted: str) -> Session:
        """The session that a path names, for who may read it.  Raises HTTPException."""
        whose = asked(self.request, "read", self.named or None)
        return whose.session(quoted)

    def page(self, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
        """What a template makes of these values for who is here."""
        csrf_of = self.request.app.state.csrf_of
        csrf = csrf_of(self.request.state.token) if self.caller else ""
        values |= {"here": self, "link": self.link, "caller": self.caller, "csrf": csrf}
        html = run.rendered(template, self.lang, **values)
        made = HTMLResponse(html, status, {"Vary": "HX-Request"})
        if self.request.query_params.get("lang") == self.lang:
            made.set_cookie(_LANG, self.lang, _YEAR, httponly=True, samesite="strict")
        return made

    def about(self, template: str, session: Session, **values: Any) -> HTMLResponse:
        """A page about a session."""
        known, head = run.strategies(session), session.head()
        return self.page(template, session=session, head=head, known=known, **values)


def _query(given: Any) -> str:
    told = urlencode([(k, v) for k, v in given if v not in ("", None, False)])
    return told and f"?{told}"


class _Page(APIRoute):
    """A route whose errors are pages too; an empty field of a form is not given."""

    def get_route_handler(self) -> _Handler:
        handle = super().get_route_handler()

        async def answered(request: Request) -> Response:
            request.scope["query_string"] = filled(request.scope["query_string"])
            try:
                return await handle(request)
            except (errors.RefoldError, RequestValidationError, HTTPException) as error:
                return refused(request, refusal_of(error))

        return answered


def filled(query: bytes) -> bytes:
    """A query without the fields that a form sent empty: they were not filled in."""
    fields = query.split(b"&")
    return b"&".join(field for field in fields if _value(field).strip())


def _value(field: bytes) -> str:
    """The value in ``name=value``."""
    return unquote_plus(field.partition(b"=")[2].decode("latin-1"))


def refused(request: Request, refusal: Refusal) -> Response:
    """The page that says what was refused and why; for htmx only the words."""
    detail = refusal.detail
    if refusal.status == 404:  # its detail is for programs
        detail = ""
    if refusal.code == "request":
        sentence = detail.partition(": /v1/")[0]
        detail = f"Invalid filter: {sentence}"
    here = Here(request)
    template = "parts/refused.html" if here.wants_panel else "error.html"
    values = {"code": refusal.status, "detail": detail}
    page = here.page(template, status=refusal.status, **values)
    page.headers.update(headers_of(refusal))
    return page


async def _sent(request: Request) -> Mapping[str, str]:
    """The fields of a form."""
    return dict(parse_qsl((await request.body()).decode("utf-8", "replace")))


router = APIRouter(route_class=_Page, include_in_schema=False)
At = Annotated[Here, Depends(Here)]
Form = Annotated[Mapping[str, str], Depends(_sent)]
Seq = Annotated[int, Query(ge=0, le=1 << 53)]
Some = Annotated[list[str] | None, Query()]


@router.get("/")
def sessions(
    here: At, q: str = "", label: str = "", after: str | None = None
) -> Response:
    """The sessions of a user by pages, or the events that have some words."""
    here.may("read")
    page, store = "sessions.html", here.store
    if q.strip():
        found = store.search(here.user, q, limit=LISTED)
        return here.page(page, q=q, label=label, found=found)
    wanted = labels_of([label] if label else [])
    infos = store.sessions(here.user, label=wanted, after=after, limit=LISTED + 1)
    more = infos[LISTED - 1].session_id if infos[LISTED:] else None

    def labels(name: str) -> Mapping[str, str]:
        return store.session(user_id=here.user, session_id=name).labels()

    told: dict[str, Any] = {"infos": infos[:LISTED], "labels": labels, "more": more}
    return here.page(page, q=q, label=label, found=None, **told)


@router.get("/login")
def login(here: At, next: str = "/") -> Response:  # noqa: A002  # as the gate names it
    """Where a token is exchanged for a cookie."""
    return here.page("login.html", to=next, refused=False)


@router.post("/login")
async def logged_in(here: At, form: Form) -> Response:
    """The exchange; a token that is not good is asked for again."""
    request, to = here.request, form.get("next", "/")
    made = await request.app.state.exchanged(request, form.get("token", ""), to)
    return made or here.page("login.html", status=401, to=to, refused=True)


@router.post("/logout")
def logged_out() -> Response:
    """Forget the cookie."""
    made = RedirectResponse("/login", 303)
    made.delete_cookie("refold_session", httponly=True, samesite="strict")
    return made


@router.get("/run/{session_id}")
def timeline(
    here: At,
    session_id: str,
    after: Seq = 0,
    before: Seq | None = None,
    seq: Seq | None = None,
    type: Some = None,  # noqa: A002  # as links name it
    agent: str = "",
    redacted: bool = False,
    q: str = "",
    live: bool = False,
) -> Response:
    """A page of a run, as turns; ``live`` is only the turns of it."""
    session = here.session(session_id)
    wanted = run.Wanted(check_types(type or ()), agent, redacted)
    if live:
        after = max(after, session.head().seq - run.LIMIT)
    part = run.part(session, after=after, before=before, seq=seq, wanted=wanted)
    told: dict[str, Any] = {"session": session, "part": part, "wanted": wanted}
    if live:
        return here.page("parts/turns.html", seq=seq, **told)
    name = session.session_id
    found = here.store.search(here.user, q, session_id=name) if q.strip() else None
    return here.page("run.html", seq=seq, q=q, found=found, **told)


@router.get("/run/{session_id}/event")
def event(here: At, session_id: str, seq: Seq) -> Response:
    """One event, whole, with all that is known of it."""
    session = here.session(session_id)
    envelope = next(iter(session.events(after=max(seq - 1, 0), limit=1)), None)
    if envelope is None or envelope.seq != seq:
        raise HTTPException(404)
    whole = envelope.payload
    with suppress(errors.Expired):
        whole = uncut(session.writer.log, envelope, type(whole))
    said = run.Said.of(envelope.model_copy(update={"payload": whole}))
    told = _json(envelope.to_json())
    return here.page("event.html", session=session, said=said, told=told)


def _json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


@router.get("/run/{session_id}/context")
def context(
    here: At,
    session_id: str,
    at: Seq | None = None,
    strategy: str = "",
    sure: bool = False,
) -> Response:
    """The context at a seq, and why it is so; for htmx only that."""
    session = here.session(session_id)
    head, explained = session.head().seq, None
    at = max(1, min(at or head, head))
    if sure or head <= run.MANY:
        chosen = run.chosen(session, strategy)
        explained = session.why(chosen, at=at, chains=False)
    read, kinds = session.writer.log.read, ("request",)
    found = read(session.stream, types=kinds, newest=True, limit=200)
    told = {"at": at, "strategy": strategy, "explained": explained}
    told["requests"] = [one.seq for one in found]
    page = "parts/panel.html" if here.wants_panel else "context.html"
    return here.about(page, session, **told)


@router.get("/run/{session_id}/compare")
def compare(
    here: At, session_id: str, a: str = "", b: str = "", model: str = ""
) -> Response:
    """Two strategies side by side: what each would have sent, and what it costs."""
    session, compared, plot = here.session(session_id), None, []
    if a and b:
        pair = [run.chosen(session, one) or one for one in (a, b)]
        compared = session.proofs.compare(pair, model=model or None)
        plot = [run.plotted(one) for one in compared.outcomes]
    told = {"a": a, "b": b, "model": model, "compared": compared, "plot": plot}
    return here.about("compare.html", session, **told)


@router.get("/run/{session_id}/verify")
def verify(
    here: At, session_id: str, whole: bool = False, sure: bool = False
) -> Response:
    """Whether what is stored is what was written, and what is signed of it."""
    session, signed, key = here.session(session_id), None, ""
    is_long = session.head().seq > run.MANY * 10
    done = None if is_long and not sure else session.verify(chain_only=not whole)
    with suppress(errors.InvalidConfiguration):  # a store in memory is not sealed
        signed = here.store.seals.heads()[-1:]
        key = public_pem(here.store.seals.public_key()).strip()
    told = {"verified": done, "whole": whole, "signed": signed, "key": key}
    return here.about("verify.html", session, **told)


@router.get("/run/{session_id}/proof")
def proof(here: At, session_id: str, seq: Seq) -> Response:
    """The proof that an event is in the newest tree head that has it, as a file."""
    session = here.session(session_id)
    session.head()
    try:
        found = here.store.seals.prove(session.stream, seq, size=None)
    except LookupError:  # nothing signed has it
        raise HTTPException(404) from None
    name = f'attachment; filename="proof-{seq}.json"'
    return Response(_json(found), 200, {"Content-Disposition": name}, "text/json")


@router.get("/memory")
def memory(here: At, every: bool = False) -> Response:
    """What was learned of a user, by which events, and what they allow."""
    here.may("read")
    memories, now = here.store.memory, here.store.clock()
    found, known = memories.of(here.user), memories.profile(here.user)
    how: dict[str, Any] = {"now": now, "threshold": advice.Choice().threshold}
    items = [
        (one, advice.describe(one), advice.why_not(one, means=found.means, **how))
        for one in found.items
        if every or one.established
    ] + [
        (one, profile.describe(one), profile.why_not(known, one, **how))
        for one in known.items
    ]
    allowed = here.store.user(here.user).status()
    told: dict[str, Any] = {"items": items, "allowed": allowed, "every": every}
    return here.page("memory.html", found=found, **told)


@router.post("/memory")
def allow(here: At, form: Form) -> Response:
    """Record what the user allows, or which item is to be forgotten."""
    here.may("append")
    user, reason = here.store.user(here.user), form.get("reason", "")
    match form.get("act"):
        case "opt_out":
            user.opt_out(reason=reason)
        case "opt_in":
            user.opt_in(reason=reason)
        case "grant" | "withdraw" as act:
            scope = form.get("scope", "").strip()
            user.consent(scope, granted=act == "grant", reason=reason)
        case "forget":
            user.forget(form.get("item", ""), reason=reason)
        case _:
            raise HTTPException(422, "the form names no action that this page has")
    return RedirectResponse(here.link("memory"), 303)


@router.get("/reviews")
def reviews(here: At, every: bool = False) -> Response:
    """The questions to a human."""
    here.may("read")
    found = here.store.reviews.list(here.user, open_only=not every)
    return here.page("reviews.html", asked=found, every=every, decisions=DECISIONS)


@router.post("/reviews")
def decide(here: At, form: Form) -> Response:
    """Record a decision, by who is here."""
    here.may("review")
    seq = form.get("seq", "")
    decision = cast(Decision, form.get("decision", ""))
    if decision not in DECISIONS:
        raise HTTPException(422, "choose a decision: nothing was recorded")
    if not (seq.isascii() and seq.isdecimal() and len(seq) < 16):
        raise HTTPException(422, "the form names no question: load the page again")
    session = here.session(quote(form.get("session", "")))
    by, note = here.caller.user_id, form.get("note", "")
    session.reviews.decide(int(seq), decision, by=by, note=note)
    return RedirectResponse(here.link("reviews"), 303)


@router.get("/erase")
def erasing(here: At, session: str = "", dry: bool = False) -> Response:
    """What an erasure would delete, and the form that does it."""
    here.may("erase")
    plan, of = here.store.erasures.plan, session or None
    found = plan(here.user, session_id=of) if dry else None
    return here.page("erase.html", session=session, plan=found, erased=None)


@router.post("/erase")
def erase(here: At, form: Form) -> Response:
    """Erase for good, once the name of the user was typed; shows the certificate."""
    here.may("erase")
    session, reason = form.get("session", ""), form.get("reason", "").strip()
    if not reason:
        raise HTTPException(422, "give a reason: nothing was erased")
    if form.get("confirm") != here.user:
        raise HTTPException(
            422, "type the user's name to confirm it: nothing was erased"
        )
    name, by = session or None, here.caller.user_id
    erased = here.store.erase(here.user, reason, session_id=name, operator=by)
    told = _json(erased.certificate.to_json()) if erased.certificate else ""
    return here.page("erase.html", session=session, erased=erased, told=told)


def mount(app: FastAPI) -> None:
    """Serve the files that pages load, to anybody: they say nothing of anyone."""
    app.mount("/static", StaticFiles(directory=run.FOLDER / "static"))
