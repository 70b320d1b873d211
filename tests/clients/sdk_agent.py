"""A small agent on the SDK of a provider: ``python sdk_agent.py SDK PROMPT``.

It runs in the environment of the clients, which has no Refold.  It calls the model
until the model calls no more tools, prints the answers, and keeps its history in its
home.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SYSTEM = "You run commands."
TOOL = "run_command"
ABOUT = "Runs a command in a shell."
SCHEMA = {
    "type": "object",
    "properties": {"command": {"type": "string"}},
    "required": ["command"],
}
FUNCTION = {"name": TOOL, "description": ABOUT, "parameters": SCHEMA}
CHAT_TOOL = {"type": "function", "function": FUNCTION}
MOST_TRIES = 3


class Cancelled(Exception):
    """The agent closed a stream after its first piece."""


class Agent:
    """The part that all SDKs share.

    history: the messages, in the SDK's form as JSON.
    """

    def __init__(self, options: argparse.Namespace, history: list[Any]) -> None:
        self.options = options
        self.history = history
        self.cancels = options.cancel

    def ask(self, prompt: str, image: Path | None) -> None:
        """Add the message of a person."""
        raise NotImplementedError

    def answer(self) -> list[tuple[str, str]]:
        """Ask the model, add its answer, and return its calls: ids and commands."""
        raise NotImplementedError

    def returned(self, results: list[tuple[str, str]]) -> None:
        """Add the results of calls, by their ids."""
        raise NotImplementedError

    def pieces(self, stream: Any, close: Callable[[], None]) -> Iterator[Any]:
        """Yield the pieces of a stream; the first time, cancel it if asked to."""
        for piece in stream:
            if self.cancels:
                self.cancels = False
                close()
                raise Cancelled
            yield piece

    def run(self) -> None:
        """Call the model and the tool until the model calls no more."""
        while True:
            try:
                calls = self.answer()
            except Cancelled:
                continue
            if not calls:
                return
            self.returned([(call_id, output_of(command)) for call_id, command in calls])


def say(text: str) -> None:
    """Print a text of the model."""
    sys.stdout.write(f"{text}\n")


def nothing() -> None:
    """Close something that needs no closing."""


def output_of(command: str) -> str:
    """Run a command and return its output."""
    ran = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    return ran.stdout


def encoded(image: Path) -> str:
    """Return the content of a file in base64."""
    return base64.b64encode(image.read_bytes()).decode()


class Anthropic(Agent):
    """The SDK of Anthropic."""

    def ask(self, prompt: str, image: Path | None) -> None:
        content: list[Any] = [{"type": "text", "text": prompt}]
        if image is not None:
            source = {"type": "base64", "media_type": "image/png"}
            source["data"] = encoded(image)
            content.append({"type": "image", "source": source})
        self.history.append({"role": "user", "content": content})

    def answer(self) -> list[tuple[str, str]]:
        import anthropic

        request: dict[str, Any] = {
            "model": "claude-sonnet-4-5",
            "max_tokens": 1024,
            "system": SYSTEM,
            "tools": [{"name": TOOL, "description": ABOUT, "input_schema": SCHEMA}],
            "messages": self.history,
        }
        client = anthropic.Anthropic()
        if self.options.stream:
            with client.messages.stream(**request) as stream:
                for _ in self.pieces(stream, stream.close):
                    pass
                message = stream.get_final_message()
        else:
            message = client.messages.create(**request)
        content: list[Any] = []
        calls: list[tuple[str, str]] = []
        for block in message.content:
            if block.type == "text":
                say(block.text)
                content.append({"type": "text", "text": block.text})
            elif block.type == "tool_use":
                call = {"type": "tool_use", "id": block.id, "name": block.name}
                content.append({**call, "input": block.input})
                calls.append((block.id, str(block.input["command"])))
        self.history.append({"role": "assistant", "content": content})
        return calls

    def returned(self, results: list[tuple[str, str]]) -> None:
        content = []
        for call_id, output in results:
            result = {"type": "tool_result", "tool_use_id": call_id, "content": output}
            content.append(result)
        self.history.append({"role": "user", "content": content})


class Chat(Agent):
    """Chat Completions in the SDK of OpenAI."""

    def ask(self, prompt: str, image: Path | None) -> None:
        if not self.history:
            self.history.append({"role": "system", "content": SYSTEM})
        content: Any = prompt
        if image is not None:
            url = {"url": f"data:image/png;base64,{encoded(image)}"}
            content = [
                {"type": "text", "text": prompt},
                {"type": "image_url", "image_url": url},
            ]
        self.history.append({"role": "user", "content": content})

    def response(self) -> tuple[Any, Callable[[], None]]:
        """Return the response or stream, and the function that closes a stream."""
        import openai

        response: Any = openai.OpenAI().chat.completions.create(
            model="gpt-5",
            messages=self.history,
            tools=[CHAT_TOOL],
            stream=self.options.stream,
        )
        return response, getattr(response, "close", nothing)

    def answer(self) -> list[tuple[str, str]]:
        response, close = self.response()
        text = ""
        tool_calls: dict[int, dict[str, Any]] = {}
        if self.options.stream:
            for chunk in self.pieces(response, close):
                delta = chunk.choices[0].delta if chunk.choices else None
                text += (delta and delta.content) or ""
                for piece in (delta and delta.tool_calls) or ():
                    call = tool_calls.setdefault(
                        piece.index, {"id": "", "name": "", "arguments": ""}
                    )
                    call["id"] += piece.id or ""
                    call["name"] += piece.function.name or ""
                    call["arguments"] += piece.function.arguments or ""
        else:
            message = response.choices[0].message
            text = message.content or ""
            for index, call in enumerate(message.tool_calls or ()):
                function = call.function
                tool_calls[index] = {
                    "id": call.id,
                    "name": function.name,
                    "arguments": function.arguments,
                }
        say(text)
        entry: dict[str, Any] = {"role": "assistant", "content": text or None}
        calls: list[tuple[str, str]] = []
        for call in tool_calls.values():
            function = {"name": call["name"], "arguments": call["arguments"]}
            entry.setdefault("tool_calls", []).append(
                {"id": call["id"], "type": "function", "function": function}
            )
            calls.append((call["id"], json.loads(call["arguments"])["command"]))
        self.history.append(entry)
        return calls

    def returned(self, results: list[tuple[str, str]]) -> None:
        for call_id, output in results:
            result = {"role": "tool", "tool_call_id": call_id, "content": output}
            self.history.append(result)


class LiteLlm(Chat):
    """LiteLLM, which calls a provider in the form of Chat Completions."""

    model = "openai/gpt-5"

    def response(self) -> tuple[Any, Callable[[], None]]:
        import litellm

        response: Any = litellm.completion(
            model=self.model,
            messages=self.history,
            tools=[CHAT_TOOL],
            stream=self.options.stream,
            num_retries=MOST_TRIES,
        )
        return response, getattr(response, "close", nothing)


class LiteLlmAnthropic(LiteLlm):
    """LiteLLM, which translates to the Messages API."""

    model = "anthropic/claude-sonnet-4-5"


class Responses(Agent):
    """The Responses API in the SDK of OpenAI, with the whole history."""

    def ask(self, prompt: str, image: Path | None) -> None:
        content: list[Any] = [{"type": "input_text", "text": prompt}]
        if image is not None:
            url = f"data:image/png;base64,{encoded(image)}"
            content.append({"type": "input_image", "image_url": url})
        message = {"type": "message", "role": "user", "content": content}
        self.history.append(message)

    def request(self) -> dict[str, Any]:
        """Return the arguments that carry the history."""
        return {"input": self.history, "store": False}

    def add(self, response: Any) -> None:
        """Add the answer to the history."""
        for item in response.output:
            self.history.append(item.model_dump(mode="json", exclude_none=True))

    def answer(self) -> list[tuple[str, str]]:
        import openai

        response: Any = openai.OpenAI().responses.create(
            model="gpt-5",
            instructions=SYSTEM,
            tools=[{"type": "function", **FUNCTION}],
            stream=self.options.stream,
            **self.request(),
        )
        if self.options.stream:
            for event in self.pieces(response, response.close):
                if event.type == "response.completed":
                    response = event.response
        self.add(response)
        calls: list[tuple[str, str]] = []
        say(response.output_text)
        for item in response.output:
            if item.type == "function_call":
                calls.append((item.call_id, json.loads(item.arguments)["command"]))
        return calls

    def returned(self, results: list[tuple[str, str]]) -> None:
        for call_id, output in results:
            result = {"type": "function_call_output", "call_id": call_id}
            self.history.append({**result, "output": output})


class StoredResponses(Responses):
    """The Responses API with a history that the provider stores.

    The history here has the id of the last response, and the new items.
    """

    def request(self) -> dict[str, Any]:
        arguments: dict[str, Any] = {"input": self.history}
        if self.history and "previous" in self.history[0]:
            arguments["previous_response_id"] = self.history[0]["previous"]
            arguments["input"] = self.history[1:]
        return arguments

    def add(self, response: Any) -> None:
        self.history[:] = [{"previous": response.id}]


class Gemini(Agent):
    """The SDK of Google."""

    def ask(self, prompt: str, image: Path | None) -> None:
        parts: list[Any] = [{"text": prompt}]
        if image is not None:
            data = {"mimeType": "image/png", "data": encoded(image)}
            parts.append({"inlineData": data})
        self.history.append({"role": "user", "parts": parts})

    def answer(self) -> list[tuple[str, str]]:
        from google import genai
        from google.genai import types

        retries = types.HttpRetryOptions(attempts=MOST_TRIES, initial_delay=0.1)
        client = genai.Client(http_options=types.HttpOptions(retry_options=retries))
        declared = types.FunctionDeclaration(
            name=TOOL, description=ABOUT, parameters_json_schema=SCHEMA
        )
        request: dict[str, Any] = {
            "model": "gemini-2.5-flash",
            "contents": [
                types.Content.model_validate(content) for content in self.history
            ],
            "config": types.GenerateContentConfig(
                system_instruction=SYSTEM,
                tools=[types.Tool(function_declarations=[declared])],
                automatic_function_calling=types.AutomaticFunctionCallingConfig(
                    disable=True
                ),
            ),
        }
        responses: list[Any]
        if self.options.stream:
            stream = client.models.generate_content_stream(**request)
            responses = list(self.pieces(stream, stream.close))
        else:
            responses = [client.models.generate_content(**request)]
        parts: list[Any] = []
        calls: list[Any] = []
        for response in responses:
            for part in response.candidates[0].content.parts or ():
                if part.text:
                    say(part.text)
                if part.function_call:
                    calls.append(part.function_call)
                # With its signature, which the model needs again.
                new = part.model_dump(mode="json", by_alias=True, exclude_none=True)
                if parts and parts[-1].keys() == new.keys() == {"text"}:
                    parts[-1]["text"] += new["text"]
                else:
                    parts.append(new)
        self.history.append({"role": "model", "parts": parts})
        return [(call.id, call.args["command"]) for call in calls]

    def returned(self, results: list[tuple[str, str]]) -> None:
        parts = []
        for call_id, output in results:
            response = {"id": call_id, "name": TOOL, "response": {"output": output}}
            parts.append({"functionResponse": response})
        self.history.append({"role": "user", "parts": parts})


class Ollama(Agent):
    """The SDK of Ollama, which does not try again after an error."""

    def ask(self, prompt: str, image: Path | None) -> None:
        if not self.history:
            self.history.append({"role": "system", "content": SYSTEM})
        message: dict[str, Any] = {"role": "user", "content": prompt}
        if image is not None:
            message["images"] = [encoded(image)]
        self.history.append(message)

    def answer(self) -> list[tuple[str, str]]:
        import ollama

        for tries in range(MOST_TRIES):
            try:
                return self.answer_once()
            except ollama.ResponseError:
                if tries + 1 == MOST_TRIES:
                    raise
        raise AssertionError

    def answer_once(self) -> list[tuple[str, str]]:
        import ollama

        response: Any = ollama.Client().chat(
            model="qwen3",
            messages=self.history,
            tools=[CHAT_TOOL],
            stream=self.options.stream,
        )
        responses = [response]
        if self.options.stream:
            responses = list(self.pieces(response, response.close))
        text = "".join(response.message.content or "" for response in responses)
        tool_calls: list[Any] = []
        for response in responses:
            tool_calls += response.message.tool_calls or ()
        say(text)
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if tool_calls:
            message["tool_calls"] = [
                {
                    "function": {
                        "name": call.function.name,
                        "arguments": dict(call.function.arguments),
                    }
                }
                for call in tool_calls
            ]
        self.history.append(message)
        return [("", call.function.arguments["command"]) for call in tool_calls]

    def returned(self, results: list[tuple[str, str]]) -> None:
        for _, output in results:
            result = {"role": "tool", "tool_name": TOOL, "content": output}
            self.history.append(result)


AGENTS: dict[str, type[Agent]] = {
    "anthropic": Anthropic,
    "openai-chat": Chat,
    "openai-responses": Responses,
    "openai-stored": StoredResponses,
    "google-genai": Gemini,
    "ollama": Ollama,
    "litellm": LiteLlm,
    "litellm-anthropic": LiteLlmAnthropic,
}


def main() -> None:
    """Run one conversation."""
    parser = argparse.ArgumentParser()
    parser.add_argument("sdk", choices=AGENTS)
    parser.add_argument("prompt")
    parser.add_argument("--stream", action="store_true")
    parser.add_argument("--cancel", action="store_true")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--image", type=Path)
    options = parser.parse_args()
    saved = Path(os.environ["HOME"]) / "history.json"
    history: list[Any] = json.loads(saved.read_text()) if options.resume else []
    agent = AGENTS[options.sdk](options, history)
    agent.ask(options.prompt, options.image)
    agent.run()
    saved.write_text(json.dumps(agent.history))


if __name__ == "__main__":
    main()
