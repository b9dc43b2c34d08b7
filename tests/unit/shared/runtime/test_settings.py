"""The settings that all services read from the environment."""

import pytest

from elasticflow.shared.errors import BadSettings
from elasticflow.shared.runtime.process.settings import Settings


@pytest.mark.parametrize(("value", "replicas"), [(None, 1), ("1", 1), ("3", 3), ("5", 5)])
def test_streams_have_an_odd_number_of_replicas(value: str | None, replicas: int) -> None:
    assert Settings.from_environment({} if value is None else {"EF_REPLICAS": value}).replicas == replicas


@pytest.mark.parametrize("value", ["0", "2", "4", "6", "three"])
def test_another_number_of_replicas_is_named_with_the_allowed_ones(value: str) -> None:
    with pytest.raises(BadSettings, match=f"EF_REPLICAS='{value}': choose one of 1, 3, 5"):
        Settings.from_environment({"EF_REPLICAS": value})
