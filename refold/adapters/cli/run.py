"""Runs a command, prints its result or error, and returns the exit code."""

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
    PROGRAM,
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
# Errors with the exit code of a wrong command line.
_USAGE_ERRORS: Final = (
    errors.InvalidConfiguration,
    errors.UnknownModel,
    errors.UnknownStrategy,
)


class Command(TyperCommand):
    """A command that also has the common options, and prints its result."""

    context_class = Call

    def __init__(self, *, params: list[Any], **settings: Any) -> None:
        declared = {option for param in params for option in param.opts}
        for param in _common_params():
            if declared.isdisjoint(param.opts):
                params = [*params, param]
        if any(param.metavar == PROGRAM for param in params):
            context_settings = settings.get("context_settings") or {}
            settings["context_settings"] = {
                **context_settings,
                "allow_interspersed_args": False,
            }
        super().__init__(params=params, **settings)

    def invoke(self, ctx: Any) -> None:
        """Run the command, print its result, and exit with the result's code."""
        result = super().invoke(ctx)
        if isinstance(result, output.Result):
            ctx.report(result)
        ctx.check_reported()
        if isinstance(result, output.Result) and result.code:
            raise typer.Exit(result.code)


class Commands(TyperGroup):
    """All commands in groups: Refold's own, then those of installed packages."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  # of the base
        return [*COMMANDS, *added().usable]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002  # the same
        if cmd_name in COMMANDS:
            return command(cmd_name)
        plugins = added()
        if cmd_name in plugins.refused:  # several packages add it
            raise errors.InvalidConfiguration(plugins.refused[cmd_name])
        if cmd_name in plugins.usable:
            return command(cmd_name)
        return None

    def resolve_command(
        self, ctx: Any, args: list[str]
    ) -> tuple[str | None, Any, list[str]]:
        """Find the command; the error for a misspelt name has the most similar one."""
        name = args[0]
        if self.get_command(ctx, name) is None and not ctx.resilient_parsing:
            from difflib import get_close_matches  # only for this error

            for similar in get_close_matches(name, self.list_commands(ctx), n=1):
                ctx.fail(f"No such command '{name}' (did you mean {similar}?)")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: HelpFormatter) -> None:  # noqa: ARG002  # the same
        for group, entries in GROUPS.items():
            with formatter.section(group):
                lines = [(name, entry.summary) for name, entry in entries.items()]
                formatter.write_dl(lines)
        plugins = added()
        if plugins.usable:
            with formatter.section("Other"):
                lines = [
                    (name, f"Added by {plugin.package}.")
                    for name, plugin in plugins.usable.items()
                ]
                formatter.write_dl(lines)
        if plugins.refused:
            with formatter.section("Refused"):
                formatter.write_dl(list(plugins.refused.items()))


def refold(
    context: Call,
    db: DatabaseOption = None,  # noqa: ARG001  # its callback stores it
    make_key: MakeKeyOption = False,  # noqa: ARG001  # the same
    version: VersionOption = False,  # noqa: ARG001  # its callback prints it
) -> None:
    """A session store for LLM agents: append once, refold any time."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(WRONG)


def application() -> Any:
    """Return the program, with its options and all commands."""
    app = _typer()
    app.callback(cls=Commands, invoke_without_command=True)(refold)
    return typer.main.get_command(app)


@cache
def command(name: str) -> Any:
    """Return the command of this name."""
    app = _typer(add_completion=False)
    app.command(name, cls=Command)(load(name))
    return typer.main.get_command(app)


@cache
def _common_params() -> list[Any]:
    """Return the options that all commands have."""

    def with_common_options(
        db: DatabaseOption = None,
        make_key: MakeKeyOption = False,
        as_json: JsonOption = False,
    ) -> None: ...

    app = _typer(add_completion=False)
    app.command()(with_common_options)
    return typer.main.get_command(app).params


def _typer(*, add_completion: bool = True) -> typer.Typer:
    """Return an empty program with plain help, because ``rich`` loads slowly."""
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
    output.escape_unencodable()
    try:
        code = _invoke(list(args))
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        output.discard_stdout()
        return READER_GONE
    except Exception as error:
        return _report_error(error, args)


def prepare_streams() -> None:
    """Connect closed streams to the null device, and give stdout a buffer.

    Without a buffer (PYTHONUNBUFFERED), a write that is cut short raises no error.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  # for good
    binary_stdout = getattr(sys.stdout, "buffer", None)
    if isinstance(binary_stdout, io.RawIOBase):
        unbuffered = sys.stdout
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(binary_stdout),
            encoding=unbuffered.encoding,
            errors=unbuffered.errors,
            line_buffering=unbuffered.isatty(),
        )


def _invoke(args: list[str]) -> int:
    """Run the command line, and return the exit code."""
    program = application()
    if args[:1] == ["help"]:
        args = [*args[1:], "--help"]
    _refuse_empty(args)
    try:
        if "_REFOLD_COMPLETE" in os.environ:  # a shell asks for completions
            program.main(args, prog_name="refold")
        with program.make_context("refold", args) as context:
            program.invoke(context)
    except typer.Exit as exit_:
        return exit_.exit_code
    except SystemExit as exit_:  # raised by the completion
        return int(exit_.code or DONE)
    return DONE


def _refuse_empty(args: Sequence[str]) -> None:
    """Raise typer.BadParameter for an empty argument.

    A shell makes one of a variable that is not set, or of a `$(…)` without output.  As
    a path, it would mean the current folder.
    """
    previous = ""
    options_end = False
    for arg in args:
        if arg == "--":
            if "run" in args[: args.index("--")]:
                return  # the rest is another program's
            options_end = True
        option, equals, value = arg.partition("=")
        if arg.startswith("--") and not options_end and equals and not value:
            raise _empty_value(option)
        if not arg:
            raise _empty_value("" if options_end else previous)
        previous = arg


def _empty_value(before: str) -> typer.BadParameter:
    """Return the error for an empty value, which may follow an option."""
    place = f" of {before}" if before.startswith("-") else ""
    return typer.BadParameter(
        f"the value{place} is empty; a variable of the shell may not be set"
    )


# Arguments that an error may repeat: words, files, ids and names in small letters.
_HARMLESS: Final = (
    r"[a-z]+(?:[-_.:/][a-z0-9]+)*[-_.:/]?…?|[0-9.,:+-]{1,20}|-{1,2}[A-Za-z-]{1,40}|\S*[/\\]\S*|\S+\.[a-z]{2,6}"
    r"|(?i:[0-9a-f]{1,8}(?:-[0-9a-f-]{0,27})?)…?"  # a UUID or its beginning
)


def _without_arguments(message: str, args: Sequence[str]) -> str:
    """Return the message without arguments that may be secrets in a wrong place."""
    from refold.redaction.checks.secrets import odd

    for arg in sorted(args, key=len, reverse=True):
        for text in _texts_of(arg):
            if len(text) <= 2:
                continue
            if odd(text) or not re.fullmatch(_HARMLESS, text):
                message = message.replace(text, "…")
    return message


def _texts_of(arg: str) -> list[str]:
    """Return the value in an argument, and the option, which may be one by mistake."""
    if not arg.startswith("-"):
        return [arg]
    option, equals, value = arg.partition("=")
    if equals:
        return [value, option, arg[2:]]
    return [arg[2:]]


def _report_error(error: Exception, args: Sequence[str]) -> int:
    """Print the error as one sentence, and return the exit code."""
    if hasattr(error, "format_message"):  # typer's, for a wrong option or argument
        message = _reworded(_without_arguments(error.format_message(), args))
        message = output.one_line(message).rstrip(".")
        output.complain(f"{message}: see `{_command_path(error, args)} --help`")
        return WRONG
    if isinstance(error, errors.RefoldError):
        output.complain(_without_arguments(str(error), args))
        return WRONG if isinstance(error, _USAGE_ERRORS) else FAILED
    if isinstance(error, typer.Abort):
        output.complain("nothing was done: the answer was no")
        return FAILED
    if os.environ.get("REFOLD_DEBUG") == "1":
        raise error
    if isinstance(error, OSError) and error.strerror:
        where = f"{error.filename}: " if error.filename else ""
        output.complain(f"{where}{error.strerror.lower()}: {errors.remedy_for(error)}")
    else:
        output.complain(_bug_report(error, args))
    return FAILED


# Messages of typer about a wrong value, and what replaces them.
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


def _reworded(message: str) -> str:
    """Return a message of typer in plain words."""
    for wording, plain in _WORDINGS:
        message = wording.sub(plain, message)
    return message


def _command_path(error: Exception, args: Sequence[str]) -> str:
    """Return the command whose help explains its options and arguments."""
    context = getattr(error, "ctx", None)
    if context is not None and context.parent is not None:
        return str(context.command_path)
    # Errors of typer do not always have the command.
    for arg in args:
        if arg in COMMANDS:
            return f"refold {arg}"
    return "refold"


def _bug_report(error: Exception, args: Sequence[str]) -> str:
    """Return a sentence with the error's place.

    The error's message may contain text that is not redacted, so it is left out.
    """
    import traceback

    *_, frame = traceback.extract_tb(error.__traceback__)
    place = f"{os.path.basename(frame.filename)}:{frame.lineno}"
    return (
        f"unexpected {type(error).__name__} in {place}: this is a bug in "
        f"{_program(error, args)}; run it again with REFOLD_DEBUG=1 to see the "
        "traceback"
    )


def _program(error: Exception, args: Sequence[str]) -> str:
    """Return the name of the program with the bug: Refold, or an installed package.

    It is the package whose code was running, or that added the command.
    """
    package = package_behind(error)
    if package is None and COMMANDS.keys().isdisjoint(args):
        plugins = added().usable
        for arg in args:
            if arg in plugins:
                package = plugins[arg].package
    if package is None:
        return "Refold"
    return f"the package {package}"
