"""``refold run`` records any agent, and the agent behaves as it does without Refold."""

import os
import pty
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.proxy.conftest import Machine
from tests.support.provider import Failure, Provider, answer, call
from tests.support.waiting import PATIENCE_SEC, read_to_end, read_until, until

RUN = ("run", "--user", "ada")
HTTP_AGENT = """
import json, os, sys, urllib.request
body = json.dumps({
    "model": "claude-opus-4-5",
    "max_tokens": 100,
    "tools": [{"name": "bash", "input_schema": {"type": "object"}}],
    "messages": [{"role": "user", "content": sys.argv[1]}],
}).encode()
headers = {"content-type": "application/json", "x-api-key": "sk-ant-KEY-OF-THE-AGENT"}
url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
request = urllib.request.Request(url, body, headers)
print(json.load(urllib.request.urlopen(request))["content"][0]["text"])
"""
SDK_AGENT = """
import anthropic, sys
client = anthropic.Anthropic(api_key="sk-ant-KEY-OF-THE-AGENT", max_retries=2)
tools = [{"name": "bash", "input_schema": {"type": "object"}}]
messages = [{"role": "user", "content": "Why does the build fail?"}]
arguments = {"model": "claude-opus-4-5", "max_tokens": 1000, "tools": tools}
for _ in range(2):
    with client.messages.stream(messages=messages, **arguments) as stream:
        message = stream.get_final_message()
    messages.append({"role": "assistant", "content": message.content})
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": "error: no rule"}
        for block in message.content if block.type == "tool_use"
    ]
    if results:
        messages.append({"role": "user", "content": results})
print(message.content[0].text)
"""


def python(code: str, *args: str) -> list[str]:
    """Return the command of an agent in Python."""
    return ["--", sys.executable, "-c", textwrap.dedent(code), *args]


def to(provider: Provider) -> list[str]:
    """Return the option that sends requests of all agents to the provider."""
    return ["--upstream", f"anthropic={provider.url}"]


def test_an_agent_over_plain_http_is_recorded(
    machine: Machine, provider: Provider
) -> None:
    provider.reply(answer("It works."))

    ran = machine.refold(*RUN, *to(provider), *python(HTTP_AGENT, "Hello there"))

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "It works.\n"
    (session,) = machine.session_ids()
    assert f"recorded 1 request in session {session}: refold log" in ran.stderr
    events = machine.events(session)
    types = [event["type"] for event in events]
    assert types.index("user_input") < types.index("request")
    assert types.index("request") < types.index("agent_response")


def test_an_agent_with_the_sdk_of_anthropic_is_recorded(
    machine: Machine, provider: Provider
) -> None:
    provider.reply(
        Failure(529, retry_after=0.01),
        answer("Let me look.", call("bash", {"command": "make"})),
        answer("The Makefile has no rule."),
    )

    ran = machine.refold(*RUN, *to(provider), *python(SDK_AGENT))

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "The Makefile has no rule.\n"
    assert len(provider.requests) == 3
    (session,) = machine.session_ids()
    types = [event["type"] for event in machine.events(session)]
    assert types.count("user_input") == 1
    assert types.count("tool_call") == 1
    assert types.count("tool_result") == 1
    assert types.count("agent_response") == 2
    assert types.count("request") == 3


def test_the_context_of_each_request_is_what_the_provider_received(
    machine: Machine, provider: Provider
) -> None:
    provider.reply(
        answer("Let me look.", call("bash", {"command": "make"})),
        answer("The Makefile has no rule."),
    )

    machine.refold(*RUN, *to(provider), *python(SDK_AGENT))

    (session,) = machine.session_ids()
    requests = [
        event["seq"] for event in machine.events(session) if event["type"] == "request"
    ]
    assert len(requests) == len(provider.requests) == 2
    for seq, received in zip(requests, provider.requests, strict=True):
        where = ("--user", "ada", "--session", session, "--at", seq)
        context = machine.json("context", *where)
        roles = [message["role"] for message in context["messages"]]
        assert roles == [message["role"] for message in received.json["messages"]]


def test_no_key_of_the_agent_is_on_the_disk(
    machine: Machine, provider: Provider
) -> None:
    ran = machine.refold(*RUN, *to(provider), *python(HTTP_AGENT, "Hello"))

    assert ran.returncode == 0, ran.stderr
    assert provider.requests[0].header("x-api-key") == "sk-ant-KEY-OF-THE-AGENT"
    (session,) = machine.session_ids()
    assert "KEY-OF-THE-AGENT" not in str(machine.events(session))
    for path in machine.folder.rglob("*"):
        if path.is_file():
            assert b"KEY-OF-THE-AGENT" not in path.read_bytes(), path


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("raise SystemExit(0)", 0),
        ("raise SystemExit(7)", 7),
        ("import os; os.kill(os.getpid(), 15)", 128 + 15),
        ("import os; os.kill(os.getpid(), 9)", 128 + 9),
    ],
)
def test_the_status_is_that_of_the_agent(
    machine: Machine, code: str, status: int
) -> None:
    ran = machine.refold(*RUN, *python(code))

    assert ran.returncode == status
    assert ran.stdout == ""
    assert "nothing was recorded: no request came to the proxy" in ran.stderr


def test_a_missing_command_is_an_error(machine: Machine) -> None:
    ran = machine.refold(*RUN, "--", "no-such-agent")

    assert ran.returncode == 127
    assert "there is no command no-such-agent" in ran.stderr
    assert not (machine.folder / "agent.db").exists()


def test_a_command_that_is_not_executable_is_an_error(machine: Machine) -> None:
    script = machine.folder / "agent.sh"
    script.write_text("exit 0")

    ran = machine.refold(*RUN, "--", script)

    assert ran.returncode == 126
    assert "is not executable" in ran.stderr


def test_options_behind_the_command_are_its_own(machine: Machine) -> None:
    code = "import sys; print(sys.argv[1:])"
    words = ["-p", "", "--json", "--", "--db", "x"]

    ran = machine.refold(*RUN, *python(code, *words))

    assert ran.stdout == f"{words}\n"


def test_stdin_and_stdout_are_those_of_the_agent(machine: Machine) -> None:
    code = "import sys; print(sys.stdin.read().upper()); sys.stderr.write('warned\\n')"

    ran = machine.refold(*RUN, *python(code), input="typed")

    assert ran.stdout == "TYPED\n"
    assert "warned\n" in ran.stderr


def test_the_agent_gets_default_signals(machine: Machine) -> None:
    code = """
        import signal
        print(signal.getsignal(signal.SIGTERM), signal.pthread_sigmask(0, []))
    """

    ran = machine.refold(*RUN, *python(code))

    assert ran.stdout == f"{signal.SIG_DFL} set()\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_is_passed_on_and_everything_is_recorded(
    machine: Machine, provider: Provider, number: signal.Signals
) -> None:
    provider.reply(answer("Wait.").holding(after=3))
    code = f"""
        import signal, sys
        def stop(number, frame):
            print("stopped by", number, flush=True)
            sys.exit(3)
        signal.signal({int(number)}, stop)
        {{agent}}
    """.replace("{agent}", "exec(sys.argv[2])")
    command = machine.command(*RUN, *to(provider), *python(code, "Hello", HTTP_AGENT))
    with subprocess.Popen(
        command,
        env=machine.environment,
        cwd=machine.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        until(lambda: provider.requests, "the request")
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_SEC)

    assert out == f"stopped by {int(number)}\n"
    assert process.returncode == 3, err
    (session,) = machine.session_ids()
    assert "request" in [event["type"] for event in machine.events(session)]


def test_a_parent_that_ignores_the_end_of_its_children_hides_nothing(
    machine: Machine,
) -> None:
    command = machine.command(*RUN, *python("raise SystemExit(4)"))

    ran = subprocess.run(
        ["sh", "-c", 'trap "" CHLD; exec "$@"', "sh", *command],
        env=machine.environment,
        cwd=machine.folder,
        timeout=PATIENCE_SEC,
        check=False,
    )

    assert ran.returncode == 4


def test_ctrl_c_reaches_the_agent_once(machine: Machine) -> None:
    code = """
        import signal, sys, time
        count = 0
        def stop(number, frame):
            global count
            count += 1
            print("interrupted", count, flush=True)
        signal.signal(signal.SIGINT, stop)
        print("ready", flush=True)
        sys.stdin.readline()
        print("in all", count, sys.stdin.isatty(), sys.stdout.isatty(), flush=True)
    """
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(machine.folder)
        command = machine.command(*RUN, *python(code))
        os.execve(command[0], command, machine.environment)  # noqa: S606  # of Python
    read_until(terminal, b"ready")
    os.write(terminal, b"\x03")
    read_until(terminal, b"interrupted 1")
    os.write(terminal, b"\n")
    out = read_to_end(terminal)
    os.close(terminal)
    _, status = os.waitpid(pid, 0)

    assert b"in all 1 True True" in out
    assert b"nothing was recorded" in out
    assert os.waitstatus_to_exitcode(status) == 0


def test_an_agent_that_stops_itself_gives_the_terminal_back(machine: Machine) -> None:
    code = """
        import os, signal
        print("stopping", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        print("going on", flush=True)
    """
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(machine.folder)
        command = machine.command(*RUN, *python(code))
        os.execve(command[0], command, machine.environment)  # noqa: S606  # of Python
    read_until(terminal, b"stopping")
    _, status = os.waitpid(pid, os.WUNTRACED)
    is_stopped = os.WIFSTOPPED(status)
    os.kill(pid, signal.SIGCONT)
    read_until(terminal, b"going on")
    read_to_end(terminal)
    os.close(terminal)
    os.waitpid(pid, 0)

    assert is_stopped


def test_an_agent_behind_an_http_proxy_reaches_the_proxy_directly(
    machine: Machine,
) -> None:
    machine.environment |= {"https_proxy": "http://127.0.0.1:1", "NO_PROXY": "host"}
    code = "import os; print(os.environ['NO_PROXY'], os.environ['no_proxy'])"

    ran = machine.refold(*RUN, *python(code))

    assert ran.stdout == "host,127.0.0.1 host,127.0.0.1\n"


def test_codex_gets_the_address_as_an_option(machine: Machine) -> None:
    codex = machine.folder / "codex"
    codex.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    codex.chmod(0o755)

    ran = machine.refold(*RUN, "--", codex, "exec", "Hello")

    option, setting, *rest = ran.stdout.splitlines()
    assert option == "-c"
    assert setting.startswith('openai_base_url="http://127.0.0.1:')
    assert setting.endswith('/openai/v1"')
    assert rest == ["exec", "Hello"]


def test_the_agent_goes_on_while_the_store_is_gone(
    machine: Machine, provider: Provider
) -> None:
    provider.reply(answer("The first."), answer("The second."))
    code = """
        import pathlib, sqlite3, sys
        database = sqlite3.connect(sys.argv[1], isolation_level=None)
        database.execute("BEGIN EXCLUSIVE")
        sys.argv[1:] = ["Hello"]
        exec(sys.stdin.read())
    """
    agent = python(code, str(machine.folder / "agent.db"))

    ran = machine.refold(*RUN, *to(provider), *agent, input=HTTP_AGENT)

    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == "The first.\n"


def test_strict_gives_the_agent_an_error(machine: Machine, provider: Provider) -> None:
    code = """
        import json, os, urllib.error, urllib.request
        url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
        try:
            urllib.request.urlopen(urllib.request.Request(url, b"no JSON"))
        except urllib.error.HTTPError as error:
            print(error.code, json.load(error)["error"]["message"])
    """

    ran = machine.refold(*RUN, *to(provider), "--strict", *python(code))

    assert ran.stdout.startswith("502 the request was not recorded: ")
    assert not provider.requests


def test_a_chosen_session_takes_agents_that_name_none(
    machine: Machine, provider: Provider
) -> None:
    ran = machine.refold(
        *RUN, *to(provider), "--session", "s-1", *python(HTTP_AGENT, "Hello")
    )

    assert ran.returncode == 0, ran.stderr
    assert machine.session_ids() == ["s-1"]


def test_the_folder_of_the_agent_is_the_project_of_its_session(
    machine: Machine, provider: Provider
) -> None:
    code = HTTP_AGENT.replace(
        '{"content-type"', '{"user-agent": "claude-cli/2.1", "content-type"'
    )

    ran = machine.refold(*RUN, *to(provider), *python(code, "Hello"))

    assert ran.returncode == 0, ran.stderr
    (session,) = machine.json("sessions", "--project", machine.folder.name)
    assert session["project"] == str(machine.folder)
    assert session["agent"] == "claude-code"


def test_the_report_names_the_conversation_rather_than_its_side_requests(
    machine: Machine, provider: Provider
) -> None:
    code = HTTP_AGENT.replace("headers = {", 'headers = {"x-session-id": "ses_1", ')
    title = code.replace(
        '"tools": [{"name": "bash", "input_schema": {"type": "object"}}],', ""
    )
    both = f"{textwrap.dedent(title)}\n{textwrap.dedent(code)}"

    ran = machine.refold(*RUN, *to(provider), *python(both, "Hello"))

    assert ran.returncode == 0, ran.stderr
    assert len(machine.session_ids()) == 2
    assert "in session ses_1 and 1 more session: refold log" in ran.stderr


@pytest.mark.parametrize("text", ["anthropic", "=http://x", "A=http://x", "a=ftp://x"])
def test_a_wrong_upstream_is_an_error(machine: Machine, text: str) -> None:
    ran = machine.refold(*RUN, "--upstream", text, *python("raise SystemExit(9)"))

    assert ran.returncode == 2
    assert "refold: " in ran.stderr
    assert not Path(machine.folder / "agent.db").exists()
