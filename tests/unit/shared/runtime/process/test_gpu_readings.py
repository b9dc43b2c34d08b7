"""What NVML says of a GPU, by a library of the same interface: use, errors, and why it should compute nothing."""

import pytest

from elasticflow.shared.runtime.process.gpu_readings import GpuReader, GpuReading
from testbed.fake_nvml import FakeGpu, FakeNvml


def test_a_gpu_is_read_with_all_that_it_supports() -> None:
    gpu = FakeGpu(uuid="GPU-1", utilization=37, clocks=0x1 | 0x4 | 0x40, corrected=5, rows=(2, 1, 0, 0), xids=[79, 31])
    nvml = FakeNvml(gpu)
    reader = GpuReader(("GPU-1",), nvml)
    assert reader.open()
    expected = GpuReading(
        utilization=0.37,
        memory_used_bytes=1 << 30,
        temperature_c=40,
        power_w=100.0,
        throttled_by=("power cap", "hardware thermal slowdown"),
        corrected_ecc_errors=5,
        uncorrected_ecc_errors=0,
        remapped_rows=3,
        xids=(79, 31),
    )
    assert reader.read() == {0: expected}
    assert reader.read()[0].xids == (), "each is told once"
    reader.close()
    reader.close()
    assert nvml.num_open == 0


def test_what_a_gpu_does_not_support_is_unknown() -> None:
    unsupported = frozenset({"utilization", "power", "rows", "ecc"})
    reader = GpuReader(("GPU-1",), FakeNvml(FakeGpu(uuid="GPU-1", action=None, unsupported=unsupported)))
    assert reader.open()
    reading = reader.read()[0]
    assert (reading.utilization, reading.power_w, reading.remapped_rows, reading.corrected_ecc_errors) == (None,) * 4
    assert (reading.temperature_c, reading.problem) == (40, "")


@pytest.mark.parametrize(
    ("action", "rows", "problem"),
    [
        (0, (0, 1, 1, 1), ""),  # the driver's own judgement counts
        (1, (0, 0, 0, 0), "needs a reset"),
        (2, (0, 0, 0, 0), "needs a reboot of its machine"),
        (3, (0, 0, 0, 0), ""),  # it computes on, without its peers' memory
        (99, (0, 0, 0, 0), ""),  # of a later driver
        (None, (1, 1, 0, 0), ""),
        (None, (1, 1, 1, 0), "needs a reset to replace a broken row of memory"),
        (None, (1, 1, 1, 1), "has no spare row of memory left for a broken one"),
    ],
)
def test_a_gpu_fails_by_the_judgement_of_its_driver_or_for_want_of_rows(
    action: int | None, rows: tuple[int, int, int, int], problem: str
) -> None:
    reader = GpuReader(("GPU-1",), FakeNvml(FakeGpu(uuid="GPU-1", action=action, rows=rows)))
    assert reader.open()
    assert reader.read()[0].problem == problem


def test_slots_that_share_a_gpu_have_its_reading_and_unknown_gpus_have_none() -> None:
    reader = GpuReader(("GPU-1", "GPU-1", "", "GPU-9"), FakeNvml(FakeGpu(uuid="GPU-1", utilization=50)))
    assert reader.open()
    assert {index: reading.utilization for index, reading in reader.read().items()} == {0: 0.5, 1: 0.5}


@pytest.mark.parametrize("nvml", [FakeNvml(has_driver=False), FakeNvml()])
def test_without_a_driver_or_gpus_nothing_is_read(nvml: FakeNvml) -> None:
    reader = GpuReader(("GPU-1",), nvml)
    assert not reader.open()
    assert reader.read() == {}
    reader.close()
    assert nvml.num_open == 0
