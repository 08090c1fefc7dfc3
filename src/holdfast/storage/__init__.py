"""Storage: the only I/O. Local disk, memory and object stores behind one small contract.

Read first:
- `base`: what is asked of a place that keeps bytes: put-if-absent, barriers, listings.
- `local`: the disk layer; every durable system call goes through it.
- `object_store`: S3, GCS and Azure by conditional put.
- `open`: from an address to a storage.
"""

from holdfast._lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
