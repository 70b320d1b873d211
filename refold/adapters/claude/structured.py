"""Answers whose text is JSON of a type, as the SDK's ``parse`` returns them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import TypeAdapter

if TYPE_CHECKING:
    from anthropic.types import Message, ParsedMessage

T = TypeVar("T")


def parsed(message: Message, output_format: type[T]) -> ParsedMessage[T]:
    """Return the message with ``parsed_output``, as the SDK's ``parse`` does.

    Raises pydantic.ValidationError if a text of it is not JSON of the type.
    """
    from anthropic.types import ParsedMessage
    from anthropic.types.beta import BetaMessage
    from anthropic.types.beta.parsed_beta_message import ParsedBetaMessage

    kind: Any = ParsedMessage
    if isinstance(message, BetaMessage):
        kind = ParsedBetaMessage
    adapter = TypeAdapter(output_format)
    whole: Any = kind.construct(**message.to_dict())
    for block in whole.content:
        if block.type == "text":
            block.parsed_output = adapter.validate_json(block.text)
    answer: ParsedMessage[T] = whole
    return answer
