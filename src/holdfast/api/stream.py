"""What a user writes code with: a stream of rows, and the steps that make another one of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

from holdfast.api.columns import Expression, expression_text, is_column, spark_column
from holdfast.api.grouped import Grouped
from holdfast.api.sets import SetSteps
from holdfast.api.spelling import STREAM_USES, unknown_name
from holdfast.arguments import instance_of, several
from holdfast.durations import Duration
from holdfast.errors import InvalidInputError
from holdfast.operators.apply.declare import apply
from holdfast.operators.columns import FAILED
from holdfast.operators.declaration import Declaration
from holdfast.operators.dedupe.declare import dedupe, distinct
from holdfast.operators.expectations import OnFail, expect
from holdfast.operators.join.declare import Interval, JoinRequest, On, join_streams
from holdfast.operators.topk.declare import latest, top_k
from holdfast.operators.upsert.declare import Missing, upsert
from holdfast.operators.window.declare import Window

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from holdfast.operators.apply.execute import ApplyContext


class Stream(SetSteps):
    """Rows that keep coming. Each method gives a new stream; nothing runs before `Pipeline.run`.

    Names and habits are those of PySpark's DataFrame. Every operator with state has a `name`: its
    state, its view and its errors go by it.
    """

    if not TYPE_CHECKING:  # a type checker refuses what is not there

        def __getattr__(self, name: str) -> Any:
            raise unknown_name(self, name, STREAM_USES)

    def join(
        self,
        other: Stream,
        on: On | None = None,
        how: str = "inner",
        *,
        condition: str | None = None,
        within: Interval | None = None,
        suffix: str | None = None,
        name: str,
    ) -> Self:
        """Join with another stream, kept up to date by the rows of both.

        Args:
            other: the right side, of the same pipeline.
            on: a column, several, or {left column: right column}; nulls meet nothing, as in SQL.
            how: inner, left, right, full, semi or anti, as PySpark spells them.
            condition: SQL over the columns of both sides, part of what makes a match.
            within: `hf.interval(...)`; rows that can no longer match are forgotten.
            suffix: appended to columns of the right side whose names are taken.
            name: of the operator.

        Returns:
            The joined stream: shared keys first, then the columns of the left and the right side.

        Raises:
            InvalidInputError: a column is unknown or there twice, the kind of join is unknown, or
                `within` is asked for without a watermark.

        Example:
            >>> totals = orders.group_by("customer").agg(total=hf.sum("amount"), name="totals")
            >>> orders.join(totals, "customer", "left", name="with_totals").columns
            ['customer', 'amount', 'at', 'total']
        """
        self._same_pipeline(other, name)
        request = JoinRequest(on, how, name, condition, within, suffix)
        return self._added(join_streams(self.node, other.node, request))

    @property
    def late(self) -> Self:
        """Rows that came too late for this operator; they can only go into a sink.

        Returns:
            The stream of late rows.

        Raises:
            InvalidInputError: the operator does not go by event time.

        Example:
            >>> hours = hf.tumbling("at", size="1 hour", emit="close")
            >>> hourly = orders.group_by(hours).agg(n=hf.count(), name="hourly")
            >>> pipe.sink("too_late", hourly.late, hf.sinks.Parquet(folder / "late"))
        """
        return self._after(self.node.late_rows())

    @property
    def bad(self) -> Self:
        """What the source could not read: `raw` value, `origin` and `reason`, and more by source.

        The rows are counted and the first few are logged, whether anybody takes them or not.

        Returns:
            The stream of bad rows; it can go wherever a stream can.

        Raises:
            InvalidInputError: the source has none, or an operator stands between.

        Example:
            >>> visits = hf.sources.Files(folder / "in", schema="customer string", format="json")
            >>> pipe.source("visits", visits).bad.columns
            ['raw', 'origin', 'reason']
        """
        return self._after(self.node.bad_rows())

    def expect(
        self,
        condition: Expression,
        *,
        on_fail: OnFail = "warn",
        name: str,
    ) -> Self:
        """Say what holds for every row; rows for which it does not are counted.

        A condition that is null fails. Whether a row fails depends on its values alone: a row of a
        changelog and its later retraction go the same way, and only the row counts.

        Args:
            condition: SQL text or a PySpark Column.
            on_fail: "warn" keeps rows that fail; "drop" leaves them out; "fail" fails the
                epoch, of which nothing is kept; "quarantine" leaves them out and gives them to
                `.quarantined` of the stream that is returned.
            name: of the expectation; reports and metrics go by it.

        Returns:
            The stream of the rows that stay.

        Raises:
            InvalidInputError: the condition is neither, or the name is taken; or, when the pipeline
                is analysed, it needs more than one row, or gives another answer another time.

        Example:
            >>> sane = orders.expect("amount > 0", on_fail="quarantine", name="positive")
            >>> pipe.sink("odd", sane.quarantined, hf.sinks.Parquet(folder / "odd"))
        """
        text = expression_text(condition, "expect")

        def judge(df: DataFrame) -> DataFrame:
            from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

            met = F.coalesce(spark_column(condition).cast("boolean"), F.lit(False))  # noqa: FBT003
            return df.withColumn(FAILED, ~met)

        node = expect(self.node, judge, text, name=name, on_fail=on_fail)
        self._graph.add_expectation(name)
        return self._after(node)

    @property
    def quarantined(self) -> Self:
        """The rows that the expectation directly before set aside.

        Returns:
            The stream of these rows; it can go wherever a stream can.

        Raises:
            InvalidInputError: no expectation before this step sets rows aside.

        Example:
            >>> known = orders.expect("customer IS NOT NULL", on_fail="quarantine", name="known")
            >>> known.quarantined.columns
            ['customer', 'amount', 'at']
        """
        return self._after(self.node.quarantined_rows())

    def group_by(self, *keys: str | Window | Sequence[str]) -> Grouped:
        """Group by columns, and by a window of event time. `groupBy` is the same.

        Args:
            keys: names of columns, and at most one window.

        Returns:
            What `.agg(...)` is asked for.

        Raises:
            InvalidInputError: no key, or something else than names and a window.

        Example:
            >>> by = orders.group_by("customer", hf.tumbling("at", size="1 day"))
            >>> by.agg(total=hf.sum("amount"), name="daily").columns
            ['customer', 'window_start', 'window_end', 'total']
        """
        flat: list[str | Window] = []
        for key in keys:
            flat.extend(key if isinstance(key, (list, tuple)) else [key])  # type: ignore[list-item]
        for given in flat:
            if not isinstance(given, (str, Window)):
                raise InvalidInputError(
                    "a stream is grouped by names of columns and a window",
                    kind="invalid_key",
                    operator="group_by",
                    value=repr(given)[:80],
                    remedy='name an expression first: with_columns(day="date(at)"); for windows use'
                    ' hf.tumbling("at", size="1 hour")'
                    if is_column(given)
                    else 'write it like group_by("customer")',
                )
        if not flat:
            raise InvalidInputError(
                "group_by needs a column",
                kind="no_keys",
                operator="group_by",
                remedy="for one total over everything, group by a constant column",
            )
        return Grouped(self.node, tuple(flat), self._added)

    groupBy = group_by  # noqa: N815 - PySpark's name

    def distinct(self, *, name: str) -> Self:
        """Every distinct row once.

        Args:
            name: of the operator.

        Returns:
            The stream of distinct rows.

        Raises:
            InvalidInputError: the name is not allowed or taken.

        Example:
            >>> orders.select("customer").distinct(name="customers").columns
            ['customer']
        """
        return self._added(distinct(self.node, name=name))

    def dedupe(
        self, *keys: str, time: str | None = None, within: Duration | None = None, name: str
    ) -> Self:
        """The first row of each key.

        Args:
            keys: names of columns.
            time: the column of event time; goes together with `within`.
            within: how long a key is remembered. Rows whose time lies further behind the watermark
                are late: whether they are duplicates can no longer be known, so they are dropped,
                counted, and given by `.late`.
            name: of the operator.

        Returns:
            The stream of first rows.

        Raises:
            InvalidInputError: no key, an unknown column, a changelog, or time without within.

        Example:
            >>> orders.dedupe("customer", time="at", within="1 day", name="first_order").columns
            ['customer', 'amount', 'at']
        """
        return self._added(dedupe(self.node, keys, name=name, time=time, within=within))

    def dropDuplicates(  # noqa: N802 - PySpark's name
        self, subset: str | Sequence[str] | None = None, *, name: str
    ) -> Self:
        """One row for each value of some columns, as in PySpark; without a subset, `distinct`.

        Args:
            subset: names of columns.
            name: of the operator.

        Returns:
            The stream of first rows.

        Raises:
            InvalidInputError: as in `dedupe`.

        Example:
            >>> orders.dropDuplicates(["customer", "at"], name="once").columns
            ['customer', 'amount', 'at']
        """
        if subset is None:
            return self.distinct(name=name)
        return self.dedupe(*several(subset, "subset", name), name=name)

    def top_k(
        self,
        k: int,
        *,
        order_by: str | Sequence[str],
        per: str | Sequence[str] = (),
        rank: str | None = None,
        name: str,
    ) -> Self:
        """The first `k` rows of each key by an ordering.

        What the ordering leaves open is decided by all other columns, ascending: the same rows as
        `row_number()` over (the ordering, then all other columns) gives in Spark.

        Args:
            k: how many rows.
            order_by: SQL terms such as `["amount desc", "at"]`.
            per: the keys; without them, the first rows of the whole stream.
            rank: the name of a column for 1 to k.
            name: of the operator.

        Returns:
            The stream of these rows, a changelog.

        Raises:
            InvalidInputError: `k` is out of range, or a column is unknown.

        Example:
            >>> top = orders.top_k(3, order_by="amount desc", rank="place", name="top")
            >>> top.columns
            ['customer', 'amount', 'at', 'place']
        """
        return self._added(top_k(self.node, k, per=per, order_by=order_by, name=name, rank=rank))

    def latest(self, *keys: str, order_by: str | Sequence[str], name: str) -> Self:
        """The last row of each key by an ordering; ties as in `top_k`.

        Args:
            keys: names of columns.
            order_by: SQL terms such as `"at"`.
            name: of the operator.

        Returns:
            The stream of last rows, a changelog.

        Raises:
            InvalidInputError: no key, or an unknown column.

        Example:
            >>> orders.latest("customer", order_by="at", name="newest").columns
            ['customer', 'amount', 'at']
        """
        return self._added(latest(self.node, keys, order_by=order_by, name=name))

    def upsert(
        self,
        key: str | Sequence[str],
        *,
        sequence_by: str | Sequence[str] | None = None,
        delete_when: str | None = None,
        missing: Missing = "null",
        name: str,
    ) -> Self:
        """A table out of its changes: the last row of each key.

        Rows are puts. A row deletes its key where `delete_when` holds, or where the source has a
        weight and that of the row is negative.

        Args:
            key: the columns that name a row of the table.
            sequence_by: SQL terms that order the rows of a key, such as a log's position; a row
                behind the last one is ignored and counted (`outdated`), and a deleted key is
                remembered. Without it rows count as they come, which only sources can promise that
                give them in order: Kafka, journal, generator.
            delete_when: SQL text, such as `op = 'd'` or `value IS NULL`.
            missing: "null": a null is a value. "keep": a null means that the row left the column
                out, and the old value stays. {column: condition}: it left the column out where the
                condition holds.
            name: of the operator.

        Returns:
            The stream of the table, a changelog: -old +new.

        Raises:
            InvalidInputError: no key, an unknown column, no order, or a condition that is no text.

        Example:
            >>> orders.upsert("customer", sequence_by="at", name="newest").columns
            ['customer', 'amount', 'at']
        """
        node = upsert(
            self.node,
            several(key, "key", name),
            sequence_by=sequence_by,
            delete_when=delete_when,
            missing=missing,
            name=name,
        )
        return self._added(node)

    def apply(
        self,
        function: Callable[[pa.Table, pa.Table, ApplyContext], tuple[pa.Table, pa.Table]],
        *,
        key: str | Sequence[str],
        state_schema: str,
        output_schema: str,
        time: str | None = None,
        ttl: Duration | None = None,
        timers: str | None = None,
        changes: bool = False,
        text: str | None = None,
        name: str,
    ) -> Self:
        """Your own operator: `function(changes, state, context)` gives `(output, new state)`.

        All are Arrow tables, over all touched keys of a partition at once. `changes` has the rows
        of this epoch by key, `time` and all columns, with `_weight` where rows can be retracted;
        `state` one row for each key that has some. The new state replaces that of every key in
        `context.keys`: a key that is missing from it is deleted.

        Args:
            function: the user function.
            key: the columns that state is kept by.
            state_schema: what is kept for a key, as SQL writes a schema.
            output_schema: the columns of the output.
            time: the column of event time.
            ttl: keys are forgotten that long after the newest `time` of their rows; older rows are
                late.
            timers: a timestamp column of the state; a key is asked about, without rows, when the
                watermark reaches it.
            changes: the output has a column `_weight`, too: it is a changelog.
            text: stands for the function in the fingerprint; by default its qualified name.
            name: of the operator.

        Returns:
            The stream of the output.

        Raises:
            InvalidInputError: a schema cannot be read, a column is unknown, or event time is asked
                for without a watermark.

        Example:
            >>> def count(changes, state, context):
            ...     before = dict(zip(state["customer"].to_pylist(), state["n"].to_pylist()))
            ...     for customer in changes["customer"].to_pylist():
            ...         before[customer] = before.get(customer, 0) + 1
            ...     rows = {"customer": list(before), "n": list(before.values())}
            ...     return pa.table(rows), pa.table(rows)
            >>> schemas = {"state_schema": "n long", "output_schema": "customer string, n long"}
            >>> orders.apply(count, key="customer", name="counts", **schemas).columns
            ['customer', 'n']
        """
        node = apply(
            self.node,
            function,
            key=key,
            state_schema=state_schema,
            output_schema=output_schema,
            name=name,
            ttl=ttl,
            time=time,
            timers=timers,
            retracts=changes,
            text=text,
        )
        return self._added(node)

    def operator(self, declaration: Declaration) -> Self:
        """An operator that is not one of Holdfast's: see "Add an operator" in CONTRIBUTING.md.

        Args:
            declaration: the operator, with nodes of streams of this pipeline as its `inputs`.

        Returns:
            The stream of its rows.

        Raises:
            InvalidInputError: its name is not allowed or taken.

        Example:
            >>> from holdfast.operators.topk.declare import latest  # a declaration, as yours is
            >>> mine = latest(orders.node, ("customer",), order_by="at", name="mine")
            >>> orders.operator(mine).columns
            ['customer', 'amount', 'at']
        """
        wanted: type[Declaration] = Declaration  # type: ignore[type-abstract]
        instance_of(declaration, wanted, "declaration", "a class of yours that is a Declaration")
        return self._added(declaration)
