"""Every kind of error: its class, what it means, and what to do about it.

This is the catalogue: `tools/make_error_docs.py` makes docs/reference/errors.md from it, and a test
compares it with every `kind=` of the source, in both directions.

Invariants:
- Kinds are stable. One is never renamed and never given a second meaning.
- A kind belongs to one class, but for the few that name two.
- Rows are sorted by kind. A row is: kind | class without `Error` | meaning | what to do.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from holdfast.errors import HoldfastError


class Kind(NamedTuple):
    """One kind of error."""

    name: str
    section: str
    classes: tuple[type[HoldfastError], ...]
    meaning: str
    remedy: str


@cache
def kinds() -> dict[str, Kind]:
    """All kinds by name, in the order of the catalogue.

    Returns:
        The catalogue.

    Example:
        >>> from holdfast.kinds import kinds
        >>> kinds()["fenced"].remedy
        'stop this process'
    """
    rows = [
        (section, *(cell.strip() for cell in row.split("|")))
        for section, (_, table) in SECTIONS.items()
        for row in table.splitlines()
    ]
    return {
        name: Kind(name, section, _classes(classes), meaning, remedy)
        for section, name, classes, meaning, remedy in rows
    }


def _classes(names: str) -> tuple[type[HoldfastError], ...]:
    tree = [HoldfastError]
    for each in tree:
        tree.extend(each.__subclasses__())
    by_name = {each.__name__: each for each in tree}
    return tuple(by_name[f"{name}Error"] for name in names.split(" or "))


SECTIONS = {
    "Core": (
        "Everything but the packages below.",
        """\
already_exists | AlreadyExists | a put-if-absent found an object | read it and compare; a writer id inside says whose it is
ambiguous | InvalidInput | the start of an id fits several checkpoints | give more digits
bad_url | InvalidInput | the address or the options of an object store are not usable | check bucket, prefix and option names
busy | Conflict | others write faster than one can open, rebuild or sync | find out who they are, or try again
busy_catalog | Storage | the catalog was compacted, or checkpoints were retired, during every attempt to read them | try again
catalog_damaged | Corruption | a sweep was asked for while records are damaged | rebuild the catalog first
catalog_gap | Corruption | a record between base and head is missing | rebuild the catalog
catalog_lost | Corruption | checkpoints are there, but no usable catalog | rebuild the catalog; nothing was changed
catalog_shrank | Corruption | the newest records were lost, and nothing older can be resumed from | rebuild the catalog
catalog_whole | Refused | a rebuild was asked for, but nothing is broken | do nothing, or force it
closed | Storage | a storage or writer was used after it was closed | open it again
commit_unknown | CommitUnknown | nobody can say whether a record was written | open the store again: recovery reads what is there
compaction_failed | Storage | a task could not compact runs; the old ones are still used, and it is tried again | see the reason; check the store
conflict | Conflict | another writer won | reload and decide
corrupt | Corruption | bytes changed while they were being read | verify the store
delta_without_base | InvalidInput | a delta was given for an operator that has no checkpoint to build on | write a snapshot first
denied | Storage | the system or the object store refused access | check owner, permissions, credentials, policy
digest_differs | Corruption | a document or a state has other bytes than its digest says | verify, then recover to an intact checkpoint
disk_full | Storage | no space or quota left | free some, then try again; nothing half-written counts
document_too_large | InvalidInput | a document would exceed its limit | move large state into files, use smaller tokens
document_too_large_stored | Corruption | a stored document exceeds its limit | treat it as damaged: verify, then recover
draft_file_differs | Corruption | a file of the draft is missing or has another size than its writer said | write it again under a new attempt
draft_finished | InvalidInput | the draft was committed or aborted, or belongs to another store | begin a new one
draft_outdated | InvalidInput | another checkpoint was committed since the draft began | begin a new one
duplicate_name | InvalidInput | two parts of a pipeline have one name | give each a name of its own
epoch_used | InvalidInput | the epoch was used before | take `epoch_next` of the store
error | Holdfast | the root of the tree; never raised by itself |
executors_unfit | Storage | executors cannot run a pipeline: Python, packages, or the store from there | do what each finding says; `holdfast doctor --master` shows all
fenced | Fenced | another writer has taken over | stop this process
file_not_listed | InvalidInput | a file that should leave a draft is not in it | name files that the parent or the draft lists
fingerprint_differs | Incompatible | the running pipeline is not the one that wrote the checkpoint | run the old one, choose another name, or allow changes
foreign_key | Storage | an object of the bucket has a name that cannot be a path | move it out of the prefix
header_lost | Corruption | artifacts are there, but `holdfast.json` is not | rebuild the catalog: it restores the header
impossible_base | Corruption | a record points at a base beyond itself | verify, then rebuild the catalog
impossible_format | Corruption | a format version below 1 | treat it as damaged
incompatible | Incompatible | something does not fit; the facts say what | see the facts
inherited_file_differs | Corruption | a file that the draft wants to inherit is missing or has another size | inherit only files of live checkpoints
internal | Internal | an invariant broke | report it with the message
interrupted | Holdfast | Ctrl-C ended the command | nothing was left half done; run it again
invalid_attempt | InvalidInput | a task's attempt is not 16 hexadecimal digits | take it from `IdSource.token`
invalid_checkpoint | InvalidInput | the draft is not complete or contradicts itself | correct it; nothing was committed
invalid_checkpoint_id | InvalidInput | not the text of a UUIDv7 | copy it from a listing
invalid_epoch | InvalidInput | not a number that an epoch can be | give 0, 1, 2 and so on; a store says its `epoch_next`
invalid_fault | InvalidInput | a test asks for a fault that can never happen | see the operations in the message
invalid_input | InvalidInput | the call can never work; the facts say why | correct it
invalid_manifest | Corruption | a manifest breaks a rule of the format | verify, then recover to an intact checkpoint
invalid_name | InvalidInput | a name has characters that are not allowed | 1 to 128 letters, digits, `.`, `_`, `-`; the first a letter or digit
invalid_partition | InvalidInput | a partition beyond 99,999 | use fewer
invalid_path | InvalidInput | a path would leave the store | use the functions of `holdfast.format.paths`
invalid_position | InvalidInput | a position that its connector cannot have | correct the source
invalid_ref | InvalidInput | a checkpoint is named by something that is no text, number or time | give an id, label, epoch or time
invalid_sequence | InvalidInput | not a number that a record can have | report it: callers never choose it
invalid_setting | InvalidInput | a setting is out of range | the message says what is allowed
invalid_state | InvalidInput | state was given in the wrong order or form | set the operator first; small state with its bytes
io_error | Storage | the disk reports an error | look at the system log, replace the disk
is_directory | NotFound | a directory lies where an object is expected | move it away
java_too_old | Incompatible | Java was found, but is older than 17 | install a newer one and set `JAVA_HOME`, or run `make setup`
kept_is_damaged | Corruption | the checkpoint that would stay is not whole, so nothing is dropped | repair it, or commit another one
label_taken | Conflict | another checkpoint has that label | unpin it, or choose another label
locked | Conflict | a live process on this machine holds the pipeline | stop it, or open with `takeover=True`
master_unreachable | Storage | nobody listens at the address of Spark's master | start the master, or correct its address
misplaced | Corruption | name and content of a file disagree | give it its old name back
missing | Corruption | a manifest that the catalog names is not there | recover to an intact checkpoint
missing_extra | InvalidInput | a package for this feature is not installed | install the extra that is named
name_too_long | Storage | the system refuses so long a name | shorter names, or a shorter root
newer_format | Incompatible | written by a newer Holdfast | upgrade; nothing was changed
no_bucket | Storage | the bucket does not exist | create it or correct the name
no_checkpoint | NotFound | no checkpoint fits that reference | list what is there
no_class_archive | Incompatible | `warmup`: this Java wrote no archive of classes; the last line of its output is given | pipelines run without it; a full JDK writes one
no_conditional_put | Storage | the object store cannot put-if-absent | use one that can: fencing depends on it
no_executors | Storage | no executor took a task in time | look at the master's page: workers, cores, memory
no_intact_checkpoint | Corruption | checkpoints are there, but none is whole | bring files back, or begin under another name
no_java | NotFound | Spark needs Java, and none was found | install 17 or newer and set `JAVA_HOME`, or run `make setup`
no_memory | Storage | there is not enough memory | free some, or ask for less
no_pin | NotFound | no savepoint of that label | list the labels
no_pipeline | NotFound | nothing of that name below the root | check root and name
no_root | NotFound | the root directory does not exist | check the path
not_a_directory | InvalidInput | a file stands where a directory is needed, or the reverse | move it away, or choose another root
not_a_store | InvalidInput | the directory holds other things, but no pipeline | choose another name or root
not_canonical | Corruption | a document is spelled in a second way | treat it as damaged
not_deletable | Refused | the checkpoint is pinned, in use, pending or the only one | the message says what to do first
not_found | NotFound | an object is not there | check the name
not_incremental | InvalidInput | a file of another checkpoint was given, but `incremental` is off | write a snapshot, or turn it on
not_regular | Refused | a device, socket or pipe lies where a file is expected | remove it
not_whole | Refused | an upgrade was asked for, but opening would fall back or met damage | look at `holdfast recover --plan` first
note_too_long | InvalidInput | a pin's note is too long | shorten it
nothing_to_rebuild | Corruption | no manifest is usable | bring `checkpoints/` back from a copy
object_too_large | Corruption | an object is larger than allowed | treat it as damaged
os_error | Storage | another failure of the system | look at the system log
outcome_final | InvalidInput | a committed outcome was to be changed | leave it
outcome_limit | InvalidInput | one token has too many outcomes | find out why its sink keeps failing
position_regressed | InvalidInput | a source went backwards or lost partitions | resume it from the checkpoint's position
properties_too_large | InvalidInput | properties exceed 4 KiB | keep them elsewhere
range_outside | InvalidInput | a range runs past its object | the facts say by how much
read_only | Storage | the file system is read-only | remount it, or move
refused | Refused | possible, but not safe | the message says how to ask for it by name
replica | Refused | an upgrade was asked for of a copy of another store | upgrade the source, then sync
retired | NotFound | the checkpoint was given up while it was read | read a newer one, or pin the one that must stay
run_lists_differ | Corruption | a task read other run lists than the driver wrote for its epoch | run it again; nothing was committed
secret_in_url | InvalidInput | an address carries credentials or parameters | give them through options or the environment
segment_differs | Corruption | a segment lists other files than its manifest says | verify, then `holdfast recover --plan`
session_failed | Storage | Spark's master gave no session | look at the master's log: address, version, whether it accepts applications
sink_failed | Storage | a sink could not publish; its rows are kept | repair the cause and run again, or set the epoch aside and publish it later
spool_failed | Storage | the temporary directory cannot take an object on its way | free some space there, or set `TMPDIR`
storage | Storage | the environment failed | see the facts
symlink_refused | Refused | a symbolic link lies inside a store | replace it by what it points at
temporary_lost | Storage | a file vanished before it got its name | find out what removes files from the store, then try again
token_lost | Refused | a waiting sink token cannot be read | bring the manifest back, or accept the loss by name
token_too_large | InvalidInput | a sink token exceeds 64 KiB | put the list into a file, its path into the token
too_many_files | Storage | the limit of open files is reached | raise it
training_failed | Internal | `warmup`: the small pipeline that it runs failed, for the reason given | see `holdfast doctor`; pipelines run without
truncated | Corruption | operator state is missing or cut off | recover to an intact checkpoint
undecided | Refused | two checkpoints claim one place in a lost catalog | look at both, name the one to keep
undecodable | Corruption | bytes are not a document of that type | treat it as damaged
unknown_input | InvalidInput | a part takes input from one that does not exist | declare it, or correct its name
unknown_part | InvalidInput | the pipeline has no source, operator or sink of that name | declare it in the topology
unknown_point | InvalidInput | a test names a crash point that does not exist | see `holdfast.failpoints.FAILPOINTS`
unknown_scheme | InvalidInput | an address of an unknown kind | a path, `file://`, `memory://`, `s3://`, `gs://`, `az://`
unknown_sink | InvalidInput | that checkpoint has no token of this sink | see the names in the message
unreachable | Storage | an object store did not answer as expected | check network and endpoint, then try again
unsafe_fallback | Refused | going back would let a sink publish twice | repair the newer checkpoint, or accept duplicates by name
unusable_cache | InvalidInput | `warmup`: the cache cannot be written, has too little room, or its path has characters that options of a JVM cannot hold | set `HOLDFAST_CACHE` to another directory
vnodes_differ | Incompatible | the store was made for another number of vnodes | use that number
watermark_regressed | InvalidInput | a watermark went backwards | restore it from the checkpoint
wrong_type | InvalidInput | a value of the draft could be written, but not read again | give the types that the signature names
wrong_usage | InvalidInput | an argument or option of a command is wrong | see `--help`
""",
    ),
    "State": (
        "`holdfast.state`, and kinds of the core.",
        """\
ambiguous_runs | Incompatible | two runs of a trace speak for the same epoch and vnodes | list the runs of winning task attempts only
batch_too_large | InvalidInput | one batch of rows holds more than 2 GiB in a column | use large_string and large_binary, or smaller epochs
cache_failed | Storage | the disk cache for runs cannot be used | give it a writable directory with enough room
column_type_differs | InvalidInput | a column of the rows has another type than in the trace | cast it
invalid_cache_limit | InvalidInput | the limit of the disk cache is not positive | give it room
invalid_columns | InvalidInput | columns of a trace occur twice or have a reserved name | rename them
invalid_hash_column | InvalidInput | rows lack a usable 64-bit hash column | add xxhash64 of the key columns as `__hf_hash`
invalid_marker_column | InvalidInput | weights or tombstone flags are null or of another type | give integers or booleans
invalid_merge_policy | InvalidInput | the settings of a compaction cannot work | correct the named value
invalid_partitions | InvalidInput | the number of partitions is out of range | use 1 to 256
invalid_run_info | InvalidInput | facts of a run contradict each other | take them from the writer of the run
invalid_run_options | InvalidInput | options for writing runs cannot work | correct the named value
invalid_time_column | InvalidInput | the event-time column is not a timestamp or date column of the operator | name another one
invalid_vnode_range | InvalidInput | a range of vnodes is empty or lies outside 0..256 | correct it
missing_column | InvalidInput | a column of the trace is missing from the rows | add it
missing_upgrade | InvalidInput | small state of this version lacks upgrades from older ones | give a function for every older version
no_column | NotFound | a column was asked for that the operator does not have | choose one of those that are named
no_key_columns | InvalidInput | a trace has no key column | name at least one
no_trace | NotFound | the checkpoint has no trace of that operator | choose one of those listed
not_arrow | InvalidInput | rows are neither an Arrow table nor a record batch | convert them
partition_differs | InvalidInput | a run was to be written for another partition than the open one | open that partition
row_too_large | InvalidInput | a row is larger than a compressed run may unpack to | write without compression, or keep large values elsewhere
run_checksum_differs | Corruption | rows of a run disagree with their checksum | verify deep; recover to the newest intact checkpoint
run_digest_differs | Corruption | the SHA-256 of a run differs from its record | verify deep; recover to the newest intact checkpoint
run_entry_unusable | Corruption | an entry of the inventory does not describe a run | recover to the newest intact checkpoint
run_facts_differ | Corruption | a run contradicts its record in the manifest | verify deep; recover to the newest intact checkpoint
run_listed | InvalidInput | a compacted run is in the list already | list each compaction once
run_missing | NotFound | a run of the checkpoint is missing | recover to the newest intact checkpoint
run_of_other_trace | InvalidInput | a run was to be listed for another operator or kind of trace | list it where it belongs
run_schema_differs | Incompatible | a run has another schema than its trace; the difference is listed | open it with the schema that it was written with
run_size_differs | Corruption | a run is shorter or longer than its record says | verify deep; recover to the newest intact checkpoint
run_undecodable | Corruption | a run is damaged outside its rows, or no run at all | verify deep; recover to the newest intact checkpoint
run_unreadable | Storage | the system refused to read a run | check permissions and the disk
small_state_differs | Incompatible | small state is of another type or a newer version | upgrade Holdfast or the pipeline
trace_kind_differs | InvalidInput | a latest trace was opened as a bag, or the reverse | use the other partition class
trace_schemas_differ | Incompatible | two checkpoints to be compared keep different schemas | compare checkpoints of one version of the operator
unexpected_null | InvalidInput | a column that is declared without nulls has some | declare it nullable, or fill it
unsupported_type | InvalidInput | a column has a type that state, or a journal as a sink, cannot keep | use another type: a struct instead of a union, a string or a long instead of an interval of months
wrong_partition | InvalidInput | rows were shuffled to the wrong partition | shuffle by vnode: the top 8 bits of the hash
""",
    ),
    "Journal": (
        "`holdfast.journal`, and kinds of the core.",
        """\
durability_unknown | CommitUnknown | the journal's writer failed: whether what it had accepted is durable is unknown | reopen the journal and append again with the same ids
event_missing | NotFound | there is no such event in the retained, visible log | check sequence or id
file_missing | NotFound | a file of the journal vanished while it was used | open the journal again
hold_missing | NotFound | there is no hold of this name | check the name
id_reused | Conflict | an event id was used before, for something else | repeat a batch exactly, or use new ids
invalid_event | InvalidInput | a batch of events cannot be appended; the column is named | see docs/guides/journal.md for the columns
invalid_line | InvalidInput | a line on standard input is no event | the message has its number and an example
invalid_proof | InvalidInput | a text is no event proof | give the JSON that the journal wrote
invalid_query | InvalidInput | a query can have no answer | the message says why
invalid_slice | InvalidInput | a text is no journal slice | give the JSON that the plan wrote
invalid_truncation | InvalidInput | truncation past the end was asked for | give a sequence up to the visible end
io | Storage | the operating system failed | check the disk and the kernel's log
journal_closed | Storage | the journal was closed | open it again
journal_fenced | Fenced | this process no longer owns the journal: its lock file is gone, or it was forked | open the journal again
journal_locked | Conflict | another writer has the journal open; the message names its process | stop it, or let it do the appending
journal_missing | NotFound | there is no journal at this path | check the path
journal_replaced | Incompatible | the log has another history than the position or split | restore the journal that it was read from, or begin from scratch
journal_shortened | Incompatible | the log ends before the position | it lost events; restore it from a copy
journal_version | Incompatible | a newer version wrote the journal | use a newer Holdfast
meta_damaged | Corruption | journal.meta is damaged | restore journal.meta from a copy
meta_missing | Corruption | there are segments, but no journal.meta | restore journal.meta from a copy
mixed_payloads | InvalidInput | events with payloads of different types do not fit one table | ask for one kind of event, or use the batches
no_input | InvalidInput | standard input of `journal append` is closed | give events as JSON lines
no_space | Storage | the disk is full; nothing was appended | free some space, then try again
not_a_file | Refused | something that is no regular file has a journal file's name | remove it
position_damaged | Corruption | a stored cursor or hold is damaged | find the position in the reader's records and set it again
position_truncated | NotFound | the journal was truncated past this position | begin at its base, or restore older segments
proof | Corruption | an event proof does not hold | ask for a new one; check against the receipt of that batch
receipt | Corruption | a receipt does not agree with itself | it was damaged or forged on its way
segment_damaged | Corruption | a journal segment is damaged; file, offset and reason are named | run `holdfast journal verify`; restore the file from a copy
segment_missing | Corruption | a journal segment is not there | restore the file from a copy
symlink | Refused | a symbolic link stands where a journal file should be | put the real file there
sync_failed | CommitUnknown | an fsync of the journal failed: whether the batch is durable is unknown | reopen the journal and append again with the same ids
too_large | Corruption | a file is larger than it can be | run `holdfast journal verify`
writer_poisoned | Storage | the journal's writer failed before and accepts nothing more | close it and open the journal again; replay decides
""",
    ),
    "Pipeline": (
        "Pipelines: `api`, `runtime`, `operators`, `connectors`, `spark`; and kinds of the core, of state and of the journal.",
        """\
analysis_failed | InvalidInput | Spark cannot run this step | the reason is Spark's own; correct the expression
apply_duplicate_key | InvalidInput | the user function returned two rows of state for one key | return at most one for each key of `context.keys`
apply_failed | InvalidInput | the user function raised an exception; operator, epoch and a key are named | correct the function and run again: the last checkpoint is untouched
apply_result | InvalidInput | the user function returned something of another shape or type | return `(output, new state)` with the declared columns
apply_unknown_key | InvalidInput | the user function returned state of a key that it was not asked about | return only keys of `context.keys`
bad_marker | Corruption | a record in a Kafka sink's topic of markers cannot be read | find out what else writes to that topic
bad_rows | InvalidInput | a source with `on_bad="fail"` has rows that cannot be read; one is shown | mend them, or `on_bad="keep"` and `stream.bad`
bad_token | Corruption | a sink token cannot be read | use the version that wrote it
broken_connector | InvalidInput | a connector of another package cannot be loaded, or is none | the message names the package: reinstall or remove it
callback_failed | InvalidInput | a function that `run` was given (`on_epoch`, `on_checkpoint`, `stop`) raised an exception; it is the cause | correct the function and run again
cannot_compact | InvalidInput | compaction was asked of an output that has none: an object store, an upsert output | compact a changelog on a local disk
cannot_set_aside | Refused | an upsert output cannot do without an epoch | rebuild it: `outputs={"sink": "adopt"}`
changes_refused | Incompatible | the pipeline has changed in a way that the old state cannot follow | give the changed part a new name; the reasons are listed
column_collision | InvalidInput | both sides of a join have a column of this name | rename it, or give `suffix`
column_without_session | InvalidInput | the session in which a PySpark Column was made is gone | make the Column and run the pipeline in one session, or write SQL text
column_without_text | InvalidInput | Spark gives a Column another text in every process, so it cannot be in the fingerprint | write SQL text, or `transform(function, text="...")`
columns_differ | InvalidInput | streams that are put together or compared have different columns | bring them to the same names with `select`
connector_clash | InvalidInput | two packages give a connector of one name | remove one, or import the class from its package
dedupe_of_changes | InvalidInput | dedupe takes the first row for good, but these rows can be retracted | use distinct, or dedupe earlier
duplicate_column | InvalidInput | two columns have one name | rename one
expectation_failed | InvalidInput | rows fail an expectation with `on_fail="fail"`; nothing of the epoch was kept | mend the rows, or `on_fail="quarantine"`
expression_failed | InvalidInput | an expression cannot take one of its rows: division by zero, a cast, an overflow | correct it, or filter such rows before it
failed_in_task | Holdfast | a task failed with an error of Holdfast; the class is that of the task's error | see the message
file_changed | InvalidInput | a file has other bytes than those that were read, or changed while it was read | bring the old bytes back, rename it, or `on_change="keep"`
file_failed | InvalidInput | the file with the pipeline failed when it was loaded | see the reason
file_log_differs | Corruption | the log of read files does not match its count | recover to an intact checkpoint
file_part_lost | InvalidInput | a file of which only some rows were read is gone | bring it back, or go back to the checkpoint before it was begun
file_vanished | Storage | a file was removed between planning and reading | run again; bring it back first if its rows count
fold_failed | Storage | an output could not be folded; it is as it was | free space or repair the disk, and fold again
fold_unsupported | Refused | the file system cannot exchange a directory and a link in one step | use a new directory, or leave it unfolded
foreign_stream | InvalidInput | the stream belongs to another pipeline, or is none | use one of this pipeline
history_lost | InvalidInput | files that were read are gone or forgotten, so a new operator cannot be filled from them | bring them back, let a new output begin empty (`outputs={"sink": "empty"}`), or start a new pipeline
incomplete_pipeline | InvalidInput | the pipeline lacks a part | the message says which
invalid_alias | InvalidInput | the name of an aggregate's column is not text | `hf.sum("amount").alias("total")`
invalid_argument | InvalidInput | an argument has a type that it cannot have | see the remedy
invalid_bad_rows | InvalidInput | a connector declares bad rows without `raw`, `origin` or `reason` | declare `bad = BAD_SCHEMA`, or that and more
invalid_bound | InvalidInput | time and bound of a dedupe do not go together, or `within` is not an interval | give both or neither; `hf.interval(...)`
invalid_collect_limit | InvalidInput | `collect_list` or `collect_set` without a usable bound | say how many values it may hold
invalid_column | InvalidInput | an option of a journal sink is neither a column nor a fixed text | give the name of a column, or a text after `=`
invalid_duration | InvalidInput | not a duration | see the remedy for examples
invalid_expression | InvalidInput | an expression is neither SQL text nor a PySpark Column | `"amount > 0"` or `F.col("amount") > 0`
invalid_generator | InvalidInput | a generator needs columns and a positive number of rows | correct it
invalid_k | InvalidInput | top_k with a number of rows that cannot be | give 1 to 1,000,000
invalid_key | InvalidInput | a stream is grouped by something else than names and a window | name an expression first by `with_columns`
invalid_limit | InvalidInput | a limit of a source or a sink is no whole number, or too small | correct them
invalid_option | InvalidInput | an option of a source or of Spark's reader is unknown, misspelled, or hides files or rows | see the remedy
invalid_order | InvalidInput | not a term of an ordering | write it like `amount desc` or `at asc nulls last`
invalid_percentage | InvalidInput | a percentage that is no number from 0 to 1 | correct it
invalid_property | InvalidInput | a property of a checkpoint is no text, or its name is Holdfast's own | give texts, under other names
invalid_rsd | InvalidInput | a relative standard deviation that is out of range | give a number from 0.001 to below 1
invalid_schema | InvalidInput | the schema cannot be read | write it as Spark DDL
invalid_udaf | InvalidInput | an aggregate of your own without a function or inputs | see the remedy for an example
invalid_window | InvalidInput | the length, gap or slide of a window cannot work | slide between size / 1000 and size; all lengths above zero
job_failed | Storage | the Spark job of an epoch failed | see the reason; the epoch was not committed
join_key_types | InvalidInput | the keys of a join have types that cannot be compared safely | cast one of them before the join
kafka_connector_missing | InvalidInput | `reader="spark"`, and Spark has no Kafka connector | start Spark with the coordinates that are named, or `reader="python"`
kafka_denied | Storage | Kafka refused credentials, a certificate or an operation | check credentials, certificates and ACLs
kafka_failed | Storage | Kafka reports an error that trying again cannot mend | read the reason; mend it and run again
kafka_message_too_large | InvalidInput | a row is larger than the broker or the client takes | raise `max.message.bytes` of the topic and `message.max.bytes`
kafka_option | InvalidInput | an option of a Kafka client is unknown, wrong, or belongs to Holdfast | correct or leave out the option; names are librdkafka's
kafka_unavailable | Storage | no broker answered for a minute | run again when the brokers can be reached: nothing was lost
key_too_large | InvalidInput | a key that must not be cut has more rows in one epoch than can be gathered | take smaller epochs, or raise `task_bytes_max`
late_not_into_sink | InvalidInput | late rows of a window are used as the input of something else than a sink | `pipe.sink(name, stream.late, ...)`
marker_too_old | Refused | an epoch that was set aside is older than what a Kafka sink remembers of its published epochs | look whether its rows are in the topic; delete it from quarantine, or publish its files yourself
marker_topic | Storage | the topic of markers is not compacted, so it would lose them | set `cleanup.policy=compact`
metrics_port | InvalidInput | metrics cannot be served on the given port | give another one, or 0 for a free one
mixed_formats | InvalidInput | a directory has files of two formats and none was given | `format=` or `pattern=`, one source for each format
no_aggregates | InvalidInput | agg without an aggregate | give at least one
no_alias | InvalidInput | an aggregate has no name for its column | `.alias("total")`, or `total=hf.sum("amount")`
no_arrival_order | InvalidInput | `upsert` without a sequence where rows of an epoch come in no order | `sequence_by="lsn"`
no_bad_rows | InvalidInput | `.bad` of a stream whose source reads every row, or fails | ask the stream of a source of JSON, CSV or Kafka
no_columns | InvalidInput | select without a column | give at least one
no_file | InvalidInput | the file to run does not exist | check the path
no_keys | InvalidInput | a grouping, dedupe or join without a key | give at least one
no_late_rows | InvalidInput | no row is ever too late here | ask the stream of an operator with event time
no_operator | NotFound | no operator of that name | see the names in the message
no_order | InvalidInput | an ordering without a column | name one
no_output | NotFound | nothing is published at this path | run the pipeline, or correct the path
no_quarantine | InvalidInput | `.quarantined` of a stream that no expectation has parted | `expect(..., on_fail="quarantine")`
no_such_version | Refused | a changelog cannot show the rows of this epoch apart from later ones | ask for a later epoch, or `pipe.view(operator, at=...)`
no_watermark | InvalidInput | an operator goes by event time, but no source before it has a watermark | declare `event_time=` of a source
no_window | InvalidInput | `emit` or `allowed_lateness` was given without a window | group by a window too; they are arguments of the window
not_a_changelog | InvalidInput | the output holds rows as they are now, not changes | `spark.read.parquet(path)`
not_a_connector | InvalidInput | something else than a source or a sink was given as one | one of `hf.sources` or `hf.sinks`, or a class of your own
not_a_function | InvalidInput | something else where a function is needed | give a function
not_a_name | InvalidInput | an aggregate stands where the operator's name belongs | give a column called `name` by `.alias("name")`
not_an_aggregate | InvalidInput | something else where an aggregate is needed | use the functions of `holdfast`
not_callable | InvalidInput | a function sink without a function | give one
not_one_pipeline | InvalidInput | the file defines no pipeline, or more than one | define one, or name the one to run
not_row_wise | InvalidInput | a step without state has an aggregate, a window function, a limit or a join that needs all rows | use an operator, which keeps what it needs from epoch to epoch
nothing_to_show | NotFound | the operator does not keep its result (a join keeps its inputs) | give it a sink, or an operator after it that keeps one
null_weight | InvalidInput | a row has no weight; source and column are named | give every row a whole number
offsets_lost | Refused | records aged out of Kafka before they were read; which ones is told | bring them back, or `on_lost="skip"`; a longer retention prevents it
old_spelling | InvalidInput | a call is written as in an earlier version | the message has the new spelling
operator_failed | InvalidInput | an operator failed on its rows | see the reason
output_ahead | Refused | the output is ahead of everything that this store ever did: a copy of the store writes there | run the newer store, choose another path, or adopt the output
output_behind | Refused | the output is older than what was published, or cannot be rebuilt where others write too | bring the output back, choose another path, or adopt it
output_building | Refused | the output is being rebuilt | read it when the pipeline has run
output_claimed | Conflict | two pipelines claimed one output at the same moment | start again: the owner is named then
output_differs | Corruption | a row that is retracted is not in the output | nobody else may write there; rebuild it with `outputs={"sink": "adopt"}`
output_diverged | Refused | a copy of this store wrote the output | choose another path, or adopt the output
output_not_empty | Refused | the output holds rows that the store does not know | choose another output, bring the store back, or adopt the output
output_not_rebuildable | Refused | an output must be rebuilt, and neither state nor history has its rows | bring either back, resume elsewhere, or let it begin empty
output_owned | Refused | the output belongs to another store, pipeline or sink | choose another path, or adopt the output by name
output_shared | InvalidInput | two sinks, a sink and a source, or a sink and the store share a place | give every output a directory of its own
output_unknown | Refused | the output has no owner record, and nothing shows that this store wrote it | choose another path, adopt it, or keep it as it is
payload_differs | InvalidInput | payloads of a journal are typed columns where bytes are expected, or the reverse | say `typed=True`, or leave it out
publish_failed | Storage | an epoch cannot be published | see the reason; its token is kept
removed_sink_pending | Refused | a removed sink has not published everything | run the old pipeline once more, or set its rows aside
reserved_column | InvalidInput | a column is empty, or has a name that Holdfast, an operator or an output uses | rename it
runs_itself | InvalidInput | a pipeline file calls `run()` while `holdfast run` loads it | put it below `if __name__ == "__main__":`
secret_in_plain_text | InvalidInput | a secret stands in an option itself | give `env:NAME` or `file:PATH`
secret_missing | InvalidInput | the variable or file that a secret's reference names is not there | set it, or correct the reference
session_stopped | InvalidInput | the Spark session of a pipeline was stopped, or its Java is gone | declare the pipeline in a new session
several_windows | InvalidInput | a grouping has more than one window | group by the other one in an operator behind it
sink_without_input | InvalidInput | a sink needs a stream as its input | give what a source or an operator returned
sketch_unreadable | Corruption | a stored sketch of `approx_count_distinct` is not one of Holdfast's | go back to an intact checkpoint
source_shared | InvalidInput | a source moves or deletes files that another one reads, or archives them where something else lies | use one source, `after_read="keep"`, or another archive
spill_failed | Storage | a task could not write or read rows on local disk | free space in `spark.local.dir`, or let it be on another disk
staging_lost | NotFound | staged rows of an epoch are gone | bring them back; the epoch cannot be published without them
static_table_changed | Incompatible | a table of `join_static` is not the one that the state was made with | bring it back, allow the change, or start a new pipeline
static_table_unreadable | InvalidInput | a table of `join_static` cannot be read when the run starts | bring it back, or correct what reads it
sum_overflow | InvalidInput | a sum is too large for its type | cast to decimal or double before; if later rows bring it back, read them in one epoch
time_behind_window | InvalidInput | an operator that goes by event time follows closed windows or sessions | `emit="update"` before it, or plain grouping by `window_start`
too_deep | Storage | directories of a source lie too deep in one another, or a link leads back | remove the link
too_many_steps | InvalidInput | more than 200 steps stand on one another | join steps: `with_columns`, `select` and `where` take many expressions at once
topic_recreated | Incompatible | a Kafka topic was deleted or made again since it was read | give the source another name and allow the change, to read it from its start
udaf_failed | InvalidInput | the user aggregate raised an exception; its column and a key are named | correct the function and run again
udaf_result | InvalidInput | the user aggregate gave something else than one value a group | return as many values as `count` says, of the declared type
unknown_column | InvalidInput | no column of that name | correct the name, or add it before this step
unknown_columns | InvalidInput | the columns must be known before Spark starts, and are not | name them with `select`
unknown_emit | InvalidInput | an unknown way to emit windows | `emit="update"` or `emit="close"`
unknown_extension | InvalidInput | the format of a file cannot be told from its name | `format=` or `pattern=`
unknown_format | InvalidInput | unknown file format | parquet, json or csv
unknown_method | InvalidInput | a stream, a grouped stream or a view has no method of this name | the message says what does the same
unknown_mode | InvalidInput | unknown mode of a Parquet sink | changelog or upsert
unknown_partition | InvalidInput | `start` names a partition that the source does not read | correct the topic or the number
unknown_topic | NotFound | a Kafka topic or partition does not exist | create it, or correct its name
unknown_wish | InvalidInput | a wish for an output that no sink has, or none of adopt, keep and empty | see the names in the message
unreadable_file | InvalidInput | Spark cannot read a file; source, path, cause and, for text, the line are named | correct or remove the file, or the schema, format or options
unreadable_name | InvalidInput | a file has a name that is no text | rename it; all others were read
unreadable_output | Corruption | Spark cannot read a file of an output | bring the file back from a copy, or rebuild the output with `adopt`
unstable_expectation | InvalidInput | the condition of an expectation gives another answer another time | use the row's own columns
unstable_step | InvalidInput | a step over a changelog gives other values when a row is retracted, as `rand()` and `current_timestamp()` do | take the value before the first operator that gives a changelog
unsupported_join | InvalidInput | a static join must keep the stream on its left side | inner, left, semi or anti
unsupported_key | InvalidInput | a column of this type cannot be a key; the part that is in the way is named | convert it
unsupported_option | InvalidInput | an option of PySpark's has no meaning for a stream | see the remedy
user_code_failed | InvalidInput | code of the pipeline raised an exception, or returned no DataFrame; its own line is named | correct it and run again
version_gone | Refused | the version to go back to is not kept any more | rebuild the output
weight_dropped | InvalidInput | a transform dropped the weight of its rows | keep that column
weight_overflow | InvalidInput | a pair of rows of a join is there more often than a long can say | use smaller weights
worker_python | InvalidInput | the Python of the executors differs or lacks packages | set PYSPARK_PYTHON to one that has them
""",
    ),
    "Guard": (
        "`holdfast.guard`, and kinds of the core.",
        """\
behind_savepoint | Refused | the live checkpoint lies behind its last savepoint | restore a savepoint, or save under another name
checkpoint_damaged | Corruption | `protect` found damage before a start | restore a savepoint; nothing was started
index_outside | Corruption | the index of a savepoint names bytes outside of their blob | verify; restore an intact savepoint
invalid_interval | InvalidInput | `every` is not a number of batches or a time | give 10, "5 minutes" or a timedelta
moved | Holdfast | a running query deleted or replaced a file while it was read | try again
never_complete | Storage | no committed batch could be saved whole: files are missing or vanish too fast | raise `minBatchesToRetain`; verify a stopped query
no_batch | NotFound | the query has not committed a batch yet | let it run for one batch, then save
no_location | InvalidInput | the query does not say where its checkpoint lies (Spark Connect) | give `checkpoint_location=`
no_rename | Refused | an object store cannot keep the old checkpoint aside | restore into a new location
no_savepoint | NotFound | no savepoint of that batch or query | list the savepoints
no_session | InvalidInput | attach was called in a thread without a Spark session | give it as `spark=`
not_a_query | InvalidInput | what was attached to is no streaming query | give what `writeStream.start()` returned
other_session | InvalidInput | attach was given, or found, another Spark session than the one that started the query | give that one as `spark=`
overlapping | Refused | checkpoint, store, target or sink of a guard lie inside one another | give each a place of its own
query_differs | Corruption | the checkpoint belongs to another query than its savepoints | check the location; restore a savepoint
query_running | Refused | the checkpoint changed during a restore | stop the query and restore again; nothing was replaced
query_stopped | InvalidInput | the query that was attached to has ended | attach to a running one, or save once
same_location | InvalidInput | a clone was asked for at the place of its original | choose another location, or restore
save_failed | Holdfast | an attached save ended in an error that is not Holdfast's own | read the reason; the next save is tried when it is due
sink_compacted | Refused | a file sink's log cannot be trimmed to an older batch | save with `sink=`, so that the log belongs to the savepoint
spark_file_damaged | Corruption | a file of Spark's cannot be decoded or disagrees with its checksum | restore a savepoint
state_unreadable | InvalidInput | this state cannot be read without a JVM | read the reason: codec, missing package, size
target_not_empty | Refused | a restore or clone would write into a location that is in use | choose another one
unknown_layout | Incompatible | a checkpoint holds files that the guard does not know | check that it was written by a supported Spark
unknown_provider | Incompatible | state is kept by a provider that is not Spark's own | the guard cannot save it; nothing was changed
unknown_spark_format | Incompatible | a log of Spark's has a version that the guard does not know | use a supported Spark
unsupported_spark | Incompatible | the guard does not know the checkpoints of this Spark version | use a supported version
""",
    ),
    "Forks, copies and the command line": (
        "`holdfast fork`, `holdfast sync` and the other commands, and kinds of the core.",
        """\
arrived_damaged | Corruption | a copy has other bytes at the destination than were sent | check its disk or network, sync again
bad_option | InvalidInput | `--option` is not key=value, or is given for a local path | write key=value, for object stores only
bad_query | InvalidInput | DuckDB cannot run a query over state | the rows are in the table `state`
cannot_write | InvalidInput | an export file cannot be written | choose another place
damaged_checkpoint | Corruption | a fork was asked for at a checkpoint with lost files | choose an intact one
diverged | Conflict | the destination of a sync was written to by itself | sync the other way, or into an empty place
empty_source | NotFound | the source of a sync was never opened | run the pipeline first
file_exists | InvalidInput | an export file is there already | choose another name, or force it
fork_circle | Conflict | forks share files in a circle | report it: forks cannot
fork_in_use | Refused | a fork still needs the files that a savepoint holds | let the fork's gc release it
inside_store | InvalidInput | an export file would lie inside the store | choose another place
invalid_time | InvalidInput | a time cannot be read | write 2026-11-15T21:30 or ago:2h
leapt_over | Conflict | a pipeline wrote to a replica while a sync replaced its catalog | stop it, then `rebuild-catalog --force` there: what it committed is still there
no_directory | InvalidInput | the directory of an export file does not exist | create it
no_lock | Refused | an object store has no lock that would show a running pipeline | stop it, then ask for a takeover
no_rows | NotFound | an operator has no rows at a checkpoint | choose another checkpoint
nothing_there | Refused | a pipeline has no checkpoint yet | nothing to do before the first commit
origin_missing | Refused | a fork's origin is not at the destination of a sync | sync the origin first
other_lineage | Refused | the destination of a sync is another pipeline of the same name | choose another root
pipeline_exists | Conflict | the name of a fork is taken | choose another name
plan_only | InvalidInput | `recover` without `--plan` | give it, or use restore
query_refused | InvalidInput | a query over state is not one statement that only reads the rows | give one SELECT over the table `state`
reserved_label | InvalidInput | a label begins with `fork-` | choose another label
same_store | Refused | source and destination of a sync are the same | choose another destination
several_pipelines | InvalidInput | a root has several pipelines and none was named | say which
target_written | Conflict | somebody wrote to the destination during a sync | stop the writer there
two_queries | InvalidInput | `--where` and `--sql` were given together | put the condition into the query
unknown_shell | InvalidInput | there is no completion for this shell | set `SHELL` to bash, zsh or fish
would_fall_back | Refused | taking the writer's role would choose an older checkpoint | look at `recover --plan` first
""",
    ),
}
