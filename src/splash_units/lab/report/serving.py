"""A report that is made anew as runs finish, for this machine's own browser only.

The page asks every two seconds whether the store has changed and loads itself again when it has.
Requests must name this machine as their host: a page of somewhere else, which a browser could be
led to resolve to 127.0.0.1, gets nothing.
"""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from splash_units.lab.report.page import render
from splash_units.lab.store import Store

HOST = "127.0.0.1"


def store_version(root: Path) -> str:
    """A text that changes when a run, an attack or an analysis appears, fails or finishes."""
    names = hashlib.sha256()
    # A finished result is a folder renamed, and so is seen by names; epochs of a run are not.
    for pattern in ("*", "*/failure.json", "*/attacks/*", "analyses/*"):
        for path in sorted(root.glob(pattern)):
            if not any(part.startswith(".") for part in path.relative_to(root).parts):
                names.update(f"{path.relative_to(root)}\n".encode())
    return names.hexdigest()[:16]


class Page:
    """The page of a store, made again only when the store has changed."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = threading.Lock()
        self._version = ""
        self._html = b""

    def html(self) -> bytes:
        with self._lock:
            version = store_version(self.store.root)
            if version != self._version:
                self._html = render(self.store, live=version).encode()
                self._version = version
            return self._html


class Handler(BaseHTTPRequestHandler):
    """Answers with the page, or with the store's version."""

    page: Page

    def do_GET(self) -> None:
        _, port = self.connection.getsockname()
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            self.send_error(403)
        elif self.path == "/":
            self._answer(self.page.html(), "text/html; charset=utf-8")
        elif self.path == "/version":
            self._answer(store_version(self.page.store.root).encode(), "text/plain")
        else:
            self.send_error(404)

    def _answer(self, body: bytes, kind: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: a page that asks every two seconds would fill the terminal."""


@contextmanager
def serving(store: Store, port: int = 0) -> Iterator[ThreadingHTTPServer]:
    """A server of a store's report, bound to this machine; port 0 takes a free one."""
    handler = type("StoreHandler", (Handler,), {"page": Page(store)})
    server = ThreadingHTTPServer((HOST, port), handler)
    try:
        yield server
    finally:
        server.server_close()
