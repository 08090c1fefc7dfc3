"""What runs a pipeline: the epoch loop, its planner, its tasks, and its outputs."""
