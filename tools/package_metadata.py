"""Complete the metadata of the package when it is built: URLs, and links in the README.

Hatchling loads this file as its metadata hook.  `pyproject.toml` names the repository,
in this one place.  Links of the README are relative in the repository.  In the package
they lead to the files of the release.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
# The name of each URL, and its path after the repository's.
_PAGES = {
    "Repository": "",
    "Documentation": "/tree/{tag}/docs",
    "Changelog": "/blob/{tag}/CHANGELOG.md",
    "Issues": "/issues",
    "Security": "/security/policy",
}


def project_urls(repository: str, version: str) -> dict[str, str]:
    """Return the URLs of a release, by name."""
    tag = f"v{version}"
    return {name: repository + path.format(tag=tag) for name, path in _PAGES.items()}


def with_absolute_links(text: str, repository: str, version: str) -> str:
    """Return a page of the repository's root whose links work everywhere.

    Code blocks stay as they are.
    """

    def absolute(match: re.Match[str]) -> str:
        target = match["target"]
        if _SCHEME.match(target) or target.startswith("#"):
            return match[0]
        kind = "raw" if match["picture"] else "blob"
        link = f"{repository}/{kind}/v{version}/{target}"
        return f"{match['picture']}[{match['text']}]({link})"

    parts: list[str] = []
    end = 0
    for fence in _FENCE.finditer(text):
        parts.append(_LINK.sub(absolute, text[end : fence.start()]))
        parts.append(fence[0])
        end = fence.end()
    parts.append(_LINK.sub(absolute, text[end:]))
    return "".join(parts)


class PackageMetadata(MetadataHookInterface):
    """Adds `urls` and `readme` to the metadata of the project."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the fields that `pyproject.toml` declares as dynamic."""
        repository = str(self.config["repository"])
        version = str(metadata["version"])
        readme = Path(self.root, "README.md").read_text("utf-8")
        metadata["urls"] = project_urls(repository, version)
        metadata["readme"] = {
            "content-type": "text/markdown",
            "text": with_absolute_links(readme, repository, version),
        }
