"""How objects show themselves: one line for a console, a small table for a notebook.

Invariants:
- What is shown has a bound; text of others is escaped; showing never fails.
- What cannot be printed shows as U+FFFD: XML, terminals and pages take no control characters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

ITEMS_MAX = 12
TEXT_MAX = 80


def short(value: object, limit: int = TEXT_MAX) -> str:
    """A value as one line of text, cut in the middle where it is too long."""
    text = "".join(c if c.isprintable() else "\ufffd" for c in " ".join(str(value).split()))
    if len(text) <= limit:
        return text
    end = limit // 3
    return f"{text[: limit - end - 1]}…{text[-end:]}"


def listed(items: Iterable[object], limit: int = ITEMS_MAX) -> str:
    """The first of some items, and how many more there are."""
    texts = [short(item, 40) for item in items]
    more = len(texts) - limit
    return ", ".join(texts[:limit]) + (f" and {more} more" if more > 0 else "")


def html_table(title: str, rows: Sequence[tuple[str, str]]) -> str:
    """A table of facts; every text is escaped."""
    from html import escape  # its table of entities is loaded only where HTML is shown

    cells = "".join(
        f'<tr><th style="text-align:left">{escape(key)}</th>'
        f'<td style="text-align:left">{escape(short(value, 400))}</td></tr>'
        for key, value in rows
    )
    return f"<div><strong>{escape(short(title))}</strong><table>{cells}</table></div>"


def shown(owner: object, make: Callable[[], str]) -> str:
    """What a function makes, or the plain name of a type where it fails."""
    try:
        return make()
    except Exception as error:  # noqa: BLE001 - showing an object must never break a session
        return f"<{type(owner).__name__} ({type(error).__name__})>"


def shown_html(owner: object, make: Callable[[], str]) -> str:
    """The same for HTML."""
    try:
        return make()
    except Exception as error:  # noqa: BLE001 - showing an object must never break a session
        return f"&lt;{type(owner).__name__} ({type(error).__name__})&gt;"
