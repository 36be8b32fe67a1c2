"""What the build says of the project beyond pyproject.toml: where it is kept, and a README whose links work on a package index.

A workflow of GitHub tells where the project is and which tag is built (GITHUB_SERVER_URL, GITHUB_REPOSITORY, GITHUB_REF_NAME):
links of README.md to files become links to those of the tag, and the project's URLs are written. Elsewhere nobody knows: there
are no URLs then, and of a link to a file its words stay. An address that nobody has would be worse than none.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

# An inline code or a block of it, which stays; a link, or with `!` a picture.
PARTS = re.compile(
    r"(?P<code>```.*?```|`[^`\n]*`)|(?P<picture>!?)\[(?P<words>(?:`[^`\n]*`|[^\]`])*)\]\((?P<target>[^)\s]+)\)", re.DOTALL
)


class CustomMetadataHook(MetadataHookInterface):
    def update(self, metadata: dict[str, object]) -> None:
        """Called by hatchling for each build. `metadata` is what will be written."""
        where = tag_of(os.environ)
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": readme(text, where)}
        metadata["urls"] = urls(where)


def tag_of(environment: Mapping[str, str]) -> tuple[str, str] | None:
    """The repository's address and the tag that is built; None where that is not known."""
    server, repository = environment.get("GITHUB_SERVER_URL"), environment.get("GITHUB_REPOSITORY")
    tag = environment.get("GITHUB_REF_NAME") if environment.get("GITHUB_REF_TYPE") == "tag" else None
    return (f"{server}/{repository}", tag) if server and repository and tag else None


def urls(where: tuple[str, str] | None) -> dict[str, str]:
    if where is None:
        return {}
    address, tag = where
    return {
        "Source": address,
        "Documentation": f"{address}/tree/{tag}/docs",
        "Changelog": f"{address}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{address}/issues",
    }


def readme(text: str, where: tuple[str, str] | None) -> str:
    """With links that work wherever it is read."""

    def put(found: re.Match[str]) -> str:
        if found["code"] is not None or re.match(r"[a-z]+:|#", found["target"]):
            return found[0]
        if where is None:
            return found["words"]
        address, tag = where
        kind = "raw" if found["picture"] else "blob"
        return f"{found['picture']}[{found['words']}]({address}/{kind}/{tag}/{found['target']})"

    return PARTS.sub(put, text)
