"""The tree in the docstring is the tree in the code."""

import dataclasses
import re

from elasticflow.shared import errors
from elasticflow.shared.errors import ElasticFlowError, PermanentFailure, Reload, Retry, Stop


def every_error(kind: type[ElasticFlowError] = ElasticFlowError) -> list[type[ElasticFlowError]]:
    below = [child for child in kind.__subclasses__() if child.__module__ == errors.__name__]
    return below + [error for child in below for error in every_error(child)]


def test_every_failure_says_what_to_do_next() -> None:
    for error in every_error():
        assert sum(issubclass(error, branch) for branch in (Retry, Reload, PermanentFailure, Stop)) == 1


def test_the_docstring_draws_every_failure_under_its_branch() -> None:
    drawn: dict[str, str] = {}
    branch = ""
    for line in (errors.__doc__ or "").splitlines():
        if match := re.match(r"    ([│├└─ ]*)[├└]── (\w+)", line):
            indent, name = match.groups()
            branch = branch if indent else name
            drawn[name] = branch
    branches = (Retry, Reload, PermanentFailure, Stop)
    real = {e.__name__: next(b for b in branches if issubclass(e, b)).__name__ for e in every_error()}
    assert drawn == real


def test_every_sentence_is_made_of_the_fields() -> None:
    samples = {str: "words", int: 7, int | None: 7, float: 7.0, tuple[str, ...]: ("words",)}
    for error in every_error():
        if fields := dataclasses.fields(error):
            sentence = str(error(*(samples[field.type] for field in fields)))
            assert "words" in sentence or "7" in sentence
            assert "{" not in sentence
