"""One set of characters: names refuse it, and the terminal and the page show it escaped."""

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from elasticflow.shared.hidden_characters import escaped
from elasticflow.shared.messages.limits import Name
from elasticflow.shared.runtime.process.terminal import safe_for_terminal
from elasticflow.web.read_routes import encoded
from elasticflow.web.saved_page import in_html

LAYOUT = "\t\n\r"


def is_refused(character: str) -> bool:
    try:
        TypeAdapter(Name).validate_python(character)
    except ValidationError:
        return True
    return False


def test_what_names_refuse_is_what_the_terminal_and_the_page_escape() -> None:
    characters = [chr(code) for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000]
    refused = {character for character in characters if is_refused(character)}
    assert {"\x00", "\x9b", "\u061c", "\u200b", "\u202e", "\u2060", "\u2065", "\u2069", "\ufeff"} < refused
    assert not {"\u200c", "\u200d", "é", "模", "\N{GRINNING FACE}"} & refused
    for shown in (escaped, safe_for_terminal, lambda text: json.loads(encoded(text))):
        assert {character for character in characters if shown(character) != character} == refused - set(LAYOUT)


@pytest.mark.parametrize(
    ("hidden", "shown"), [("\u202e", r"\u202e"), ("\ufeff", r"\ufeff"), ("\x9b", r"\x9b"), ("\x08", r"\x08")]
)
def test_it_is_shown_as_python_writes_it(hidden: str, shown: str) -> None:
    text = f"a\t{hidden}<b>\n"
    assert escaped(text) == safe_for_terminal(text) == json.loads(encoded(text)) == f"a\t{shown}<b>\n"
    assert in_html(text) == f"a\t{shown}&lt;b&gt;\n"


def test_a_terminal_gets_colours_and_no_other_sequence() -> None:
    text = "a\x1b[31md\x1b[0m\x1b]0;t\x07\x1b[2J"
    assert safe_for_terminal(text) == "a\x1b[31md\x1b[0m" + r"\x1b]0;t\x07\x1b[2J"
    assert escaped(text) == r"a\x1b[31md\x1b[0m\x1b]0;t\x07\x1b[2J"


TEXTS = st.text(st.sampled_from('\\u202e\b\f\x1b"/ub0') | st.characters(exclude_categories=["Cs"]))


@given(TEXTS)
def test_json_differs_in_hidden_characters_only(text: str) -> None:
    assert json.loads(encoded({text: [text]})) == {escaped(text): [escaped(text)]}
