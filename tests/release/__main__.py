"""Check a release: build it, and install it into empty environments.

``make release-check`` runs it.  Each extra gets an environment of its own, with the
versions of `requirements/frameworks.txt`, and runs ``smoke.py`` there, outside of the
repository.  The environment without extras also follows the tutorial.  The check prints
the packages and the size of each extra, as `docs/how-to/install.md` shows them.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.release.packages import build, extras, source_copy
from tests.support.pages import blocks
from tests.support.warm import ROOT

_UV: Final = str(Path(sys.executable).with_name("uv"))
_LOCK: Final = ROOT / "requirements" / "frameworks.txt"
_SMOKE: Final = ROOT / "tests" / "release" / "smoke.py"


class Size(NamedTuple):
    """The contents of an environment."""

    packages: int
    megabytes: float


def main(arguments: Sequence[str]) -> int:
    """Check the extras that are named, or all; return 1 if one fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.release")
    parser.add_argument("--extra", action="append", choices=[*extras(), "all", "none"])
    parser.add_argument("--out", type=Path, help="keep the wheel and the sdist there")
    parser.add_argument("--python", default=sys.executable, help="the interpreter")
    options = parser.parse_args(arguments)
    names = options.extra or ["none", *extras(), "all"]
    failed: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        dist = options.out or place / "dist"
        built = build(source_copy(place / "source"), dist)
        print(f"built {built.wheel.name} and {built.sdist.name}")
        for name in names:
            try:
                size = check(built.wheel, name, place / f"env-{name}", options.python)
            except subprocess.CalledProcessError as error:
                failed.append(name)
                print(f"{name}: failed\n{error.stdout}{error.stderr}")
            else:
                print(
                    f"{name}: ok, {size.packages} packages, {size.megabytes:.0f} MB",
                    flush=True,
                )
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def check(wheel: Path, extra: str, environment: Path, interpreter: str) -> Size:
    """Install a wheel with an extra into an empty environment, and use it there.

    Raises CalledProcessError, with the output, if that fails.
    """
    suffix = "" if extra == "none" else f"[{extra}]"
    python = environment / "bin" / "python"
    _run(_UV, "venv", "--quiet", "--python", interpreter, str(environment))
    _run(
        _UV, "pip", "install", "--quiet", "--python", str(python),
        "--constraint", str(_LOCK), f"refold{suffix} @ {wheel.as_uri()}",
    )  # fmt: skip
    smoke = [str(python), "-I", str(_SMOKE)]
    _run(*smoke, *([] if extra == "none" else [extra]), cwd=environment)
    if extra == "none":
        _follow_tutorial(environment)
    _run(_UV, "pip", "check", "--quiet", "--python", str(python))
    (packages,) = environment.glob("lib/python*/site-packages")
    files = [file for file in packages.rglob("*") if file.is_file()]
    compiled = [file for file in files if file.suffix == ".pyc"]
    used = sum(file.stat().st_size for file in files)
    used -= sum(file.stat().st_size for file in compiled)
    return Size(len(list(packages.glob("*.dist-info"))), used / 1e6)


def _follow_tutorial(environment: Path) -> None:
    """Run the tutorial as written, with only the wheel and the transcript."""
    folder = environment / "tutorial"
    folder.mkdir()
    shutil.copy(ROOT / "examples" / "sample" / "agent_run.jsonl", folder)
    lines = ["set -e", f'export PATH="{environment / "bin"}:$PATH"']
    for block in blocks("docs/tutorial.md"):
        if block.language == "sh" and not block.text.startswith("cp examples"):
            lines.append(block.text)
        elif block.language == "python":
            lines.append(f"python -I <<'END_OF_CODE'\n{block.text}\nEND_OF_CODE")
    _run("sh", "-c", "\n".join(lines), cwd=folder)
    left = sorted(file.name for file in folder.iterdir())
    if left:
        message = f"the tutorial leaves files: {left}"
        raise subprocess.CalledProcessError(1, "rm", "", message)


def _run(*command: str, cwd: Path | None = None) -> None:
    # The check leaves nothing in the cache of the person who runs it.
    environment = {**os.environ, "REFOLD_CACHE": "off"}
    subprocess.run(
        command, cwd=cwd, check=True, capture_output=True, text=True, env=environment
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
