"""Operators: one folder each, with the same phases.

`declare` needs neither Spark nor Arrow, `analyze` asks Spark for types, `execute` runs in tasks
with Arrow and numpy and never imports Spark.

Read first:
- `declaration`: the first contract, what a user declares: `Declaration`.
- `base`: the other two: `Analyzed`, between Spark and the task, and `OperatorTask`, which runs.
- `topk`: a small operator, whole.
- `aggregate`: the most used one; its functions are folds over whole batches.
- `zset`: rows with weights.
"""
