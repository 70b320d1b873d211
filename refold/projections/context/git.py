"""The commands of Git in a shell command: reverts, and the files that they commit."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

# A change of the folder, or a command of Git with its arguments.  Text between quotes
# belongs to the arguments, whatever it contains.
_STEP: Final = re.compile(
    r"(?<![\w.$-])(?:cd[ ]++(?P<cd>'[^']*+'|\"[^\"]*+\"|[^\s;&|()'\"`]++)"
    r"|git(?P<options>(?:[ ]++(?:-[cC][ ]++(?:'[^']*+'|\"[^\"]*+\"|[^\s'\"]++)"
    r"|--no-pager|--git-dir=\S++|--work-tree=\S++)){0,4}+)[ ]++(?P<verb>[a-z][a-z-]*+)"
    r"(?P<words>(?:'[^']*+'|\"[^\"]*+\"|[^;&|()\n'\"`])*+))"
)
_FOLDER_OPTION: Final = re.compile(r"-C[ ]++('[^']*'|\"[^\"]*\"|\S+)")
# The end of the text before a command.  Behind other text, its words are no command.
_BEFORE_COMMAND: Final = re.compile(
    r"(?:\A|[;&|(){}\n!`]|(?<![\w-])-l?c[ ]?['\"]|(?<![\w-])ssh[ ][^'\"\n;|&]*+['\"])"
    r"[ \t]*+(?:(?:then|do|else|if|while|sudo|exec|time|env|xargs|command|nohup"
    r"|[A-Za-z_]\w*+=[^\s'\"]*+)[ \t]++)*+/?+(?:[\w.]++/)*+\Z"
)
# The most characters before a command that are read.
_BEFORE_CHARS: Final = 200
# A redirection or a comment, which ends the arguments.
_NO_ARGUMENT: Final = re.compile(r"(?:\d*|&)[<>]|#")
# The name of a file, not of a branch or a version: "a.py", "src/".
_NAME_OF_FILE: Final = re.compile(r"[^\d.]\.[A-Za-z][A-Za-z0-9]{0,4}\Z|/\Z")
_WORD: Final = re.compile(r"(?:[^\s'\"]|'[^']*'|\"[^\"]*\")+")
_LONGEST_PATTERN: Final = 200  # characters of a path with a "*"
_RESET_MODES: Final = ("--hard", "--soft", "--mixed", "--merge", "--keep")
_COMMIT_NAME: Final = re.compile(r"HEAD[~^]|[0-9a-f]{7}")
_NEW_BRANCH: Final = ("-b", "-B", "--orphan")
# Options with which a switch to another branch drops all changes.
_DISCARDS: Final = ("--discard-changes", "-f", "--force")
_ADDS_ALL: Final = ("-A", "--all", "-u", "--update")
# Short options of a commit, one of which commits every changed file.
_COMMITS_ALL: Final = re.compile(r"-[^-mFCctSu]*a|--all$")
# Options of a commit whose value is the next word.
_WITH_VALUE: Final = re.compile(
    r"-[a-zA-Z]*[mFCct]$|--(?:message|file|author|date|template|trailer|fixup|squash"
    r"|reuse-message|reedit-message|cleanup)$"
)
# Common names of branches, which folders have too.
_BRANCHES: Final = frozenset(
    {"main", "master", "trunk", "dev", "develop", "staging", "release", "production"}
)
# Options with which a command only shows its changes.
_ONLY_SHOWS: Final = re.compile(r"-[a-zA-Z]*n|--dry-run$")
# Folders that hold no repository, unless a command of Git runs in them.
_OUTSIDE: Final = re.compile(
    r"(?:/private)?(?:/var)?/tmp/|/var/folders/|/dev/"
    r"|(?:~|/root|/(?:home|Users)/[^/]+)/\."
)


class GitCommand(NamedTuple):
    """A command of Git.

    folder: the folder in which it runs: absolute, relative to the unknown folder of the
            shell, or empty if the command does not say.
    words:  its arguments, without quotes.
    """

    folder: str
    verb: str
    words: tuple[str, ...]

    @property
    def options(self) -> list[str]:
        """The options, without their values and without what follows "--"."""
        return [word for word in self._without_values() if word.startswith("-")]

    @property
    def paths(self) -> list[str]:
        """The arguments that are no options; all after "--"."""
        if "--" in self.words:
            return list(self.words[self.words.index("--") + 1 :])
        return [word for word in self._without_values() if not word.startswith("-")]

    def _without_values(self) -> list[str]:
        """Return the arguments before "--", without values of options of a commit."""
        arguments: list[str] = []
        is_value = False
        for word in self.words:
            if word == "--":
                break
            if is_value:
                is_value = False
                continue
            arguments.append(word)
            is_value = self.verb == "commit" and bool(_WITH_VALUE.match(word))
        return arguments


def git_commands(command: str) -> list[GitCommand]:
    """Return the commands of Git in a shell command, in their order."""
    commands: list[GitCommand] = []
    folder = ""
    for step in _STEP.finditer(command):
        first = max(0, step.start() - _BEFORE_CHARS)
        if not _BEFORE_COMMAND.search(command, first, step.start()):
            continue
        if step["cd"] is not None:
            folder = _folder_after(folder, _without_quotes(step["cd"]))
            continue
        of_command = folder
        option = _FOLDER_OPTION.search(step["options"])
        if option is not None:
            of_command = _folder_after(folder, _without_quotes(option[1]))
        words: list[str] = []
        for word in _WORD.findall(step["words"]):
            if _NO_ARGUMENT.match(word):
                break
            words.append(_without_quotes(word))
        commands.append(
            GitCommand(
                folder=of_command,
                verb=step["verb"],
                words=tuple(words),
            )
        )
    return commands


def _folder_after(folder: str, change: str) -> str:
    """Return the folder after a change of it; empty if the command does not say which.

    folder: as in ``GitCommand``.
    """
    if change.startswith(("~", "-", "$")):
        return ""
    changed = posixpath.normpath(posixpath.join(folder, change))
    is_above = changed == ".." or changed.startswith("../")
    return "" if is_above or changed == "." else changed


def _without_quotes(word: str) -> str:
    return word.replace('"', "").replace("'", "")


def is_revert(command: str, files: Collection[str] = ()) -> bool:
    """Whether a shell command takes back changes or commits.

    files: the known files, because a branch may have the name of a file.
    """
    return any(_takes_back(git, files) for git in git_commands(command))


def _takes_back(git: GitCommand, files: Collection[str]) -> bool:
    words = git.words
    match git.verb:
        case "revert":
            return "--abort" not in words and "--quit" not in words
        case "reset":
            has_mode = any(word in _RESET_MODES for word in words)
            return has_mode or any(_COMMIT_NAME.match(path) for path in git.paths)
        case "restore":
            only_unstages = "--staged" in words or "-S" in words
            return "--worktree" in words or "-W" in words or not only_unstages
        case "checkout":
            if any(word in _NEW_BRANCH for word in words):
                return False
            if "--" in words:
                return bool(git.paths)
            paths = git.paths
            if "-f" in words or "--force" in words or len(paths) > 1:
                return True  # with several, the first is a commit or a file
            return any(_may_be_file(git.folder, path, files) for path in paths)
        case "switch":
            return any(word in _DISCARDS for word in words)
        case "clean":
            only_shows = any(_ONLY_SHOWS.match(word) for word in words)
            return not only_shows and any(word.startswith("-") for word in words)
        case "stash":
            return not words or words[0].startswith(("push", "save", "-"))
    return False


def _may_be_file(folder: str, path: str, files: Iterable[str]) -> bool:
    """Whether the only argument of a checkout is a file, not a branch.

    A branch may have the name of a folder, as "main" has in "src/main/java".
    """
    if path == "." or _NAME_OF_FILE.search(path):
        return True
    return path not in _BRANCHES and bool(_named_files(folder, path, files))


def _named_files(folder: str, path: str, files: Iterable[str]) -> list[str]:
    """Return the files that an argument of Git names: a file, a folder, or a pattern.

    folder: as in ``GitCommand``.
    """
    whole = posixpath.normpath(posixpath.join(folder, path))
    path = posixpath.normpath(path)
    is_known = folder.startswith("/")
    if not is_known:
        path = whole
    exact: list[str] = []
    # By the length of the path before it, the files whose path ends with the argument.
    at_end: dict[int, list[str]] = {}
    for file in files:
        normal = posixpath.normpath(file)
        if _is_at(normal, whole) or _is_at(normal, path):
            exact.append(file)
            continue
        length = f"{normal}/".find(f"/{path}/")
        if length >= 0:
            at_end.setdefault(length, []).append(file)
        elif _fits(normal, f"*/{path}"):
            at_end.setdefault(0, []).append(file)
    if exact or is_known or not at_end:
        return exact
    # The command does not say where it runs: most likely in the outermost folder.
    return at_end[min(at_end)]


def _is_at(file: str, path: str) -> bool:
    """Whether a path names a file, its folder, or a pattern that fits."""
    return file == path or file.startswith(f"{path}/") or _fits(file, path)


def _fits(file: str, pattern: str) -> bool:
    is_pattern = "*" in pattern.removeprefix("*/") and len(pattern) <= _LONGEST_PATTERN
    return is_pattern and fnmatchcase(file, pattern)


class Uncommitted:
    """The files changed since the last commit, as far as the commands show it.

    A commit takes the files that were added before it.  A file that is changed after
    it was added stays.

    has_commit: whether there was a commit.
    """

    def __init__(self) -> None:
        self.has_commit = False
        # By file, the place of the newest change; the newest last.
        self._files: dict[str, int] = {}
        self._added: set[str] = set()
        # The folders in which commands of Git ran.
        self._folders: set[str] = set()

    def begin(self, files: Mapping[str, int], *, has_commit: bool) -> None:
        """Begin with the files that an earlier summary names, the newest last."""
        self._files = dict(files)
        self._added.clear()
        self.has_commit = has_commit

    def change(self, file: str, place: int) -> None:
        """Remember the change of a file."""
        self._files.pop(file, None)  # so that the newest is last
        self._files[file] = place
        self._added.discard(file)

    def run(self, command: str) -> None:
        """Follow what a successful shell command adds and commits."""
        for git in git_commands(command):
            if git.verb not in ("add", "rm", "commit"):
                continue
            if git.folder.startswith("/"):
                self._folders.add(git.folder.rstrip("/"))
            if git.verb != "commit":
                self._add(git)
            elif "--dry-run" not in git.words:
                self._commit(git)

    def _add(self, git: GitCommand) -> None:
        paths = git.paths
        adds_all = not paths and any(word in _ADDS_ALL for word in git.words)
        if adds_all or any(path in (".", "./", ":/") for path in paths):
            self._added.update(self._in_repository_of(git))
            return
        for path in paths:
            self._added.update(_named_files(git.folder, path, self._files))

    def _commit(self, git: GitCommand) -> None:
        self.has_commit = True
        committed: set[str] = set()
        for path in git.paths:
            committed.update(_named_files(git.folder, path, self._files))
        # With paths, a commit leaves out what was added before.
        if not git.paths or "-i" in git.words or "--include" in git.words:
            committed |= self._added
        if any(_COMMITS_ALL.match(word) for word in git.options):
            committed.update(self._in_repository_of(git))
        for file in committed:
            self._files.pop(file, None)
        self._added -= committed

    def _in_repository_of(self, git: GitCommand) -> list[str]:
        """Return the changed files in the repository of a command, if it is known."""
        folder = git.folder.rstrip("/")
        holding = [known for known in self._folders if _is_at(folder, known)]
        root = min(holding, key=len, default="")
        return [
            file
            for file in self._files
            if not root or not file.startswith("/") or _is_at(file, root)
        ]

    def files(self) -> dict[str, int]:
        """Return the changed files in a repository with their places, newest last."""
        return {
            file: place
            for file, place in self._files.items()
            if self._is_in_repository(file)
        }

    def _is_in_repository(self, file: str) -> bool:
        if not file.startswith(("/", "~")):
            return True
        if self._folders:
            return any(_is_at(file, folder) for folder in self._folders)
        return not _OUTSIDE.match(file)
