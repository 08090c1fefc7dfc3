"""The one private door into Spark: names that Spark does not promise to keep.

PySpark's own calls look classes up by name and pickle functions each time they are made: half of
what planning an epoch costs. The fast paths of this module keep the JVM's objects from epoch to
epoch, begin work early, and read numbers that Spark has counted already. Each has a public way that
does the same, more slowly.

Invariants:
- No other module has a private name of Spark, and here each is reached by `_reach` and listed in
  `FAST_PATHS`. Tests of the repository look for both.
- A fast path computes what its public way computes. Where it fails and the public way does not, it
  is turned off for this process, with one line in the log; the pipeline continues.
- Only a stage that needs no state may begin before its epoch.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

log = logging.getLogger("holdfast.spark")

_T = TypeVar("_T")
_STATEFUL = ("MapInArrow", "InMemoryTableScan")  # stages of operators, and rows kept from them
_CAUSES_MAX = 12
_FIELDS_ALL = 1_000_000
_POLL_SECONDS = 0.001
_COLUMN = "pyspark.sql.classic.column"
_FRAME = "pyspark.sql.classic.dataframe"
_EXECUTED = ("_jdf", "queryExecution", "executedPlan")
_BEGUN = (*_EXECUTED, "nodeName", "children", "submitShuffleJob")
_LISTENER = "org.apache.spark.sql.streaming.PythonStreamingQueryListener"


@dataclass(frozen=True)
class FastPath:
    """Some private names that serve one purpose. instead: what happens without them."""

    name: str
    instead: str
    names: tuple[str, ...]


FAST_PATHS: Mapping[str, FastPath] = {
    path.name: path
    for path in (
        FastPath(
            "selection",
            "expressions are parsed again in every epoch",
            ("_to_seq", "_jc", "_jdf", "select", "DataFrame"),
        ),
        FastPath(
            "arrow map",
            "functions of stages are pickled again in every epoch",
            ("PythonEvalType", "pandas_udf", "_jc", "_jdf", "mapInArrow", "DataFrame"),
        ),
        FastPath("plan ahead", "an epoch is planned when it runs", _EXECUTED),
        FastPath(
            "plan text",
            "steps are explained down to the physical plan when a pipeline starts",
            ("_jdf", "queryExecution", "analyzed", "simpleString", "innerChildren", "children"),
        ),
        FastPath("begin ahead", "an epoch reads its sources when it runs", _BEGUN),
        FastPath(
            "row counts",
            "rows of sources are counted as they go by",
            (
                *(*_EXECUTED, "collectLeaves", "nodeName", "relation", "cachedPlan"),
                *("metrics", "metadata", "location", "rootPaths", "isCompleted"),
            ),
        ),
        FastPath("python daemon", "workers load by themselves what tasks need", ("manager",)),
        FastPath(
            "error causes",
            "errors of Spark are told by their text",
            (
                *("_origin", "java_exception", "getClass", "getCause", "getMessage"),
                *("getCondition", "getMessageParameters", "getQueryContext"),
            ),
        ),
        FastPath(
            "light listener",
            "the guard hears all fields of a query's progress",
            (
                *("_gateway", "ensure_callback_server_started"),
                *("_jvm", "PythonStreamingQueryListenerWrapper", "_jlistener"),
            ),
        ),
        FastPath(
            "checkpoint location",
            "`guard.attach` must be told the checkpoint's location",
            ("_jsq", "streamingQuery", "resolvedCheckpointRoot"),
        ),
    )
}
RAW_FILES: Mapping[str, str] = {
    "fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "fs.file.impl.disable.cache": "true",
}
"""Options of a reader: local files without Hadoop's checksum files, whose names bar a colon."""
NO_PATTERNS: Mapping[str, str] = {"__globPaths__": "false"}
"""Options of a reader: paths are names, not patterns. Spark refuses the file where it has none."""
_off: dict[str, str] = {}
_compared: set[str] = set()


def _reach(owner: Any, name: str) -> Any:
    """A private name of Spark; tests take single ones away here."""
    return getattr(owner, name)


def turned_off() -> dict[str, str]:
    """The fast paths that this process does without, and why."""
    return dict(_off)


def is_on(path: str) -> bool:
    """Whether a fast path may be tried."""
    return path not in _off


def notes() -> list[str]:
    """What people should know about fast paths that are off."""
    return [
        f"Spark's fast path {name!r} is off: {FAST_PATHS[name].instead} ({why})"
        for name, why in _off.items()
    ]


def _turn_off(path: str, error: Exception) -> None:
    if _is_gone(error):
        return
    text = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    if _off.setdefault(path, text) is text:
        log.warning("fast path %r is off: %s (%s)", path, FAST_PATHS[path].instead, text)


def _is_gone(error: Exception) -> bool:
    """Whether nobody answered: the JVM has ended, which says nothing about its names."""
    return isinstance(error, OSError) or type(error).__name__ == "Py4JNetworkError"


def _is_missing(error: Exception) -> bool:
    """Whether a name is not there. What the JVM itself complains of has another class."""
    missing = isinstance(error, AttributeError | TypeError | ImportError)
    return missing or type(error).__name__ == "Py4JError"


def _either(path: str, fast: Callable[[], _T], public: Callable[[], _T]) -> _T:
    """The fast way; where it fails and the public one does not, the public one from now on."""
    if path in _off:
        return public()
    try:
        return fast()
    except Exception as error:  # noqa: BLE001 - whatever it is, the public way decides
        found = public()  # its error is the caller's, and says nothing about the fast path
        _turn_off(path, error)
        return found


def _if_there(path: str, fast: Callable[[], _T], instead: _T) -> _T:
    """The fast way; `instead` where its names are missing. Other errors are the caller's."""
    if path in _off:
        return instead
    try:
        return fast()
    except Exception as error:
        if not _is_missing(error):
            raise
        _turn_off(path, error)
        return instead


def is_classic(spark: SparkSession) -> bool:
    """Whether a session has a context in this process; with Spark Connect it has none."""
    try:
        return spark.sparkContext is not None
    except Exception:  # noqa: BLE001 - versions refuse it in different ways
        return False


class Selection:
    """`selectExpr` with always the same expressions."""

    def __init__(self, *texts: str) -> None:
        """Keep the expressions; the JVM's objects are made with the first frame."""
        self.texts = texts
        self._columns: Any = None

    def __call__(self, frame: DataFrame) -> DataFrame:
        """The frame with these columns."""
        if not is_classic(frame.sparkSession):
            return frame.selectExpr(*self.texts)
        return _either(
            "selection", lambda: self._fast(frame), lambda: frame.selectExpr(*self.texts)
        )

    def _fast(self, frame: DataFrame) -> DataFrame:
        from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

        if self._columns is None:
            columns = [_reach(F.expr(text), "_jc") for text in self.texts]
            to_seq = _reach(importlib.import_module(_COLUMN), "_to_seq")
            self._columns = to_seq(frame.sparkSession.sparkContext, columns)
        made = _wrapped(frame, _reach(_reach(frame, "_jdf"), "select")(self._columns))
        return _same("selection", made, lambda: frame.selectExpr(*self.texts))


class ArrowMap:
    """`mapInArrow` with always the same function, over frames of always the same columns."""

    def __init__(self, function: Callable[[Any], Any], schema: StructType | str) -> None:
        """Keep the function; it is pickled with the first frame."""
        self._function, self._schema = function, schema
        self._call: Any = None

    def __call__(self, frame: DataFrame) -> DataFrame:
        """What the function makes of the frame."""
        if not is_classic(frame.sparkSession):
            return self._public(frame)
        return _either("arrow map", lambda: self._fast(frame), lambda: self._public(frame))

    def _public(self, frame: DataFrame) -> DataFrame:
        return frame.mapInArrow(self._function, self._schema)

    def _fast(self, frame: DataFrame) -> DataFrame:
        if self._call is None:
            self._call = self._made(frame)
        call = _reach(_reach(frame, "_jdf"), "mapInArrow")
        made = _wrapped(frame, call(self._call, False, None))  # noqa: FBT003 - Java has no keywords
        return _same("arrow map", made, lambda: self._public(frame))

    def _made(self, frame: DataFrame) -> Any:
        from pyspark.sql import functions as F  # noqa: N812 - everybody's name for it

        pandas_udf = _reach(importlib.import_module("pyspark.sql.pandas.functions"), "pandas_udf")
        kinds = _reach(importlib.import_module("pyspark.util"), "PythonEvalType")
        udf = pandas_udf(self._function, self._schema, kinds.SQL_MAP_ARROW_ITER_UDF)
        names = [name.replace("`", "``") for name in frame.columns]
        return _reach(udf(*(F.col(f"`{name}`") for name in names)), "_jc")


def _wrapped(frame: DataFrame, made: Any) -> Any:
    return _reach(importlib.import_module(_FRAME), "DataFrame")(made, frame.sparkSession)


def _same(path: str, made: DataFrame, public: Callable[[], DataFrame]) -> DataFrame:
    """Once a process, a frame of a fast path is held against the one of the public call."""
    if path not in _compared:
        if made.schema != public().schema:
            raise TypeError(f"{made.schema.simpleString()} came instead of the public call's")
        _compared.add(path)
    return made


def plan_now(action: DataFrame) -> None:
    """Let Spark plan an action that runs later."""
    _if_there("plan ahead", lambda: _executed_plan(action), None)


def begin_shuffles(action: DataFrame) -> list[Any]:
    """Begin the stages of a planned action that only read sources; returns them.

    They run where cores are free, and the action finds their output. A stage that fails here is
    tried again by the action, whose error counts.
    """
    return _if_there("begin ahead", lambda: _begin_shuffles(action), [])


def _begin_shuffles(action: DataFrame) -> list[Any]:
    begun = []
    waiting = [_executed_plan(action)]
    while waiting:
        node = waiting.pop()
        if _reach(node, "nodeName")() == "Exchange":
            if not any(name in _STATEFUL for name in _names(node)):
                begun.append(_reach(node, "submitShuffleJob")())
            continue
        waiting.extend(_children(node))
    return begun


def finished(begun: list[Any]) -> bool:
    """Wait for stages that were begun; False where Spark does not tell when they end."""
    return _if_there("row counts", lambda: all(map(_ended, begun)), instead=False)


def _ended(stage: Any) -> bool:
    while not _reach(stage, "isCompleted")():
        time.sleep(_POLL_SECONDS)
    return True


@dataclass(frozen=True)
class Scan:
    """One reading of files by an action that has run. pushed: a filter may have skipped rows."""

    url: str
    files: int
    rows: int
    pushed: bool


def scans_of(action: DataFrame) -> list[Scan] | None:
    """What an action has read from files, as Spark has counted it; None where it does not tell."""
    return _either("row counts", lambda: [*_scans(_executed_plan(action))], lambda: None)


def _scans(plan: Any) -> Iterator[Scan]:
    leaves = _reach(plan, "collectLeaves")()
    for number in range(leaves.size()):
        leaf = leaves.apply(number)
        name = str(_reach(leaf, "nodeName")())
        if name.startswith("InMemoryTableScan"):
            yield from _scans(_reach(_reach(leaf, "relation")(), "cachedPlan")())
        elif name.startswith("Scan ") and _reach(leaf, "metrics")().contains("numFiles"):
            location = _reach(_reach(leaf, "relation")(), "location")()
            paths = _reach(location, "rootPaths")()
            pushed = _reach(leaf, "metadata")().get("PushedFilters")
            yield Scan(
                str(paths.head().toString()),
                paths.size(),
                int(_reach(leaf, "metrics")().get("numOutputRows").get().value()),
                pushed.isDefined() and str(pushed.get()) != "[]",
            )


def analyzed_lines(frame: DataFrame, end: str, public: Callable[[], list[str]]) -> list[str]:
    """The analysed plan of a frame down to nodes that say `end`; or what `public` gives."""
    if not is_classic(frame.sparkSession):
        return public()

    def lines() -> list[str]:
        return [*_lines(_reach(_execution(frame), "analyzed")(), end)]

    return _either("plan text", lines, public)


def _lines(node: Any, end: str, indent: str = "") -> Iterator[str]:
    text = " ".join(str(_reach(node, "simpleString")(_FIELDS_ALL)).splitlines())
    yield f"{indent}{text}"
    below = [] if text == end else [*_items(_reach(node, "innerChildren")()), *_children(node)]
    for child in below:
        yield from _lines(child, end, "   " * (len(indent) // 3) + "+- ")


def _execution(frame: DataFrame) -> Any:
    return _reach(_reach(frame, "_jdf"), "queryExecution")()


def _executed_plan(action: DataFrame) -> Any:
    return _reach(_execution(action), "executedPlan")()


def _names(node: Any) -> list[str]:
    below = [name for child in _children(node) for name in _names(child)]
    return [str(_reach(node, "nodeName")()), *below]


def _children(node: Any) -> list[Any]:
    return _items(_reach(node, "children")())


def _items(sequence: Any) -> list[Any]:
    return [sequence.apply(i) for i in range(sequence.size())]


def serve_workers() -> None:
    """Be the process that Spark forks its Python workers from, until Spark ends it."""
    _reach(importlib.import_module("pyspark.daemon"), "manager")()


@dataclass(frozen=True)
class JavaCause:
    """One link of a chain of causes in the JVM."""

    name: str
    message: str
    condition: str = ""
    parameters: Mapping[str, str] = field(default_factory=dict)
    expression: str = ""


def causes_of(error: Exception) -> list[JavaCause]:
    """The causes of an error of Spark, the outermost first; empty where there is no JVM to ask."""
    module = type(error).__module__
    thrown = type(error).__name__ == "Py4JJavaError"  # others of the bridge have no cause in Java
    if not thrown and not module.endswith(".captured"):
        return []
    return _either("error causes", lambda: _causes(error), list)


def _causes(error: Exception) -> list[JavaCause]:
    foreign = type(error).__module__.startswith("py4j")
    throwable = _reach(error, "java_exception" if foreign else "_origin")
    links: list[JavaCause] = []
    while throwable is not None and len(links) < _CAUSES_MAX:
        try:
            links.append(_cause(throwable))
            throwable = _reach(throwable, "getCause")()
        except Exception as gone:
            if not links or _is_missing(gone):
                raise
            break  # the JVM may have ended: what was seen so far counts
    return links


def _cause(throwable: Any) -> JavaCause:
    name = str(_reach(throwable, "getClass")().getName())
    message = str(_reach(throwable, "getMessage")() or "")
    condition, expression = "", ""
    parameters: dict[str, str] = {}
    if message.startswith("[") or "org.apache.spark" in name:
        with suppress(Exception):  # not every error of Spark has all of these
            condition = str(_reach(throwable, "getCondition")() or "")
            given = _reach(throwable, "getMessageParameters")()
            parameters = {str(key): str(given.get(key)) for key in given.keySet()}
            contexts = _reach(throwable, "getQueryContext")()
            expression = str(contexts[0].fragment())[:200] if len(contexts) else ""
    return JavaCause(name, message, condition, parameters, expression)


class _LightListener:
    """What classic Spark calls through Py4J: asks an event for two numbers instead of all of them.

    PySpark's own wrapper converts every field of every progress event, at some 40 ms of CPU each.
    """

    def __init__(self, progress: Callable[[str, int], None], ended: Callable[[str], None]) -> None:
        self._progress, self._ended = progress, ended

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """Nothing to do."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """A batch has ended."""
        progress = event.progress()
        self._progress(str(progress.id().toString()), int(progress.batchId()))

    onQueryIdle = onQueryStarted  # noqa: N815 - Spark's name

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802 - Spark's name
        """The query has ended."""
        self._ended(str(event.id().toString()))

    class Java:
        """For Py4J."""

        implements = [_LISTENER]


def lighten(
    listener: Any, progress: Callable[[str, int], None], ended: Callable[[str], None]
) -> bool:
    """Let a listener of streaming queries hear only which batch has ended; returns whether it does.

    Otherwise it hears what every listener hears, through its public methods.
    """
    return _if_there("light listener", lambda: _lighten(listener, progress, ended), instead=False)


def _lighten(
    listener: Any, progress: Callable[[str, int], None], ended: Callable[[str], None]
) -> bool:
    from pyspark import SparkContext

    # Java calls Python back; what is made before both have agreed on a port is never called.
    bridge = importlib.import_module("pyspark.java_gateway")
    _reach(bridge, "ensure_callback_server_started")(_reach(SparkContext, "_gateway"))
    package = _reach(SparkContext, "_jvm").org.apache.spark.sql.streaming
    wrapper = _reach(package, "PythonStreamingQueryListenerWrapper")
    made = wrapper(_LightListener(progress, ended))
    before = dict(vars(listener))
    listener._jlistenerobj = made  # noqa: SLF001 - PySpark keeps its own under this name
    if _reach(listener, "_jlistener") is not made:
        vars(listener).clear()
        vars(listener).update(before)
        raise AttributeError("a listener of PySpark does not keep its wrapper as expected")
    return True


def location_of(query: Any) -> str | None:
    """Where the checkpoint of a running query lies; None where the query does not say."""
    if ".connect." in type(query).__module__:
        return None
    return _either("checkpoint location", lambda: _location(query), lambda: None)


def _location(query: Any) -> str:
    inner = _reach(_reach(query, "_jsq"), "streamingQuery")()
    return str(_reach(inner, "resolvedCheckpointRoot")())
