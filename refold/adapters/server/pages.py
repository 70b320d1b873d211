"""The pages for people: sessions, runs, memory, reviews, and erasure, as HTML.

Every page works without scripts.  Changes are forms with the CSRF token of the user who
loaded the page; sending one checks the scope again.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final, Literal, cast
from urllib.parse import parse_qsl, quote, unquote_plus, urlencode

import orjson
from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from refold.adapters.keys.signatures import public_pem
from refold.adapters.server import file_pages, run_pages
from refold.adapters.server.refusals import Refusal, headers_of, refusal_of
from refold.adapters.server.routes import USER_OF_PAGES, authorize, labels_of
from refold.domain import errors
from refold.domain.errors import InvalidEvent
from refold.domain.events import check_types
from refold.projections.memory import advice, profile
from refold.projections.review.incidents import DECISIONS, Decision
from refold.store import SessionStore
from refold.store.files import file_histories, size_of, with_sub_agents
from refold.store.history import with_whole_texts
from refold.store.overviews import (
    ASCENDING,
    EVERY_SESSION,
    OverviewFilter,
    Sort,
    by_day,
    titles_of,
)
from refold.store.search import SERVED_AT_MOST, SearchResult
from refold.store.session.session import Session
from refold.store.shares import Share
from refold.store.turn_settings import MOST_TURNS, TurnSettings

_SESSIONS_PER_PAGE: Final = 50
_MOST_FOUND: Final = 800  # events of a search on one page
_FOUND_IN_RUN: Final = 20  # those of a search in one run, at first
_MOST_REQUESTS: Final = 200  # to which a page of a context links
# A page verifies a longer session only after a confirmation.
_MOST_VERIFIED: Final = 10 * run_pages.MANY
_LANGUAGE_COOKIE: Final = "refold_lang"
_TEXT_COOKIE: Final = "refold_text"  # "plain" or "formatted"
_YEAR_SEC: Final = 31_536_000
# JavaScript represents whole numbers exactly up to here.
_MOST_SEQ: Final = 1 << 53
_Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class PageRequest:
    """A request for a page: its caller, the user whose data it shows, its language.

    user_in_url: the user that the URL names; empty if it names none.
    user:        the user whose data the page shows: that one, or else the caller.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.caller: Any = getattr(request.state, "caller", None)
        self.store: SessionStore = request.app.state.store
        self.user_in_url = request.query_params.get(USER_OF_PAGES, "")
        caller_id = self.caller.user_id if self.caller else ""
        self.user: str = self.user_in_url or caller_id

    def check_scope(self, scope: str) -> None:
        """Raise HTTPException if the caller lacks a scope, or may not name the user."""
        authorize(self.request, scope, self.user_in_url or None)

    @property
    def lang(self) -> run_pages.Lang:
        """The language of the query, the cookie, or the browser; otherwise English."""
        accepted = self.request.headers.get("accept-language", "")
        candidates = [
            self.request.query_params.get("lang"),
            self.request.cookies.get(_LANGUAGE_COOKIE),
        ]
        for entry in accepted.split(","):
            candidates.append(entry.strip()[:2].lower())
        for lang in candidates:
            if lang in ("en", "zh"):
                return cast(run_pages.Lang, lang)
        return "en"

    @property
    def plain(self) -> bool:
        """Whether texts are shown as written, by the query or else by the cookie."""
        wanted = self.request.query_params.get("text")
        return (wanted or self.request.cookies.get(_TEXT_COOKIE)) == "plain"

    def link(self, *path: object, **query: object) -> str:
        """Return the URL of another page about the same user."""
        quoted = "/".join(quote(str(segment), safe="") for segment in path)
        parameters = {"user": self.user_in_url, **query}
        return f"/{quoted}{_query(parameters.items())}"

    def with_query(self, **query: object) -> str:
        """Return the URL of this page with some parameters changed."""
        current = self.request.query_params.multi_items()
        unchanged = [(name, value) for name, value in current if name not in query]
        return _query([*unchanged, *query.items()]) or "?"

    @property
    def wants_panel(self) -> bool:
        """Whether htmx requests only the part of the page that it replaces."""
        headers = self.request.headers
        return "hx-request" in headers and "hx-history-restore-request" not in headers

    def session(self, quoted_id: str) -> Session:
        """Return the session with this id, which is quoted as in a path.

        Raises HTTPException if the caller may not read it.
        """
        access = authorize(self.request, "read", self.user_in_url or None)
        return access.session(quoted_id)

    def page(self, template: str, *, status: int = 200, **values: Any) -> HTMLResponse:
        """Render a template with these values for the caller."""
        csrf = ""
        if self.caller:
            csrf = self.request.app.state.csrf_of(self.request.state.token)
        html = run_pages.rendered(
            template,
            self.lang,
            plain=self.plain,
            here=self,
            link=self.link,
            caller=self.caller,
            csrf=csrf,
            **values,
        )
        response = HTMLResponse(html, status, {"Vary": "HX-Request"})
        if self.request.query_params.get("lang") == self.lang:
            _remember(response, _LANGUAGE_COOKIE, self.lang)
        text = self.request.query_params.get("text")
        if text in ("plain", "formatted"):
            _remember(response, _TEXT_COOKIE, text)
        return response

    def about(self, template: str, session: Session, **values: Any) -> HTMLResponse:
        """Render a page about a session, with its head and its strategies."""
        used = run_pages.strategies(session)
        head = session.head()
        return self.page(
            template,
            session=session,
            head=head,
            run_title=run_pages.title_of(session, head),
            used_strategies=used,
            **values,
        )


def _remember(response: Response, name: str, choice: str) -> None:
    """Store a reader's choice in a cookie."""
    response.set_cookie(name, choice, _YEAR_SEC, httponly=True, samesite="strict")


def _query(parameters: Iterable[tuple[str, object]]) -> str:
    """Return the query of a URL without empty parameters; "" if none is left."""
    filled_in = [
        (name, value) for name, value in parameters if value not in ("", None, False)
    ]
    if not filled_in:
        return ""
    return f"?{urlencode(filled_in)}"


class _Page(APIRoute):
    """A route that ignores the empty fields of a form and shows errors as pages."""

    def get_route_handler(self) -> _Handler:
        handle = super().get_route_handler()

        async def handle_page(request: Request) -> Response:
            query = request.scope["query_string"]
            request.scope["query_string"] = _without_empty_fields(query)
            try:
                return await handle(request)
            except (errors.RefoldError, RequestValidationError, HTTPException) as error:
                return refusal_page(request, refusal_of(error))

        return handle_page


def _without_empty_fields(query: bytes) -> bytes:
    """Return a query without the fields of a form that the user left empty."""
    fields = query.split(b"&")
    return b"&".join(field for field in fields if _value(field).strip())


def _value(field: bytes) -> str:
    """Return the value in ``name=value``."""
    return unquote_plus(field.partition(b"=")[2].decode("latin-1"))


def refusal_page(request: Request, refusal: Refusal) -> Response:
    """Return the page that explains a refusal; for htmx only its sentences."""
    detail = refusal.detail
    if refusal.status == 404:  # the detail is for programs
        detail = ""
    if refusal.code == "request":
        # The rest of the detail refers to the API, where pages have a form.
        sentence = detail.partition(": /v1/")[0]
        detail = f"Invalid filter: {sentence}"
    here = PageRequest(request)
    template = "parts/refused.html" if here.wants_panel else "error.html"
    page = here.page(
        template, status=refusal.status, code=refusal.status, detail=detail
    )
    page.headers.update(headers_of(refusal))
    return page


async def _form(request: Request) -> Mapping[str, str]:
    """Return the fields of a form."""
    body = await request.body()
    return dict(parse_qsl(body.decode("utf-8", "replace")))


router = APIRouter(route_class=_Page, include_in_schema=False)
Here = Annotated[PageRequest, Depends(PageRequest)]
Form = Annotated[Mapping[str, str], Depends(_form)]
Seq = Annotated[int, Query(ge=0, le=_MOST_SEQ)]
TypeNames = Annotated[list[str] | None, Query()]


class SessionFilter:
    """The part of the query that filters and sorts the list of sessions."""

    def __init__(
        self,
        find: str = "",
        project: str = "",
        agent: str = "",
        model: str = "",
        state: Literal["", "live", "ended"] = "",
        failed: str = "",
        since: str = "",
        until: str = "",
        sort: Sort = "last",
        reverse: str = "",
    ) -> None:
        self.find = find
        self.project = project
        self.agent = agent
        self.model = model
        self.state = state
        self.failed = bool(failed)
        self.since = since
        self.until = until
        self.sort = sort
        self.reverse = bool(reverse)

    @property
    def matching(self) -> OverviewFilter:
        """The filter of the store.  Raises InvalidEvent for a wrong date."""
        until = _day(self.until, "until")
        if until is not None:
            until = _day_after(until)  # the sessions of the last day are listed, too
        return OverviewFilter(
            text=self.find,
            project=self.project,
            agent=self.agent,
            model=self.model,
            state=self.state,
            failed=self.failed,
            since=_day(self.since, "since"),
            until=until,
        )

    @property
    def is_set(self) -> bool:
        """Whether any field of the filter is filled in."""
        return self.matching != EVERY_SESSION

    @property
    def descending(self) -> bool:
        """Whether the list begins with the greatest values."""
        return (self.sort not in ASCENDING) != self.reverse

    def order_after_click(self, sort: Sort) -> dict[str, str]:
        """Return the query of a link that sorts by a column, or turns the order."""
        turns = sort == self.sort and not self.reverse
        return {"sort": sort, "reverse": "1" if turns else "", "after": ""}


def _day_after(day: datetime) -> datetime | None:
    """Return the next day; None after the last one of the calendar."""
    try:
        return day + timedelta(days=1)
    except OverflowError:
        return None


def _day(text: str, field: str) -> datetime | None:
    """Return the beginning of a day in UTC; None for an empty text."""
    if not text.strip():
        return None
    try:
        return datetime.fromisoformat(text.strip()).replace(tzinfo=UTC)
    except ValueError:
        raise InvalidEvent(f"{field} must be a date such as 2026-03-16") from None


@router.get("/")
def sessions(
    here: Here,
    chosen: Annotated[SessionFilter, Depends(SessionFilter)],
    q: str = "",
    label: str = "",
    after: str | None = None,
    most: Annotated[int, Query(ge=1, le=_MOST_FOUND)] = _SESSIONS_PER_PAGE,
) -> Response:
    """Show a page of the user's sessions, or the events that match ``q``.

    most: the number of events to show.
    """
    here.check_scope("read")
    store = here.store
    if q.strip():
        result = store.search_with_total(
            here.user, q, limit=most, index_at_most=SERVED_AT_MOST
        )
        return here.page(
            "sessions.html",
            q=q,
            label=label,
            chosen=chosen,
            result=result,
            titles=titles_of(
                store.log,
                here.user,
                [hit.session_id for hit in result.hits],
                now=store.clock(),
                most_events=SERVED_AT_MOST,
            ),
            next_most=_next_most(result, most),
        )
    page = store.overviews(
        here.user,
        label=labels_of([label] if label else []),
        sort=chosen.sort,
        descending=chosen.descending,
        matching=chosen.matching,
        after=after,
        limit=_SESSIONS_PER_PAGE,
    )
    groups = [("", page.sessions)]
    if chosen.sort == "last":
        groups = list(by_day(page.sessions))
    return here.page(
        "sessions.html",
        q=q,
        label=label,
        chosen=chosen,
        result=None,
        listed=page,
        groups=groups if page.sessions else [],
    )


def _next_most(result: SearchResult, most: int) -> int | None:
    """Return the number of events for a page with more matches; None on the last."""
    if result.total > len(result.hits) == most < _MOST_FOUND:
        return min(2 * most, _MOST_FOUND)
    return None


@router.get("/login")
def login(here: Here, next: str = "/") -> Response:  # noqa: A002  # named in URLs
    """Show the form for an access token."""
    return here.page("login.html", to=next, refused=False)


@router.post("/login")
async def log_in(here: Here, form: Form) -> Response:
    """Exchange a token for a cookie; show the form again if the token is refused."""
    request = here.request
    to = form.get("next", "/")
    response: Response | None = await request.app.state.exchange_token(
        request, form.get("token", ""), to
    )
    if response is None:
        return here.page("login.html", status=401, to=to, refused=True)
    return response


@router.post("/logout")
def log_out() -> Response:
    """Delete the cookie."""
    response = RedirectResponse("/login", 303)
    response.delete_cookie("refold_session", httponly=True, samesite="strict")
    return response


@router.get("/run/{session_id}")
def timeline(
    here: Here,
    session_id: str,
    after: Seq = 0,
    before: Seq | None = None,
    seq: Seq | None = None,
    type: TypeNames = None,  # noqa: A002  # named in URLs
    agent: str = "",
    redacted: bool = False,
    failed: bool = False,
    tool: str = "",
    file: str = "",
    q: str = "",
    live: bool = False,
    missed: str = "",
    sure: bool = False,
    most: Annotated[int, Query(ge=1, le=_MOST_FOUND)] = _FOUND_IN_RUN,
) -> Response:
    """Show a page of a run.

    live:   return only the newest turns, for a page that follows a run.
    missed: the direction in which ``next_failure`` found no failure.
    sure:   count the totals of a long run.
    most:   the number of events to show that match ``q``.
    """
    session = here.session(session_id)
    event_filter = run_pages.EventFilter(
        types=check_types(type or ()),
        agent=agent,
        redacted=redacted,
        failed=failed,
        tool=tool.strip(),
        file=file.strip(),
    )
    if live:
        after = max(after, session.head().seq - run_pages.LIMIT)
    part = run_pages.read_page(
        session, after=after, before=before, seq=seq, wanted=event_filter
    )
    if live:
        return here.page(
            "parts/turns.html", seq=seq, session=session, part=part, wanted=event_filter
        )
    result = None
    next_most: int | None = None
    if q.strip():
        result = here.store.search_with_total(
            here.user,
            q,
            session_id=session.session_id,
            limit=most,
            index_at_most=SERVED_AT_MOST,
        )
        next_most = _next_most(result, most)
    return here.page(
        "run.html",
        seq=seq,
        q=q,
        result=result,
        next_most=next_most,
        session=session,
        part=part,
        wanted=event_filter,
        missed=missed,
        totals=run_pages.totals_of(session, part.head, sure=sure),
        counts_by_itself=part.head.seq <= run_pages.MOST_READ,
    )


@router.get("/run/{session_id}/failure")
def next_failure(
    here: Here, session_id: str, after: Seq = 0, before: Seq | None = None
) -> Response:
    """Lead to the next failure after a seq, or to the last one before a seq."""
    session = here.session(session_id)
    failure = run_pages.find_failure(session, after=after, before=before)
    of = ("run", session.session_id)
    if failure.seq is not None:
        return RedirectResponse(
            f"{here.link(*of, seq=failure.seq)}#e{failure.seq}", 303
        )
    direction = "after" if before is None else "before"
    if not failure.reached_end:  # the page offers to search on
        return RedirectResponse(here.link(*of, seq=failure.upto, missed="more"), 303)
    shown = after if before is None else before
    return RedirectResponse(here.link(*of, seq=shown, missed=direction), 303)


@router.get("/run/{session_id}/event")
def event(here: Here, session_id: str, seq: Seq) -> Response:
    """Show one event with its whole texts, and its stored JSON."""
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


@router.get("/run/{session_id}/media")
def media(here: Here, session_id: str, seq: Seq, nth: Seq = 0) -> Response:
    """Return an image or PDF of an event, with the type that its bytes have."""
    session = here.session(session_id)
    envelope = next(iter(session.events(after=max(seq - 1, 0), limit=1)), None)
    if envelope is None or envelope.seq != seq:
        raise HTTPException(404)
    file = run_pages.media_of(session, envelope, nth)
    if file is None:
        raise HTTPException(404)
    ending = file.media_type.rpartition("/")[2]
    disposition = f'inline; filename="event-{seq}-{nth}.{ending}"'
    return Response(
        file.data, 200, {"Content-Disposition": disposition}, file.media_type
    )


def _json(value: Any) -> str:
    """Return a value as indented JSON."""
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


@router.get("/run/{session_id}/context")
def context(
    here: Here,
    session_id: str,
    at: Seq | None = None,
    strategy: str = "",
    sure: bool = False,
) -> Response:
    """Show the context at a seq, and the cause of each part.

    The causes need the whole session.  Of a long one, the page shows the context alone,
    which starts from a checkpoint.

    For htmx, returns only the part of the page with the context.

    sure: the user confirmed that the page may read a long session.
    """
    session = here.session(session_id)
    end = session.head().seq
    at = max(1, min(at or end, end))
    chosen = run_pages.chosen(session, strategy)
    explained = None
    view = None
    if sure or end <= run_pages.MANY:
        explained = session.why(chosen, at=at, chains=False)
    else:
        view = run_pages.context_at(session, chosen, at)
    requests = session.writer.log.read(
        session.stream, types=("request",), newest=True, limit=_MOST_REQUESTS
    )
    return here.about(
        "parts/panel.html" if here.wants_panel else "context.html",
        session,
        at=at,
        strategy=strategy,
        explained=explained,
        view=view,
        requests=[request.seq for request in requests],
    )


@router.get("/run/{session_id}/files")
def files_of_run(
    here: Here, session_id: str, path: str = "", q: str = "", sure: bool = False
) -> Response:
    """Show the files of a run, or what happened to one of them.

    q:    only files whose path contains this text.
    sure: the user confirmed that the page may read a long run.
    """
    session = here.session(session_id)
    sessions_read = with_sub_agents(session)
    size = size_of(sessions_read)
    if size > file_pages.MOST_READ and not sure:
        return here.about("files.html", session, size=size, files=None)
    histories = file_histories(sessions_read)
    if path:
        history = histories.files.get(path)
        if history is None:
            raise HTTPException(404)
        shown = file_pages.FilePage.of(history)
        return here.about("file_history.html", session, shown=shown)
    return here.about(
        "files.html",
        session,
        size=size,
        q=q,
        agents=len(sessions_read) - 1,
        is_empty=not histories.files,
        files=file_pages.listed(histories, q.strip()),
    )


@router.get("/run/{session_id}/compare")
def compare(
    here: Here, session_id: str, a: str = "", b: str = "", model: str = ""
) -> Response:
    """Compare two strategies: what each would have sent, and at what cost."""
    session = here.session(session_id)
    compared = None
    plot: list[dict[str, Any]] = []
    if a and b:
        strategies = [run_pages.chosen(session, name) or name for name in (a, b)]
        compared = session.proofs.compare(strategies, model=model or None)
        plot = [run_pages.plot_data(outcome) for outcome in compared.outcomes]
    return here.about(
        "compare.html", session, a=a, b=b, model=model, compared=compared, plot=plot
    )


@router.get("/run/{session_id}/verify")
def verify(
    here: Here, session_id: str, whole: bool = False, sure: bool = False
) -> Response:
    """Show the verification of a session, and the newest seal of the store.

    whole: verify everything about the session, not only its hash chain.
    sure:  the user confirmed that the page may read a long session.
    """
    session = here.session(session_id)
    is_long = session.head().seq > _MOST_VERIFIED
    verified = None
    if sure or not is_long:
        verified = session.verify(chain_only=not whole)
    newest_seals = None
    key = ""
    with suppress(errors.InvalidConfiguration):  # a store in memory is not sealed
        newest_seals = here.store.seals.heads()[-1:]
        key = public_pem(here.store.seals.public_key()).strip()
    return here.about(
        "verify.html",
        session,
        verified=verified,
        whole=whole,
        signed=newest_seals,
        key=key,
    )


@router.get("/run/{session_id}/proof")
def proof(here: Here, session_id: str, seq: Seq) -> Response:
    """Return a file with the proof that an event is in the newest sealed tree."""
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


@router.get("/shared/{token:path}")
def shared(here: Here, token: str) -> Response:
    """Show a shared run to everybody who has its link, until the link expires."""
    headers = {"X-Robots-Tag": "noindex"}
    headers["Content-Security-Policy"] = run_pages.shared_page_policy()

    def render(session: Session, share: Share) -> str:
        return run_pages.shared_page(session, share, here.lang)

    try:
        html = here.store.shares.open(token, render)
    except errors.ShareNotFound:
        html = run_pages.rendered("share_not_found.html", here.lang)
        return HTMLResponse(html, 404, headers)
    return HTMLResponse(html, 200, headers)


@router.get("/memory")
def memory(here: Here, every: bool = False) -> Response:
    """Show the memory of a user with its evidence, and the user's consents.

    every: include items that are not established.
    """
    here.check_scope("read")
    now = here.store.clock()
    threshold = advice.Choice().threshold
    learned = here.store.memory.of(here.user)
    declared = here.store.memory.profile(here.user)
    # Each item, its description, and the reasons to withhold it from a model.
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
def allow(here: Here, form: Form) -> Response:
    """Record a consent of the user, or forget an item of memory."""
    here.check_scope("append")
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
def settings(here: Here) -> Response:
    """Show the user's numbers of turns for ``turn_window``, and where each is set."""
    here.check_scope("read")
    saved = here.store.user(here.user).saved_turns()
    return here.page(
        "settings.html",
        saved=saved,
        numbers=here.store.settings.turns(saved.params()),
        most=MOST_TURNS,
    )


@router.post("/settings")
def save_settings(here: Here, form: Form) -> Response:
    """Save the numbers of turns; an empty field removes a saved number."""
    here.check_scope("append")
    numbers: dict[str, int | None] = {}
    for name in TurnSettings._fields:
        text = form.get(name, "").strip()
        if not text:
            numbers[name] = None
        elif _is_whole_number(text):
            numbers[name] = int(text)
        else:
            raise HTTPException(
                422,
                f"a number of turns is a whole number from 1 to {MOST_TURNS}: "
                "nothing was saved",
            )
    here.store.user(here.user).save_turns(**numbers)
    return RedirectResponse(here.link("settings"), 303)


def _is_whole_number(text: str) -> bool:
    """Whether a field of a form has a number of at most 15 digits."""
    return text.isascii() and text.isdecimal() and len(text) < 16


@router.get("/reviews")
def reviews(here: Here, every: bool = False) -> Response:
    """Show the open questions to a human; with ``every`` the decided ones too."""
    here.check_scope("read")
    questions = here.store.reviews.list(here.user, open_only=not every)
    return here.page(
        "reviews.html", questions=questions, every=every, decisions=DECISIONS
    )


@router.post("/reviews")
def decide(here: Here, form: Form) -> Response:
    """Record the caller's decision of a question."""
    here.check_scope("review")
    seq = form.get("seq", "")
    decision = cast(Decision, form.get("decision", ""))
    if decision not in DECISIONS:
        raise HTTPException(422, "choose a decision: nothing was recorded")
    if not _is_whole_number(seq):
        raise HTTPException(422, "the form names no question: load the page again")
    session = here.session(quote(form.get("session", "")))
    session.reviews.decide(
        int(seq), decision, by=here.caller.user_id, note=form.get("note", "")
    )
    return RedirectResponse(here.link("reviews"), 303)


@router.get("/erase")
def erase_form(here: Here, session: str = "", dry: bool = False) -> Response:
    """Show the form that erases; with ``dry`` also what it would delete."""
    here.check_scope("erase")
    plan = None
    if dry:
        plan = here.store.erasures.plan(here.user, session_id=session or None)
    return here.page("erase.html", session=session, plan=plan, erased=None)


@router.post("/erase")
def erase(here: Here, form: Form) -> Response:
    """Erase if the form confirms the user's name; show the certificate."""
    here.check_scope("erase")
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
    """Serve the files that pages load.

    They need no token, because they contain no user's data.
    """
    app.mount("/static", StaticFiles(directory=run_pages.FOLDER / "static"))
