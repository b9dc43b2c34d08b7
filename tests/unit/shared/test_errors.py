"""The tree in the docstring is the tree in the code, and each failure has a code of its own."""

import dataclasses
import re
from pathlib import Path
from typing import get_args

from elasticflow import errors as client_errors
from elasticflow.shared import errors
from elasticflow.shared.errors import (
    CannotStart,
    ElasticFlowError,
    Explained,
    PermanentFailure,
    Reload,
    Retry,
    Stop,
    Unavailable,
)

ROOT = Path(__file__).parents[3]
REASONS = (
    *(errors.LedgerReason, errors.StartReason),
    *(client_errors.KeyReason, client_errors.InputReason, client_errors.AbsenceReason),
)


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
        if not issubclass(error, Explained) and (fields := dataclasses.fields(error)):
            sentence = str(error(*(samples[field.type] for field in fields)))
            assert "words" in sentence or "7" in sentence
            assert "{" not in sentence


def test_a_failure_is_named_for_programs_by_its_reason_or_else_by_its_class() -> None:
    taken = CannotStart("port_taken", "another process listens on {host}")
    assert (taken.code, str(taken)) == ("port_taken", "another process listens on {host}")
    assert Unavailable("nats://h", "refused").code == "unavailable"
    assert errors.NoResponder("s").code == "no_responder"
    assert client_errors.InvalidJob("no").code == "invalid_job"


def test_each_reason_is_one_of_one_class_and_is_given_somewhere() -> None:
    product = "".join(file.read_text() for part in ("shared", "elasticflow") for file in (ROOT / part).rglob("*.py"))
    reasons = [reason for each in REASONS for reason in get_args(each)]
    names = [kind.__new__(kind).code for kind in every_error() if not issubclass(kind, Explained)]
    assert len({*reasons, *names}) == len(reasons) + len(names)
    assert [reason for reason in reasons if product.count(f'"{reason}"') != 2] == [], "listed once, given once"
