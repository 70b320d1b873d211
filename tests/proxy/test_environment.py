"""A client's variables lead to the proxy, and the proxy where they led before."""

from pathlib import Path

import pytest

from refold.adapters.proxy.clients import command_for, environment_of
from refold.adapters.proxy.environment import routes_for, without_proxy
from refold.adapters.proxy.forwarding import Headers, target_of
from refold.domain.errors import InvalidConfiguration

AT = "http://127.0.0.1:1/secret"
ACCOUNT: Headers = [(b"chatgpt-account-id", b"an account")]


def sent_to(
    environment: dict[str, str],
    variable: str,
    path: str,
    *chosen: str,
    client: str = "agent",
    headers: Headers | None = None,
) -> str:
    """Return the URL that a request reaches.

    path: which the client adds to the address in the variable.
    """
    routes = routes_for(environment, chosen, client=client)
    asked = routes.variables(AT)[variable] + path
    target = target_of(routes.upstreams, asked.removeprefix(f"{AT}/"), headers or [])
    assert target is not None
    scheme, _, rest = target.upstream.url.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}{target.path}"


@pytest.mark.parametrize(
    ("variable", "path", "url"),
    [
        ("ANTHROPIC_BASE_URL", "/v1/messages", "https://api.anthropic.com/v1/messages"),
        ("ANTHROPIC_BASE_URL", "/messages", "https://api.anthropic.com/v1/messages"),
        ("OPENAI_BASE_URL", "/responses", "https://api.openai.com/v1/responses"),
        ("OPENAI_API_BASE", "/models", "https://api.openai.com/v1/models"),
        ("OLLAMA_HOST", "/api/chat", "http://127.0.0.1:11434/api/chat"),
        ("OLLAMA_API_BASE", "/api/chat", "http://127.0.0.1:11434/api/chat"),
        (
            "GOOGLE_GEMINI_BASE_URL",
            "/v1beta/models/g:generateContent",
            "https://generativelanguage.googleapis.com/v1beta/models/g:generateContent",
        ),
        (
            "GEMINI_API_BASE",
            "/models/g:generateContent",
            "https://generativelanguage.googleapis.com/v1beta/models/g:generateContent",
        ),
    ],
)
def test_a_client_without_settings_reaches_its_provider(
    variable: str, path: str, url: str
) -> None:
    assert sent_to({}, variable, path) == url


@pytest.mark.parametrize(
    ("variable", "value", "path", "url"),
    [
        (
            "OPENAI_BASE_URL",
            "https://h/api/v1/",
            "/responses",
            "https://h/api/v1/responses",
        ),
        ("OPENAI_BASE_URL", "http://h:8/openai", "/models", "http://h:8/openai/models"),
        (
            "ANTHROPIC_BASE_URL",
            "https://h/a",
            "/v1/messages",
            "https://h/a/v1/messages",
        ),
        (
            "ANTHROPIC_BASE_URL",
            "https://h/a/v1",
            "/messages",
            "https://h/a/v1/messages",
        ),
        ("ANTHROPIC_BASE_URL", "https://h/a", "/messages", "https://h/a/messages"),
        ("ANTHROPIC_API_BASE", "https://h", "/v1/messages", "https://h/v1/messages"),
        (
            "OLLAMA_HOST",
            "0.0.0.0",  # noqa: S104  # nothing listens here
            "/api/chat",
            "http://127.0.0.1:11434/api/chat",
        ),
        ("OLLAMA_HOST", "host:8080", "/api/chat", "http://host:8080/api/chat"),
        ("OLLAMA_HOST", "https://host/x", "/api/chat", "https://host:443/x/api/chat"),
        (
            "COPILOT_PROVIDER_BASE_URL",
            "http://h/v1",
            "/chat/completions",
            "http://h/v1/chat/completions",
        ),
        (
            "AZURE_OPENAI_ENDPOINT",
            "https://h.azure.com/",
            "/openai/deployments/d/chat/completions",
            "https://h.azure.com/openai/deployments/d/chat/completions",
        ),
    ],
)
def test_a_client_with_an_address_reaches_that(
    variable: str, value: str, path: str, url: str
) -> None:
    assert sent_to({variable: value}, variable, path) == url


def test_variables_of_one_provider_may_lead_to_different_hosts() -> None:
    environment = {"OPENAI_BASE_URL": "https://a/v1", "OPENAI_API_BASE": "https://b/v1"}

    assert sent_to(environment, "OPENAI_BASE_URL", "/x") == "https://a/v1/x"
    assert sent_to(environment, "OPENAI_API_BASE", "/x") == "https://b/v1/x"


def test_a_variable_that_was_not_set_follows_the_one_that_was() -> None:
    environment = {"OPENAI_API_BASE": "https://a/v1"}

    assert sent_to(environment, "OPENAI_BASE_URL", "/x") == "https://a/v1/x"


@pytest.mark.parametrize(
    ("chosen", "variable", "path", "url"),
    [
        ("openai=https://h/v1", "OPENAI_BASE_URL", "/x", "https://h/v1/x"),
        ("openai=https://h/v1", "OPENAI_API_BASE", "/x", "https://h/v1/x"),
        (
            "anthropic=http://h",
            "ANTHROPIC_BASE_URL",
            "/messages",
            "http://h/v1/messages",
        ),
        (
            "gemini=http://h",
            "GEMINI_API_BASE",
            "/models/g:generateContent",
            "http://h/v1beta/models/g:generateContent",
        ),
    ],
)
def test_a_chosen_address_wins(chosen: str, variable: str, path: str, url: str) -> None:
    environment = {"OPENAI_BASE_URL": "https://a/v1", "OPENAI_API_BASE": "https://b/v1"}

    assert sent_to(environment, variable, path, chosen) == url


def test_a_further_upstream_has_a_path() -> None:
    routes = routes_for({}, ["mistral=https://api.mistral.ai/v1"])

    target = target_of(routes.upstreams, "mistral/v1/chat/completions", [])

    assert target is not None
    assert target.upstream.url == "https://api.mistral.ai"
    assert target.path == "/v1/chat/completions"
    assert target_of(routes.upstreams, "other/v1/chat/completions", []) is None


def test_a_login_with_chatgpt_reaches_chatgpt() -> None:
    url = sent_to({}, "OPENAI_BASE_URL", "/responses", headers=ACCOUNT)

    assert url == "https://chatgpt.com/backend-api/codex/responses"


def test_a_login_with_chatgpt_keeps_to_an_address_of_the_client() -> None:
    environment = {"OPENAI_BASE_URL": "https://h/v1"}

    url = sent_to(environment, "OPENAI_BASE_URL", "/responses", headers=ACCOUNT)

    assert url == "https://h/v1/responses"


def test_azure_deployments_have_the_path_of_the_protocol() -> None:
    routes = routes_for({"AZURE_OPENAI_ENDPOINT": "https://h"})

    for path in ("openai/deployments/d/chat/completions", "openai/v1/chat/completions"):
        target = target_of(routes.upstreams, f"azure/{path}", [])
        assert target is not None
        assert target.documented == "/v1/chat/completions"
        assert target.path == f"/{path}"


@pytest.mark.parametrize(
    ("client", "variable"),
    [("crush", "ANTHROPIC_API_ENDPOINT"), ("goose", "OPENAI_HOST")],
)
def test_a_variable_of_one_client_is_set_for_it_alone(
    client: str, variable: str
) -> None:
    assert variable in routes_for({}, client=client).variables(AT)
    assert variable not in routes_for({}, client="agent").variables(AT)


@pytest.mark.parametrize(
    "address",
    [
        "ftp://h",
        "h",
        "https://",
        "https://user:password@h",
        "https://h/?a=b",
        "https://h/#a",
        "https://h:port",
        "https://h h",
    ],
)
def test_an_address_that_cannot_be_used_is_an_error_without_it(address: str) -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        routes_for({"OPENAI_BASE_URL": address})

    assert "password" not in str(refused.value)


def test_only_an_environment_with_an_http_proxy_gets_exceptions() -> None:
    assert without_proxy({"NO_PROXY": "a"}) == {}
    assert without_proxy({"http_proxy": "http://p", "NO_PROXY": "*"}) == {
        "NO_PROXY": "*",
        "no_proxy": "*",
    }
    assert without_proxy({"HTTPS_PROXY": ""}) == {}
    assert without_proxy({"all_proxy": "http://p", "no_proxy": "a,b"}) == {
        "NO_PROXY": "a,b,127.0.0.1",
        "no_proxy": "a,b,127.0.0.1",
    }


def test_codex_gets_its_address_from_its_settings(tmp_path: Path) -> None:
    settings = 'openai_base_url = "https://h/v1"\nmodel = "m"\n'
    (tmp_path / "config.toml").write_text(settings)
    environment = {"CODEX_HOME": str(tmp_path), "OPENAI_BASE_URL": "https://unused/v1"}
    command = ["/usr/bin/codex", "exec", "Hello"]

    own = environment_of(command, environment)
    variables = routes_for(own, client="codex").variables(AT)

    assert sent_to(own, "OPENAI_BASE_URL", "/responses") == "https://h/v1/responses"
    assert command_for(command, variables) == [
        "/usr/bin/codex",
        "-c",
        f'openai_base_url="{AT}/openai/v1"',
        "exec",
        "Hello",
    ]


def test_other_clients_keep_their_command_and_environment() -> None:
    environment = {"OPENAI_BASE_URL": "https://h/v1"}

    assert environment_of(["agent"], environment) == environment
    assert command_for(["agent", "x"], {}) == ["agent", "x"]
