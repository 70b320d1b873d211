"""Take the pictures of the page that the documentation shows.

``make screenshots`` serves the bundled sample on loopback and drives a Chromium.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "examples" / "sample" / "agent_run.jsonl"
PLACES = ROOT / "docs" / "pictures"
SPEC = "turn_window:full_turns=2,cached_turns=2"
NAMES = ("chromium", "chromium-browser", "google-chrome")
PICTURES = (
    ("run", "/run/cards", 1280, "light"),
    ("context", f"/run/cards/context?at=57&strategy={SPEC}", 1280, "light"),
    ("compare", f"/run/cards/compare?a=keep_all&b={SPEC}", 1280, "dark"),
    ("phone", "/run/cards", 390, "dark"),
)


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, str]]:
    """Serve the sample while the block runs; yields the address and a token."""
    environ = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("REFOLD_")
    }
    environ["REFOLD_HOME"] = str(folder / "home")
    environ["REFOLD_DB"] = f"sqlite:///{folder}/sample.db"
    refold = [sys.executable, "-m", "refold"]
    session = ["--user", "lin", "--session", "cards"]
    import_sample = ["import", str(SAMPLE), *session]
    compact = ["compact", *session, "--strategy", SPEC, "--until-idle"]
    for command in (import_sample, compact):
        subprocess.run(
            [*refold, *command], env=environ, check=True, stdout=subprocess.DEVNULL
        )
    serve = [*refold, "serve", "--port", "0", "--user", "lin"]
    with subprocess.Popen(
        serve, env=environ, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            lines = iter(process.stderr or ())
            url = next(line for line in lines if line.startswith("http"))
            token = next(lines).rpartition(" ")[2]
            yield url.strip(), token.strip()
        finally:
            process.terminate()


def take(browser: Browser, url: str, token: str) -> None:
    """Take each picture and write its file."""
    for name, path, width, scheme in PICTURES:
        page = browser.new_page(
            viewport={"width": width, "height": 800},
            color_scheme="dark" if scheme == "dark" else "light",
        )
        page.goto(f"{url}/login")
        page.fill("[name=token]", token)
        page.keyboard.press("Enter")
        page.wait_for_url(f"{url}/")
        page.goto(url + path, wait_until="networkidle")
        page.screenshot(path=PLACES / f"{name}.png")
        page.close()


def main() -> int:
    """Take all pictures; return 1 without a Chromium."""
    program = next((path for path in map(which, NAMES) if path), None)
    if program is None:
        sys.stderr.write("there is no Chromium: sudo apt-get install chromium\n")
        return 1
    PLACES.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        served(Path(folder)) as (url, token),
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"]
        )
        take(browser, url, token)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
