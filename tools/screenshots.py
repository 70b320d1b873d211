"""Take the screenshots of Refold's pages for the documentation.

``make screenshots`` serves the bundled sample on loopback and opens it in Chromium.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import which
from typing import Literal, NamedTuple

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).parents[1]
SAMPLE = ROOT / "examples" / "sample" / "agent_run.jsonl"
PICTURES = ROOT / "docs" / "pictures"
STRATEGY = "turn_window:full_turns=2,cached_turns=2"
CHROMIUM_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
COMPACTED_AT = 57  # the seq at which the strategy summarizes the first turns
HEIGHT = 800


class Screenshot(NamedTuple):
    """A page, and how the browser shows it.

    name:   the name of the picture, without its folder and extension.
    path:   the path and query of the page.
    width:  the width of the window in pixels.
    scheme: the color scheme that the browser asks for.
    """

    name: str
    path: str
    width: int
    scheme: Literal["light", "dark"]


SCREENSHOTS = (
    Screenshot("run", "/run/cards", 1280, "light"),
    Screenshot(
        "context",
        f"/run/cards/context?at={COMPACTED_AT}&strategy={STRATEGY}",
        1280,
        "light",
    ),
    Screenshot("compare", f"/run/cards/compare?a=keep_all&b={STRATEGY}", 1280, "dark"),
    Screenshot("phone", "/run/cards", 390, "dark"),
)


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, str]]:
    """Serve the sample while the block runs; yields the address and an access token.

    folder: an empty folder for the store and its keys.
    """
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
    compact = ["compact", *session, "--strategy", STRATEGY, "--until-idle"]
    for command in (import_sample, compact):
        subprocess.run(
            [*refold, *command], env=environ, check=True, stdout=subprocess.DEVNULL
        )
    serve = [*refold, "serve", "--port", "0", "--user", "lin"]
    with subprocess.Popen(
        serve, env=environ, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            # The server prints its address, and in the next line the token, last.
            lines = iter(process.stderr or ())
            url = next(line for line in lines if line.startswith("http"))
            token = next(lines).rpartition(" ")[2]
            yield url.strip(), token.strip()
        finally:
            process.terminate()


def take_screenshots(browser: Browser, url: str, token: str) -> None:
    """Log in and take each screenshot, which replaces its file in ``PICTURES``."""
    for screenshot in SCREENSHOTS:
        page = browser.new_page(
            viewport={"width": screenshot.width, "height": HEIGHT},
            color_scheme=screenshot.scheme,
        )
        page.goto(f"{url}/login")
        page.fill("[name=token]", token)
        page.keyboard.press("Enter")
        page.wait_for_url(f"{url}/")
        page.goto(url + screenshot.path, wait_until="networkidle")
        page.screenshot(path=PICTURES / f"{screenshot.name}.png")
        page.close()


def find_chromium() -> str | None:
    """Return the path of an installed Chromium, or None."""
    for name in CHROMIUM_PROGRAMS:
        path = which(name)
        if path is not None:
            return path
    return None


def has_chinese_font() -> bool:
    """Whether a font of this machine has Chinese characters."""
    lister = which("fc-list")
    if lister is None:
        return False
    fonts = subprocess.run(
        [lister, ":lang=zh"], check=True, capture_output=True, text=True
    )
    return bool(fonts.stdout.strip())


def main() -> int:
    """Take all screenshots; return 1 without a Chromium or a Chinese font."""
    chromium = find_chromium()
    if chromium is None:
        sys.stderr.write("there is no Chromium: sudo apt-get install chromium\n")
        return 1
    if not has_chinese_font():
        remedy = "sudo apt-get install fontconfig fonts-noto-cjk"
        sys.stderr.write(f"no font has Chinese characters: {remedy}\n")
        return 1
    PICTURES.mkdir(exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        served(Path(folder)) as (url, token),
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        take_screenshots(browser, url, token)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
