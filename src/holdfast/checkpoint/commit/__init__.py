"""Committing: the protocol, the catalog of records, and puts that tell the truth.

Read first:
- `protocol`: a draft becomes a checkpoint, step by step.
- `catalog`: the chain of records, and who holds it.
- `conditional_put`: done, failed or unknown, never a guess.
"""
