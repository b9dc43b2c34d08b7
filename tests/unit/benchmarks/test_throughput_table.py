import pytest

from benchmarks.heterogeneous.rounds import gavel_throughputs
from elasticflow.shared.errors import BadSettings
from tests.support.typed_jobs import table


def test_rates_are_known_by_model_type_and_number_of_gpus() -> None:
    rates = table(gpt={"V100": {1: 2.0, 2: 3.5}, "K80": {2: 0.5}}, bert={"V100": {1: 7.0}})
    assert (rates.models, rates.gpu_types) == (("bert", "gpt"), ("K80", "V100"))
    assert rates.throughputs("gpt", "V100") == {1: 2.0, 2: 3.5}
    assert rates.throughputs("bert", "K80") == {}
    assert rates.throughput_per_gpu("gpt", "K80") == 0.25
    assert rates.throughput_per_gpu("bert", "K80") == 0.0


def test_an_unknown_model_or_type_is_named_with_the_known_ones() -> None:
    rates = gavel_throughputs()
    with pytest.raises(
        BadSettings, match=r"throughputs_by_type has no model 'gpt'; it has resnet18_batch128, resnet50_batch128"
    ):
        rates.throughputs("gpt", "V100")
    with pytest.raises(BadSettings, match=r"throughputs_by_type has no GPU type 'A100'; it has K80, P100, V100"):
        rates.throughputs("resnet50_batch64", "A100")


def test_the_bundled_table_has_each_model_on_each_type() -> None:
    rates = gavel_throughputs()
    assert rates.gpu_types == ("K80", "P100", "V100")
    for model in rates.models:
        assert rates.throughput_per_gpu(model, "K80") < rates.throughput_per_gpu(model, "P100")
        assert rates.throughput_per_gpu(model, "P100") < rates.throughput_per_gpu(model, "V100")
