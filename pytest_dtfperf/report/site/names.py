"""What pages are called. Whatever a history holds, a name is of plain characters and lies within the site's folder. Pure."""

import hashlib
import re

from pytest_dtfperf.records.session import FOLDER_NAME

INDEX, CHANGES, SESSIONS = "index", "changes", "sessions"  # begin the names of lists of pages
ATOM, JSON = "changes.atom", "changes.json"
PAGE = re.compile(r"(?:(?:systems|trainings|sessions)/)?[a-z0-9][A-Za-z0-9-]*\.html|changes\.(?:atom|json)")  # all there may be


def make_training_page_name(spec_key: str, model: str) -> str:
    return f"trainings/{_make_readable(model)}-{_hash_name(spec_key)}.html"


def make_system_page_prefix(name: str) -> str:
    """Begins the names of its pages."""
    return f"systems/{_make_readable(name)}-{_hash_name(name)}"


def make_session_page_name(name: str) -> str:
    return f"sessions/{name if FOLDER_NAME.fullmatch(name) else f'other-{_hash_name(name)}'}.html"


def make_page_name(begin: str, number: int) -> str:
    """Page `number`, from 1, of a list."""
    return f"{begin}.html" if number == 1 else f"{begin}-{number}.html"


def make_root_path(page: str) -> str:
    """The way from a page to the site's first."""
    return "../" * page.count("/")


def _make_readable(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-") or "x"


def _hash_name(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:12]
