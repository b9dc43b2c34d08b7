"""Characters that move or hide others, or command a terminal: no name has one, and every screen shows them escaped."""

import re

# In a class of a regular expression, of Python, Rust and JSON schemas: control characters, and of Unicode the ends of
# lines, the directions, and what has no width. Not the joiners, which words of some languages need.
HIDDEN = r"\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff"

_IN_TEXT = re.compile(rf"(?![\t\n\r])[{HIDDEN}]")
_IN_COLOURED_TEXT = re.compile(rf"(?![\t\n\r]|\x1b\[[\d;]*m)[{HIDDEN}]")


def escaped(text: str, *, may_have_colours: bool = False) -> str:
    r"""The text with each hidden character as Python writes it, like `\u202e`; tabs and ends of lines stay.

    may_have_colours: the escape sequences of a terminal that only colour what follows stay, too.
    """
    pattern = _IN_COLOURED_TEXT if may_have_colours else _IN_TEXT
    return pattern.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
