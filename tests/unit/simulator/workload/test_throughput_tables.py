from pathlib import Path

import pytest

from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.simulator.workload.csv_table import BadInput
from elasticflow.simulator.workload.throughput_tables import read_throughputs
from elasticflow.simulator.workload.workload import bundled_throughputs, throughputs_by_type

HEADER = "global_batch_size,1,2,4,8\n"


def folder_with(tmp_path: Path, text: str) -> Path:
    (tmp_path / "bert.csv").write_text(text)
    return tmp_path


def test_a_table_gives_a_curve_for_each_batch_size(tmp_path: Path) -> None:
    tables = read_throughputs(folder_with(tmp_path, f"{HEADER}128,1,2,3,4\n64,2.5,2,8,7\n"))
    assert tables.models == ("bert",)
    assert tables.batch_sizes("bert") == (64, 128)
    assert tables.curve("bert", 64) == ScalingCurve((1, 2, 4, 8), (2.5, 2.0, 8.0, 7.0))
    assert tables.batch_sizes("gpt") == ()


@pytest.mark.parametrize("nothing", ["", "nan", "NaN", "0", "0.0", " "])
def test_a_level_where_the_job_does_not_run_is_left_out_also_in_the_middle(tmp_path: Path, nothing: str) -> None:
    tables = read_throughputs(folder_with(tmp_path, f"{HEADER}64,{nothing},2,{nothing},7\n"))
    assert tables.curve("bert", 64) == ScalingCurve((2, 8), (2.0, 7.0))


def test_a_batch_size_without_a_level_is_left_out(tmp_path: Path) -> None:
    tables = read_throughputs(folder_with(tmp_path, f"{HEADER}64,1,2,3,4\n128,0,,nan,0\n"))
    assert tables.batch_sizes("bert") == (64,)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("64,1,2,3,4\n", 1, "the header must be global_batch_size,1,2,4,... (powers of two, ascending)"),
        ("batch,1,2\n64,1,2\n", 1, "it starts with 'batch'"),
        ("global_batch_size,1,3\n64,1,2\n", 1, "'3' is not a power of two"),
        ("global_batch_size,1,two\n64,1,2\n", 1, "'two' is not a power of two"),
        ("global_batch_size,01,2\n64,1,2\n", 1, "'01' is not a power of two"),
        ("global_batch_size,0,1\n64,1,2\n", 1, "'0' is not a power of two"),
        ("global_batch_size,2,1\n64,1,2\n", 1, "not ascending"),
        ("global_batch_size,1,1\n64,1,2\n", 1, "not ascending"),
        ("global_batch_size\n64\n", 1, "the header must be"),
        (f"{HEADER}64,1,-2,3,4\n", 2, "2 '-2': must be 0 to 1e+12 iterations/s"),
        (f"{HEADER}64,1,2,inf,4\n", 2, "4 'inf': must be"),
        (f"{HEADER}64,1,2,fast,4\n", 2, "4 'fast': must be"),
        (f"{HEADER}64,1,2,3,4\n64,1,2,3,4\n", 3, "global_batch_size '64': is in line 2 already"),
        (f"{HEADER}0,1,2,3,4\n", 2, "global_batch_size '0': must be 1 to"),
        (f"{HEADER}6.5,1,2,3,4\n", 2, "global_batch_size '6.5': must be a whole number"),
        (f"{HEADER},1,2,3,4\n", 2, "global_batch_size '': is missing"),
        (f"{HEADER}64,1,2,3\n", 2, "has 4 cells where the header has 5"),
        (HEADER, 0, "no batch size has a throughput"),
        ("", 0, "is empty"),
    ],
)
def test_a_bad_table_is_refused_by_file_and_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    with pytest.raises(BadInput) as refused:
        read_throughputs(folder_with(tmp_path, text))
    (problem,) = refused.value.problems
    assert (problem.file, problem.line) == (str(tmp_path / "bert.csv"), line)
    assert words in str(refused.value)


TYPED = "gpu_type,global_batch_size,1,2,4,8\n"


def test_a_table_may_have_rows_for_several_types(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, f"{TYPED}V100,64,4,6,8,9\nK80,64,1,2,,\nV100,128,2,3,4,5\n")
    (tmp_path / "gpt.csv").write_text(f"{TYPED}V100,64,1,2,3,4\n")
    tables = read_throughputs(folder, ("K80", "V100"))
    assert tables.models == ("bert",)  # gpt does not run on the first type
    assert tables.curve("bert", 64) == ScalingCurve((1, 2), (1.0, 2.0))
    assert tables.curve_by_type("bert", 64) == {
        "K80": ScalingCurve((1, 2), (1.0, 2.0)),
        "V100": ScalingCurve((1, 2, 4, 8), (4.0, 6.0, 8.0, 9.0)),
    }
    assert tables.curve_by_type("bert", 128).keys() == {"V100"}
    only = read_throughputs(folder, ("V100",))
    assert (only.batch_sizes("bert"), only.curve_by_type("bert", 64)) == ((64, 128), {})


def test_a_table_without_a_type_is_that_of_the_first_type(tmp_path: Path) -> None:
    (tmp_path / "gpt.csv").write_text(f"{TYPED}V100,64,4,6,8,9\nP100,64,1,2,3,4\n")
    tables = read_throughputs(folder_with(tmp_path, f"{HEADER}64,1,2,3,4\n"), ("P100", "V100"))
    assert tables.models == ("bert", "gpt")
    assert tables.curve_by_type("bert", 64) == {"P100": ScalingCurve((1, 2, 4, 8), (1.0, 2.0, 3.0, 4.0))}


@pytest.mark.parametrize(
    ("text", "gpu_types", "words"),
    [
        (
            f"{TYPED}V100,64,1,2,3,4\n",
            ("V100", "H100"),
            "no throughputs of GPU type 'H100'; it has V100; add rows with",
        ),
        (f"{HEADER}64,1,2,3,4\n", ("V100", "K80"), "no throughputs of GPU type 'K80'; its tables name no type"),
        (
            f"{TYPED}V100,64,1,2,3,4\n",
            ("",),
            "no throughput table without a GPU type; it has V100; name the types with",
        ),
        (f"{TYPED},64,1,2,3,4\n", ("V100",), "bert.csv:2: gpu_type '': is missing"),
        (f"{TYPED}V100,64,1,2,3,4\nV100,64,1,2,3,4\n", ("V100",), "global_batch_size '64': is in line 2 already"),
        ("gpu_type,1,2\nV100,1,2\n", ("V100",), "the header must be gpu_type,global_batch_size,1,2,4,... (powers"),
    ],
)
def test_an_unknown_type_is_refused_with_the_known_ones(
    tmp_path: Path, text: str, gpu_types: tuple[str, ...], words: str
) -> None:
    with pytest.raises(BadInput) as refused:
        read_throughputs(folder_with(tmp_path, text), gpu_types)
    assert words in str(refused.value)


def test_the_bundled_tables_by_type_have_curves_on_three_types() -> None:
    tables = read_throughputs(throughputs_by_type(), ("V100", "P100", "K80"))
    assert tables.models == ("resnet18", "resnet50", "transformer")
    assert tables.curve_by_type("resnet50", 128)["K80"].num_gpus_L == (1,)


def test_a_folder_without_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is not a folder"):
        read_throughputs(tmp_path / "missing")
    with pytest.raises(BadInput, match=r"has no throughput table <model>\.csv$"):
        read_throughputs(tmp_path)
    (tmp_path / "A100").mkdir()
    (tmp_path / "A100" / "bert.csv").write_text(HEADER)
    with pytest.raises(BadInput, match="there are some in A100: name that folder"):
        read_throughputs(tmp_path)


def test_the_bundled_tables_have_a_falling_curve_and_one_with_a_missing_level() -> None:
    tables = read_throughputs(bundled_throughputs())
    assert len(tables.models) == 6
    dlrm = tables.curve("dlrm", 2048)
    assert dlrm.throughput(2) < dlrm.throughput(1)
    assert 4 not in tables.curve("unet", 64).num_gpus_L
    assert tables.curve("unet", 64).throughput(8) > 0
