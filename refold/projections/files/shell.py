"""Commands of a shell: which files they may change."""

from __future__ import annotations

import posixpath
import re
import shlex
from bisect import bisect_left
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from refold.domain.canonical import load_packaged_toml

_DATA: Final[dict[str, Any]] = load_packaged_toml(
    "refold.projections", "data", "files.toml"
)["shell"]
# Programs that change no file.
_HARMLESS: Final = frozenset[str](_DATA["harmless"])
# Programs that change the files among their arguments.
_CHANGE_ARGUMENTS: Final = frozenset[str](_DATA["named"])
# Programs that change the files among their arguments if they have this option.
_OPTIONS: Final = {name: re.compile(option) for name, option in _DATA["option"].items()}
# Programs with sub-commands: those that change no file, and exceptions of two words.
_HARMLESS_VERBS: Final = {
    name: frozenset(verbs) for name, verbs in _DATA["verbs"].items()
}
_EXCEPTIONS: Final = {name: frozenset(pairs) for name, pairs in _DATA["unsafe"].items()}
# Programs that run a task, and the tasks that change no file.
_RUNNERS: Final = frozenset[str](_DATA["runners"]["programs"])
_HARMLESS_TASKS: Final = frozenset[str](_DATA["runners"]["harmless"])
_STARTERS: Final = frozenset({"run", "run-script"})  # the next word names the task
# The start of a here-document, but not of a here-string (``<<<``).
_HEREDOC: Final = re.compile(r"(?<!<)<<-?[ \t]*(?P<quote>['\"]?)(?P<tag>\w+)(?P=quote)")
# The number of an output before its redirection.
_DESCRIPTOR: Final = re.compile(r"(^|\s)\d([<>])")
_ASSIGNMENT: Final = re.compile(r"[A-Za-z_]\w*=")
_REDIRECTION: Final = re.compile(r"(?:\d|&)?>{1,2}\|?")
_SEPARATORS: Final = frozenset({";", "&", "&&", "|", "||", "|&", "(", ")", ";;", "\n"})
# Words before a program that do not change which files it may change.
_PREFIXES: Final = frozenset(
    {"sudo", "env", "time", "nohup", "command", "exec", "then", "do", "else", "if",
     "while", "until", "!", "{", "}", "timeout", "\\"}
)  # fmt: skip
_BEFORE_WORDS: Final = frozenset(" \t\n;&|()")
# A part of a word that stands for other text: a variable, a pattern, Go's "./...".
_PATTERN: Final = re.compile(r"[$`*?\[{]|\.\.\.")
# A redirection, a pipe, or a command in a script of awk; "a > 1" compares.
_WRITES_IN_AWK: Final = re.compile(
    r"print(?:(?!print)[^;}])*[>|]|system\s*\(|^inplace$"
)
_SETUP_SCRIPTS: Final = frozenset(
    {"activate", ".bashrc", ".profile", ".zshrc", ".env", "nvm.sh"}
)
# The operators after which a program runs only if the one before it succeeded.
_NEXT_NEEDS_SUCCESS: Final = frozenset({"&&", "&&\n", "&&("})
# The operators after which a program runs in the same folder as the one before it.
_NEXT_IN_SAME_FOLDER: Final = frozenset({"|", "|&", "|\n"})
# A folder whose place is not known: a pattern, a variable, or ``-``, the previous one.
_UNKNOWN_FOLDER: Final = re.compile(r"[$`*?\[{~]|^-")
_DEEPEST: Final = 5  # commands within commands
_LONGEST: Final = 20_000  # characters of a command that are read


class Touched(NamedTuple):
    """The files that a command may change.

    everything: whether it may change any file.
    paths:      the files or folders that it names, as it names them.
    """

    everything: bool = False
    paths: tuple[str, ...] = ()

    def may_be(self, path: str) -> bool:
        """Whether the file at ``path`` may be among them."""
        return self.everything or any(_is_at(path, named) for named in self.paths)


NOTHING: Final = Touched()
EVERYTHING: Final = Touched(everything=True)


def _is_at(path: str, named: str) -> bool:
    """Whether a name in a command may mean a file, or a folder that contains it."""
    clean = posixpath.normpath(named)
    is_from_above = clean.startswith("../")
    while clean.startswith("../"):
        clean = clean[3:]
    if clean in (".", "..", "~"):
        return True
    if clean.startswith("~/"):
        clean = clean[2:]
    if clean.startswith("/"):
        is_relative = not path.startswith("/")
        if is_relative and clean.endswith(f"/{path}"):
            return True
        return path == clean or path.startswith(f"{clean}/")
    # The named folder may be the one in which the command began.
    if is_from_above and not path.startswith("/") and clean.endswith(f"/{path}"):
        return True
    return f"/{clean}/" in f"/{path}/"


def touched_by(command: str) -> Touched:
    """Return the files that a command may change.

    A program that is not known to leave files alone may change every file.
    """
    if len(command) > _LONGEST:
        return EVERYTHING
    plain = _without_heredocs(command)
    parts = _substitutions(plain.replace("\\\n", " "), _DEEPEST)
    if parts is None:
        return EVERYTHING
    paths: list[str] = []
    for part in parts:
        words = _words(part)
        if words is None:
            return EVERYTHING
        folder = _Folder()
        for step in _steps(words):
            touched = _touched_by_step(step.words)
            if touched.everything:
                return EVERYTHING
            paths += map(folder.path, touched.paths)
            folder.follow(step)
    return Touched(paths=tuple(paths))


class _Folder:
    """The folder in which the next program of a command runs, as far as it is known.

    Only a ``cd`` whose success the next program needs is sure to set it.
    """

    def __init__(self) -> None:
        self._path = ""  # relative to where the command began; empty if not known
        self._operator = ""  # before the next program

    def path(self, path: str) -> str:
        """Return a path as it is from where the command began."""
        if not self._path or path.startswith(("/", "~")):
            return path
        return posixpath.normpath(posixpath.join(self._path, path))

    def _known_folder(self, argument: str) -> str:
        """Return the folder to which ``cd`` goes; empty if it is not known."""
        if _UNKNOWN_FOLDER.search(argument):
            return ""
        path = self.path(argument)
        # A folder above may contain the one in which the command began, or be it.
        if path.startswith(".."):
            return ""
        return path

    def follow(self, step: _Step) -> None:
        """Update the folder after a program has run."""
        words = step.words
        # After || a program may not run, and after | it runs in a separate shell.
        runs_here = "|" not in self._operator
        self._operator = step.end
        has_cd = "cd" in words
        if step.end in _NEXT_NEEDS_SUCCESS and words[0] == "cd":
            folder = ""
            if runs_here and len(words) == 2:
                folder = self._known_folder(words[1])
            self._path = folder
        elif has_cd or step.end not in _NEXT_NEEDS_SUCCESS | _NEXT_IN_SAME_FOLDER:
            self._path = ""


def _without_heredocs(command: str) -> str:
    """Return a command without the texts of its here-documents."""
    lines = command.split("\n")
    ends: dict[str, list[int]] = {}
    for number, line in enumerate(lines):
        ends.setdefault(line.strip(" \t"), []).append(number)
    remaining: list[str] = []
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        start = _HEREDOC.search(line)
        if start is not None:
            later = ends.get(start["tag"], [])
            index = bisect_left(later, number)
            if index < len(later):
                line = line[: start.start()] + line[start.end() :]
                number = later[index] + 1
        remaining.append(line)
    return "\n".join(remaining)


def _substitutions(command: str, depth: int) -> list[str] | None:
    """Return the command, and then each command that is substituted in it.

    Both are without comments.  A ``$`` takes the place of a substitution.  Returns None
    if one has no end, or if they are nested deeper than ``depth``.
    """
    outer: list[str] = []
    inner: list[str] = []
    quote = ""
    position = 0
    while position < len(command):
        char = command[position]
        if char == "\\" and quote != "'":
            outer.append(command[position : position + 2])
            position += 2
            continue
        if char == "#" and not quote and _begins_word(outer):
            end_of_line = command.find("\n", position)
            position = len(command) if end_of_line < 0 else end_of_line
            continue
        if char == quote:
            quote = ""
        elif char in "'\"" and not quote:
            quote = char
        start = 0  # of a substitution at this position; 0 if none begins here
        if quote != "'" and command.startswith("$(", position):
            start = position + 2
            end = _closing(command, start)
        elif quote != "'" and char == "`":
            start = position + 1
            end = command.find("`", start)
        if not start:
            outer.append(char)
            position += 1
            continue
        nested = None
        if end >= 0 and depth:
            nested = _substitutions(command[start:end], depth - 1)
        if nested is None:
            return None
        inner += nested
        outer.append("$")
        position = end + 1
    return ["".join(outer), *inner]


def _begins_word(before: list[str]) -> bool:
    """Whether a word begins after these characters of a command."""
    return not before or before[-1] in _BEFORE_WORDS


def _closing(command: str, position: int) -> int:
    """Return the place of the parenthesis that ends a substitution, or -1."""
    depth = 1
    quote = ""
    while position < len(command):
        char = command[position]
        if char == "\\":
            position += 1
        elif char == quote:
            quote = ""
        elif quote:
            pass
        elif char in "'\"":
            quote = char
        elif char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
            if not depth:
                return position
        position += 1
    return -1


def _words(command: str) -> list[str] | None:
    """Return the words and operators of a command; None if it cannot be read."""
    without_numbers = _DESCRIPTOR.sub(r"\1\2", command)
    lexer = shlex.shlex(without_numbers, posix=True, punctuation_chars=";&|()<>\n")
    lexer.whitespace = " \t\r"
    lexer.commenters = ""  # a # within a word begins no comment
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:
        return None


class _Step(NamedTuple):
    """A program that a command runs, with its arguments, and the operators after it."""

    words: list[str]
    end: str


def _steps(words: list[str]) -> Iterator[_Step]:
    """Yield each program that a command runs."""
    step: list[str] = []
    end = ""
    for word in words:
        is_substitution = word in ("<(", ">(")  # of a process
        only_separates = set(word) <= set(";&|()\n")  # such as ``)&&(``
        if word in _SEPARATORS or is_substitution or only_separates:
            end += word
            continue
        if end and step:
            yield _Step(step, end)
            step = []
        end = ""
        step.append(word)
    if step:
        yield _Step(step, end)


def _touched_by_step(words: list[str]) -> Touched:
    """Return the files that one program may change."""
    targets: list[str] = []
    arguments: list[str] = []
    position = 0
    while position < len(words):
        word = words[position]
        if _REDIRECTION.fullmatch(word):
            target = words[position + 1] if position + 1 < len(words) else ""
            if not target.startswith(("&", "/dev/")) and not target.isdigit():
                targets.append(target)
            position += 2
        elif set(word) <= set("<>&|"):  # a redirection of the input, with its file
            position += 2
        else:
            arguments.append(word)
            position += 1
    while arguments and (_ASSIGNMENT.match(arguments[0]) or arguments[0] in _PREFIXES):
        arguments = arguments[1:]
    if arguments and re.fullmatch(r"\d+[smh]?", arguments[0]):  # of ``timeout``
        arguments = arguments[1:]
    if arguments:
        program = posixpath.basename(arguments[0])
        touched = _touched_by_program(program, arguments[1:])
        if touched.everything:
            return EVERYTHING
        targets += touched.paths
    return Touched(paths=tuple(map(_folder_of_pattern, targets)))


def _folder_of_pattern(path: str) -> str:
    """Return a path, or the folder before its first part that is not plain."""
    pattern = _PATTERN.search(path)
    if pattern is None:
        return path
    return path[: pattern.start()].rpartition("/")[0] or "."


def _touched_by_program(program: str, arguments: list[str]) -> Touched:
    """Return the files that a program with these arguments may change."""
    paths = [argument for argument in arguments if not argument.startswith("-")]
    if program == "git":
        touched = _touched_by_git(arguments)
        if touched is not None:
            return touched
    if program in _HARMLESS_VERBS:
        return NOTHING if _is_harmless_verb(program, arguments) else EVERYTHING
    if program in _RUNNERS:
        return NOTHING if _runs_harmless_tasks(arguments) else EVERYTHING
    if program == "source" and not _only_sets_variables(paths[:1]):
        return EVERYTHING
    if program == "uniq" and len(paths) > 1:
        return Touched(paths=(paths[1],))
    if program == "awk" and any(_WRITES_IN_AWK.search(word) for word in arguments):
        return EVERYTHING
    if program in _OPTIONS:
        option = _OPTIONS[program]
        if option.pattern and not any(map(option.fullmatch, arguments)):
            return NOTHING
        return Touched(paths=tuple(paths)) if paths else EVERYTHING
    if program in _CHANGE_ARGUMENTS:
        return Touched(paths=tuple(paths))
    if program in _HARMLESS and not any("--fix" in word for word in arguments):
        return NOTHING
    return EVERYTHING


def _is_harmless_verb(program: str, arguments: list[str]) -> bool:
    """Whether the sub-command among a program's arguments changes no file."""
    words = [argument for argument in arguments if not argument.startswith("-")]
    if " ".join(words[:2]) in _EXCEPTIONS.get(program, ()):
        return False
    if any(argument.startswith("--output") for argument in arguments):
        return False
    return _verb(arguments) in _HARMLESS_VERBS[program]


def _runs_harmless_tasks(arguments: list[str]) -> bool:
    """Whether a runner's arguments name only tasks that change no file."""
    for argument in arguments:
        is_option = argument.startswith("--")
        if is_option and ("fix" in argument or "write" in argument):
            return False
    own_arguments = arguments  # those after ``--`` are the task's
    if "--" in arguments:
        own_arguments = arguments[: arguments.index("--")]
    words = [word for word in own_arguments if not word.startswith("-")]
    tasks = _tasks_among([word.split(":")[0] for word in words])  # of ``test:unit``
    if not tasks or tasks[-1] in _STARTERS:
        return False
    return all(task in _HARMLESS_TASKS for task in tasks)


def _only_sets_variables(script: list[str]) -> bool:
    """Whether a sourced script is one of those that set up an environment."""
    return bool(script) and posixpath.basename(script[0]) in _SETUP_SCRIPTS


def _tasks_among(words: list[str]) -> list[str]:
    """Return the words that name tasks: those before a path, or all."""
    tasks: list[str] = []
    for word in words:
        if "/" in word or "." in word:
            break
        tasks.append(word)
    return tasks or words


def _touched_by_git(arguments: list[str]) -> Touched | None:
    """Return the files that Git may change; None if the list of verbs decides."""
    verb = _verb(arguments)
    operands = arguments[arguments.index(verb) + 1 :] if verb else []
    if verb in ("checkout", "restore") and "--" in operands:
        return Touched(paths=tuple(operands[operands.index("--") + 1 :]))
    if (
        verb in ("checkout", "switch")
        and len(operands) == 2
        and operands[0] in ("-b", "-c")
    ):
        return NOTHING  # a new branch at the current commit
    if verb == "stash" and operands[:1] in (["list"], ["show"]):
        return NOTHING
    return None


def _verb(arguments: list[str]) -> str:
    """Return the sub-command among a program's arguments."""
    words = list(arguments)
    while words and words[0].startswith("-"):
        has_value = words[0] in ("-C", "-c", "--git-dir", "--work-tree")
        words = words[2:] if has_value else words[1:]
    return words[0] if words else ""
