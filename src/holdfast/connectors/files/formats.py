"""Which format a file has, and which options its reader takes. No Spark in here.

Invariants:
- A format that was not given is known by the names of the files alone. A name that says nothing, or
  two names that disagree, are refused before anything is read.
- An option that Spark would ignore, or that would hide files or rows, is refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from holdfast.errors import InvalidInputError

Format = Literal["parquet", "json", "csv"]
FORMATS: tuple[Format, ...] = ("parquet", "json", "csv")

_EXTENSIONS: dict[str, Format] = {
    "parquet": "parquet",
    "parq": "parquet",
    "pq": "parquet",
    "json": "json",
    "jsonl": "json",
    "ndjson": "json",
    "csv": "csv",
}
_COMPRESSIONS = ("gz", "bz2", "zst", "lz4", "snappy", "deflate")

_ANY = {"datetimerebasemode", "int96rebasemode", "mergeschema"}
_TEXT = {
    "charset",
    "columnnameofcorruptrecord",
    "dateformat",
    "enabledatetimeparsingfallback",
    "encoding",
    "linesep",
    "locale",
    "mode",
    "multiline",
    "samplingratio",
    "singlevariantcolumn",
    "timestampformat",
    "timestampntzformat",
    "timezone",
}
_JSON = {
    "allowbackslashescapinganycharacter",
    "allowcomments",
    "allownonnumericnumbers",
    "allownumericleadingzeros",
    "allowsinglequotes",
    "allowunquotedcontrolchars",
    "allowunquotedfieldnames",
    "dropfieldifallnull",
    "prefersdecimal",
    "primitivesasstring",
}
_CSV = {
    "chartoescapequoteescaping",
    "comment",
    "delimiter",
    "emptyvalue",
    "enforceschema",
    "escape",
    "escapequotes",
    "header",
    "ignoreleadingwhitespace",
    "ignoretrailingwhitespace",
    "inferschema",
    "maxcharspercolumn",
    "maxcolumns",
    "nanvalue",
    "negativeinf",
    "nullvalue",
    "positiveinf",
    "preferdate",
    "quote",
    "quoteall",
    "sep",
    "unescapedquotehandling",
}
_KNOWN: dict[Format, set[str]] = {
    "parquet": _ANY,
    "json": _TEXT | _JSON,
    "csv": _TEXT | _CSV,
}
_OURS = {
    "basepath": "the directory of the source is the base",
    "ignorecorruptfiles": "it would skip rows without a word",
    "ignoremissingfiles": "it would skip rows without a word",
    "modifiedafter": "use pattern= or min_age_ms=",
    "modifiedbefore": "use pattern= or min_age_ms=",
    "path": "the files are those that the source lists",
    "pathglobfilter": "use pattern=",
    "paths": "the files are those that the source lists",
    "recursivefilelookup": "directories are always walked",
}


def format_of(path: str) -> Format | None:
    """The format that a name tells, looking through a compression's extension."""
    parts = path.rsplit("/", 1)[-1].lower().split(".")
    if len(parts) > 2 and parts[-1] in _COMPRESSIONS:
        parts.pop()
    return _EXTENSIONS.get(parts[-1]) if len(parts) > 1 else None


class FormatGuess:
    """The one format of a source whose format was not given."""

    def __init__(self, source: str, given: Format | None) -> None:
        """Begin with what the user gave, if anything."""
        self._source = source
        self._given = given
        self._known: tuple[Format, str] | None = None

    @property
    def format(self) -> Format:
        """What was given or found; Parquet as long as there is no file."""
        if self._given is not None:
            return self._given
        return self._known[0] if self._known is not None else "parquet"

    def note(self, path: str, *, settled: bool = False) -> None:
        """One more name. settled: a file that was read before, whatever its name says."""
        if self._given is not None:
            return
        found = format_of(path)
        if found is None:
            if settled:
                return
            raise InvalidInputError(
                "the format of a file cannot be told from its name",
                kind="unknown_extension",
                source=self._source,
                path=path,
                remedy='say format="parquet", "json" or "csv", leave the file out with '
                'pattern="*.parquet", or move it elsewhere',
            )
        if self._known is None:
            self._known = found, path
        elif self._known[0] != found and not settled:
            raise InvalidInputError(
                "the directory has files of two formats",
                kind="mixed_formats",
                source=self._source,
                path=path,
                format=found,
                other=self._known[1],
                other_format=self._known[0],
                remedy='choose with pattern="*.parquet" or format=, one source for each format',
            )


def checked_format(given: str | None) -> Format | None:
    """A format that Holdfast reads, or None for what the names say."""
    for known in FORMATS:
        if given == known:
            return known
    if given is None:
        return None
    raise InvalidInputError(
        "unknown file format",
        kind="unknown_format",
        format=str(given)[:60],
        remedy="use parquet, json or csv",
    )


_OWN_MODE = {"mode", "columnnameofcorruptrecord", "singlevariantcolumn"}


def keeps_bad_rows(on_bad: str | None, given: Format | None, options: Mapping[str, str]) -> bool:
    """Whether records that Spark cannot parse are kept as bad rows: by default, where it can be.

    Args:
        on_bad: "keep", "fail", or None for what is usual.
        given: the format, where it was given.
        options: of Spark's reader, checked. With a mode of their own Spark does as they say.
    """
    if on_bad not in (None, "keep", "fail"):
        raise InvalidInputError(
            "unknown way to treat rows that cannot be read",
            kind="invalid_option",
            on_bad=str(on_bad)[:60],
            remedy="use keep or fail",
        )
    own = sorted(name for name in options if name.lower() in _OWN_MODE)
    if on_bad is not None and own:
        raise InvalidInputError(
            "two ways to treat rows that cannot be read",
            kind="invalid_option",
            option=own[0],
            on_bad=on_bad,
            remedy="leave the option of the reader out, or on_bad",
        )
    return on_bad != "fail" and not own and given != "parquet"


def checked_options(options: Mapping[str, Any], given: Format | None) -> dict[str, str]:
    """Options of Spark's reader, as text."""
    known = set().union(*_KNOWN.values()) if given is None else _KNOWN[given] | _ANY
    checked: dict[str, str] = {}
    for name, value in options.items():
        lowered = str(name).lower()
        if lowered in _OURS or lowered.startswith("__"):
            raise InvalidInputError(
                "an option of the reader is Holdfast's own",
                kind="invalid_option",
                option=name,
                remedy=_OURS.get(lowered, "leave it out"),
            )
        if "." not in lowered and lowered not in known:
            raise InvalidInputError(
                "the reader does not know this option",
                kind="invalid_option",
                option=name,
                format=given,
                known=",".join(sorted(known)),
                remedy="correct its name",
            )
        if not isinstance(value, (str, bool, int, float)):
            raise InvalidInputError(
                "an option of the reader is text, a number or a truth value",
                kind="invalid_option",
                option=name,
                value=repr(value)[:60],
            )
        checked[str(name)] = str(value).lower() if isinstance(value, bool) else str(value)
    return checked
