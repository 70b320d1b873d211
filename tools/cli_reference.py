"""Write the usage and the options of each command in the reference from its help.

``python -m tools.cli_reference`` writes the parts of ``docs/reference/cli.md`` between
two marks; with ``--check`` it writes nothing and exits 1 if the page is out of date.

A cell of the table has the help of an option, and after ``<br>`` a note that people
write in the page.  The notes stay when the table is written again.
"""

import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, get_args, get_origin

from refold.adapters.cli.commands import COMMANDS
from refold.adapters.cli.options import PROGRAM
from refold.adapters.cli.run import application, command

PAGE: Final = Path(__file__).parents[1] / "docs" / "reference" / "cli.md"
_ADVICE: Final = "`make fix` writes them; a note after <br> stays"
END: Final = "<!-- end of options -->\n"
WHOLE_PROGRAM: Final = "refold"

# The head of the page describes them, so a command shows one only with a note.
COMMON: Final = ("--db", "--make-key", "--json", "--help")
_HELP_ROW: Final = "| `--help`, `-h`, `help COMMAND` | Show help. |\n"

_PART: Final = re.compile(
    r"^<!-- options of ([a-z-]+): .*?-->\n(.*?)^<!-- end of options -->\n",
    re.MULTILINE | re.DOTALL,
)
_ROW: Final = re.compile(r"^\| `(--[a-z-]+|[A-Z]+)[^|]*(?:\\\|[^|]*)*\| (.*) \|$", re.M)
# In a help text: options, variables, files and names that Markdown shows as code.
_CODE: Final = re.compile(
    r"`[^`]+`|(?<![\w`-])(--[a-z][a-z-]+|REFOLD_[A-Z_]+|/health(?:/ready)?|/metrics|/v1)"
    r"(?![\w`])"
)


def page(old: str) -> str:
    """Return the page with new usages and options between the marks."""
    return _PART.sub(lambda match: _part(match[1], notes(match[2])), old)


def notes(text: str) -> dict[str, str]:
    """Return the notes that people wrote into a table, by option or argument."""
    written: dict[str, str] = {}
    for name, cell in _ROW.findall(text):
        _, _, note = cell.partition("<br>")
        if note:
            written[name] = note
    return written


def parts(text: str) -> list[str]:
    """Return the names of the commands whose options the page shows, in order."""
    return [match[1] for match in _PART.finditer(text)]


def problems(old: str) -> Iterator[str]:
    """Yield the commands without a part, and the notes of options that are gone."""
    shown = parts(old)
    for name in (WHOLE_PROGRAM, *COMMANDS):
        if name not in shown:
            yield f"{PAGE}: `refold {name}` has no mark `<!-- options of {name}: … -->`"
    for match in _PART.finditer(old):
        existing = {_name(parameter) for parameter in _parameters(match[1])}
        for name in sorted(set(notes(match[2])) - existing):
            yield f"{PAGE}: `{match[1]}` has no {name}, but a note about it"


def _parameters(name: str) -> Sequence[Any]:
    if name == WHOLE_PROGRAM:
        return list(application().params)
    return list(command(name).params)


def _part(name: str, written: Mapping[str, str]) -> str:
    mark = f"<!-- options of {name}: {_ADVICE} -->\n\n"
    parameters = _parameters(name)
    if name == WHOLE_PROGRAM:
        usage = "refold [OPTION]… COMMAND …"
        rows = [*_rows(parameters, written), _HELP_ROW]
    else:
        usage = f"refold {name} {_usage(parameters)}"
        rows = list(_rows(parameters, written, left_out=COMMON))
    table = ["| option | meaning |\n|---|---|\n", *rows, "\n"] if rows else []
    return "".join([mark, f"```\n{usage}\n```\n\n", *table, END])


def _usage(parameters: Iterable[Any]) -> str:
    """Return what a call needs, and that more options exist."""
    words: list[str] = []
    for parameter in parameters:
        if parameter.hidden:
            continue
        if parameter.metavar == PROGRAM:  # options before it are those of Refold
            return f"[OPTION]… -- {_placeholder(parameter)}"
        if _is_argument(parameter):
            word = _placeholder(parameter)
            words.append(word if parameter.required else f"[{word}]")
        elif parameter.required:
            words.append(f"{_name(parameter)} {_placeholder(parameter)}")
    return " ".join([*words, "[OPTION]…"])


def _rows(
    parameters: Iterable[Any],
    written: Mapping[str, str],
    *,
    left_out: Collection[str] = (),
) -> Iterator[str]:
    for parameter in parameters:
        name = _name(parameter)
        note = written.get(name, "")
        if name in left_out and not note:
            continue
        if parameter.hidden and not parameter.help:
            continue
        meaning = _meaning(parameter)
        if note:
            meaning = f"{meaning}<br>{note}"
        shown = _placeholder(parameter)
        if not _is_argument(parameter):
            shown = f"{name} {shown}".strip()
        # Other forms of an option, such as ``-v``, come after the first.
        others = "".join(f", `{other}`" for other in _other_forms(parameter))
        yield f"| `{shown}`{others} | {meaning} |\n"


def _is_argument(parameter: Any) -> bool:
    return bool(parameter.param_type_name == "argument")


def _other_forms(parameter: Any) -> list[str]:
    """Return the other forms of an option, such as ``-v``."""
    if _is_argument(parameter):
        return []
    return [str(form) for form in parameter.opts[1:]]


def _name(parameter: Any) -> str:
    """Return an option as it is typed, or the word that stands for an argument."""
    if _is_argument(parameter):
        return str(parameter.metavar)
    return str(parameter.opts[0])


def _placeholder(parameter: Any) -> str:
    """Return the word that stands for the value; nothing for a flag."""
    if _is_argument(parameter):
        return f"{parameter.metavar}…" if parameter.nargs == -1 else parameter.metavar
    if parameter.is_flag:
        return ""
    return str(parameter.metavar or parameter.opts[0].strip("-").upper())


def _meaning(parameter: Any) -> str:
    """Return the help in Markdown, with choices and the default if it lacks them."""
    text = " ".join((parameter.help or "").split())
    shown = _CODE.sub(_as_code, text)
    choices = _choices(parameter)
    if all(re.search(rf"\b{choice}\b", text) for choice in choices):
        for choice in choices:
            shown = re.sub(rf"\b{choice}\b", f"`{choice}`", shown, count=1)
        sentences = [shown]
    else:
        listed = ", ".join(f"`{choice}`" for choice in choices)
        sentences = [shown, f"One of {listed}."]
    names_default = re.search(r"Default: |; default ", text)
    if _has_default(parameter) and not names_default:
        sentences.append(f"Default: `{_plain(parameter.default)}`.")
    return " ".join(sentences).replace("|", "\\|").replace("[", "\\[")


def _as_code(match: re.Match[str]) -> str:
    return f"`{match[1]}`" if match[1] else match[0]


def _choices(parameter: Any) -> tuple[str, ...]:
    """Return the values that an option accepts, if they are listed in its type."""
    annotation = getattr(parameter, "type_descriptor", None)
    kind = annotation.annotation if annotation else None
    if get_origin(kind) is list:
        kind = get_args(kind)[0]
    return get_args(kind) if get_origin(kind) is Literal else ()


def _has_default(parameter: Any) -> bool:
    default = parameter.default
    return default not in (None, "", 0) and not isinstance(default, bool)


def _plain(default: object) -> str:
    """Return a default as it is typed; a whole number has no decimals."""
    if isinstance(default, float) and default.is_integer():
        return str(int(default))
    return str(default)


def main(arguments: Sequence[str]) -> int:
    """Write the page, or check it; return 1 if it is out of date."""
    old = PAGE.read_text(encoding="utf-8")
    reported = list(problems(old))
    print(*reported, sep="\n", end="\n" if reported else "")
    if reported:
        return 1
    new = page(old)
    if list(arguments) != ["--check"]:
        PAGE.write_text(new, encoding="utf-8")
    elif new != old:
        print(f"{PAGE}: out of date: `make fix` writes the options of the commands")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
