"""Format: bytes to values and back, and every path. No I/O, no clock.

Read first:
- `documents`: header, records, outcomes, pins, the hint.
- `manifest`: everything about one checkpoint.
- `paths`: every path of a store, in both directions.
- `position`, `topology`: where a source stands, and what a pipeline consists of.
- `canonical`: why a value has exactly one spelling. Specification: spec/format-v2.md.
"""
