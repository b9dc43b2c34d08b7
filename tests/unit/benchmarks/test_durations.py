"""The table of the seconds of tests adds up what pytest prints."""

from benchmarks.durations import by_file, table

PRINTED = """
1.50s call     tests/unit/benchmarks/test_engine.py::test_a[1]
0.50s setup    tests/unit/benchmarks/test_engine.py::test_a[1]
4.00s call     tests/unit/benchmarks/test_engine.py::test_b
0.25s call     tests/unit/benchmarks/test_durations.py::test_c
(12 durations < 0.05s hidden.)
2 passed in 3.00s
"""


def test_seconds_add_up_by_file_and_short_files_by_folder() -> None:
    measured = by_file(PRINTED.splitlines())
    assert measured == {
        "tests/unit/benchmarks/test_engine.py": (6.0, 2),
        "tests/unit/benchmarks/test_durations.py": (0.25, 1),
    }
    *_, long, short = table(measured)
    assert long.startswith("| `tests/unit/benchmarks/test_engine.py` | 6 | 2 | ")
    assert short == "| others of `tests/unit` | 0 | 1 | | |"
