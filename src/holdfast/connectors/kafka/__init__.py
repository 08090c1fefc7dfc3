"""Source and sink: Kafka, exactly once in and out.

Read first:
- `ranges`: which offsets an epoch takes, a pure plan.
- `source`: the source; `fetch` is the reader for where Spark's connector is missing.
- `sink`: the sink; `publisher` sends an epoch as one transaction with a marker.
- `client`: what is asked of a broker, and what its errors mean. `options`: secrets stay references.

Guide: docs/guides/kafka.md. Decisions: docs/adr/0158, 0159.
"""
