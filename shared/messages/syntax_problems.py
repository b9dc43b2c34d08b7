"""TOML and JSON texts; where one is no TOML or JSON: line, column, what is there, what to write instead. Pure."""

import json
import re
import tomllib
from typing import Any

_PLACE = re.compile(r" \((?:at line (\d+), column (\d+)|at end of document)\)$")  # as Python says it
_OPEN_IN_TOML = ("Illegal character '\\n'", "Illegal character '\\r'", "Unterminated", "Expected '\"", "Expected \"'")
_NOT_CLOSED = ("the quote that begins here is not closed", "close it in the same line")
_LONGEST = 60  # characters of the line that are shown
_TOML_ADVICE = (  # by what tomllib says
    ("Illegal character", "delete this character"),
    ("Unescaped '\\'", "write \\\\ for a backslash, or put the text in single quotes"),
    ("Invalid value", 'a text needs quotes, like deadline = "10m"; true and false are lower case'),
    (
        "Expected newline or end of document",
        'a text needs quotes, like deadline = "10m", and each key a line of its own',
    ),
    ("Expected '='", "write NAME = VALUE"),
    ("Invalid statement", "write NAME = VALUE, [TABLE] or # comment"),
    ("Unclosed array", "close it with ], and separate its values by commas"),
    ("Unclosed inline table", "close it with }, in the same line"),
    ("Cannot overwrite a value", "the name occurs twice: delete one of the lines"),
    ("Cannot declare", "the table occurs twice: join the two"),
    ("Expected ']", "close the name of the table with ]"),
)
_JSON_ADVICE = (  # by what json says
    ("Expecting property name", "put each name in double quotes, and no comma behind the last value"),
    ("Expecting ',' delimiter", "separate values by commas, and close each { and ["),
    ("Expecting ':' delimiter", 'write "NAME": VALUE'),
    (
        "Expecting value",
        "texts need double quotes; true, false and null are lower case; no comma behind the last value",
    ),
    ("Extra data", "write one value, such as {...}, and nothing behind it"),
    ("Invalid \\escape", "write \\\\ for a backslash"),
)


def parsed_toml(text: str) -> dict[str, Any]:
    """Raises ValueError, whose text says what is wrong and where."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also a number that is too long, or nesting too deep
        raise ValueError(_toml_problem(text, error)) from error


def parsed_json(text: str) -> Any:
    """Raises ValueError, whose text says what is wrong and where."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(_json_problem(text, error)) from error


def _toml_problem(text: str, error: Exception) -> str:
    """error: of tomllib."""
    said = str(error)
    place = _PLACE.search(said)
    what = said[: place.start()] if place else said
    if place is None:
        return what
    lines = text.split("\n")
    line, column = int(place[1] or len(lines)), int(place[2] or 0)
    if not place[1]:
        while line > 1 and not lines[line - 1].strip():
            line -= 1
        column = len(lines[line - 1]) + 1
    if what.startswith(_OPEN_IN_TOML):
        line, column = _opening_quote(lines, line, column)
        return _in_words(lines, line, column, *_NOT_CLOSED)
    return _in_words(lines, line, column, what, _advice(what, _TOML_ADVICE))


def _json_problem(text: str, error: Exception) -> str:
    """error: of json."""
    if not isinstance(error, json.JSONDecodeError):
        return str(error)
    if error.msg.startswith(("Unterminated string", "Invalid control character")):
        lines = text.split("\n")
        line, column = _opening_quote(lines, error.lineno, error.colno + error.msg.startswith("Unterminated"))
        return _in_words(lines, line, column, *_NOT_CLOSED)
    return _in_words(text.split("\n"), error.lineno, error.colno, error.msg, _advice(error.msg, _JSON_ADVICE))


def _opening_quote(lines: list[str], line: int, column: int) -> tuple[int, int]:
    """The place of the quote that is open there; the same place if none is."""
    before = "\n".join([*lines[: line - 1], lines[line - 1][: column - 1]])
    quote, at, place = "", 0, None
    while at < len(before):
        found = next((mark for mark in ('"""', "'''", '"', "'") if before.startswith(mark, at)), "")
        if quote and before[at] == "\\" and quote[0] == '"':
            at += 2
        elif quote and before.startswith(quote, at):
            at, quote = at + len(quote), ""
        elif not quote and found:
            quote, place, at = found, at, at + len(found)
        elif not quote and before[at] == "#":
            end = before.find("\n", at)
            at = len(before) if end < 0 else end
        else:
            at += 1
    if not quote or place is None:
        return line, column
    return before.count("\n", 0, place) + 1, place - (before.rfind("\n", 0, place) + 1) + 1


def _advice(what: str, known: tuple[tuple[str, str], ...]) -> str:
    return next((advice for begins, advice in known if what.startswith(begins)), "")


def _in_words(lines: list[str], line: int, column: int, what: str, advice: str) -> str:
    shown = lines[line - 1].strip() if line <= len(lines) else ""
    there = f" in `{shown[:_LONGEST]}{'…' if len(shown) > _LONGEST else ''}`" if shown else ""
    what = what[0].lower() + what[1:].removesuffix(".")
    return f"line {line}, column {column}: {what}{there}{f': {advice}' if advice else ''}"
