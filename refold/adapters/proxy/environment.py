"""The environment variables by which clients find a provider, and their new values.

Clients keep their credentials.  Only the address that they send requests to changes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple
from urllib.parse import SplitResult, urlsplit

from refold.domain.errors import InvalidConfiguration

ALWAYS: Final = "*"
IF_SET: Final = ""


class Variable(NamedTuple):
    """An environment variable with the address of a provider.

    suffix:  the end of the addresses in it, such as ``/v1``.
    set_for: the clients that get it although it was not set before: ``ALWAYS`` all of
             them, ``IF_SET`` none, else the command with this name.
    """

    name: str
    suffix: str = ""
    set_for: str = ALWAYS


class Provider(NamedTuple):
    """A provider that clients find by environment variables.

    url:     its public address, without a version; empty if it has none.
    version: the first part of its paths.  Some clients expect it in the address, and
             others add it.
    """

    name: str
    url: str
    version: str
    variables: tuple[Variable, ...]


PROVIDERS: Final = (
    Provider(
        "anthropic",
        "https://api.anthropic.com",
        "/v1",
        (
            Variable("ANTHROPIC_BASE_URL"),
            Variable("ANTHROPIC_API_BASE", set_for=IF_SET),  # LiteLLM
            Variable("ANTHROPIC_API_ENDPOINT", set_for="crush"),
            Variable("ANTHROPIC_HOST", set_for="goose"),
        ),
    ),
    Provider(
        "openai",
        "https://api.openai.com",
        "/v1",
        (
            Variable("OPENAI_BASE_URL", "/v1"),
            Variable("OPENAI_API_BASE", "/v1"),  # LiteLLM, LangChain
            Variable("OPENAI_API_ENDPOINT", "/v1", set_for="crush"),
            Variable("OPENAI_HOST", set_for="goose"),
        ),
    ),
    Provider(
        "gemini",
        "https://generativelanguage.googleapis.com",
        "/v1beta",
        (
            Variable("GOOGLE_GEMINI_BASE_URL"),
            Variable("GEMINI_API_BASE", "/v1beta"),  # LiteLLM
            Variable("GEMINI_API_ENDPOINT", set_for="crush"),
        ),
    ),
    Provider(
        "ollama",
        "http://127.0.0.1:11434",
        "",
        (
            Variable("OLLAMA_HOST"),
            Variable("OLLAMA_API_BASE"),  # LiteLLM
        ),
    ),
    # A client that gets one of these variables uses another provider than before.
    Provider("azure", "", "", (Variable("AZURE_OPENAI_ENDPOINT", set_for=IF_SET),)),
    Provider(
        "copilot",
        "",
        "/v1",
        (Variable("COPILOT_PROVIDER_BASE_URL", "/v1", set_for=IF_SET),),
    ),
)

CHATGPT: Final = "chatgpt"
"""The upstream of Codex with a ChatGPT login instead of an API key."""

_CHATGPT_URL: Final = "https://chatgpt.com/backend-api/codex"
_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,30}")
_HOST: Final = re.compile(r"[\w.-]+|\[[0-9A-Fa-f:.]+\]", re.ASCII)
_OLLAMA_PORT: Final = 11_434
_LOOPBACK: Final = "127.0.0.1"
_PROXY_VARIABLES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


class Upstream(NamedTuple):
    """An address that the proxy forwards requests to.

    name:    the part of the proxy's path that chooses it.
    url:     its address, without a slash at the end.
    version: a version that the proxy adds to paths without one; else empty.
    """

    name: str
    url: str
    version: str = ""


class Routes(NamedTuple):
    """The upstreams of a proxy by name, and the variables that lead clients to them.

    paths: for each variable, the path on the proxy, such as ``openai/v1``.
    """

    upstreams: Mapping[str, Upstream]
    paths: Mapping[str, str]

    def variables(self, address: str) -> dict[str, str]:
        """Return the variables for clients of the proxy at this address."""
        return {name: f"{address}/{path}" for name, path in self.paths.items()}


def routes_for(
    environment: Mapping[str, str], chosen: Iterable[str] = (), *, client: str = ALWAYS
) -> Routes:
    """Return the routes for clients in an environment.

    chosen: upstreams that a person chose, such as ``openai=https://host/v1``.
    client: the name of the client's command; ``ALWAYS`` if any client may come.

    The upstream of a variable is the chosen one of its provider, else the former value
    of the variable.  Variables without a former value get the upstream of the first one
    that has one, else the provider's public address.

    Raises InvalidConfiguration.
    """
    addresses = _chosen_addresses(chosen)
    upstreams: dict[str, Upstream] = {}
    paths: dict[str, str] = {}
    for provider in PROVIDERS:
        chosen_url = addresses.pop(provider.name, "")
        former: dict[str, str] = {}
        for variable in provider.variables:
            value = environment.get(variable.name, "").strip()
            if value:
                former[variable.name] = value
        default = chosen_url or next(iter(former.values()), provider.url)
        if default:
            first = _upstream(provider, provider.name, default)
            if chosen_url and not provider.variables[0].suffix:
                # The provider's addresses have no version, and its paths have one.
                first = first._replace(version=provider.version)
            upstreams[provider.name] = first
        for variable in provider.variables:
            is_set_anyway = variable.set_for in (ALWAYS, client)
            if not is_set_anyway and variable.name not in former:
                continue
            url = chosen_url or former.get(variable.name, default)
            upstream = _with_address(upstreams, provider, url)
            upstreams[upstream.name] = upstream
            suffix = variable.suffix if upstream.version else ""
            if variable.name in former and not chosen_url:
                suffix = _suffix(provider, url)
            paths[variable.name] = f"{upstream.name}{suffix}"
    if upstreams["openai"].url == _public_url("openai"):
        addresses.setdefault(CHATGPT, _CHATGPT_URL)
    for name, url in addresses.items():
        other = Provider(name, "", "" if name == CHATGPT else "/v1", ())
        upstreams[name] = _upstream(other, name, url)
    return Routes(upstreams, paths)


def without_proxy(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that keep a client's requests to this machine direct.

    A client in an environment with an HTTP proxy would ask it for loopback addresses.
    """
    names = {name.upper() for name, value in environment.items() if value}
    if names.isdisjoint(_PROXY_VARIABLES):
        return {}
    variables = {}
    for name in ("NO_PROXY", "no_proxy"):
        hosts = environment.get(name) or environment.get(name.swapcase(), "")
        listed = [host.strip() for host in hosts.split(",")]
        # Some clients take "*" for all hosts only if it stands alone.
        if _LOOPBACK not in listed and "*" not in listed:
            hosts = f"{hosts},{_LOOPBACK}".lstrip(",")
        variables[name] = hosts
    return variables


def _chosen_addresses(chosen: Iterable[str]) -> dict[str, str]:
    """Return addresses by the name of their upstream, from ``NAME=URL``."""
    addresses: dict[str, str] = {}
    for text in chosen:
        name, equals, url = text.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise InvalidConfiguration(
                "write an upstream as NAME=URL, such as openai=https://host/v1"
            )
        if name in addresses:
            raise InvalidConfiguration(f"there are two upstreams named {name}")
        addresses[name] = url
    return addresses


def _upstream(provider: Provider, name: str, address: str) -> Upstream:
    """Return the upstream with this address, without the version at its end.

    Raises InvalidConfiguration.
    """
    url = _checked_url(provider, address)
    if provider.version and url.endswith(provider.version):
        return Upstream(name, url.removesuffix(provider.version), provider.version)
    if url == provider.url:
        return Upstream(name, url, provider.version)
    return Upstream(name, url)


def _with_address(
    upstreams: Mapping[str, Upstream], provider: Provider, address: str
) -> Upstream:
    """Return the provider's upstream with this address, or a further one."""
    number = 1
    name = provider.name
    while True:
        upstream = _upstream(provider, name, address)
        if upstreams.get(name, upstream).url == upstream.url:
            return upstreams.get(name, upstream)
        number += 1
        name = f"{provider.name}-{number}"


def _suffix(provider: Provider, address: str) -> str:
    """Return the version at the end of an address, if it has one."""
    has_version = bool(provider.version) and address.rstrip("/").endswith(
        provider.version
    )
    return provider.version if has_version else ""


def _public_url(name: str) -> str:
    """Return the public address of a provider."""
    return next(provider.url for provider in PROVIDERS if provider.name == name)


def _checked_url(provider: Provider, address: str) -> str:
    """Return an address without a slash at its end.  Raises InvalidConfiguration."""
    if provider.name == "ollama":
        address = _ollama_url(address)
    invalid = InvalidConfiguration(
        f"the address of {provider.name} must be http:// or https:// with a host, and "
        "without a user name, query, or fragment"
    )
    try:
        parts = urlsplit(address)
        _ = parts.port  # raises ValueError for a port that is no number
    except ValueError:
        raise invalid from None
    has_only_path = not (parts.username or parts.query or parts.fragment)
    if parts.scheme not in ("http", "https") or not has_only_path:
        raise invalid
    host = parts.netloc.rpartition(":")[0] if parts.port else parts.netloc
    if not _HOST.fullmatch(host):
        raise invalid
    return address.rstrip("/")


def _ollama_url(address: str) -> str:
    """Return the URL that clients of Ollama make of the value of OLLAMA_HOST.

    The scheme and the port may be missing, and servers listen on ``0.0.0.0``.
    """
    parts = urlsplit(address if "://" in address else f"http://{address}")
    host = parts.hostname or _LOOPBACK
    if host == "0.0.0.0":  # noqa: S104  # nothing listens here
        host = _LOOPBACK
    if ":" in host:
        host = f"[{host}]"
    port = parts.port
    if port is None:
        port = _OLLAMA_PORT if "://" not in address else _standard_port(parts)
    return f"{parts.scheme}://{host}:{port}{parts.path}"


def _standard_port(parts: SplitResult) -> int:
    """Return the port of a URL that names none."""
    return 443 if parts.scheme == "https" else 80
