"""A REST API of events on loopback: pages by a cursor, a bearer token, and failures on request."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlparse


class EventsApi:
    """Events in memory; the cursor is how many there are before. Ends with the process or `close`."""

    def __init__(self, token: str | None = None) -> None:
        self.items: list[dict] = []
        self.token, self.failing, self.requests = token, 0, 0
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                status, body = api.answer(self.path, self.headers.get("Authorization"))
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *args) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}/events"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def answer(self, path: str, authorization: str | None) -> tuple[int, dict]:
        self.requests += 1
        if self.failing:
            self.failing -= 1
            return 503, {"error": "later"}
        if self.token is not None and authorization != f"Bearer {self.token}":
            return 401, {"error": "who are you?"}
        query = parse_qs(urlparse(path).query)
        after, limit = int(query["after"][0]), int(query["limit"][0])
        items = self.items[after : after + limit]
        return 200, {"items": items, "next": after + len(items), "newest": len(self.items)}

    def add(self, count: int) -> list[dict]:
        first = len(self.items)
        kinds = ("opened", "closed", "opened again")
        items = [
            {"id": n, "kind": kinds[n % 3], "at": f"2026-01-01T00:00:{n % 60:02d}Z"}
            for n in range(first, first + count)
        ]
        return self.add_items(items)

    def add_items(self, items: list[dict]) -> list[dict]:
        self.items.extend(items)
        return items

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
