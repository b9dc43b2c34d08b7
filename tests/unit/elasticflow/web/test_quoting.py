"""What a browser gets of a quote: its GPUs, its cost, and the words of its submission."""

from typing import Any

import pytest

from elasticflow.shared.messages.events import DeadlineQuoted
from elasticflow.web.command_routes import quote_values, submission_words
from testbed.histories import NOW_S, spec
from tests.support.two_types import two_types

QUOTED = DeadlineQuoted(
    earliest_deadline_s=NOW_S + 90.0,
    gpu_seconds=7_200.0,
    schedule=(NOW_S, NOW_S + 30.0, 4.0, NOW_S + 30.0, NOW_S + 40.0, 0.0, NOW_S + 40.0, NOW_S + 90.0, 2.0),
    at_s=NOW_S,
)


def values(quoted: DeadlineQuoted = QUOTED, prices: dict[str, float] | None = None) -> dict[str, Any]:
    """In a pool of V100 and P100."""
    return quote_values(quoted, spec(), two_types().state, prices)


def test_the_gpus_are_those_that_would_be_promised() -> None:
    assert values()["promised"] == [[NOW_S, NOW_S + 30.0, 4], [NOW_S + 40.0, NOW_S + 90.0, 2]]
    assert values(DeadlineQuoted(earliest_deadline_s=None, explanation="none", at_s=NOW_S))["promised"] == []


@pytest.mark.parametrize(
    ("gpu_type", "prices", "price", "cost"),
    [
        ("", {"": 2.0}, 2.0, 4.0),
        ("", {"V100": 3.0, "": 2.0}, 3.0, 6.0),
        ("P100", {"V100": 3.0, "P100": 1.5}, 1.5, 3.0),
        ("P100", {"V100": 3.0}, None, None),
    ],
    ids=["one price", "of the pool's first type", "of the quoted type", "of another type only"],
)
def test_a_quote_costs_what_its_gpus_cost(
    gpu_type: str, prices: dict[str, float], price: float | None, cost: float | None
) -> None:
    quoted = DeadlineQuoted(earliest_deadline_s=NOW_S, gpu_seconds=7_200.0, gpu_type=gpu_type, at_s=NOW_S)
    shown = values(quoted, prices)
    assert (shown["price"], shown["cost"]) == (price, cost)


def test_without_prices_there_is_no_cost() -> None:
    assert {"price", "cost"} & set(values()) == set()


@pytest.mark.parametrize(
    ("changes", "target", "arguments"),
    [
        ({"training_function": "examples.digits:Digits"}, "examples.digits:Digits", ""),
        ({"training_function": "train:Digits", "code_digest": "0" * 64}, "train.py:Digits", ""),
        (
            {"training_function": "lab.train:Digits", "code_digest": "0" * 64, "import_folder": "src"},
            "src/lab/train.py:Digits",
            "",
        ),
        (
            {
                "training_function": "train:__main__",
                "code_digest": "0" * 64,
                "hyperparameters": {"1": "--note", "2": "a b; rm"},
            },
            "train.py",
            "--note 'a b; rm'",
        ),
        ({"training_function": "train:__torchrun__", "code_digest": "0" * 64}, "train.py --torchrun", ""),
        ({"training_function": "my train.v2.py:__main__", "code_digest": "0" * 64}, "'my train.v2.py'", ""),
    ],
    ids=["a module", "a file", "a file in a folder", "a script", "a torchrun script", "a script with an odd name"],
)
def test_a_submission_names_the_code_as_its_user_did(changes: dict[str, Any], target: str, arguments: str) -> None:
    assert submission_words(spec(**changes)) == {"target": target, "arguments": arguments}
