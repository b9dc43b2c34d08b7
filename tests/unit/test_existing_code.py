"""A script of one's own as an elastic job: what changes in it, and how it is described."""

from difflib import SequenceMatcher
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples" / "ddp"


def test_five_lines_make_a_script_elastic():
    """Lines that are neither in both: what is changed counts once, what is added or taken away, too."""
    before, after = ((EXAMPLES / name).read_text().splitlines() for name in ("plain.py", "elastic.py"))
    changed = [
        max(len(removed), len(added))
        for tag, i1, i2, j1, j2 in SequenceMatcher(None, before, after).get_opcodes()
        if tag != "equal"
        for removed, added in [(written(before[i1:i2]), written(after[j1:j2]))]
    ]
    assert 0 < sum(changed) <= 5


def written(lines: list[str]) -> list[str]:
    return [line for line in lines if line.strip()]
