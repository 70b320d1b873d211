"""``refold run`` and ``refold proxy``: record agents by what they send to providers."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Final

import typer

from refold.adapters import config
from refold.adapters.cli import child, options, output
from refold.adapters.cli.commands.compact import stopped_by_signals
from refold.adapters.frameworks import import_extra
from refold.adapters.proxy_lock import running_proxy
from refold.domain.errors import counted

if TYPE_CHECKING:
    from refold.adapters.proxy.exchange import RecordedSession
    from refold.adapters.proxy.recording import Recording

PORT: Final = 8766
_HELP: Final = "docs/how-to/record-any-agent.md"
_WAIT_SEC: Final = 0.2
_INTERRUPTS: Final = {signal.SIGINT, signal.SIGTERM}

UserOption = Annotated[
    str | None, options.user_option("Name of the user.  Default: your login.")
]
SessionOption = Annotated[
    str | None,
    options.session_option(
        "Session of agents that do not name theirs.  Default: a new one for each "
        "conversation."
    ),
]
UpstreamOption = Annotated[
    list[str] | None,
    typer.Option(
        "--upstream",
        metavar="NAME=URL",
        help="Send requests for a provider here, such as "
        "openai=https://openrouter.ai/api/v1; repeat it for several.  Default: where "
        "the client's variables point, else the provider.",
    ),
]
StrictOption = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Refuse a request that cannot be recorded.  Default: send it, and warn.",
    ),
]

RedactUpstreamOption = Annotated[
    bool,
    typer.Option(
        "--redact-upstream",
        help="Send placeholders to the provider in place of values that redaction "
        "finds, and give the agent the values back.  Includes --strict.",
    ),
]


def run(
    call: options.Call,
    command: Annotated[
        list[str],
        typer.Argument(
            metavar=options.PROGRAM,
            help="The agent and its arguments, behind a --.",
        ),
    ],
    user: UserOption = None,
    session: SessionOption = None,
    upstream: UpstreamOption = None,
    strict: StrictOption = False,
    redact_upstream: RedactUpstreamOption = False,
) -> None:
    """Run any agent, and record what it sends to its provider.

    Starts a proxy on this machine, and the agent with variables that lead it there,
    such as ANTHROPIC_BASE_URL.  The agent gets every byte of the answers as the
    provider sent it.  Each session that the agent begins becomes a session of the
    store, redacted.  Exits with the agent's status.
    """
    _check_extra()
    from refold.adapters.proxy import clients, environment, security
    from refold.adapters.proxy.protocols import of
    from refold.adapters.proxy.server import ProxyServer

    try:
        child.check_command(command[0])
        client_environment = clients.environment_of(command, os.environ)
        client = clients.name_of(command)
        routes = environment.routes_for(
            client_environment, upstream or (), client=client
        )
        warnings: list[str] = []
        # A line between what the agent draws on a terminal would disturb it.
        report = warnings.append if sys.stderr.isatty() else output.complain
        with child.signals_held() as mask:
            recording = _recording(
                call,
                user,
                session,
                report,
                strict=strict,
                redacts_upstream=redact_upstream,
                folder=_current_folder(),
            )
            server = ProxyServer(
                routes.upstreams, of, recording, secret=security.new_secret()
            )
            variables = routes.variables(server.address)
            with running_proxy():
                try:
                    code = child.run(
                        clients.command_for(command, variables),
                        {
                            **os.environ,
                            **variables,
                            **environment.without_proxy(os.environ),
                        },
                        mask,
                    )
                finally:
                    server.stop()
                    _finish(recording)
    except child.NotStarted as error:
        output.complain(str(error))
        raise typer.Exit(error.code) from None
    for warning in warnings:
        output.complain(warning)
    _report_end(call, recording)
    if code:
        raise typer.Exit(code)


def proxy(
    call: options.Call,
    port: Annotated[
        int, typer.Option(metavar="PORT", min=0, help="Port; 0 chooses a free one.")
    ] = PORT,
    user: UserOption = None,
    session: SessionOption = None,
    upstream: UpstreamOption = None,
    strict: StrictOption = False,
    redact_upstream: RedactUpstreamOption = False,
    secret_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="File with the secret part of the address; it is made if it does not "
            "exist.  Default: proxy.secret in REFOLD_HOME.",
        ),
    ] = None,
    only_variables: Annotated[
        bool,
        typer.Option("--variables", help="Print the variables for agents, and exit."),
    ] = False,
) -> output.Result | None:
    """Record agents that run elsewhere on this machine, until Ctrl-C.

    Prints the variables that lead agents to the proxy.  Its address stays the same at
    each start.  Only programs of this machine that know the address can use it.
    """
    _check_extra()
    from refold.adapters.proxy import environment
    from refold.adapters.proxy.protocols import of
    from refold.adapters.proxy.secret_file import NAME, secret_in
    from refold.adapters.proxy.server import HOST, ProxyServer

    secret = secret_in(secret_file or config.home() / NAME)
    routes = environment.routes_for(os.environ, upstream or ())
    if only_variables:
        if port == 0:
            raise typer.BadParameter("--variables needs the --port of the proxy")
        address = f"http://{HOST}:{port}/{secret}"
        return _variables(routes.variables(address))
    recording = _recording(
        call,
        user,
        session,
        output.complain,
        strict=strict,
        redacts_upstream=redact_upstream,
    )
    server = ProxyServer(routes.upstreams, of, recording, secret=secret, port=port)
    stop = Event()
    with running_proxy(), stopped_by_signals(stop.set):
        call.report(_variables(routes.variables(server.address)))
        sys.stdout.flush()
        output.complain(f"recording on port {server.port}; stop with Ctrl-C")
        stop.wait()
        server.stop()
        recording.close()
    _report_end(call, recording)
    return None


def _check_extra() -> None:
    """Raise InvalidConfiguration if the packages of the proxy are not installed."""
    for module in ("httpx2", "uvicorn"):
        import_extra(module, "proxy")


def _recording(
    call: options.Call,
    user: str | None,
    session: str | None,
    report: Callable[[str], object],
    *,
    strict: bool,
    redacts_upstream: bool,
    folder: str = "",
) -> Recording:
    """Return the recording of a user's agents in the store of a call.

    folder: the folder in which the agents work; empty if it is unknown.
    """
    from refold.adapters.proxy.recorder import StoreRecorder
    from refold.adapters.proxy.recording import Recording

    store = call.store(new=True, long_running=True)
    user_id = user or options.operator(None) or "me"  # if the system has no login
    recorder = StoreRecorder(
        store,
        user_id=user_id,
        session_id=session,
        folder=folder,
        redacts_upstream=redacts_upstream,
    )
    return Recording(recorder, report, strict=strict, redacts_upstream=redacts_upstream)


def _current_folder() -> str:
    """Return the current folder; empty if somebody has removed it."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def _variables(variables: Mapping[str, str]) -> output.Result:
    """Return variables as lines for a shell, or as JSON."""
    lines = [f"export {name}={shlex.quote(url)}" for name, url in variables.items()]
    return output.Result(dict(variables), "\n".join(lines))


def _finish(recording: Recording) -> None:
    """Wait until everything is recorded, or until a person interrupts that twice.

    Signals are held back here, so that one for the agent does not end the record.
    """
    recording.end()
    interrupts = 0
    while not recording.wait(_WAIT_SEC):
        for number in signal.sigpending() & _INTERRUPTS:
            signal.sigwait({number})
            interrupts += 1
            if interrupts == 1:
                output.complain(
                    "the last requests are being recorded; press Ctrl-C again to end "
                    "without them"
                )
        if interrupts > 1:
            return


def _report_end(call: options.Call, recording: Recording) -> None:
    """Print the sessions that were recorded, and how to look at the main one."""
    problems = recording.problems
    if problems.count:
        output.complain(
            f"{counted(problems.count, 'request or answer', 'requests and answers')} "
            f"not recorded: {problems.first_reason}"
        )
    sessions = recording.sessions()
    if not sessions:
        if not problems.count:
            output.complain(
                f"nothing was recorded: no request came to the proxy; see {_HELP}"
            )
        return
    first = _main_session(sessions)
    show = ["refold", "log", "--user", first.user_id, "--session", first.session_id]
    if "--db" in call.meta:
        show += ["--db", call.url]
    others = ""
    if len(sessions) > 1:
        others = f" and {counted(len(sessions) - 1, 'more session')}"
    requests = counted(sum(session.requests for session in sessions), "request")
    output.complain(
        f"recorded {requests} in session {output.shown(first.session_id)}{others}: "
        f"{shlex.join(show)}"
    )


def _main_session(sessions: Sequence[RecordedSession]) -> RecordedSession:
    """Return the first session that no other one of them began.

    A client may ask for a title before it asks for the answer.  The session of a side
    request is named after that of the conversation.
    """
    names = {session.session_id for session in sessions}
    for session in sessions:
        main_name = session.session_id.partition("~")[0]
        if main_name == session.session_id or main_name not in names:
            return session
    return sessions[0]
