"""The seconds of each file of tests: `pytest --durations=0 ... | python -m benchmarks.durations`.

A wall second of a test counts in full, although others run beside it.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LINE = re.compile(r"([0-9.]+)s (?:call|setup|teardown) +(tests/\S+?\.py)::(\S+)")
STARTS = {  # what the text of a file says that it starts, the largest first
    "a pool": r"running_pool|\bsession_pool\b|command_line_pool|eflow\(|\bcli\b|pool_of_versions",
    "workers": r"\bnode\b.*spec_of|each_node|prove\(|runners\b",
    "nats-server": r"nats_server|connect_nats|EmbeddedServer|\bconnect\b",
    "a simulation": r"simulat|VirtualCluster",
    "processes": r"subprocess|create_subprocess",
}
LEAST_S = 5.0  # of a file in the table


def by_file(lines: Iterable[str]) -> dict[str, tuple[float, int]]:
    """Seconds and number of tests."""
    seconds, tests = defaultdict[str, float](float), defaultdict[str, set[str]](set)
    for found in filter(None, map(LINE.match, lines)):
        seconds[found[2]] += float(found[1])
        tests[found[2]].add(found[3])
    return {file: (seconds[file], len(tests[file])) for file in sorted(seconds, key=seconds.__getitem__, reverse=True)}


def what_it_starts(text: str) -> str:
    return next((what for what, pattern in STARTS.items() if re.search(pattern, text)), "nothing")


def table(measured: dict[str, tuple[float, int]]) -> Iterator[str]:
    """Rows of files that take long, and a row of all others of each folder."""
    yield "| file | seconds | tests | it starts | what it finds |"
    yield "|---|---|---|---|---|"
    others = dict[str, tuple[float, int]]()
    for file, (total_s, num_tests) in measured.items():
        folder = "/".join(file.split("/")[:2])
        if total_s < LEAST_S:
            before_s, before = others.get(folder, (0.0, 0))
            others[folder] = before_s + total_s, before + num_tests
            continue
        text = (ROOT / file).read_text()
        (subject, *_) = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")
        subject = " ".join(subject.split())
        yield f"| `{file}` | {total_s:.0f} | {num_tests} | {what_it_starts(text)} | {subject} |"
    for folder, (total_s, num_tests) in others.items():
        yield f"| others of `{folder}` | {total_s:.0f} | {num_tests} | | |"


if __name__ == "__main__":
    print("\n".join(table(by_file(sys.stdin))))
