"""Every kind of finding: how bad it is, and what it means.

`tools/make_error_docs.py` makes a part of docs/reference/errors.md from it, and a test compares it
with every finding that the source can report.

Invariant: rows are sorted by kind. A row is: kind | severity | meaning.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple


class FindingKind(NamedTuple):
    """One kind of finding; its severity is one word, or several where it depends."""

    name: str
    severity: str
    meaning: str


@cache
def finding_kinds() -> dict[str, FindingKind]:
    """All kinds of findings by name."""
    rows = [FindingKind(*(cell.strip() for cell in row.split("|"))) for row in _ROWS.splitlines()]
    return {row.name: row for row in rows}


_ROWS = """\
bad_digest | error | a size or digest in the inventory is impossible
bad_hash_range | error | a range of key hashes is incomplete or reversed
bad_id | error | a checkpoint id is not a UUIDv7
bad_name | error | a name is not allowed
bad_path | error | a manifest names a path that it may not
bad_segment | error | a segment lists nothing, or is listed as a plain file
bad_vnode_range | error | a range of vnodes is incomplete, empty or too high
behind_savepoint | error | the live checkpoint is older than its last savepoint
catalog_differs | error | catalog and manifest disagree
catalog_shrank | error | something knows more than the catalog: records were lost
chain_broken | error | a record does not follow the one before
checkpoint_gone | error | savepoints exist, the checkpoint does not
commit_ahead | error | a commit of Spark's has no offsets
counts_differ | error | manifest and operators disagree what their counts are
dead_record | warning | a writer that had been overtaken put a record into a freed number; it counts for nothing, and the next compaction removes it
delta_without_base | error | a delta does not name its base
differs_from_savepoint | error | a live file is not the one that was saved
digest_differs | error | other content than was written
duplicate_entry | error | a source, operator or sink has several entries
duplicate_file | error | a file is listed twice
entries_differ | error | two manifests disagree about one file
fingerprint_differs | error | the fingerprint does not belong to the topology
foreign | info | not a file of Holdfast; it is never touched
fresh | info | there is no checkpoint yet
hint_differs | error | `_latest` contradicts the catalog
inherits | error | a full checkpoint refers to files of others
kind_differs | error | kind and path of a file disagree
leftover | info | a manifest that was never committed or is being removed; clean-up knows
lock_not_empty | error | the lock file has content
log_gap | error | offsets or commits have a gap
log_not_listed | error | a source's log is not in the inventory
missing | error | a file is not there
negative | error | epoch or sequence is negative
no_commit | info | the query has not committed a batch yet
no_hint | info | `_latest` is missing
no_partition | error | a run does not say its partition
no_savepoint | warning | the query was never saved in this store
no_state | error | an operator has lost its small state
no_store | info | no store was given: own consistency only
not_covered | warning | neither a savepoint nor a checksum covers this live file
offsets_ahead | error | more than one batch of a query is not committed
old_record | info | a record below the base, left by a compaction that was cut short
operator_differs | error | path and entry of a run name different operators
orphan | error | an entry belongs to no part of the topology
orphan_checksum | warning | a checksum file in a checkpoint whose file is gone
orphan_file | error | a run belongs to no operator
own_parent | error | a checkpoint is its own parent
pack_not_listed | error | a pack is not in the inventory
partition_differs | error | path and entry of a run name different partitions
pin_dangles | error | a savepoint holds a checkpoint that is gone
pin_differs | error | a savepoint contradicts the catalog
range_outside | error | a packed state runs past its pack
ranges_overlap | error | two packed states overlap
sink_epoch_differs | error | a sink staged another epoch
size_differs | error | a file has another size
source_ahead | warning | a file source's log is ahead of the offsets: batches would be merged
source_epoch_ahead | error | a source is ahead of its checkpoint
spark_file_damaged | error | a file of Spark's or its checksum file is damaged
state_missing | error | a stateful part has no entry
total_differs | error | a total does not match the inventory
two_states | error | an operator has small state and a trace
unknown_layout | error | a file that Spark does not write into a checkpoint
vnodes_differ | error | the number of vnodes is not supported
watermark_ahead | warning | the watermark is ahead of the slowest busy source
watermark_differs | error | a batch begins with another watermark than the one before has promised
without_entry | error, info | a source (error), sink or operator (info) has no entry
"""
