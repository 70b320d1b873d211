"""The pages for people: sessions, runs, memory, reviews, and erasure, as HTML.

Every page works without scripts.  Changes are forms with the CSRF token of the user who
loaded the page; sending one checks the scope again.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
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
from refold.adapters.server import run_pages
from refold.adapters.server.refusals import Refusal, headers_of, refusal_of
from refold.adapters.server.routes import authorize, labels_of
from refold.domain import errors
from refold.domain.events import check_types
from refold.projections.memory import advice, profile
from refold.projections.review.incidents import DECISIONS, Decision
from refold.store import SessionStore
from refold.store.history import with_whole_texts
from refold.store.session.session import Session
from refold.store.turn_settings import MOST_TURNS, TurnSettings

LISTED: Final = 50  # sessions of a page
_LANG: Final = "refold_lang"
_YEAR: Final = 31_536_000
_Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class Here:
    """A request for a page: its caller, the user whose data it shows, its language."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.caller: Any = getattr(request.state, "caller", None)
        self.store: SessionStore = request.app.state.store
        self.named = request.query_params.get("user", "")
        self.user: str = self.named or (self.caller.user_id if self.caller else "")

    def may(self, scope: str) -> None:
        """Check that the caller has this scope, and may name the user.

        Raises HTTPException.
        """
        authorize(self.request, scope, self.named or None)

    @property
    def lang(self) -> run_pages.Lang:
        """The language: from the query, a cookie, or the browser; else English."""
        accepted = self.request.headers.get("accept-language", "")
        candidates = [
            self.request.query_params.get("lang"),
            self.request.cookies.get(_LANG),
        ]
        for entry in accepted.split(","):
            candidates.append(entry.strip()[:2].lower())
        for lang in candidates:
            if lang in ("en", "zh"):
                return cast(run_pages.Lang, lang)
        return "en"

    def link(self, *path: object, **query: object) -> str:
        """The URL of a page of this server, about the same user."""
        quoted = "/".join(quote(str(segment), safe="") for segment in path)
        parameters = {"user": self.named, **query}
        return f"/{quoted}{_query(parameters.items())}"

    def also(self, **query: object) -> str:
        """The URL of this page with some parameters changed."""
        current = self.request.query_params.multi_items()
        unchanged = [(name, value) for name, value in current if name not in query]
        return _query([*unchanged, *query.items()]) or "?"

    @property
    def wants_panel(self) -> bool:
        """Whether htmx asks for a part of the page only."""
        headers = self.request.headers
        return "hx-request" in headers and "hx-history-restore-request" not in headers

    def session(self, quoted: str) -> Session:
        """The session in a path, if the caller may read it.  Raises HTTPException."""
        return authorize(self.request, "read", self.named or None).session(quoted)

    def page(self, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
        """Render a template with these values for the caller."""
        csrf = ""
        if self.caller:
            csrf = self.request.app.state.csrf_of(self.request.state.token)
        html = run_pages.rendered(
            template,
            self.lang,
            here=self,
            link=self.link,
            caller=self.caller,
            csrf=csrf,
            **values,
        )
        response = HTMLResponse(html, status, {"Vary": "HX-Request"})
        if self.request.query_params.get("lang") == self.lang:
            response.set_cookie(
                _LANG, self.lang, _YEAR, httponly=True, samesite="strict"
            )
        return response

    def about(self, template: str, session: Session, **values: Any) -> HTMLResponse:
        """Render a page about a session."""
        used = run_pages.strategies(session)
        head = session.head()
        return self.page(
            template, session=session, head=head, used_strategies=used, **values
        )


def _query(parameters: Iterable[tuple[str, object]]) -> str:
    """The query of a URL, without empty parameters; "" if none is left."""
    filled_in = [
        (name, value) for name, value in parameters if value not in ("", None, False)
    ]
    if not filled_in:
        return ""
    return f"?{urlencode(filled_in)}"


class _Page(APIRoute):
    """A route whose errors are pages too, and which ignores empty fields of a form."""

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
    """A query without empty fields: a form sends those that nobody filled in."""
    fields = query.split(b"&")
    return b"&".join(field for field in fields if _value(field).strip())


def _value(field: bytes) -> str:
    """The value in ``name=value``."""
    return unquote_plus(field.partition(b"=")[2].decode("latin-1"))


def refused(request: Request, refusal: Refusal) -> Response:
    """The page that explains a refusal; for htmx only the part with the sentences."""
    detail = refusal.detail
    if refusal.status == 404:  # the detail is for programs
        detail = ""
    if refusal.code == "request":
        sentence = detail.partition(": /v1/")[0]
        detail = f"Invalid filter: {sentence}"
    here = Here(request)
    template = "parts/refused.html" if here.wants_panel else "error.html"
    page = here.page(
        template, status=refusal.status, code=refusal.status, detail=detail
    )
    page.headers.update(headers_of(refusal))
    return page


async def _form(request: Request) -> Mapping[str, str]:
    """The fields of a form."""
    body = await request.body()
    return dict(parse_qsl(body.decode("utf-8", "replace")))


router = APIRouter(route_class=_Page, include_in_schema=False)
At = Annotated[Here, Depends(Here)]
Form = Annotated[Mapping[str, str], Depends(_form)]
Seq = Annotated[int, Query(ge=0, le=1 << 53)]
TypeNames = Annotated[list[str] | None, Query()]


@router.get("/")
def sessions(
    here: At, q: str = "", label: str = "", after: str | None = None
) -> Response:
    """A page of the user's sessions, or the events that contain the words of ``q``."""
    here.may("read")
    store = here.store
    if q.strip():
        hits = store.search(here.user, q, limit=LISTED)
        return here.page("sessions.html", q=q, label=label, hits=hits)
    wanted = labels_of([label] if label else [])
    infos = store.sessions(here.user, label=wanted, after=after, limit=LISTED + 1)
    more = infos[LISTED - 1].session_id if len(infos) > LISTED else None

    def labels(name: str) -> Mapping[str, str]:
        return store.session(user_id=here.user, session_id=name).labels()

    return here.page(
        "sessions.html",
        q=q,
        label=label,
        hits=None,
        infos=infos[:LISTED],
        labels=labels,
        more=more,
    )


@router.get("/login")
def login(here: At, next: str = "/") -> Response:  # noqa: A002  # as the gate names it
    """The form that takes a token."""
    return here.page("login.html", to=next, refused=False)


@router.post("/login")
async def logged_in(here: At, form: Form) -> Response:
    """Exchange a token for a cookie; the form again, if the token is refused."""
    request = here.request
    to = form.get("next", "/")
    response: Response | None = await request.app.state.exchanged(
        request, form.get("token", ""), to
    )
    if response is None:
        return here.page("login.html", status=401, to=to, refused=True)
    return response


@router.post("/logout")
def logged_out() -> Response:
    """Delete the cookie."""
    response = RedirectResponse("/login", 303)
    response.delete_cookie("refold_session", httponly=True, samesite="strict")
    return response


@router.get("/run/{session_id}")
def timeline(
    here: At,
    session_id: str,
    after: Seq = 0,
    before: Seq | None = None,
    seq: Seq | None = None,
    type: TypeNames = None,  # noqa: A002  # as links name it
    agent: str = "",
    redacted: bool = False,
    q: str = "",
    live: bool = False,
) -> Response:
    """A page of a run; with ``live`` only its turns, for a page that follows a run."""
    session = here.session(session_id)
    wanted = run_pages.EventFilter(check_types(type or ()), agent, redacted)
    if live:
        after = max(after, session.head().seq - run_pages.LIMIT)
    part = run_pages.read_page(
        session, after=after, before=before, seq=seq, wanted=wanted
    )
    if live:
        return here.page(
            "parts/turns.html", seq=seq, session=session, part=part, wanted=wanted
        )
    hits = None
    if q.strip():
        hits = here.store.search(here.user, q, session_id=session.session_id)
    return here.page(
        "run.html",
        seq=seq,
        q=q,
        hits=hits,
        session=session,
        part=part,
        wanted=wanted,
    )


@router.get("/run/{session_id}/event")
def event(here: At, session_id: str, seq: Seq) -> Response:
    """One event in full, and as it is stored."""
    session = here.session(session_id)
    envelope = next(iter(session.events(after=max(seq - 1, 0), limit=1)), None)
    if envelope is None or envelope.seq != seq:
        raise HTTPException(404)
    whole = envelope.payload
    with suppress(errors.Expired):
        whole = with_whole_texts(session.writer.log, envelope, type(whole))
    shown = run_pages.PageEvent.of(envelope.model_copy(update={"payload": whole}))
    return here.page(
        "event.html", session=session, shown=shown, json_text=_json(envelope.to_json())
    )


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
    """The context at a seq, and why it is so; for htmx only that part of the page."""
    session = here.session(session_id)
    end = session.head().seq
    at = max(1, min(at or end, end))
    explained = None
    if sure or end <= run_pages.MANY:
        chosen = run_pages.chosen(session, strategy)
        explained = session.why(chosen, at=at, chains=False)
    requests = session.writer.log.read(
        session.stream, types=("request",), newest=True, limit=200
    )
    return here.about(
        "parts/panel.html" if here.wants_panel else "context.html",
        session,
        at=at,
        strategy=strategy,
        explained=explained,
        requests=[request.seq for request in requests],
    )


@router.get("/run/{session_id}/compare")
def compare(
    here: At, session_id: str, a: str = "", b: str = "", model: str = ""
) -> Response:
    """Two strategies side by side: what each would have sent, and at what cost."""
    session = here.session(session_id)
    compared = None
    plot: list[dict[str, Any]] = []
    if a and b:
        pair = [run_pages.chosen(session, name) or name for name in (a, b)]
        compared = session.proofs.compare(pair, model=model or None)
        plot = [run_pages.plot_data(outcome) for outcome in compared.outcomes]
    return here.about(
        "compare.html", session, a=a, b=b, model=model, compared=compared, plot=plot
    )


@router.get("/run/{session_id}/verify")
def verify(
    here: At, session_id: str, whole: bool = False, sure: bool = False
) -> Response:
    """The verification of a session, and the newest seal of the store."""
    session = here.session(session_id)
    is_long = session.head().seq > run_pages.MANY * 10
    verified = None
    if sure or not is_long:
        verified = session.verify(chain_only=not whole)
    signed = None
    key = ""
    with suppress(errors.InvalidConfiguration):  # a store in memory is not sealed
        signed = here.store.seals.heads()[-1:]
        key = public_pem(here.store.seals.public_key()).strip()
    return here.about(
        "verify.html", session, verified=verified, whole=whole, signed=signed, key=key
    )


@router.get("/run/{session_id}/proof")
def proof(here: At, session_id: str, seq: Seq) -> Response:
    """A file with the proof that an event is in the newest sealed tree."""
    session = here.session(session_id)
    session.head()
    try:
        proof = here.store.seals.prove(session.stream, seq, size=None)
    except LookupError:  # no sealed tree has the event
        raise HTTPException(404) from None
    disposition = f'attachment; filename="proof-{seq}.json"'
    return Response(
        _json(proof), 200, {"Content-Disposition": disposition}, "text/json"
    )


@router.get("/memory")
def memory(here: At, every: bool = False) -> Response:
    """The memory of a user with its evidence, and the user's consents."""
    here.may("read")
    now = here.store.clock()
    threshold = advice.Choice().threshold
    learned = here.store.memory.of(here.user)
    declared = here.store.memory.profile(here.user)
    # Each item, what it says, and why a model is not given it.
    items: list[tuple[Any, str, Sequence[str]]] = []
    for item in learned.items:
        if every or item.established:
            reasons = advice.why_not(
                item, means=learned.means, now=now, threshold=threshold
            )
            items.append((item, advice.describe(item), reasons))
    for entry in declared.items:
        reasons = profile.why_not(declared, entry, now=now, threshold=threshold)
        items.append((entry, profile.describe(entry), reasons))
    return here.page(
        "memory.html",
        memory=learned,
        items=items,
        allowed=here.store.user(here.user).status(),
        every=every,
    )


@router.post("/memory")
def allow(here: At, form: Form) -> Response:
    """Record a consent of the user, or forget an item of memory."""
    here.may("append")
    user = here.store.user(here.user)
    reason = form.get("reason", "")
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


@router.get("/settings")
def settings(here: At) -> Response:
    """The user's numbers of turns for ``turn_window``, and what decides each."""
    here.may("read")
    saved = here.store.user(here.user).saved_turns()
    return here.page(
        "settings.html",
        saved=saved,
        numbers=here.store.settings.turns(saved.params()),
        most=MOST_TURNS,
    )


@router.post("/settings")
def save_settings(here: At, form: Form) -> Response:
    """Save the numbers of turns; an empty field removes a saved number."""
    here.may("append")
    numbers: dict[str, int | None] = {}
    for name in TurnSettings._fields:
        text = form.get(name, "").strip()
        if not text:
            numbers[name] = None
        elif text.isascii() and text.isdecimal() and len(text) < 16:
            numbers[name] = int(text)
        else:
            raise HTTPException(
                422,
                f"a number of turns is a whole number from 1 to {MOST_TURNS}: "
                "nothing was saved",
            )
    here.store.user(here.user).save_turns(**numbers)
    return RedirectResponse(here.link("settings"), 303)


@router.get("/reviews")
def reviews(here: At, every: bool = False) -> Response:
    """The questions to a human."""
    here.may("read")
    questions = here.store.reviews.list(here.user, open_only=not every)
    return here.page(
        "reviews.html", questions=questions, every=every, decisions=DECISIONS
    )


@router.post("/reviews")
def decide(here: At, form: Form) -> Response:
    """Record a decision of the caller."""
    here.may("review")
    seq = form.get("seq", "")
    decision = cast(Decision, form.get("decision", ""))
    if decision not in DECISIONS:
        raise HTTPException(422, "choose a decision: nothing was recorded")
    if not (seq.isascii() and seq.isdecimal() and len(seq) < 16):
        raise HTTPException(422, "the form names no question: load the page again")
    session = here.session(quote(form.get("session", "")))
    session.reviews.decide(
        int(seq), decision, by=here.caller.user_id, note=form.get("note", "")
    )
    return RedirectResponse(here.link("reviews"), 303)


@router.get("/erase")
def erasing(here: At, session: str = "", dry: bool = False) -> Response:
    """The form that erases, and with ``dry`` what it would delete."""
    here.may("erase")
    plan = None
    if dry:
        plan = here.store.erasures.plan(here.user, session_id=session or None)
    return here.page("erase.html", session=session, plan=plan, erased=None)


@router.post("/erase")
def erase(here: At, form: Form) -> Response:
    """Erase for good, if the form confirms the user's name; shows the certificate."""
    here.may("erase")
    session = form.get("session", "")
    reason = form.get("reason", "").strip()
    if not reason:
        raise HTTPException(422, "give a reason: nothing was erased")
    if form.get("confirm") != here.user:
        raise HTTPException(
            422, "type the user's name to confirm it: nothing was erased"
        )
    erased = here.store.erase(
        here.user,
        reason,
        session_id=session or None,
        operator=here.caller.user_id,
    )
    certificate = ""
    if erased.certificate:
        certificate = _json(erased.certificate.to_json())
    return here.page(
        "erase.html", session=session, erased=erased, certificate_text=certificate
    )


def mount(app: FastAPI) -> None:
    """Serve the files that pages load, without a token: they contain no user's data."""
    app.mount("/static", StaticFiles(directory=run_pages.FOLDER / "static"))
