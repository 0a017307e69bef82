"""Lines that end between words, for terminals narrower than a text."""

import textwrap


def within(text: str, columns: int | None, pad: str) -> list[str]:
    """The text in lines that begin with ``pad`` and fit ``columns``; one line where there is no terminal. A word is never cut, as it may
    be a path or a command."""
    if columns is None:
        return [pad + text]
    room = max(columns, len(pad) + 20)
    return textwrap.wrap(text, room, initial_indent=pad, subsequent_indent=pad, break_long_words=False, break_on_hyphens=False) or [pad.rstrip()]
