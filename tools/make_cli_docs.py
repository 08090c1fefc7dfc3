"""Write docs/reference/cli.md from --help and docs/reference/json.md from the values themselves.

Run: python tools/make_cli_docs.py [--check]

With --check nothing is written; exit 1 says that a page is not what it should be.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import types
import typing
from importlib import import_module
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))
os.environ.update(COLUMNS="80", TERM="dumb", NO_COLOR="1")

from holdfast.cli import failures, output, parts  # noqa: E402 - after the path
from holdfast.cli.app import PACKAGE, load, sections  # noqa: E402
from holdfast.cli.main import main  # noqa: E402
from holdfast.format.findings import Finding  # noqa: E402

CLI = ROOT / "docs" / "reference" / "cli.md"
JSON = ROOT / "docs" / "reference" / "json.md"

_CLI_HEAD = """\
# The command line

Made from `--help` by `python tools/make_cli_docs.py`; a test compares. `pip install
'holdfast-spark[cli]'` brings the command; `[state,sql]` adds queries over state, `[object]` object
stores.

- Exit codes of every command, `guard`, `journal` and `run` included:

| code | meaning |
|---|---|
| 0 | good; also when the reader of a pipe (`head`) has seen enough |
| 1 | a problem was found or met; or standard output is closed or full: changes were made |
| 2 | wrong usage: something that can be typed differently, or a package that is not installed |
| 130 | Ctrl-C |

- `STORE` is a root or ROOT/PIPELINE, as a path, `file://`, `s3://`, `gs://` or `az://` address. A
  root with one pipeline needs no name.
- `REF` is a checkpoint: an epoch, an id, a label, a time, `ago:2h` or `latest`. The grammar is
  that of Python: [naming a checkpoint](checkpoints.md).
- Object stores take their settings from the environment (`AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL`,
  `AWS_ALLOW_HTTP=true` and so on) and from `--option key=value`, which wins.
- Commands that read never write. `--json` prints exactly one document: [json.md](json.md). An error
  is one, too.
- Colours appear on a terminal only, and not with `NO_COLOR`. Progress bars go to standard error
  of a terminal.
- `holdfast --install-completion` sets up completion for bash, zsh or fish; `python -m holdfast`
  is the same command.
- `HOLDFAST_DEBUG=1` adds tracebacks.
"""

_JSON_HEAD = """\
# The JSON of each command

Made from the values in `src/holdfast/cli/commands/` by `python tools/make_cli_docs.py`; a test
compares. Every document has a `schema` with a name and a number. Fields are only ever added; a
change of meaning gets a new number. Times are microseconds since 1970-01-01 UTC, sizes are bytes,
nothing is rounded. Values that JSON has no form for (decimals, times and bytes of a row) are text.
No sink token and no secret is ever part of a document.

`holdfast guard VERB` prints `holdfast.guard.VERB/1`: the fields of what the call of that name in
`holdfast.guard` returns, a list as `items`. `holdfast journal` prints lines, one event, receipt or
finding each, without a schema.

A command that cannot do its work prints `holdfast.error/1` and exits with 1 or 2; `kind` is stable:
[errors](errors.md).
"""

_MEANINGS = {
    "abandon": "checkpoints that would be left behind",
    "abandoned": "left behind by a rollback or fallback; ids where it is a list",
    "actual": "what is there",
    "added": "rows that only the later one has",
    "after": "on the later side; null where there is nothing",
    "age_us": "time since it was committed",
    "ancestors": "live checkpoints that it was built on, nearest first",
    "before": "on the earlier side; null where there is nothing",
    "bytes": "size of it all",
    "bytes_after": "size at the later one",
    "bytes_before": "size at the earlier one",
    "bytes_by_class": "what goes, by why it goes",
    "bytes_copied": "size of what was copied",
    "bytes_exclusive": "what deleting it alone would free; null when its manifest is damaged",
    "bytes_new": "size of what it wrote itself",
    "bytes_per_second": "speed of a deep check; 0 for a shallow one",
    "bytes_present": "size of what was there already",
    "bytes_shared": "size of the shared files",
    "bytes_total": "size of every file that it needs",
    "candidates": "all live checkpoints, newest first, with the verdict on each",
    "change": "what happened to it",
    "changed": "rows that both have, with different values",
    "changes": "rows that operators changed",
    "checkpoint": "id of the checkpoint",
    "checkpoints": "checkpoints, or how many",
    "master": "the master whose executors were asked; null without `--master`",
    "executors": "what each executor has said; see [clusters](../guides/cluster.md)",
    "checks": "everything that was looked at",
    "children": "live checkpoints that were built on it",
    "columns": "of the rows, in order",
    "confirmed": "whether a later checkpoint or a sink proves that it was committed",
    "connector": "kind of source",
    "counts": "what `rows` and `keys` are: `live`, `bound` (at most that many) or `unknown`",
    "created_us": "when it was committed",
    "damaged": "checkpoints with an error",
    "deep": "whether every byte was hashed",
    "deleted": "paths of what was deleted",
    "depth": "how the chosen one was checked",
    "destination": "address of the copy",
    "dropped": "checkpoints that left the catalog, or would",
    "dry_run": "whether nothing was changed",
    "effect": "what the sink does about it, in words",
    "epoch": "its epoch",
    "epoch_after": "epoch of the later one",
    "epoch_before": "epoch of the earlier one",
    "epoch_next": "epoch that the pipeline would run next",
    "epochs": "epochs that will be run again",
    "expected": "what should be there",
    "facts": "what is known about it",
    "files": "files, or how many",
    "files_copied": "how many were missing and were copied",
    "files_only_after": "files that only the later one names",
    "files_only_before": "files that only the earlier one names",
    "files_present": "how many were there already",
    "files_shared": "files that both name",
    "findings": "what a check noticed",
    "fingerprint": "SHA-256 of the pipeline's topology",
    "format_after": "format that the software writes",
    "format_before": "oldest format of header and catalog",
    "fork": "name of the new pipeline",
    "found": "what was found, in words",
    "health": "`ok`, or `damaged` when the manifest or a file is missing or has another size; "
    "what the files hold is checked by `verify --deep`",
    "idle": "whether the source had nothing to read",
    "incremental": "whether it refers to files of earlier checkpoints",
    "kept": "what stays: checkpoints with the reasons, or how many documents of each kind",
    "key": "key columns of the row",
    "keys": "number of keys (null: not known), or names of the key columns",
    "keys_after": "keys at the later one",
    "keys_before": "keys at the earlier one",
    "kind": "stable word for what it is",
    "label": "label that it was committed with, or name of the savepoint",
    "last_epoch": "the last epoch that was run; null when none was",
    "late": "rows that came too late",
    "outdated": "rows behind a newer one of their key",
    "bad": "rows that could not be read, by source",
    "expectations": "verdicts, by expectation",
    "passed": "rows that met it",
    "failed": "rows that failed",
    "lag": "what is left to read, by source: rows, bytes, seconds",
    "leave": "manifests that are left out, with the reason",
    "lineage": "id that the pipeline got when it was created",
    "made": "whether it was made now; false where it had been there before",
    "message": "what was noticed, in words",
    "mode": "`fresh`, `resume` or `refuse`",
    "more": "whether there are more rows than are shown",
    "name": "its name",
    "new_checkpoints": "how many the destination did not have",
    "notes": "what else is worth knowing",
    "ok": "whether nothing is wrong",
    "operator": "name of the operator",
    "operators": "operators and reference tables",
    "order": "`same`, `forward`, `back`, `moved`, `diverged`, `added` or `removed`",
    "own": "whether this checkpoint wrote it",
    "parent": "checkpoint that it builds on",
    "partition": "number of the partition",
    "partitions": "by partition",
    "path": "path of the file",
    "pin": "label by which the origin holds the shared files",
    "pinned": "whether it is held now",
    "pins": "labels of savepoints that hold it, or how many came over",
    "pins_only_there": "savepoints that only the destination has",
    "pipeline": "name of the pipeline",
    "pipelines": "one entry for each pipeline",
    "position": "place in every partition of the source",
    "positions": "where the sources stand",
    "problem": "what is wrong; empty when nothing is",
    "processed": "records that went through the pipeline so far; the difference in a diff",
    "properties": "notes of the user",
    "reason": "why it failed",
    "reasons": "why it stays",
    "records": "catalog records of format 1 that one base record replaces",
    "refusal": "why it is refused; null when it is not",
    "released": "origins whose savepoint for this fork was released",
    "remedy": "what to do about it",
    "removed": "rows that only the earlier one has",
    "removed_bytes": "size of old files that were removed at the destination",
    "removed_files": "old files that were removed at the destination",
    "replay": "what the sink does with an epoch that is run again: `deduplicates`, `retracts`, "
    "or `none`",
    "restored": "whether the pipeline was rolled back",
    "resumed_from": "epoch of the checkpoint that it continued from; null at the first run",
    "roll_forward": "epochs of sinks that would be published first",
    "root": "address of the root",
    "rows": "rows, or how many: of a checkpoint or operator those that live (null: not known), of "
    "a file or partition those that are stored",
    "rows_after": "rows at the later one",
    "rows_before": "rows at the earlier one",
    "rows_written": "how many rows went into the file",
    "safe": "whether nothing is published twice",
    "sample": "changed rows, in order of key, as many as asked for",
    "seconds": "how long it took",
    "sequence": "number of its catalog record",
    "severity": "`error`, `warning` or `info`",
    "sha256": "digest of the file",
    "sink": "name of the sink",
    "sinks": "what sinks have staged, or what going back means for them",
    "source": "where it comes from: a source, a checkpoint, an address",
    "sources": "where the sources stand",
    "steps": "what is done, in order; empty when the store is up to date",
    "status": "what became of it",
    "store": "address that was tried",
    "take": "checkpoints that the new catalog lists",
    "token_bytes": "size of the sink's token",
    "topology": "how the pipelines differ, part by part",
    "total": "how many there are, shown or not",
    "trace": "`latest`, `bag` or `small`",
    "type": "DuckDB's type of the column",
    "undecided": "checkpoints of which one must be chosen",
    "unknown": "files that Holdfast did not write; they are left alone",
    "up_to_date": "whether nothing had to be done",
    "verdict": "`chosen`, `damaged`, `older`, `abandoned` or `newer than asked for`",
    "version": "version of the operator's state",
    "versions": "software that wrote it",
    "vnodes": "number of slices of the key space",
    "watermark_after_us": "event time at the later one",
    "watermark_before_us": "event time at the earlier one",
    "watermark_us": "event time up to which it is complete",
    "weight": "how often the row was added or removed",
    "what": "what it does, or what happened",
    "writer": "id of the writer that committed it",
    "written": "file that was written; null when rows are shown",
}


def help_of(*words: str) -> str:
    """What `holdfast WORDS --help` prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        main([*words, "--help"])
    return "\n".join(line.rstrip() for line in out.getvalue().strip().splitlines())


def commands() -> list[str]:
    """Names of all commands, in the order of `holdfast --help`."""
    return [name for names in sections().values() for name in names]


def cli_page() -> str:
    """The whole page of commands."""
    chapters = [_CLI_HEAD]
    for name in commands():
        chapters.append(f"## {name}\n\n```text\n{help_of(name)}\n```\n")
        chapters += [
            f"### {name} {inner}\n\n```text\n{help_of(name, inner)}\n```\n"
            for inner in getattr(load(name), "commands", ())
        ]
    return "\n".join(chapters)


def json_page() -> str:
    """The whole page of documents."""
    structs = _structs()
    chapters = [_JSON_HEAD]
    for kind in (each for each in structs if _is_document(each)):
        tag = str(kind.__struct_config__.tag)
        chapters.append(f"## {tag}\n\n{_sentence(kind)}\n")
        chapters.append(_table(kind, tag=tag))
    chapters.append("## Parts of documents\n")
    for kind in (each for each in structs if not _is_document(each)):
        chapters.append(f"### {kind.__name__}\n\n{_sentence(kind)}\n")
        chapters.append(_table(kind))
    return "\n".join(chapters)


def _sentence(kind: type[msgspec.Struct]) -> str:
    return (kind.__doc__ or "").splitlines()[0]


def _is_document(kind: type[msgspec.Struct]) -> bool:
    return str(kind.__struct_config__.tag or "").startswith("holdfast.")


def _structs() -> list[type[msgspec.Struct]]:
    """Every value that a command prints, or that is part of one."""
    modules = [import_module(f"{PACKAGE}.{name.replace('-', '_')}") for name in commands()]
    structs = [
        kind
        for module in (*modules, parts, failures)
        for kind in vars(module).values()
        if isinstance(kind, type)
        and issubclass(kind, output.Value)
        and kind.__module__ == module.__name__
    ]
    return [*structs, Finding]


def _table(kind: type[msgspec.Struct], tag: str = "") -> str:
    lines = ["| field | type | meaning |", "|---|---|---|"]
    if tag:
        lines.append(f'| `schema` | text | always `"{tag}"` |')
    hints = typing.get_type_hints(kind)
    lines += [
        f"| `{name}` | {_type(hints[name])} | {_MEANINGS[name]} |"
        for name in kind.__struct_fields__
    ]
    return "\n".join(lines) + "\n"


def _type(hint: object) -> str:
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type(each) for each in inner)
    if origin is list:
        return f"list of {_type(inner[0])}"
    if origin is dict:
        return f"object of {_type(inner[1])}"
    if origin is typing.Literal:
        return "text"
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return "error" if _is_document(hint) else f"[{hint.__name__}](#{hint.__name__.lower()})"
    names = {str: "text", int: "whole number", float: "number", bool: "true or false",
             type(None): "null", typing.Any: "any"}  # fmt: skip
    return names.get(hint, "text")  # type: ignore[call-overload, no-any-return]


def run() -> int:
    """Write both pages, or compare them."""
    pages = {CLI: cli_page(), JSON: json_page()}
    if "--check" in sys.argv[1:]:
        stale = [p.name for p, text in pages.items() if not p.exists() or p.read_text() != text]
        if stale:
            print(f"not up to date: {', '.join(stale)}; run python tools/make_cli_docs.py")
        return int(bool(stale))
    for path, text in pages.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        print(f"wrote {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(run())
