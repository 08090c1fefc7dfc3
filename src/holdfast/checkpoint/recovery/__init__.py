"""From evidence to a plan, from a plan to an open store, and rebuilding a lost catalog.

Read first:
- `plan`: the decision; a pure function that prints.
- `evidence`: what the decision is made from.
- `open`: carrying it out by one record.
- `rebuild`: a catalog from nothing but manifests.
"""
