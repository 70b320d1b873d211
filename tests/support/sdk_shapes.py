"""The types that the installed SDK of Anthropic accepts and returns, with samples."""

from __future__ import annotations

import types
from inspect import signature
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Required,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import anthropic
from anthropic.types import ContentBlock, ContentBlockParam, message_create_params
from anthropic.types.beta import (
    BetaContentBlock,
    BetaContentBlockParam,
    message_create_params as beta_message_create_params,
)
from pydantic import BaseModel

NEVER_OPTIONS = {"model", "max_tokens", "messages", "stream", "system", "tools"}
OF_THE_CLIENT = {"extra_headers", "extra_query", "extra_body", "timeout", "betas"}
WRAPPERS = (Annotated, Required, NotRequired)


def sample(annotation: Any, depth: int = 0) -> Any:
    """Return a JSON value of this type of the SDK, with every optional field."""
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin in WRAPPERS:
        return sample(arguments[0], depth)
    if origin in (Union, types.UnionType):
        members_of_union = [member for member in arguments if member is not type(None)]
        return sample(members_of_union[0], depth)
    if origin is Literal:
        return arguments[0]
    if annotation in (int, float):
        return 3
    if annotation is bool:
        return True
    if origin is dict:
        return {"key": sample(arguments[1], depth + 1)}
    if origin is not None and arguments:
        return [sample(arguments[0], depth + 1)]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        fields = annotation.model_fields.items()
        return {name: sample(field.annotation, depth + 1) for name, field in fields}
    if isinstance(annotation, type) and hasattr(annotation, "__required_keys__"):
        hints = get_type_hints(annotation, include_extras=True)
        fields_used = annotation.__required_keys__ if depth > 4 else hints
        return {name: sample(hints[name], depth + 1) for name in fields_used}
    return "x"


def members(union: Any) -> list[Any]:
    arguments = get_args(union)
    if get_origin(union) is Annotated:
        arguments = get_args(arguments[0])
    return list(arguments)


def options(create: Any, params: Any) -> dict[str, Any]:
    names = signature(create).parameters.keys() - NEVER_OPTIONS - OF_THE_CLIENT
    hints = get_type_hints(params, include_extras=True)
    return {name: sample(hints[name]) for name in sorted(names)}


CLIENT = anthropic.Anthropic(api_key="none")
STABLE = options(
    CLIENT.messages.create, message_create_params.MessageCreateParamsNonStreaming
)
BETA = options(
    CLIENT.beta.messages.create,
    beta_message_create_params.MessageCreateParamsNonStreaming,
)
ANSWERS = {
    shape.__name__: sample(shape)
    for shape in members(ContentBlock) + members(BetaContentBlock)
}
# The blocks that a message of a request may have.
REQUEST_BLOCKS = {
    shape.__name__: sample(shape)
    for shape in members(ContentBlockParam) + members(BetaContentBlockParam)
}
