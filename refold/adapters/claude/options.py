"""The options of a call: checked against the SDK before anything is recorded."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from inspect import Parameter, signature
from typing import Any, Final

import pydantic
from anthropic import (
    Anthropic,
    APIConnectionError,
    DefaultHttpxClient,
    transform_schema,
)

from refold.adapters.claude import messages as chat
from refold.domain.canonical import canonical, repaired
from refold.domain.errors import InvalidConfiguration
from refold.domain.events import JsonObject

# A capture (``claude.capture``) sets these from the session and from its own arguments.
SET_BY_CAPTURE: Final = frozenset(
    {"model", "max_tokens", "system", "messages", "tools", "stream"}
)
# Not recorded: settings of the client, and headers and queries, which may be secret.
_OF_CLIENT: Final = frozenset({"extra_headers", "extra_query", "timeout"})
# Fields of a request's body that are sent and not recorded.
_SECRETS: Final = frozenset({"fallback_credit_token"})
# Fields of an MCP server in the body that are sent and not recorded.
_SERVER_SECRETS: Final = frozenset({"authorization_token"})
NO_THREADS: Final = (
    "the provider holds the messages of a thread, and a capture sends those of its "
    "session: call create, or give the messages and the answer to record"
)
# A request in a batch has only a body.  These options belong to the HTTP request that
# creates the batch.
NOT_IN_BATCHES: Final = frozenset(
    {"extra_headers", "extra_query", "extra_body", "timeout", "betas"}
)
_OUTPUT_FORMAT: Final = "output_format"


def api_for(client: Any, method: str, options: Mapping[str, Any]) -> Any:
    """Return the first of the SDK's two APIs whose method takes all options.

    The two APIs are ``client.messages`` and ``client.beta.messages``.

    method: the method of the SDK that will be called.

    Raises InvalidConfiguration for an option that neither API takes.
    """
    if not _unknown(client.messages, method, options):
        return client.messages
    unknown = _unknown(client.beta.messages, method, options)
    if not unknown:
        return client.beta.messages
    name = unknown[0]
    if name == _OUTPUT_FORMAT:
        raise InvalidConfiguration(
            "options: output_format belongs to parse(content, output_format=…) and to "
            "the options of stream"
        )
    raise InvalidConfiguration(
        f"options: {method} of the SDK has no {name!r}: check the spelling, or put it "
        "into the option extra_body"
    )


def _unknown(api: Any, method: str, options: Iterable[str]) -> list[str]:
    """Return the options that this method has no parameter for."""
    parameters = signature(getattr(api, method)).parameters
    kinds = {parameter.kind for parameter in parameters.values()}
    if Parameter.VAR_KEYWORD in kinds:
        return []
    return sorted(set(options) - parameters.keys())


def accepted_by(api: Any, method: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that this method has parameters for."""
    unknown = _unknown(api, method, body)
    return {name: value for name, value in body.items() if name not in unknown}


def check_settable(options: Mapping[str, Any]) -> None:
    """Refuse options that the capture sets itself.  Raises InvalidConfiguration."""
    body = options.get("extra_body")
    in_body: Iterable[str] = body.keys() if isinstance(body, Mapping) else ()
    set_by_capture = sorted(SET_BY_CAPTURE.intersection({*options, *in_body}))
    if set_by_capture:
        raise InvalidConfiguration(
            f"options: {set_by_capture[0]} is set by the capture from the session and "
            "from its own arguments"
        )
    thread = options.get("thread")
    if thread is None and isinstance(body, Mapping):
        thread = body.get("thread")
    if thread:
        raise InvalidConfiguration(f"options: {NO_THREADS}")


def recorded(options: Mapping[str, Any]) -> JsonObject:
    """Return the options that a request records: the body's, without secrets.

    Headers and the query are not recorded, even if the API acts on them.

    Raises InvalidConfiguration if the options are not JSON.
    """
    recordable = dict(options)
    for name in _OF_CLIENT:
        recordable.pop(name, None)
    output_format = recordable.get(_OUTPUT_FORMAT)
    if output_format is not None and not isinstance(output_format, Mapping):
        recordable[_OUTPUT_FORMAT] = schema_of(output_format)
    request_options: JsonObject
    try:
        request_options, _ = repaired(chat.plain(_without_secrets(recordable)))
        canonical(request_options)  # raises if it is not JSON
    except (TypeError, ValueError, RecursionError):
        raise InvalidConfiguration("options: must be JSON, to be recorded") from None
    return request_options


def _without_secrets(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a request's body that are recorded.

    ``extra_body`` has fields of the same body, so it is treated the same.
    """
    recordable = _without(body, _SECRETS)
    servers = recordable.get("mcp_servers")
    if isinstance(servers, Mapping):
        recordable["mcp_servers"] = _without_server_secrets(servers)
    elif isinstance(servers, list | tuple):
        recordable["mcp_servers"] = [
            _without_server_secrets(server) for server in servers
        ]
    extra = recordable.get("extra_body")
    if isinstance(extra, Mapping):
        recordable["extra_body"] = _without_secrets(extra)
    return recordable


def _without_server_secrets(server: Any) -> Any:
    """Return the fields of an MCP server that are recorded; other values unchanged."""
    if isinstance(server, Mapping):
        return _without(server, _SERVER_SECRETS)
    return server


def _without(fields: Mapping[str, Any], names: Container[str]) -> dict[str, Any]:
    """Return the fields without those of these names."""
    return {name: value for name, value in fields.items() if name not in names}


def schema_of(output_format: Any) -> JsonObject:
    """Return the JSON schema of a type, as the API takes it.

    Raises InvalidConfiguration for a type that has none.
    """
    try:
        schema = pydantic.TypeAdapter(output_format).json_schema()
        return dict(transform_schema(schema))
    except (pydantic.errors.PydanticUserError, TypeError, ValueError):
        raise InvalidConfiguration(
            "output_format: must be a type that pydantic can make a JSON schema of"
        ) from None


class Rehearsal:
    """Lets the SDK make a request without sending it, to check the arguments.

    The SDK checks some arguments only when it makes a request.  For example, it refuses
    a large ``max_tokens`` without streaming.

    timeout: the timeout of the real client.  The check of ``max_tokens`` depends on it.
    """

    def __init__(self, timeout: Any) -> None:
        options: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
        transport: Any = _Unsent()
        self._client = Anthropic(
            api_key="none",
            base_url="http://127.0.0.1",
            max_retries=0,
            http_client=DefaultHttpxClient(transport=transport, trust_env=False),
            **options,
        )

    def check(self, method: str, body: Mapping[str, Any], *, beta: bool) -> None:
        """Check the arguments of a method by letting the SDK build its request.

        beta: whether the method is that of ``client.beta.messages``.

        Parameters that the installed SDK does not have are left out: a client of
        another class may take them.

        Raises InvalidConfiguration if the SDK refuses the arguments.
        """
        api: Any = self._client.beta.messages if beta else self._client.messages
        arguments = accepted_by(api, method, body)
        try:
            if method == "stream":
                with api.stream(**arguments):
                    pass
            else:
                getattr(api, method)(**arguments)
        except APIConnectionError:
            return
        except Exception as error:
            raise InvalidConfiguration(
                f"options: the SDK refuses these arguments of {method} "
                f"(see the cause: {type(error).__name__})"
            ) from error


class _Unsent:
    """A transport that sends nothing.

    It has the methods that the SDK's HTTP client calls; their library is not imported.
    """

    def handle_request(self, _: Any) -> Any:
        raise ConnectionError

    def close(self) -> None:
        """Do nothing, because nothing is open."""

    def __enter__(self) -> _Unsent:
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing, because nothing is open."""
