"""What a model is asked: a prompt by its name and version, and the source in tags."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from refold.domain.errors import InvalidConfiguration, SummarizerFailed
from refold.projections.context.source import Source

NEWEST: Final = "summary-1"
SCOPE: Final = "scope-1"
NOTES: Final = "notes-1"
WORDS: Final = "{words}"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt with a place for how many words the answer may have.

    A file of ``prompts/`` is never changed once it was released: another wording is
    another number, so that a recorded name still says what was asked.
    """

    name: str
    text: str

    @classmethod
    def newest(cls) -> Prompt:
        """The prompt that is used if none is given."""
        return cls.named(NEWEST)

    @classmethod
    def named(cls, name: str) -> Prompt:
        """The prompt in the file of that name."""
        file = files(__package__) / "prompts" / f"{name}.txt"
        return cls(name, file.read_text(encoding="utf-8").strip())

    @classmethod
    def for_notes(cls, source: Source) -> Prompt:
        """The prompt for rewriting notes: what the strategy asks, then the rules."""
        wanted = source.notes
        if wanted is None or not wanted.compression_prompt:
            raise SummarizerFailed("nothing says how notes are to be rewritten")
        own = (wanted.compression_prompt, wanted.recent_memories_subprompt)
        rules = cls.named(NOTES).text
        text = "\n\n".join(part for part in (*own, rules) if part)
        numbers = {
            "{compression_target}": wanted.lines,
            "{num_recent_memories_to_keep}": wanted.num_recent_memories_to_keep,
        }
        for name, number in numbers.items():
            text = text.replace(name, str(number))
        return cls(NOTES, text)

    @classmethod
    def own(cls, text: str) -> Prompt:
        """A prompt of the caller's.

        Raises InvalidConfiguration if it is empty or does not hold ``{words}``.
        """
        if not text.strip():
            raise InvalidConfiguration(
                "the prompt of the summarizer is empty: leave it out for Refold's own"
            )
        if WORDS not in text:
            raise InvalidConfiguration(
                f"the prompt of the summarizer has no {WORDS}: put it where the prompt "
                "says how long a summary may be"
            )
        return cls("own", text)

    def within(self, words: int) -> str:
        """The text that is sent, for a summary of so many words."""
        return self.text.replace(WORDS, str(words))


def tagged(source: Source) -> str:
    """The text of a source in tags, what it absorbs apart from the log.

    The names of the tags hold a part of the text's own digest: no text can close
    them before its end.
    """
    mark, log = source.digest[:12], source.text
    parts = [_in_tag(f"earlier-{mark}", text) for text in source.summaries]
    if parts:
        log = log.removeprefix("\n".join(source.summaries)).removeprefix("\n")
    if log:
        parts.append(_in_tag(f"log-{mark}", log))
    return "\n\n".join(parts)


def _in_tag(name: str, text: str) -> str:
    return f"<{name}>\n{text}\n</{name}>"
