"""The folder and the names of the pages of a site. A page is written only if it has changed; old pages are removed.

`site.json` has two digests of each page: of its data (`of`) and of its content (`is`). It is written last,
so that pages of a killed build are made again by the next one. Names have plain characters only.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_dtfperf.errors import UsageError
from pytest_dtfperf.node.files import read_file, replace_file
from pytest_dtfperf.records.session import FOLDER_NAME

CHANGES, SESSIONS = "changes", "sessions"  # prefixes of the names of list pages
ATOM, JSON = "changes.atom", "changes.json"
PAGE = re.compile(r"(?:(?:systems|trainings|sessions)/)?[a-z0-9][A-Za-z0-9-]*\.html|changes\.(?:atom|json)")  # all names


def make_training_page_name(spec_key: str, model: str) -> str:
    return f"trainings/{_make_readable(model)}-{_hash_name(spec_key)}.html"


def make_system_page_prefix(name: str) -> str:
    """Return the prefix of the names of a system's pages."""
    return f"systems/{_make_readable(name)}-{_hash_name(name)}"


def make_session_page_name(name: str) -> str:
    return f"sessions/{name if FOLDER_NAME.fullmatch(name) else f'other-{_hash_name(name)}'}.html"


def make_page_name(begin: str, number: int) -> str:
    """Return the name of page `number`, from 1, of a list."""
    return f"{begin}.html" if number == 1 else f"{begin}-{number}.html"


def make_root_path(page: str) -> str:
    """Return the path from a page to the site's first page."""
    return "../" * page.count("/")


def _make_readable(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-") or "x"


def _hash_name(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:12]


MANIFEST = "site.json"
MANIFEST_VERSION = 1


@dataclass
class SiteBuildResult:
    """The changes of pages, by their names."""

    written: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    bytes: int = 0  # of all pages
    largest: int = 0  # bytes of the largest


class SiteFolder:
    """The folder of a site: `page` adds pages, and `finish` ends it. Raises `UsageError` for another folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = _load_manifest(path)
        self._pages: dict[str, Mapping[str, str]] = {}
        self.built = SiteBuildResult()
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._write(MANIFEST, _encode_manifest(self._known))  # marks the folder as a site from now on
        except OSError as exc:
            raise UsageError(f"the site cannot be written to {path}: {exc.strerror}") from exc

    def page(self, name: str, data: object, make: Callable[[], str]) -> None:
        """Write a page with the content that `make` returns if `data` (JSON) has changed. Raises `UsageError`."""
        digest = hashlib.sha256(json.dumps(data, sort_keys=True, default=str).encode(errors="surrogatepass")).hexdigest()
        before, content = self._known.get(name, {}), self._read_if_there(name)
        if content is None or before.get("of") != digest or before.get("is") != _hash_content(content):
            made = make().encode(errors="replace")
            (self.built.kept if made == content else self.built.written).append(name)
            if made != content:
                self._write(name, made)
            content = made
        else:
            self.built.kept.append(name)
        self._pages[name] = {"of": digest, "is": _hash_content(content)}
        self.built.bytes += len(content)
        self.built.largest = max(self.built.largest, len(content))

    def finish(self) -> SiteBuildResult:
        """Remove files that are no pages any more, and return a summary."""
        for name in self._known.keys() - self._pages.keys():
            with suppress(FileNotFoundError):
                (self._path / name).unlink()
                self.built.removed.append(name)
        self._write(MANIFEST, _encode_manifest(self._pages))
        return self.built

    def _read_if_there(self, name: str) -> bytes | None:
        try:
            return read_file(self._path / name)
        except OSError:
            return None

    def _write(self, name: str, content: bytes) -> None:
        path = self._path / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with replace_file(path) as file:
                file.write(content)
        except OSError as exc:
            raise UsageError(f"{path} cannot be written: {exc.strerror}") from exc


def _load_manifest(path: Path) -> dict[str, Mapping[str, str]]:
    """Return the pages of the previous build. Invalid names are ignored."""
    try:
        manifest: Any = json.loads(read_file(path / MANIFEST))
        pages = manifest["pages"] if manifest["dtfperf_site"] == MANIFEST_VERSION else {}
        return {name: found for name, found in pages.items() if PAGE.fullmatch(name) and isinstance(found, dict)}
    except FileNotFoundError:
        _check_empty(path)
        return {}
    except OSError as exc:
        raise UsageError(f"{path / MANIFEST} cannot be read: {exc.strerror}: name another folder, or remove that file") from exc
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as exc:
        raise UsageError(f"{path / MANIFEST} is not of a site ({exc}): name another folder, or remove that file") from exc


def _check_empty(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise UsageError(f"a site is a folder, and {path} is none")
    others = sorted(each.name for each in path.iterdir()) if path.is_dir() else []
    if others:
        raise UsageError(
            f"{path} has files that are not of a site ({', '.join(others[:3])}): name an empty folder, or a new one"
        )


def _encode_manifest(pages: Mapping[str, Mapping[str, str]]) -> bytes:
    return json.dumps({"dtfperf_site": MANIFEST_VERSION, "pages": pages}, indent=1, sort_keys=True).encode() + b"\n"


def _hash_content(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
