"""What a command says of an expected error, and the code with which it exits."""

import json
from types import SimpleNamespace

import pytest

from elasticflow.cli.command_options import AS_JSON
from elasticflow.cli.exit_codes import CANNOT, NEGATIVE, exit_code_of
from elasticflow.errors import InputUnusable, InvalidJob, KeysUnusable, NotPrintable, NotThere, ResultFileUnusable


@pytest.mark.parametrize(
    ("error", "status", "printed"),
    [
        (NotThere("unknown_node", "no node 'n'"), NEGATIVE, {"error": "no node 'n'", "code": "unknown_node"}),
        (InvalidJob("batch: 0"), CANNOT, {"error": "batch: 0", "code": "invalid_job"}),
        (InputUnusable("not_loadable", "cannot load f"), CANNOT, None),
        (KeysUnusable("no_keys", "no keys in f"), CANNOT, None),
        (ResultFileUnusable(4, "d" * 64, "n", "is damaged"), CANNOT, None),
        (
            NotPrintable(4, "a set"),
            NEGATIVE,
            {"error": str(NotPrintable(4, "a set")), "code": "not_printable"},
        ),
    ],
)
def test_no_and_cannot_have_codes_of_their_own(
    error: Exception, status: int, printed: dict[str, str] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code_of(error, SimpleNamespace(meta={AS_JSON: True})) == status
    out, err = capsys.readouterr()
    assert err == f"eflow: {error}\n"
    assert (json.loads(out) if out else None) == printed
