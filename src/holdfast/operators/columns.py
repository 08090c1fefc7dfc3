"""Names of Holdfast's own columns between Spark, tasks and traces. They are stored: never rename.

No column of a user begins with `__hf_`; see `holdfast.spark.ddl.check_columns`.
"""

from __future__ import annotations

HASH = "__hf_hash"
SIDE = "__hf_side"
WEIGHT = "__hf_weight"
DELETED = "__hf_deleted"
TIMES = "__hf_times"
"""How many rows of one weight the JVM or a pane has made one row of."""
BAD = "__hf_bad"
"""What a source could not read, in the row where it would stand; null in every other row."""
FAILED = "__hf_failed"
"""Whether a row fails the expectation that looks at it."""
