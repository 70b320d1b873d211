"""Pin the clients from npm that the tests run: versions, and digests of archives.

``python -m tools.client_pins [NAME...]`` resolves the newest versions and writes
``package.json`` and ``package-lock.json`` of each client below ``tests/clients/pins``.
The lock file names no host: npm asks the registry that a machine is configured for,
and compares the digest of each archive.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

_ROOT: Final = Path(__file__).parents[1]
PINS: Final = _ROOT / "tests/clients/pins"
_NODE: Final = _ROOT / ".venv/node/bin"
# Fields of a package that npm needs to install it.  The others are for people.
_NEEDED: Final = frozenset(
    (
        "bin",
        "bundleDependencies",
        "cpu",
        "dependencies",
        "dev",
        "engines",
        "hasInstallScript",
        "inBundle",
        "integrity",
        "libc",
        "license",
        "name",
        "optional",
        "optionalDependencies",
        "os",
        "peer",
        "peerDependencies",
        "peerDependenciesMeta",
        "version",
    )
)


def pin(folder: Path) -> None:
    """Write the pins of one client with its newest version."""
    manifest = json.loads((folder / "package.json").read_text())
    names = list(manifest["dependencies"])
    (folder / "package-lock.json").unlink(missing_ok=True)
    (folder / "package.json").write_text('{"private": true}')
    _npm(folder, *(f"{name}@latest" for name in names))
    lock_file = folder / "package-lock.json"
    lock = json.loads(lock_file.read_text())
    versions = {}
    for name in names:
        versions[name] = lock["packages"][f"node_modules/{name}"]["version"]
    manifest["dependencies"] = versions
    (folder / "package.json").write_text(json.dumps(manifest, indent=2) + "\n")
    lock_file.write_text(json.dumps(slim(lock, versions), indent=2) + "\n")


def slim(lock: dict[str, Any], versions: dict[str, str]) -> dict[str, Any]:
    """Return a lock file with what npm needs to install, for these exact versions.

    A registry may lack packages for some platforms.  The lock file leaves them out, so
    that npm can install the others.
    """
    locked = lock["packages"]
    names = {place.rpartition("node_modules/")[2] for place in locked}
    packages: dict[str, Any] = {"": {"dependencies": versions}}
    for place, package in locked.items():
        if not place:
            continue
        fields = {name: value for name, value in package.items() if name in _NEEDED}
        for field in ("optionalDependencies", "peerDependencies"):
            if field in fields:
                wanted = fields[field].items()
                fields[field] = {name: spec for name, spec in wanted if name in names}
        packages[place] = fields
    return {**lock, "packages": packages}


def _npm(folder: Path, *packages: str) -> None:
    path = f"{_NODE}{os.pathsep}{os.environ['PATH']}"
    flags = ("--package-lock-only", "--ignore-scripts", "--no-audit", "--no-fund")
    hosts = "--omit-lockfile-registry-resolved"
    subprocess.run(
        [_NODE / "npm", "install", *packages, *flags, hosts, "--save-exact"],
        cwd=folder,
        check=True,
        env={**os.environ, "PATH": path},
    )


def main() -> None:
    """Pin the clients that the command line names, or all of them."""
    names = sys.argv[1:] or sorted(folder.name for folder in PINS.iterdir())
    for name in names:
        pin(PINS / name)


if __name__ == "__main__":
    main()
