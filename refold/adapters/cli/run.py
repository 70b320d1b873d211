"""Runs a command, and turns its result or error into an exit code and a sentence."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from refold.adapters.cli import output
from refold.adapters.cli.commands import COMMANDS, GROUPS, added, load
from refold.adapters.cli.options import (
    Call,
    DatabaseOption,
    JsonOption,
    MakeKeyOption,
    VersionOption,
)
from refold.domain import errors
from refold.domain.plugins import package_behind

if TYPE_CHECKING:
    from typer._click.formatting import HelpFormatter

DONE: Final = 0
FAILED: Final = 1
WRONG: Final = 2
INTERRUPTED: Final = 130
READER_GONE: Final = 141
_WRONG: Final = errors.InvalidConfiguration, errors.UnknownModel, errors.UnknownStrategy


class Command(TyperCommand):
    """A command that also takes the options of every command, and prints its result."""

    context_class = Call

    def __init__(self, *, params: list[Any], **settings: Any) -> None:
        own = {option for param in params for option in param.opts}
        for param in _params_of_every_command():
            if own.isdisjoint(param.opts):
                params = [*params, param]
        super().__init__(params=params, **settings)

    def invoke(self, ctx: Any) -> None:
        """Run the command, print its result, and exit with the result's code."""
        result = super().invoke(ctx)
        if isinstance(result, output.Result):
            ctx.tell(result)
        ctx.check_told()
        if isinstance(result, output.Result) and result.code:
            raise typer.Exit(result.code)


class Commands(TyperGroup):
    """All commands in groups: Refold's own, then those of installed packages."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  # of the base
        return [*COMMANDS, *added().usable]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  # the same
        if cmd_name in COMMANDS:
            return command(cmd_name)
        others = added()
        if cmd_name in others.refused:  # several packages add it
            raise errors.InvalidConfiguration(others.refused[cmd_name])
        if cmd_name in others.usable:
            return command(cmd_name)
        return None

    def format_commands(self, ctx: Any, formatter: HelpFormatter) -> None:  # noqa: ARG002  # the same
        for group, entries in GROUPS.items():
            with formatter.section(group):
                lines = [(name, entry.summary) for name, entry in entries.items()]
                formatter.write_dl(lines)
        others = added()
        if others.usable:
            with formatter.section("Other"):
                lines = [
                    (name, f"Added by {plugin.package}.")
                    for name, plugin in others.usable.items()
                ]
                formatter.write_dl(lines)
        if others.refused:
            with formatter.section("Refused"):
                formatter.write_dl(list(others.refused.items()))


def refold(
    context: Call,
    db: DatabaseOption = None,  # noqa: ARG001  # its callback keeps it
    make_key: MakeKeyOption = False,  # noqa: ARG001  # the same
    version: VersionOption = False,  # noqa: ARG001  # its callback prints it
) -> None:
    """A session store for LLM agents: append once, refold any time."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(WRONG)


def application() -> Any:
    """The program: its own options, and all commands."""
    app = _typer()
    app.callback(cls=Commands, invoke_without_command=True)(refold)
    return typer.main.get_command(app)


@cache
def command(name: str) -> Any:
    """The command of that name, ready to be called."""
    app = _typer(add_completion=False)
    app.command(name, cls=Command)(load(name))
    return typer.main.get_command(app)


@cache
def _params_of_every_command() -> list[Any]:
    def every(
        db: DatabaseOption = None,
        make_key: MakeKeyOption = False,
        as_json: JsonOption = False,
    ) -> None: ...

    app = _typer(add_completion=False)
    app.command()(every)
    return typer.main.get_command(app).params


def _typer(*, add_completion: bool = True) -> typer.Typer:
    # Plain help: rich would take as long to load as all the rest.
    return typer.Typer(
        name="refold",
        add_completion=add_completion,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def run(args: Sequence[str]) -> int:
    """Run the command line ``args``; returns the exit code and raises nothing.

    With ``REFOLD_DEBUG=1``, unexpected errors are raised.
    """
    output.show_warnings()
    output.speak_plainly()
    try:
        code = _invoke(list(args))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        output.hush()
        return READER_GONE
    except Exception as error:
        return _failed(error, args)


def mend_streams() -> None:
    """Connect closed streams to the null device, and give stdout a buffer.

    Without a buffer (PYTHONUNBUFFERED), a write that is cut short raises no error.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # for good
    raw = getattr(sys.stdout, "buffer", None)
    if isinstance(raw, io.RawIOBase):
        old = sys.stdout
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(raw),
            encoding=old.encoding,
            errors=old.errors,
            line_buffering=old.isatty(),
        )


def _invoke(args: list[str]) -> int:
    program = application()
    if args[:1] == ["help"]:
        args = [*args[1:], "--help"]
    _refuse_empty(args)
    try:
        if "_REFOLD_COMPLETE" in os.environ:  # a shell asks what could come next
            program.main(args, prog_name="refold")
        with program.make_context("refold", args) as context:
            program.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    except SystemExit as done:  # completion exits by itself
        return int(done.code or DONE)
    return DONE


def _refuse_empty(args: Sequence[str]) -> None:
    """Refuse an empty argument: as a path, it would mean the current folder.

    That is what a shell makes of a variable that is not set, or of a `$(…)` without
    output.

    Raises typer.BadParameter.
    """
    before = ""
    for arg in args:
        if arg == "--":
            before = arg
            continue
        option, equals, value = arg.partition("=")
        is_option = arg.startswith("--") and before != "--"
        if arg == "" or (is_option and equals and not value):
            name = option or before
            place = f" of {name}" if name.startswith("-") and name != "--" else ""
            raise typer.BadParameter(
                f"the value{place} is empty; a variable of the shell may not be set"
            )
        if before != "--":
            before = arg


# Arguments that an error may repeat: words, files, ids and names in small letters.
_HARMLESS: Final = (
    r"[a-z]+(?:[-_.:/][a-z0-9]+)*|[0-9.,:+-]{1,20}|-{1,2}[A-Za-z-]{1,40}|\S*[/\\]\S*|\S+\.[a-z]{2,6}"
    r"|(?i:[0-9a-f]{8}-[0-9a-f-]{27})"
)


def _without_arguments(message: str, args: Sequence[str]) -> str:
    """``message`` without arguments that may be secrets, given in a wrong place."""
    from refold.redaction.checks.secrets import odd

    for arg in sorted(args, key=len, reverse=True):
        for text in _texts_of(arg):
            if len(text) <= 2:
                continue
            if odd(text) or not re.fullmatch(_HARMLESS, text):
                message = message.replace(text, "…")
    return message


def _texts_of(arg: str) -> list[str]:
    """The texts in an argument: the value, and what may be a value by mistake."""
    if not arg.startswith("-"):
        return [arg]
    name, sign, value = arg.partition("=")
    if sign:
        return [value, name, arg[2:]]
    return [arg[2:]]


def _failed(error: Exception, args: Sequence[str]) -> int:
    if hasattr(error, "format_message"):  # of typer: a wrong option or argument
        message = _plain(_without_arguments(error.format_message(), args))
        message = output.one_line(message).rstrip(".")
        output.complain(f"{message}: see `{_path(error, args)} --help`")
        return WRONG
    if isinstance(error, errors.RefoldError):
        output.complain(_without_arguments(str(error), args))
        return WRONG if isinstance(error, _WRONG) else FAILED
    if isinstance(error, typer.Abort):
        output.complain("nothing was done: the answer was no")
        return FAILED
    if os.environ.get("REFOLD_DEBUG") == "1":
        raise error
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        output.complain(f"{where}{error.strerror.lower()}: {errors.remedy_for(error)}")
    else:
        output.complain(_unexpected(error, args))
    return FAILED


# How typer words what is wrong with a value, and how a person would.
_WORDINGS: Final = (
    (re.compile("Value error, "), ""),
    (
        re.compile("Input should be a valid integer, .*"),
        "this is not a whole number",
    ),
    (re.compile("Input should be a valid number, .*"), "this is not a number"),
    (re.compile("Input should be a finite number"), "this is not a finite number"),
    (re.compile("Input should be greater than or equal to"), "this is less than"),
    (re.compile("Input should be less than or equal to"), "this is more than"),
    (re.compile("Input should be a valid string, .*"), "this is not valid Unicode"),
)


def _plain(message: str) -> str:
    """A message of typer about a wrong value, in plain words."""
    for wording, plain in _WORDINGS:
        message = wording.sub(plain, message)
    return message


def _path(error: Exception, args: Sequence[str]) -> str:
    """The command whose help says what is right; typer does not always name it."""
    context = getattr(error, "ctx", None)
    if context is not None and context.parent is not None:
        return str(context.command_path)
    named = [arg for arg in args if arg in COMMANDS]
    return f"refold {named[0]}" if named else "refold"


def _unexpected(error: Exception, args: Sequence[str]) -> str:
    """Name the place without the message, which may hold text that is not redacted."""
    import traceback

    *_, frame = traceback.extract_tb(error.__traceback__)
    place = f"{os.path.basename(frame.filename)}:{frame.lineno}"
    return (
        f"unexpected {type(error).__name__} in {place}: this is a bug in "
        f"{_program(error, args)}; run it again with REFOLD_DEBUG=1 to see the "
        "traceback"
    )


def _program(error: Exception, args: Sequence[str]) -> str:
    """Refold, or the package that added the command or whose code was running."""
    package = package_behind(error)
    if package is None and COMMANDS.keys().isdisjoint(args):
        plugins = added().usable
        for arg in args:
            if arg in plugins:
                package = plugins[arg].package
    return "Refold" if package is None else f"the package {package}"
