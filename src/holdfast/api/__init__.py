"""What a user touches: pipelines, streams, functions, windows, views.

Read first:
- `pipeline`: declaring, running, looking.
- `stream`: every operator as a method.
- `functions`, `windows`: what stands inside `agg` and `group_by`.
- `view`: state at a checkpoint.
"""
