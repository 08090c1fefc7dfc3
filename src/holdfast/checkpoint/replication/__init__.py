"""Stores from stores: forks, replicas, and the copies between them.

Read first:
- `fork`: a second pipeline that shares files, held by a pin.
- `sync`: a copy in another store, valid at every moment.
"""
