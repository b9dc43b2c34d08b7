import pytest

from elasticflow.shared.errors import BadSettings
from elasticflow.simulator.workload.workload import TypedPool, typed_pool


def test_a_pool_keeps_the_order_of_its_types() -> None:
    pool = typed_pool("4xV100, 8xP100,16xA100-80GB")
    assert pool == TypedPool(("V100", "P100", "A100-80GB"), (4, 8, 16))
    assert pool.total_gpus == 28
    assert str(pool) == "4xV100,8xP100,16xA100-80GB"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot read ''; give each type once, as NUMBERxTYPE, for example 4xV100,8xP100,16xK80"),
        ("V100", "cannot read 'V100'"),
        ("4xV100,", "cannot read ''"),
        ("4 V100", "cannot read '4 V100'"),
        ("-4xV100", "cannot read '-4xV100'"),
        ("4xV 100", "cannot read '4xV 100'"),
        ("0xV100", "the number of V100 must be 1 to 131072"),
        ("999999999xV100", "the number of V100 must be 1 to 131072"),
        ("4xV100,8xV100", "type V100 appears twice"),
    ],
)
def test_an_invalid_pool_is_rejected_with_what_to_give(text: str, words: str) -> None:
    with pytest.raises(BadSettings) as error:
        typed_pool(text)
    assert words in str(error.value)
    assert repr(text) in str(error.value)
