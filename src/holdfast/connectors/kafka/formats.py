"""Source: from records to columns; what cannot be read becomes a row with a bad part.

| format | a value is |
|---|---|
| `bytes` | bytes; the columns are those of the record, as Spark names them |
| `json`, `csv` | text, parsed by Spark |
| `debezium-json` | Debezium's envelope, with or without its schema |

`changes` says what a record means: "rows": one row each. "upsert": the newest state of its key; a
record without value, or Debezium's `d`, has `deleted` set. "weights": Debezium's images before and
after, as rows that are retracted and added.

Invariants:
- Whether a row is bad depends on the record alone, and says why and where it stands.
- A record without a value is bad unless `changes` gives it a meaning.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from holdfast.arguments import value_map
from holdfast.connectors.bad_rows import bad_row
from holdfast.connectors.kafka.client import refuse
from holdfast.spark.ddl import ddl_columns, quoted, split_top

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

RAW = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, "
    "headers array<struct<key:string,value:binary>>"
)
_RECORD = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
BAD_RECORD = (
    "raw binary, origin string, reason string, topic string, partition int, offset long, key binary"
)
"""What is told about a record that cannot be read."""
_FORMATS = ("bytes", "json", "csv", "debezium-json")
_WEIGHT, DELETED = "_weight", "deleted"
_CORRUPT = "__hf_corrupt"
_ROW, _REASON, _KEY = "__hf_row", "__hf_reason", "__hf_key"


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What becomes of a record. columns: in their order, the weight among them."""

    format: str
    schema: str | None
    key: str | None
    key_format: str
    changes: str
    metadata: Mapping[str, str]
    parse: Mapping[str, str]
    columns: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    keys: tuple[str, ...] = field(default=())

    @staticmethod
    def of(
        name: str,
        schema: str | None,
        key: str | None,
        key_format: str,
        metadata: Sequence[str] | Mapping[str, str],
        changes: str | None,
        parse: Mapping[str, str] | None,
    ) -> Shape:
        """Refuse what does not fit together."""
        changes = changes or ("weights" if name == "debezium-json" else "rows")
        _check_format(name, schema, key_format, changes)
        if name == "bytes" and not metadata:
            metadata = _RECORD
        meta = dict(metadata) if isinstance(metadata, Mapping) else {one: one for one in metadata}
        if set(meta) - set(_RECORD):
            _wrong("metadata", ",".join(sorted(set(meta) - set(_RECORD))), ",".join(_RECORD))
        fields = tuple(ddl_columns(schema, "kafka")) if schema else ()
        keys = tuple(ddl_columns(key, "kafka key")) if key else ()
        if key is not None and key_format == "text" and len(keys) != 1:
            _wrong("key", key, 'one column for key_format="text", such as key="id long"')
        low = {one.lower() for one in fields}
        more = [one for one in keys if one.lower() not in low]
        state = {"upsert": [DELETED], "weights": [_WEIGHT]}.get(changes, [])
        columns = (*fields, *more, *state, *meta.values())
        twice = [one for one in columns if [c.lower() for c in columns].count(one.lower()) > 1]
        if twice:
            _wrong("a column", twice[0], f'names once: metadata={{"{twice[0]}": "another_name"}}')
        return Shape(
            format=name,
            schema=schema,
            key=key,
            key_format=key_format,
            changes=changes,
            metadata=meta,
            parse={str(k): str(v) for k, v in value_map(parse, "parse").items()},
            columns=columns,
            fields=fields,
            keys=keys,
        )

    @property
    def text(self) -> str:
        """What is stored in the fingerprint."""
        parts = [self.format, self.changes]
        parts += [self.schema] if self.schema else []
        parts += [f"key {self.key_format} {self.key}"] if self.key else []
        parts += [f"{a} as {b}" for a, b in self.metadata.items()]
        return "; ".join(parts)

    @property
    def weight(self) -> str | None:
        """The column of weights, where rows can be retracted."""
        return _WEIGHT if self.changes == "weights" else None

    def apply(self, raw: DataFrame) -> DataFrame:
        """Records as rows of the format's columns, with `BAD` where some may be unreadable."""
        parsed = self._parsed(raw)
        if self.keys:
            parsed = parsed.withColumn(_KEY, _expr(self._key_sql()))
        reason = f"coalesce({_REASON}, {self._key_reason()})" if self.keys else _REASON
        parsed = parsed.withColumn(_REASON, _expr(reason))
        if self.changes == "weights":
            parsed = parsed.withColumn("__hf_change", _expr(_EXPLODED))
            parsed = parsed.withColumn(_ROW, _expr("__hf_change.row"))
        return parsed.selectExpr(*self._selected(), self._bad_sql())

    def _selected(self) -> list[str]:
        keys = {one.lower(): one for one in self.keys}
        low = {one.lower() for one in self.fields}
        columns = []
        for name in self.fields:
            own, other = f"{_ROW}.{quoted(name)}", keys.get(name.lower())
            value = f"coalesce({own}, {_KEY}.{quoted(other)})" if other else own
            columns.append(f"{value} AS {quoted(name)}")
        columns += [
            f"{_KEY}.{quoted(one)} AS {quoted(one)}" for one in self.keys if one.lower() not in low
        ]
        if self.changes == "upsert":
            columns.append(f"__hf_deleted AS {DELETED}")
        if self.changes == "weights":
            columns.append(f"__hf_change.weight AS {_WEIGHT}")
        return columns + self._meta()

    def _meta(self) -> list[str]:
        return [f"{quoted(one)} AS {quoted(name)}" for one, name in self.metadata.items()]

    def _bad_sql(self) -> str:
        return bad_row(
            f"{_REASON} IS NOT NULL",
            raw="value",
            origin="concat(topic, '[', partition, ']@', offset)",
            reason=_REASON,
            topic="topic",
            partition="partition",
            offset="offset",
            key="key",
        )

    # Values

    def _parsed(self, raw: DataFrame) -> DataFrame:
        """The record with its row, whether it is deleted, and why it cannot be read."""
        if self.format == "bytes":
            return raw.withColumn(_REASON, _expr("CAST(NULL AS STRING)"))
        if self.format == "debezium-json":
            return self._debezium(raw)
        frame: DataFrame = raw.withColumn(_ROW, _expr(self._text_sql("value", self.schema or "")))
        frame = frame.withColumn(_REASON, _expr(_text_reason(_ROW, "value", self.format)))
        if self.changes == "upsert":
            frame = frame.withColumn("__hf_deleted", _expr("value IS NULL"))
            missing = "CAST(NULL AS STRING)"
        else:
            missing = "'the record has no value: a tombstone; read it with changes=\"upsert\"'"
        return frame.withColumn(
            _REASON, _expr(f"CASE WHEN value IS NULL THEN {missing} ELSE {_REASON} END")
        )

    def _text_sql(self, column: str, schema: str) -> str:
        function = "from_csv" if self.format == "csv" and column == "value" else "from_json"
        own = self.parse if column == "value" else {}
        options = {**own, "mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        pairs = ", ".join(f"{_literal(k)}, {_literal(v)}" for k, v in options.items())
        whole = f"{schema}, {_CORRUPT} string"
        return f"{function}(CAST({column} AS STRING), {_literal(whole)}, map({pairs}))"

    def _debezium(self, raw: DataFrame) -> DataFrame:
        image = f"struct<{_as_struct(self.schema or '')}>"
        inner = f"before {image}, after {image}, op string"
        whole = f"{inner}, payload struct<{_as_struct(inner)}>"
        frame = raw
        if self.changes == "weights" or not self.keys:
            frame = raw.where("value IS NOT NULL")  # follows every delete, and says nothing more
        frame = frame.withColumn("__hf_all", _expr(self._text_sql("value", whole)))
        for part in ("before", "after", "op"):
            both = f"coalesce(__hf_all.payload.{part}, __hf_all.{part})"
            frame = frame.withColumn(f"__hf_{part}", _expr(both))
        wrong = _text_reason("__hf_all", "value", "json")
        reason = f"coalesce({wrong}, CASE {_DEBEZIUM_REASONS[self.changes]} END)"
        frame = frame.withColumn(_REASON, _expr(f"CASE WHEN value IS NOT NULL THEN {reason} END"))
        if self.changes == "weights":
            return frame
        deleted = "value IS NULL OR __hf_op <=> 'd'"
        frame = frame.withColumn("__hf_deleted", _expr(deleted))
        return frame.withColumn(
            _ROW, _expr("CASE WHEN __hf_deleted THEN __hf_before ELSE __hf_after END")
        )

    # Keys

    def _key_sql(self) -> str:
        if self.key_format == "text":
            name, kind = _parts(self.key or "")[0]
            return f"named_struct({_literal(name)}, try_cast(CAST(key AS STRING) AS {kind}))"
        if self.format != "debezium-json":
            return self._text_sql("key", self.key or "")
        whole = f"{self.key}, payload struct<{_as_struct(self.key or '')}>"
        parsed = self._text_sql("key", whole)
        parts = ", ".join(
            f"{_literal(one)}, coalesce(k.payload.{quoted(one)}, k.{quoted(one)})"
            for one in self.keys
        )
        corrupt = f"'{_CORRUPT}', k.{_CORRUPT}"
        return f"element_at(transform(array({parsed}), k -> named_struct({parts}, {corrupt})), 1)"

    def _key_reason(self) -> str:
        if self.key_format == "json":
            return (
                f"CASE WHEN {_KEY}.{_CORRUPT} IS NOT NULL "
                "THEN 'the key does not fit its schema' END"
            )
        name = _parts(self.key or "")[0][0]
        return (
            f"CASE WHEN key IS NOT NULL AND {_KEY}.{quoted(name)} IS NULL "
            "THEN 'the key does not fit its type' END"
        )


_EXPLODED = f"""explode(CASE
    WHEN {_REASON} IS NOT NULL THEN array(named_struct('row', __hf_after, 'weight', 0L))
    WHEN __hf_op IN ('c', 'r') THEN array(named_struct('row', __hf_after, 'weight', 1L))
    WHEN __hf_op = 'd' THEN array(named_struct('row', __hf_before, 'weight', -1L))
    ELSE array(named_struct('row', __hf_before, 'weight', -1L),
               named_struct('row', __hf_after, 'weight', 1L)) END)"""
_OPS = (
    "WHEN __hf_op IS NULL OR __hf_op NOT IN ('c', 'r', 'u', 'd') THEN concat('no change that can \
be applied: op=', coalesce(__hf_op, 'null'))"
)
_AFTER = "WHEN __hf_op IN ('c', 'r', 'u') AND __hf_after IS NULL THEN 'the image after is missing'"
_DEBEZIUM_REASONS = {
    "weights": f"{_OPS} {_AFTER} WHEN __hf_op IN ('u', 'd') AND __hf_before IS NULL THEN "
    "'the image before is missing: read it with changes=\"upsert\"'",
    "upsert": f"{_OPS} {_AFTER}",
}


def _check_format(name: str, schema: str | None, key_format: str, changes: str) -> None:
    if name not in _FORMATS:
        _wrong("format", name, f"one of {', '.join(_FORMATS)}")
    known = {"debezium-json": ("weights", "upsert"), "bytes": ("rows",)}
    allowed = known.get(name, ("rows", "upsert"))
    if changes not in allowed:
        _wrong("changes", changes, f"one of {', '.join(allowed)} for {name}")
    if (schema is None) == (name != "bytes"):
        _wrong("schema", schema, 'columns such as "id long, name string"; none for bytes')
    if key_format not in ("text", "json"):
        _wrong("key_format", key_format, '"text" or "json"')


def _text_reason(row: str, column: str, name: str) -> str:
    what = "CSV" if name == "csv" else "JSON"
    return (
        f"CASE WHEN {column} IS NULL THEN NULL "
        f"WHEN NOT is_valid_utf8(CAST({column} AS STRING)) THEN 'the value is no UTF-8' "
        f"WHEN {row} IS NULL THEN 'the value is empty' "
        f"WHEN {row}.{_CORRUPT} IS NOT NULL THEN 'the value is no {what} of the schema' END"
    )


def _parts(schema: str) -> list[tuple[str, str]]:
    """Names and types of a schema."""
    names = ddl_columns(schema, "kafka")
    texts = [part.strip() for part in split_top(schema)]
    found = []
    for name, text in zip(names, texts, strict=True):
        size = len(quoted(name)) if text.startswith("`") else len(name)
        found.append((name, text[size:].lstrip(" :").strip()))
    return found


def _as_struct(schema: str) -> str:
    return ", ".join(f"{quoted(name)}: {kind}" for name, kind in _parts(schema))


def _expr(text: str) -> Any:
    from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

    return F.expr(text)


def _literal(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _wrong(what: str, value: object, wanted: str) -> None:
    refuse(
        f"{what} of the Kafka source cannot be this",
        kind="invalid_argument",
        remedy=f"give {wanted}",
        value=repr(value)[:100],
    )
