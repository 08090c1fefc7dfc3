"""Operators: one folder each, with the same phases.

`declare` needs neither Spark nor Arrow, `analyze` asks Spark for types, `execute` runs in tasks
with Arrow and numpy and never imports Spark.

Read first:
- `base`: the contract between an operator and the task that runs it.
- `topk`: a small operator, whole.
- `aggregate`: the most used one; its functions are folds over whole batches.
- `zset`: rows with weights.
"""
