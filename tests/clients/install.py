"""Install real clients for the tests: ``python -m tests.clients.install NAME...``.

Clients from npm are installed by ``npm ci`` from their lock file in ``pins/``, which
names each package with its version and the digest of its archive, and no host.  Their
install scripts do not run.  ``--newest`` installs the newest versions instead, without
lock files.  Python clients are installed by the Makefile.

Everything goes to ``.venv/clients``, and to ``.venv/clients-newest``.  Its ``bin`` has
one command for each client.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

ROOT: Final = Path(__file__).parents[2]
PINS: Final = Path(__file__).parent / "pins"
NODE: Final = ROOT / ".venv/node/bin"


class Package(NamedTuple):
    """A client from npm.

    command:  the name of its command.
    programs: where its program may be, relative to ``node_modules``.  ``{platform}``
              is the name that npm gives this machine, such as ``linux-x64``.
    """

    command: str
    programs: tuple[str, ...]


# Native programs, where a package has one, start in a fraction of the time.
PACKAGES: Final = {
    "claude-code": Package("claude", ("@anthropic-ai/claude-code-{platform}/claude",)),
    "codex": Package(
        "codex",
        (
            "@openai/codex-{platform}/vendor/{triple}/bin/codex",
            "@openai/codex-{platform}/vendor/{triple}/codex/codex",
        ),
    ),
    "copilot": Package("copilot", ("@github/copilot/npm-loader.js",)),
    "gemini-cli": Package("gemini", ("@google/gemini-cli/bundle/gemini.js",)),
    "opencode": Package("opencode", ("opencode-{platform}/bin/opencode",)),
    "qwen-code": Package("qwen", ("@qwen-code/qwen-code/cli-entry.js",)),
}
_MACHINES: Final = {"x86_64": "x64", "aarch64": "arm64", "arm64": "arm64"}
_TRIPLES: Final = {
    "linux-x64": "x86_64-unknown-linux-musl",
    "linux-arm64": "aarch64-unknown-linux-musl",
    "darwin-x64": "x86_64-apple-darwin",
    "darwin-arm64": "aarch64-apple-darwin",
}


def folder(*, newest: bool) -> Path:
    """Return the folder that has the clients."""
    return ROOT / ".venv" / ("clients-newest" if newest else "clients")


def install(name: str, *, newest: bool) -> Path:
    """Install one client, and return the path of its command."""
    package = PACKAGES[name]
    place = folder(newest=newest) / name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    if newest:
        pins = json.loads((PINS / name / "package.json").read_text())
        names = [f"{dependency}@latest" for dependency in pins["dependencies"]]
        (place / "package.json").write_text('{"private": true}')
        _npm("install", *names, at=place)
    else:
        for file in ("package.json", "package-lock.json"):
            shutil.copy(PINS / name / file, place)
        _npm("ci", at=place)
    command = folder(newest=newest) / "bin" / package.command
    _link(command, _program(package, place / "node_modules"))
    return command


def _npm(*arguments: str, at: Path) -> None:
    """Run npm.  Install scripts do not run: some download further programs."""
    flags = ("--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
    npm = NODE / "npm"
    path = f"{NODE}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        [npm, *arguments, *flags], cwd=at, check=True, env={**os.environ, "PATH": path}
    )


def _program(package: Package, modules: Path) -> Path:
    machine = _MACHINES.get(platform.machine(), platform.machine())
    system = f"{sys.platform}-{machine}"
    triple = _TRIPLES.get(system, "")
    for pattern in package.programs:
        program = modules / pattern.format(platform=system, triple=triple)
        if program.exists():
            return program
    sys.exit(f"{package.command} has no program for {system} in {modules}")


def _link(command: Path, program: Path) -> None:
    """Make a command that runs the program, with the tests' Node.js if it needs one."""
    command.parent.mkdir(exist_ok=True)
    command.unlink(missing_ok=True)
    if program.suffix == ".js":
        command.write_text(
            f'#!/bin/sh\nPATH="{NODE}:$PATH" exec "{NODE}/node" "{program}" "$@"\n'
        )
        command.chmod(0o755)
    else:
        command.symlink_to(program)


def main() -> None:
    """Install the clients that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=sorted(PACKAGES), metavar="NAME")
    parser.add_argument("--newest", action="store_true")
    arguments = parser.parse_args()
    for name in arguments.names:
        install(name, newest=arguments.newest)


if __name__ == "__main__":
    main()
