"""Turn the text of the search box into an expression of SQLite's full-text index.

All words must occur. `"two words"` must be neighbours, `trac*` is the beginning of a word, `-word` must not occur, and
`agent:word` searches only the texts of the agent (also prompt, observation, answer, penalty). Case and accents are
ignored. `SEGMENT_OBJECT_AT` matches its words in this order.
"""

from __future__ import annotations

import re

from ..errors import FilterError
from ..schema import SEARCH_COLUMNS

_TERM = re.compile(r"(?P<sign>-?)(?:(?P<column>[A-Za-z]+):)?(?:\"(?P<phrase>[^\"]*)\"?(?P<pstar>\*?)|(?P<word>\S+))")

_BETWEEN = re.compile(r"(?:[^\w\u0300-\u036f]|_)+")


def match_expression(text: str) -> str:
    """Return the MATCH expression of a search, empty for an empty text. Raises FilterError for text without words."""
    wanted: list[str] = []
    unwanted: list[str] = []
    for found in _TERM.finditer(text):
        column, word = found["column"], found["phrase"] if found["phrase"] is not None else found["word"]
        if column is not None and column.lower() not in SEARCH_COLUMNS:
            column, word = None, f"{found['column']}:{word}"  # a colon in ordinary text
        star = found["pstar"] == "*" or (found["phrase"] is None and word.endswith("*"))
        if not any(c.isalnum() for c in word):
            continue
        quoted = '"' + word.replace("\x00", " ").replace('"', '""') + '"' + (" *" if star else "")
        term = f"{column.lower()} : {quoted}" if column else quoted
        (unwanted if found["sign"] else wanted).append(f"({term})")
    if not wanted:
        if not text.strip():
            return ""
        raise FilterError("nothing to search for: give at least one word or number that must occur")
    expression = " AND ".join(wanted)
    return f"({expression}) NOT ({' OR '.join(unwanted)})" if unwanted else expression


def needles(text: str) -> tuple[str, ...]:
    """Return the phrases and words that must occur, with blanks for the characters that the index ignores."""
    found = []
    for term in _TERM.finditer(text):
        word = term["phrase"] if term["phrase"] is not None else term["word"].rstrip("*")
        words = _BETWEEN.sub(" ", word).strip()
        if not term["sign"] and words:
            found.append(words)
    return tuple(found)
