"""A small pipeline that makes Spark load what pipelines use; its JVM writes the archive at its end.

Run: python -m holdfast.api.training DIRECTORY ARCHIVE
"""

from __future__ import annotations

import sys
from pathlib import Path

from holdfast.api import functions as aggregates
from holdfast.api.pipeline import Pipeline
from holdfast.api.windows import tumbling
from holdfast.connectors.files.source import Files
from holdfast.connectors.generator import Generator
from holdfast.connectors.parquet.sink import Parquet

_ROWS = 4_000


def main(home: Path, archive: Path) -> None:
    """Files and generated rows through the usual operators into Parquet, and a look at a view."""
    options = f"-XX:ArchiveClassesAtExit={archive} -Xlog:cds=off -Xlog:cds+dynamic=off"
    config = {"spark.driver.extraJavaOptions": options, "spark.log.level": "OFF"}
    pipe = Pipeline(
        "training", store=home / "store", master="local[2]", partitions=2, spark_config=config
    )
    spark = pipe.session()
    spark.range(_ROWS).selectExpr("id", "id % 50 AS k", "id % 7 AS x").write.parquet(
        str(home / "in")
    )
    files = Files(str(home / "in"), schema="id long, k long, x long", files_max=1)
    rows = pipe.source("files", files).where("x < 7")
    names = spark.range(50).selectExpr("id AS k", "cast(id AS string) AS name")
    totals = (
        rows.join_static(names, on="k", name="names")
        .group_by("k", "name")
        .agg(
            n=aggregates.count(),
            s=aggregates.sum("x"),
            d=aggregates.count_distinct("x"),
            name="totals",
        )
    )
    made = Generator(
        {"k": "id % 50", "at": "timestamp_millis(id)"}, rows=_ROWS, rows_per_epoch=_ROWS // 4
    )
    timed = pipe.source("generated", made, event_time="at")
    windows = timed.group_by(tumbling("at", size="1 second"), "k").agg(
        n=aggregates.count(), name="windows"
    )
    pipe.sink("totals_out", totals, Parquet(str(home / "totals")))
    pipe.sink("rows_out", rows, Parquet(str(home / "rows")))
    pipe.sink("windows_out", windows, Parquet(str(home / "windows")))
    pipe.run()
    pipe.view("totals").to_spark(spark).count()
    asked = "java_method('java.lang.System', 'getProperty', 'java.class.path')"
    class_path = str(spark.range(1).selectExpr(asked).collect()[0][0])
    (home / "classpath").write_text(class_path, encoding="utf-8")
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
