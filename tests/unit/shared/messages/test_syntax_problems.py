"""What is said of a text that is no TOML or JSON: the place, and what to write instead."""

import pytest

from elasticflow.shared.messages.syntax_problems import parsed_json, parsed_toml


def unclosed(place: str, line: str) -> str:
    return f"{place}: the quote that begins here is not closed in `{line}`: close it in the same line"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('target = "train.py\ndeadline = "10m"\n', unclosed("line 1, column 10", 'target = "train.py')),
        ('a = 1\nb = "10m', unclosed("line 2, column 5", 'b = "10m')),
        ("# it's\na = 'x\r\n", unclosed("line 2, column 5", "a = 'x")),
        ('a = "x" # "\nb = """x\ny\n', unclosed("line 2, column 5", 'b = """x')),
        ('a = ["x\\"", "y]\n', unclosed("line 1, column 13", 'a = ["x\\"", "y]')),
        (
            "deadline = 10m\n",
            "line 1, column 14: expected newline or end of document after a statement in `deadline = 10m`",
        ),
        ("deadline = 10m\n", 'a text needs quotes, like deadline = "10m"'),
        ("target = train.py\n", "line 1, column 10: invalid value in `target = train.py`: a text needs quotes"),
        ("a = True\n", "true and false are lower case"),
        ("b 3\n", "line 1, column 3: expected '=' after a key in a key/value pair in `b 3`: write NAME = VALUE"),
        ("[set\n", "close the name of the table with ]"),
        ("a = [1,\n2\n\n", "line 2, column 2: unclosed array in `2`: close it with ]"),
        ("a = 1\na = 2\n", "line 2, column 6: cannot overwrite a value in `a = 2`: the name occurs twice"),
        ('p = "C:\\data"\n', "write \\\\ for a backslash, or put the text in single quotes"),
        ('a = "\x01"\n', "delete this character"),
        (f"a = {'[' * 3000}", "maximum recursion depth"),
    ],
)
def test_a_wrong_toml_text_is_told_where_and_what_to_write(text: str, said: str) -> None:
    with pytest.raises(ValueError) as raised:
        parsed_toml(text)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": "x}', unclosed("line 1, column 7", '{"a": "x}')),
        ('{"a": "x\n}', unclosed("line 1, column 7", '{"a": "x')),
        ('{"a": 1,}', 'line 1, column 9: expecting property name enclosed in double quotes in `{"a": 1,}`: put each'),
        ("{'a': 1}", "put each name in double quotes"),
        (
            '{"a":\n True}',
            "line 2, column 2: expecting value in `True}`: texts need double quotes; true, false and null",
        ),
        ('{"a" 1}', 'write "NAME": VALUE'),
        ("[1 2]", "separate values by commas"),
        ("{} x", "write one value, such as {...}, and nothing behind it"),
        ("", "line 1, column 1: expecting value"),
    ],
)
def test_a_wrong_json_text_is_told_where_and_what_to_write(text: str, said: str) -> None:
    with pytest.raises(ValueError) as raised:
        parsed_json(text)
    assert said in str(raised.value)
