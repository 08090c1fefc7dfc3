"""Source: reading by Spark's own Kafka connector, where its jar is present."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from holdfast.connectors.kafka.options import java_options
from holdfast.connectors.kafka.ranges import OffsetRange
from holdfast.errors import InvalidInputError
from holdfast.spark.classic import is_classic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

log = logging.getLogger("holdfast.kafka")
_SPLIT_OFFSETS = 20_000
"""Smaller ranges are not worth a task more."""


def coordinates(version: str) -> str:
    """What to give as `spark.jars.packages`."""
    return f"org.apache.spark:spark-sql-kafka-0-10_2.13:{version}"


def usable(spark: SparkSession, *, required: bool) -> bool:
    """Whether Spark has the connector; says what to add where it has not."""
    try:
        spark.read.format("kafka").option("subscribe", "x").option(
            "kafka.bootstrap.servers", "127.0.0.1:1"
        ).load()
    except Exception as error:
        if "UnresolvedAddress" in str(error):
            return True
        wanted = coordinates(spark.version)
        if required:
            raise InvalidInputError(
                "Spark's Kafka connector is not there",
                kind="kafka_connector_missing",
                reason=str(error).splitlines()[0][:200],
                remedy=f'start Spark with spark_config={{"spark.jars.packages": "{wanted}"}}, or '
                'say reader="python"',
            ) from error
        log.warning(
            "Spark's Kafka connector is not there, so Python reads Kafka, which is slower; to use "
            "it, start Spark with spark.jars.packages=%s",
            wanted,
        )
        return False
    return True


def read(
    spark: SparkSession,
    servers: str,
    options: Mapping[str, str],
    ranges: Sequence[OffsetRange],
    *,
    group: str,
    may_skip: bool,
) -> DataFrame:
    """Records of some ranges, as `formats.RAW` has them."""
    assign: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    stops: dict[str, dict[str, int]] = {}
    for one in ranges:
        assign.setdefault(one.topic, []).append(one.partition)
        starts.setdefault(one.topic, {})[str(one.partition)] = one.start
        stops.setdefault(one.topic, {})[str(one.partition)] = one.stop
    given = {
        "kafka.bootstrap.servers": servers,
        "assign": json.dumps(assign),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(stops),
        "includeHeaders": "true",
        "failOnDataLoss": str(not may_skip).lower(),
        "kafka.isolation.level": "read_committed",
        # A group of its own for each query would cost a new consumer for each epoch.
        "kafka.group.id": group,
        # A range that ends in a transaction's marker ends with an empty fetch, which must be short.
        "kafka.fetch.max.wait.ms": "50",
    }
    given.update({f"kafka.{name}": value for name, value in java_options(options).items()})
    total = sum(one.offsets for one in ranges)
    if is_classic(spark):
        tasks = min(spark.sparkContext.defaultParallelism, -(-total // _SPLIT_OFFSETS))
        if tasks > len(ranges):
            given["minPartitions"] = str(tasks)
    frame = spark.read.format("kafka").options(**given).load()
    return frame.select("key", "value", "topic", "partition", "offset", "timestamp", "headers")
