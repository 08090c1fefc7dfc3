"""A source in one file: a REST API that is polled page by page, with a cursor.

Copy it to begin a source of your own. The API answers `GET URL?after=CURSOR&limit=N` with

    {"items": [{"id": 1, "kind": "opened", "at": "2026-01-01T00:00:00Z"}, ...], "next": "CURSOR"}

where `next` is the place behind the last item. Two things are asked of it, and most APIs of events
promise them: the items between two cursors are the same whenever they are asked for, and cursors
have an order (here: they are numbers).

Exactly once: the position of a checkpoint is the cursor behind everything that was read. After a
crash the next process asks from there again. A page is fetched when it is planned, so that its end
is known before it is read; it is kept only until its epoch is done.

What a source promises: docs/guides/connectors.md.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from holdfast.connectors import (
    BAD_SCHEMA,
    Backlog,
    Draft,
    IncompatibleError,
    InvalidInputError,
    Manifest,
    OpenPosition,
    Position,
    Source,
    SourceReader,
    Split,
    StorageError,
    StoreReader,
    bad_row,
)

COLUMNS = "id long, kind string, at timestamp"


class RestEvents(Source):
    """Events of a REST API, in the order of its cursor.

    url: without parameters. token: `env:NAME`, the variable that holds a bearer token; the token
    itself is never stored or shown. page_max: the most events of one epoch.
    """

    kind = "rest_events"  # stored: never changes
    schema_text = COLUMNS  # stored, too: neither the address nor the token belongs there
    bad = BAD_SCHEMA  # items that do not fit the columns
    in_order = True  # one partition, in the order of the cursor: `upsert` needs no sequence

    def __init__(self, url: str, *, token: str | None = None, page_max: int = 1_000) -> None:
        if token is not None and not token.startswith("env:"):
            raise InvalidInputError(
                "a secret is given by reference",
                kind="invalid_secret",
                remedy='write token="env:NAME" and set the variable NAME',
            )
        self.url, self.token, self.page_max = url, token, page_max

    def columns(self) -> list[str]:
        return ["id", "kind", "at"]

    def empty(self, spark: Any) -> Any:
        return spark.createDataFrame([], COLUMNS)

    def open(self, name: str) -> RestReader:
        return RestReader(name, self)


class RestReader(SourceReader):
    """The API while a pipeline runs. A split is `(first cursor, last cursor, items as text)`."""

    def __init__(self, name: str, source: RestEvents) -> None:
        self._name, self._source = name, source
        self._cursor, self._newest = 0, 0

    def restore(self, manifest: Manifest, reader: StoreReader) -> None:
        entry = manifest.source(self._name)
        if entry is None:
            return  # the checkpoint is older than this source: begin at the start
        position = entry.position
        if not isinstance(position, OpenPosition) or position.kind != RestEvents.kind:
            raise IncompatibleError("the position is not that of a REST API", source=self._name)
        self._cursor = int(position.offsets["cursor"])

    def plan(self, after: Split | None = None) -> Split | None:
        start = self._cursor if after is None else after.detail[1]
        page = self._get(after=start, limit=self._source.page_max)
        self._newest = max(self._newest, int(page.get("newest", page["next"])))
        items, stop = page["items"], int(page["next"])
        if not items:
            return None
        texts = [json.dumps(item) for item in items]
        return Split(self._name, len(texts), sum(map(len, texts)), (start, stop, texts))

    def read(self, spark: Any, split: Split) -> Any:
        start, _, texts = split.detail
        lines = spark.createDataFrame([(text,) for text in texts], "item string").coalesce(1)
        parsed = f"from_json(item, '{COLUMNS}, broken string', "
        parsed += "map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', 'broken'))"
        origin = "'" + f"{self._source.url}?after={start}".replace("'", "") + "'"
        broken = bad_row(
            "row.broken IS NOT NULL OR row.id IS NULL",
            raw="item",
            origin=origin,
            reason="'the item does not fit the columns id, kind and at'",
        )
        return lines.selectExpr("item", f"{parsed} AS row").selectExpr(
            "row.id", "row.kind", "row.at", broken
        )

    def advance(self, split: Split) -> None:
        self._cursor = split.detail[1]

    def save(self, draft: Draft) -> Position:
        offsets = {"cursor": str(self._cursor)}
        return OpenPosition(kind=RestEvents.kind, offsets=offsets, order="number")

    def history(self) -> list[Split]:
        """An API that keeps its events can fill new operators: page by page up to the cursor."""
        splits, at = [], 0
        while at < self._cursor:
            limit = min(self._source.page_max, self._cursor - at)
            page = self._get(after=at, limit=limit)
            texts, stop = [json.dumps(item) for item in page["items"]], int(page["next"])
            if not texts:
                return super().history()  # it has forgotten them: refused by name
            splits.append(Split(self._name, len(texts), 0, (at, stop, texts)))
            at = stop
        return splits

    def backlog(self) -> Backlog:
        """From the last answer: no request in here."""
        return Backlog(self._cursor, max(self._cursor, self._newest), "events")

    def _get(self, **parameters: Any) -> dict[str, Any]:
        url = f"{self._source.url}?{urllib.parse.urlencode(parameters)}"
        headers = {}
        if self._source.token is not None:
            name = self._source.token.removeprefix("env:")
            headers["Authorization"] = f"Bearer {os.environ.get(name, '')}"
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 - the user's address
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
                page: dict[str, Any] = json.load(answer)
                return page
        except urllib.error.HTTPError as error:
            raise StorageError(
                "the API refused a page",
                kind="api_refused",
                source=self._name,
                url=self._source.url,
                status=error.code,
                retryable=error.code >= 500 or error.code == 429,
            ) from error
        except (OSError, ValueError) as error:
            raise StorageError(
                "the API did not answer as expected",
                kind="api_unreachable",
                source=self._name,
                url=self._source.url,
                reason=f"{type(error).__name__}: {error}"[:200],
                retryable=True,
            ) from error
