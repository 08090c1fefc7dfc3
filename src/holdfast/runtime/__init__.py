"""What runs a pipeline: the epoch loop, its planner, its tasks, and its outputs.

Read first:
- `engine`: the loop; a draft of each epoch goes to the commit thread.
- `planner`: the one Spark action of an epoch.
- `task`: what runs inside that action, one call for each partition.
- `graph`, `analysis`: what the user declared, checked, and given types by Spark.
- `watermarks`: which event time an epoch uses.
- `start`, `outputs`, `evolution`: what a start decides before it changes anything.
"""
