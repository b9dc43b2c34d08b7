from pathlib import Path

import pytest

from elasticflow.shared.errors import BadSettings
from elasticflow.simulator.heterogeneous.throughput_table import (
    ThroughputTable,
    gavel_throughputs,
    read_throughput_table,
)
from elasticflow.simulator.workload.csv_table import BadInput

HEADER = "model,gpu_type,1,2,4\n"


def read(tmp_path: Path, text: str) -> ThroughputTable:
    file = tmp_path / "rates.csv"
    file.write_text(text)
    return read_throughput_table(file)


def test_rates_are_known_by_model_type_and_number_of_gpus(tmp_path: Path) -> None:
    table = read(tmp_path, f"{HEADER}gpt,V100,2,3.5,6\ngpt,K80,,0.5,0\nbert,V100,7,nan,\n")
    assert (table.models, table.gpu_types) == (("bert", "gpt"), ("K80", "V100"))
    assert table.throughputs("gpt", "V100") == {1: 2.0, 2: 3.5, 4: 6.0}
    assert table.throughputs("gpt", "K80") == {2: 0.5}
    assert table.throughputs("bert", "K80") == {}
    assert table.throughput_per_gpu("gpt", "K80") == 0.25
    assert table.throughput_per_gpu("bert", "K80") == 0.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model,1,2\ngpt,1,2\n", ":1: the header must be model,gpu_type,1,2,4,... (powers of two, ascending); it is"),
        (f"{HEADER}gpt,,1,2,3\n", ":2: gpu_type '': is missing"),
        (f"{HEADER},V100,1,2,3\n", ":2: model '': is missing"),
        (f"{HEADER}gpt,V100,1,2,3\ngpt,V100,1,2,3\n", ":3: gpu_type 'V100': has a row for this model already"),
        (f"{HEADER}gpt,V100,1,2\n", ":2: has 4 cells where the header has 5"),
        (f"{HEADER}gpt,V100,1,-2,3\n", ":2: 2 '-2': must be 0 to 1e+12 iterations/s"),
        ("model,gpu_type\ngpt,V100\n", ":1: the header must be model,gpu_type,1,2,4,..."),
        ("model,gpu_type,3\ngpt,V100,1\n", "'3' is not a power of two"),
        (HEADER, "has no throughputs; add a row for each model and GPU type"),
    ],
)
def test_errors_name_the_file_the_line_and_what_to_give(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(BadInput) as error:
        read(tmp_path, text)
    assert words in str(error.value)
    assert str(tmp_path / "rates.csv") in str(error.value)


def test_an_unknown_model_or_type_is_named_with_the_known_ones() -> None:
    table = gavel_throughputs()
    with pytest.raises(BadSettings, match=r"gavel.csv has no model 'gpt'; it has resnet18_batch128, resnet50_batch128"):
        table.throughputs("gpt", "V100")
    with pytest.raises(BadSettings, match=r"gavel.csv has no GPU type 'A100'; it has K80, P100, V100"):
        table.throughputs("resnet50_batch64", "A100")


def test_the_bundled_table_has_each_model_on_each_type() -> None:
    table = gavel_throughputs()
    assert table.gpu_types == ("K80", "P100", "V100")
    for model in table.models:
        assert table.throughput_per_gpu(model, "K80") < table.throughput_per_gpu(model, "P100")
        assert table.throughput_per_gpu(model, "P100") < table.throughput_per_gpu(model, "V100")
