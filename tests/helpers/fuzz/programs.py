"""Random pipelines as text: each step once as Holdfast code, once as plain PySpark code."""

from __future__ import annotations

import random
from dataclasses import replace

from tests.helpers.fuzz.histories import Histories
from tests.helpers.fuzz.model import (
    EDGES,
    OUTLIERS,
    OUTPUT_EDGES,
    WEIGHT_EDGES,
    Node,
    Program,
    Sink,
    Source,
)
from tests.helpers.fuzz.values import (
    ARRAYS,
    NUMBERS,
    PLAIN_KEYS,
    PLAIN_VALUES,
    Column,
    Field,
    field_of,
)


class Maker:
    """Makes a program of a seed."""

    def __init__(self, seed: int, *, large: bool = False) -> None:
        self.rng = random.Random(seed)
        self.seed, self.large = seed, large
        self.edge = EDGES[(seed // 2) % len(EDGES)] if seed % 2 and not large else ""
        self.sources: list[Source] = []
        self.nodes: list[Node] = []
        self.count = 0

    def program(self) -> Program:
        rng = self.rng
        self._make_sources()
        here = self._as_node(self.sources[0])
        if self.edge in WEIGHT_EDGES or self.edge == "nested_nulls":
            here = self._aggregate(here)
            steps = rng.choice([0, 0, 1])
        elif self.edge in OUTPUT_EDGES:
            here = self._aggregate(here)
            steps = 0
        elif self.edge == "nested_map":
            here = rng.choice([self._join, self._distinct, self._key_group])(here)
            steps = 0
        elif self.edge == "time_zone":
            here = self._clocked(here)
            steps = rng.choice([0, 1])
        else:
            steps = rng.randint(1, 2 if self.large else 4)
        if self.edge in ("collation", "char"):
            here = rng.choice([self._distinct, self._key_group, self._join, self._top])(here)
            steps = rng.choice([0, 1])
        for _ in range(steps):
            if rng.random() < 0.5:
                here = self._stateless(here)
            here = self._stateful(here)
        program = Program(self.seed, self.edge, self.sources, self.nodes, self._sinks(here))
        if self.edge == "time_zone":
            program.zone = rng.choice(["America/New_York", "Asia/Kathmandu", "Pacific/Apia"])
        elif rng.random() < 0.3:
            program.zone = rng.choice(["Europe/Berlin", "America/New_York"])
        Histories(rng, program, large=self.large).add()
        return program

    # Sources

    def _make_sources(self) -> None:
        rng, edge = self.rng, self.edge
        keys = self._keys()
        for number in range(1 if edge == "null_weight" else rng.choice([1, 2, 2])):
            values = [
                field_of(rng, f"v{number}_{i}", kind, outliers=edge in OUTLIERS)
                for i, kind in enumerate(self._value_kinds())
            ]
            weighted = rng.random() < 0.7 or edge in WEIGHT_EDGES
            if edge == "nested_nulls":
                weighted = False  # where rows can be retracted, the count is exact
                values[0] = replace(values[0], pool=ARRAYS)
            layout = "plain"
            if edge == "odd_names":
                layout = "odd"
            elif edge == "hive":
                layout = "hive"
                values.append(field_of(rng, f"day{number}", rng.choice(["date", "int", "string"])))
                values[-1] = _as_directory(values[-1])
            files_max = 1 if edge else rng.choice([1, 1, 2, 5])
            fields = (*keys, *values)
            if edge == "time_zone" and number == 0:
                layout, weighted = rng.choice([("csv", False), ("plain", weighted)])
                if layout == "csv":
                    fields = (field_of(rng, "k0", "long"), field_of(rng, "at", "timestamp"))
            self.sources.append(Source(f"s{number}", fields, weighted, layout, files_max))

    def _keys(self) -> list[Field]:
        rng, edge = self.rng, self.edge
        kinds = rng.sample(PLAIN_KEYS, rng.choice([1, 1, 2]))
        if edge in (*OUTLIERS, "nested_nulls"):
            kinds = [rng.choice(["string", "int"])]
        if edge == "journal_payload" or edge == "journal_binary":
            kinds = [k for k in kinds if k not in ("binary", "struct", "array")] or ["string"]
        kinds[:1] = {
            "collation": ["collated"],
            "nested_map": ["mapped"],
            "time_zone": ["timestamp"],
            "char": [rng.choice(["char", "varchar"])],
        }.get(edge, kinds[:1])
        names = [f"k{i}" for i in range(len(kinds))]
        if edge == "reserved_column":
            names[0] = rng.choice(["_weight", "hf_epoch"])
        if edge == "odd_columns":
            names[0] = rng.choice(["größe", "a b", "select", "x.y", "K-1", "n`q", "__hf_hash"])
        fields = [field_of(rng, n, k) for n, k in zip(names, kinds, strict=True)]
        if self.large:
            wide = tuple(range(20_000))
            fields = [replace(field_of(rng, "k0", "long"), pool=wide)]
        return fields

    def _value_kinds(self) -> list[str]:
        rng, edge = self.rng, self.edge
        kinds = [rng.choice(PLAIN_VALUES) for _ in range(rng.randint(1, 3))]
        wanted = {
            **OUTLIERS,
            "decimal_weights": "decimal",
            "nested_nulls": "array",
            "journal_payload": rng.choice(["long", "decimal", "double", "timestamp", "odd double"]),
            "journal_binary": "binary",
            "time_zone": "timestamp",
        }.get(edge)
        if wanted:
            kinds[0] = wanted
        if edge in ("journal_payload", "journal_binary"):
            kinds = [kind for kind in kinds if kind not in ("array", "struct")]
        return kinds

    # Steps: every one takes a node and gives the next

    def _as_node(self, source: Source) -> Node:
        columns = tuple(f.column for f in source.fields)
        return Node(source.name, (), "", source.name, columns, source.weighted)

    def _add(self, needs, holdfast: str, batch: str, columns, *, changes: bool, view=False) -> Node:
        self.count += 1
        node = Node(
            f"n{self.count}",
            tuple(n.name for n in needs),
            holdfast,
            batch,
            tuple(columns),
            changes,
            view,
        )
        self.nodes.append(node)
        return node

    @property
    def _next(self) -> str:
        return f"n{self.count + 1}"

    def _stateless(self, here: Node) -> Node:
        rng = self.rng
        kind = rng.choice(["where", "with", "select", "transform"])
        if kind == "where":
            column = rng.choice(here.columns)
            # No null comes out of this condition, so that it keeps rows of every kind.
            condition = f"coalesce(pmod(hash({column.sql}), 4), 1) <> {rng.randint(0, 3)}"
            if column.family in ("map", "variant") or column.soft or column.folded:
                condition = "true"
            text = f"{here.name}.where({condition!r})"
            return self._add([here], text, text, here.columns, changes=here.changes)
        if kind == "with":
            column = rng.choice(here.columns)
            name = f"c{self.count}"
            text = f"{column.sql} IS NULL"
            new = Column(name, "other")
            return self._add(
                [here],
                f"{here.name}.with_columns({name}={text!r})",
                f"{here.name}.withColumn({name!r}, F.expr({text!r}))",
                [*here.columns, new],
                changes=here.changes,
            )
        if kind == "transform":
            text = "lambda df: df.where('1 = 1')"
            return self._add(
                [here],
                f"{here.name}.transform({text}, text='same')",
                here.name,
                here.columns,
                changes=here.changes,
            )
        columns = rng.sample(here.columns, len(here.columns))
        return self._select(here, columns)

    def _select(self, here: Node, columns, names=None) -> Node:
        names = names or [column.name for column in columns]
        new = [replace(c, name=n) for c, n in zip(columns, names, strict=True)]
        texts = [
            old.sql if old.name == fresh.name else f"{old.sql} AS {fresh.sql}"
            for old, fresh in zip(columns, new, strict=True)
        ]
        args = ", ".join(repr(text) for text in texts)
        return self._add(
            [here],
            f"{here.name}.select({args})",
            f"{here.name}.selectExpr({args})",
            new,
            changes=here.changes,
        )

    def _stateful(self, here: Node) -> Node:
        exact = [c for c in here.columns if not c.soft]
        if len(exact) < len(here.columns):
            here = self._select(here, exact)
        choices = [
            self._aggregate,
            self._distinct,
            self._top,
            self._join,
            self._sets,
            self._union,
            self._apply,
            self._latest,
        ]
        if not here.changes:
            choices.append(self._first_or_last)
        if self.large:
            choices = [self._key_group, self._distinct, self._top, self._join, self._latest]
        return self.rng.choice(choices)(here)

    def _keys_of(self, here: Node, most: int = 2) -> list[Column]:
        usable = [c for c in here.columns if c.orderable and not c.soft]
        keys = [c for c in usable if c.name.startswith("k")] or usable
        if self.large:
            return keys[:1]
        if self.edge in (
            "collation",
            "nested_map",
            "char",
            "reserved_column",
            "odd_columns",
            "hive",
        ):
            return [here.columns[0 if self.edge != "hive" else len(here.columns) - 1]]
        return self.rng.sample(keys, min(len(keys), self.rng.randint(1, most)))

    def _key_group(self, here: Node) -> Node:
        return self._aggregate(here)

    def _aggregate(self, here: Node) -> Node:
        rng = self.rng
        keys = self._keys_of(here)
        rest = [c for c in here.columns if c not in keys] or list(here.columns)
        wanted = [("n", "hf.count()", "F.count(F.lit(1))", Column("n", "long"))]
        for number in range(rng.randint(1, 4)):
            column = rng.choice(rest) if number or not self.edge else rest[0]
            found = self._one_aggregate(column, f"a{number}", first=number == 0)
            wanted += [found] if found else []
        names = ", ".join(repr(c.name) for c in keys)
        ours = ", ".join(f"{name}={text}" for name, text, _, _ in wanted)
        batch = ", ".join(f"{text}.alias({name!r})" for name, _, text, _ in wanted)
        plain = ", ".join(repr(c.sql) for c in keys)
        return self._add(
            [here],
            f"{here.name}.group_by({names}).agg({ours}, name={self._next!r})",
            f"{here.name}.groupBy({plain}).agg({batch})",
            [*keys, *(column for *_, column in wanted)],
            changes=True,
            view=True,
        )

    def _one_aggregate(self, column: Column, name: str, *, first: bool):
        """(name, Holdfast's text, Spark's text, the new column) or None if nothing fits."""
        rng, sql = self.rng, column.sql
        kinds = ["count"]
        if column.orderable and not column.folded:
            kinds += ["count_distinct", "collect_list", "collect_set", "approx", "first", "last"]
            if column.family in (*NUMBERS, "text", "date", "timestamp"):
                kinds += ["min", "max"]
        if column.family in NUMBERS:
            kinds += ["sum", "sum", "avg", "stddev", "variance", "percentile", "median"]
        kind = rng.choice(kinds)
        if first:
            edge = {
                "decimal_weights": "sum",
                "long_min": "sum",
                "nested_nulls": "approx",
                "double_outlier": rng.choice(["sum", "avg"]),
                "deviation_outlier": "stddev",
            }.get(self.edge, kind)
            kind = edge if edge in kinds else kind
        number = "double" if column.family == "double" else column.family
        simple = {
            "count": ("hf.count", "count", Column(name, "long")),
            "min": ("hf.min", "min", replace(column, name=name)),
            "max": ("hf.max", "max", replace(column, name=name)),
            "sum": (
                "hf.sum",
                "sum",
                Column(
                    name,
                    "long" if number == "int" else number,
                    "float" if number == "double" else "",
                ),
            ),
            "avg": (
                "hf.avg",
                "avg",
                Column(
                    name,
                    "decimal" if number == "decimal" else "double",
                    "" if number == "decimal" else "float",
                ),
            ),
            "stddev": ("hf.stddev", "stddev", Column(name, "double", "float")),
            "variance": ("hf.variance", "variance", Column(name, "double", "float")),
            "median": ("hf.median", "median", Column(name, "double", "float")),
        }
        if kind in simple:
            ours, theirs, new = simple[kind]
            return name, f"{ours}({sql!r})", f"F.expr({f'{theirs}({sql})'!r})", new
        ours, theirs, new = {
            "count_distinct": (
                f"hf.count_distinct({sql!r})",
                f"count(distinct {sql})",
                Column(name, "long"),
            ),
            "approx": (
                f"hf.approx_count_distinct({sql!r})",
                f"count(distinct {sql})",
                Column(name, "long", "approx"),
            ),
            "percentile": (
                f"hf.percentile({sql!r}, 0.25)",
                f"percentile({sql}, 0.25)",
                Column(name, "double", "float"),
            ),
            "collect_list": (
                f"hf.collect_list({sql!r}, limit=5)",
                f"slice(array_sort(collect_list({sql})), 1, 5)",
                Column(name, "array"),
            ),
            "collect_set": (
                f"hf.collect_set({sql!r}, limit=5)",
                f"slice(array_sort(collect_set({sql})), 1, 5)",
                Column(name, "array"),
            ),
            "first": (
                f"hf.first({sql!r}, order_by={sql!r})",
                f"sort_array(collect_list(struct({sql})), true)[0][{column.name!r}]",
                replace(column, name=name),
            ),
            "last": (
                f"hf.last({sql!r}, order_by={sql!r})",
                f"sort_array(collect_list(struct({sql})), false)[0][{column.name!r}]",
                replace(column, name=name),
            ),
        }[kind]
        if kind in ("first", "last"):
            theirs = theirs.replace(f"[{column.name!r}]", f".{sql}")
        return name, ours, f"F.expr({theirs!r})", new

    def _distinct(self, here: Node) -> Node:
        columns = [c for c in here.columns if c.orderable or self.edge == "nested_map"]
        if self.edge not in ("nested_map", "collation", "char", "reserved_column"):
            columns = self.rng.sample(columns, self.rng.randint(1, len(columns)))
        before = self._select(here, columns)
        return self._add(
            [before],
            f"{before.name}.distinct(name={self._next!r})",
            f"{before.name}.distinct()",
            before.columns,
            changes=here.changes,
            view=True,
        )

    def _dedupe(self, here: Node) -> Node:
        keys = self._keys_of(here)
        names = ", ".join(repr(c.name) for c in keys)
        node = self._add(
            [here],
            f"{here.name}.dedupe({names}, name={self._next!r})",
            f"{here.name}.dropDuplicates([{', '.join(repr(c.name) for c in keys)}])",
            here.columns,
            changes=False,
        )
        # Which row of a key comes first is open within an epoch: only the keys are compared.
        return self._select(node, keys)

    def _first_or_last(self, here: Node) -> Node:
        return self.rng.choice([self._dedupe, self._upsert])(here)

    def _upsert(self, here: Node) -> Node:
        """Every row is a put: the last one by a sequence, then by all columns."""
        here = self._ordered(here) if self.edge != "collation" else here
        keys = self._keys_of(here, 1)
        by = self.rng.choice(here.columns)
        names = [c.name for c in keys]
        ours = (
            f"{here.name}.upsert({names!r}, sequence_by={f'{by.sql} asc'!r}, name={self._next!r})"
        )
        rest = [c.sql for c in here.columns if c is not by]
        order = ", ".join(f"{text} DESC" for text in [by.sql, *rest])
        over = f"PARTITION BY {', '.join(c.sql for c in keys)} ORDER BY {order}"
        batch = (
            f"{here.name}.withColumn('hf_rank', F.expr({f'row_number() OVER ({over})'!r}))"
            f".where('hf_rank <= 1').drop('hf_rank')"
        )
        return self._add([here], ours, batch, here.columns, changes=True)

    def _ordered(self, here: Node) -> Node:
        columns = [c for c in here.columns if c.orderable and not c.folded]
        return here if len(columns) == len(here.columns) else self._select(here, columns)

    def _top(self, here: Node, *, latest: bool = False) -> Node:
        rng = self.rng
        here = self._ordered(here) if self.edge != "collation" else here
        per = self._keys_of(here, 1) if latest or rng.random() < 0.7 else []
        by = rng.choice(here.columns)
        down = "" if latest else rng.choice(["", " desc", " desc nulls first", " asc nulls last"])
        count = 1 if latest else rng.randint(1, 4)
        flip = " desc" if latest else down
        rest = [c.sql for c in here.columns if c is not by]
        names = [repr(c.name) for c in per]
        if latest:
            ours = (
                f"{here.name}.latest({', '.join(names)}, order_by={by.sql!r}, name={self._next!r})"
            )
        else:
            ours = (
                f"{here.name}.top_k({count}, per=[{', '.join(names)}], "
                f"order_by={by.sql + down!r}, name={self._next!r})"
            )
        over = f"ORDER BY {by.sql}{flip}" + "".join(f", {text}" for text in rest)
        if per:
            over = f"PARTITION BY {', '.join(c.sql for c in per)} {over}"
        batch = (
            f"{here.name}.withColumn('hf_rank', F.expr({f'row_number() OVER ({over})'!r}))"
            f".where('hf_rank <= {count}').drop('hf_rank')"
        )
        return self._add([here], ours, batch, here.columns, changes=True)

    def _latest(self, here: Node) -> Node:
        if not here.changes and not self.large and self.rng.random() < 0.5:
            return self._upsert(here)
        return self._top(here, latest=True)

    def _other(self, here: Node) -> Node:
        """Another stream with the same keys: the other source, or this one."""
        return self._as_node(self.rng.choice(self.sources))

    def _join(self, here: Node) -> Node:
        rng = self.rng
        other = self._other(here)
        shared = [c for c in here.columns if any(o.name == c.name for o in other.columns)]
        shared = [c for c in shared if c.family == _family(other, c.name) and not c.soft]
        shared = [c for c in shared if self._same_type(here, other, c)]
        if self.edge == "nested_map":
            shared = [c for c in shared if c.orderable]
        if not shared:
            return self._distinct(here)
        keys = shared[:1] if self.large else rng.sample(shared, rng.randint(1, min(2, len(shared))))
        how = rng.choice(["inner", "left", "right", "full", "semi", "anti"])
        taken = {c.name for c in here.columns}
        names = [
            c.name if c in keys else (f"{c.name}_{self.count}" if c.name in taken else c.name)
            for c in other.columns
        ]
        right = self._select(other, other.columns, names)
        rest = [c for c in right.columns if c.name not in {k.name for k in keys}]
        on = ", ".join(repr(c.name) for c in keys)
        columns = list(here.columns) if how in ("semi", "anti") else [*here.columns, *rest]
        return self._add(
            [here, right],
            f"{here.name}.join({right.name}, [{on}], {how!r}, name={self._next!r})",
            f"{here.name}.join({right.name}, [{on}], {how!r})",
            columns,
            changes=here.changes or right.changes or how not in ("inner",),
        )

    def _same_type(self, here: Node, other: Node, column: Column) -> bool:
        """Keys of sources keep their type until an aggregate makes a column of that name."""
        return column.name.startswith("k") or self.edge in ("reserved_column", "odd_columns")

    def _sets(self, here: Node) -> Node:
        rng = self.rng
        columns = [c for c in here.columns if c.orderable and not c.soft]
        left = self._select(here, columns)
        right = self._stateless_where(left)
        kind, everything = rng.choice(["except_", "intersect"]), rng.random() < 0.5
        batch = {
            ("except_", False): "subtract",
            ("except_", True): "exceptAll",
            ("intersect", False): "intersect",
            ("intersect", True): "intersectAll",
        }
        return self._add(
            [left, right],
            f"{left.name}.{kind}({right.name}, name={self._next!r}, all={everything})",
            f"{left.name}.{batch[kind, everything]}({right.name})",
            columns,
            changes=True,
            view=True,
        )

    def _stateless_where(self, here: Node) -> Node:
        column = self.rng.choice(here.columns)
        condition = f"coalesce(pmod(hash({column.sql}), 3), 1) <> 0"
        if column.folded:
            condition = f"{column.sql} IS NOT NULL"
        text = f"{here.name}.where({condition!r})"
        return self._add([here], text, text, here.columns, changes=here.changes)

    def _union(self, here: Node) -> Node:
        right = self._stateless_where(here)
        both = self._add(
            [here, right],
            f"{here.name}.union({right.name})",
            f"{here.name}.unionByName({right.name})",
            here.columns,
            changes=here.changes,
        )
        return self._key_group(both)

    def _apply(self, here: Node) -> Node:
        keys = self._keys_of(here, 1)
        fields = {f.name: f for s in self.sources for f in s.fields}
        if not all(c.name in fields and c.name.startswith("k") for c in keys):
            return self._distinct(here)
        ddl = ", ".join(f"{c.sql} {fields[c.name].ddl}" for c in keys)
        names = [c.name for c in keys]
        plain = ", ".join(repr(c.sql) for c in keys)
        return self._add(
            [here],
            f"{here.name}.apply(counting({names!r}), key={names!r}, state_schema='n long', "
            f"output_schema={ddl + ', n long'!r}, changes=True, name={self._next!r}, text='counting')",
            f"{here.name}.groupBy({plain}).agg(F.count(F.lit(1)).alias('n'))",
            [*keys, Column("n", "long")],
            changes=True,
        )

    def _clocked(self, here: Node) -> Node:
        column = next(c for c in here.columns if c.family == "timestamp")
        texts = {
            "h": f"hour({column.sql})",
            "d": f"to_date({column.sql})",
            "u": f"unix_micros({column.sql})",
        }
        args = ", ".join(f"{name}={text!r}" for name, text in texts.items())
        batch = "".join(f".withColumn({name!r}, F.expr({text!r}))" for name, text in texts.items())
        new = [Column("h", "other"), Column("d", "other"), Column("u", "other")]
        return self._add(
            [here],
            f"{here.name}.with_columns({args})",
            f"{here.name}{batch}",
            [*here.columns, *new],
            changes=here.changes,
        )

    # Sinks

    def _sinks(self, here: Node) -> list[Sink]:
        rng, edge = self.rng, self.edge
        kinds = rng.sample(["changelog", "upsert", "function", "journal"], rng.randint(1, 3))
        if edge.startswith(("restore", "fork", "lost", "two", "moved")):
            kinds = rng.choice([["changelog", "upsert"], ["upsert"], ["changelog"]])
        if edge in ("fork_upsert", "restore_old", "restore_before"):
            kinds = ["changelog", "upsert"]
        if edge in ("fork_same", "two_pipelines", "nested_nulls"):
            kinds = ["changelog"]
        if edge.startswith("journal"):
            kinds = ["journal", "changelog"]
        elif any(not c.orderable or c.family in ("array",) for c in here.columns):
            kinds = [kind for kind in kinds if kind != "journal"] or ["changelog"]
        if not edge.startswith("journal") and not self._plain_payload(here):
            kinds = [kind for kind in kinds if kind != "journal"] or ["changelog"]
        sinks = [Sink(f"o{i}", kind, here.name, f"o{i}") for i, kind in enumerate(kinds)]
        if edge == "two_sinks":
            kind = rng.choice(["changelog", "upsert"])
            sinks = [Sink("o0", kind, here.name, "both"), Sink("o1", kind, here.name, "both")]
        return sinks

    def _plain_payload(self, here: Node) -> bool:
        """A journal's payload of plain kinds: what it does with others is an edge of its own."""
        return all(c.family in ("int", "long") or c.name == "n" for c in here.columns)


def _family(node: Node, name: str) -> str:
    return next(c.family for c in node.columns if c.name == name)


def _as_directory(given: Field) -> Field:
    """Values that a directory's name can hold."""
    pool = tuple(v for v in given.pool if v is not None and v != "" and str(v).strip() == str(v))
    pool = tuple(v for v in pool if str(v).isascii() and not set(str(v)) & set("\"'\\")) or ("x",)
    if given.family == "other" and given.ddl == "string":
        pool = ("x", "a b", "1")
    return replace(given, pool=pool)
