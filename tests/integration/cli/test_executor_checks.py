"""What is made of the executors' answers: equal ones are one finding, each bad one has a remedy."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.cli.executor_checks import executors_failed, expected, judge, parse_conf
from holdfast.errors import InvalidInputError
from holdfast.spark.executors import Executor

NAMES = ("pyarrow", "numpy", "obstore")


def executor(number: int = 0, **changes) -> Executor:
    want = expected(NAMES, remote=True, shipped=False)
    good = Executor(
        host=f"host{number}", process=1, directory=f"/srv/app-1/{number}", python=want.python,
        executable="/usr/bin/python3", packages=dict(want.packages), holdfast=want.holdfast,
        holdfast_failed=None, skew_s=0.5, cache="/cache", cache_free_bytes=10**11, cache_writable=True,
        store_ms={"put": 3.0, "get": 1.0, "list": 2.0}, store_failed=None, store_shared=True,
    )  # fmt: skip
    return msgspec.structs.replace(good, **changes)


def findings(executors, *, remote=True, shipped=False):
    want = expected(NAMES, remote=remote, shipped=shipped)
    return [c for c in judge(executors, want) if c.status != "ok"]


def test_executors_that_are_as_the_driver_are_all_ok():
    """One line for each topic, whatever their number, with median and worst of the store."""
    slow = executor(9, store_ms={"put": 30.0, "get": 1.0, "list": 2.0})
    checks = judge(
        [executor(n) for n in range(9)] + [slow], expected(NAMES, remote=True, shipped=False)
    )
    assert [c.status for c in checks] == ["ok"] * 7
    assert "10 executors: host0/0, host1/1, host2/2 and 7 more" in checks[0].found
    assert "put 3.0 ms (worst 30.0)" in checks[0].found


@pytest.mark.parametrize(
    ("changes", "status", "found", "remedy"),
    [
        ({"python": "2.7.1"}, "problem", "2.7.1 at /usr/bin/python3, here", "PYSPARK_PYTHON"),
        (
            {"packages": {"pyarrow": None, "numpy": None}}, "problem",
            "cannot import pyarrow, numpy", "/usr/bin/python3 -m pip install 'holdfast-spark[spark,object]'",
        ),
        ({"packages": {"numpy": "1.0"}}, "warning", "numpy 1.0, here", "the driver's versions"),
        ({"holdfast": None, "holdfast_failed": "no module"}, "warning", "no module", "submit"),
        ({"holdfast": "0.0.1"}, "warning", "0.0.1, here", "ships the driver's version"),
        ({"store_failed": "denied", "store_ms": None}, "problem", "denied", "credentials"),
        ({"store_shared": False}, "problem", "another one there", "same path"),
        (
            {"store_ms": {"put": 900.0, "get": 1.0, "list": 1.0}}, "warning",
            "over 250 ms", "in the region",
        ),
        ({"skew_s": 75.0}, "warning", "by 75 s", "NTP"),
        ({"cache_writable": False}, "problem", "/cache cannot be written", "Pipeline(cache"),
        ({"cache_free_bytes": 5_000_000}, "warning", "5 MB free for /cache", "Pipeline(cache"),
    ],
)  # fmt: skip
def test_each_thing_that_is_wrong_is_found_with_its_remedy(changes, status, found, remedy):
    """One bad executor of two is named; nothing else is said."""
    (check,) = findings([executor(0), executor(1, **changes)])
    assert check.status == status
    assert found in check.found
    assert "(host1/1)" in check.found
    assert remedy in check.remedy


def test_what_is_needed_depends_on_the_store_and_on_shipping():
    """obstore is for object stores; a Holdfast that was shipped must be importable."""
    without = executor(packages={"pyarrow": "1", "obstore": None})
    assert "obstore" not in "".join(c.found for c in findings([without], remote=False))
    assert "cannot import obstore" in findings([without])[0].found
    lost = executor(holdfast=None, holdfast_failed="no module")
    assert [c.status for c in findings([lost], shipped=True)] == ["problem"]


def test_a_python_that_spark_refuses_is_said_in_its_words():
    """The versions of both sides are in the finding."""
    text = "Job aborted ... [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9"
    check = executors_failed(RuntimeError(text))
    assert "has different version: 3.9" in check.found
    assert "PYSPARK_PYTHON" in check.remedy


def test_settings_of_spark_are_pairs():
    """A value may hold an equals sign; a pair without one is refused."""
    assert parse_conf(["a.b=c=d"]) == {"a.b": "c=d"}
    for wrong in ("a.b", "=c"):
        with pytest.raises(InvalidInputError):
            parse_conf([wrong])
