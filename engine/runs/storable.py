"""Text as the record can hold it."""

from __future__ import annotations

import re

_SURROGATES = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    """Text that SQLite can hold: halves of surrogate pairs become U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATES.sub("\ufffd", text)
    return text
