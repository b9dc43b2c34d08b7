"""The files of the page: small, complete, from nowhere else, and without inline code."""

import gzip
import hashlib
import re
from pathlib import Path

import pytest

from elasticflow.web.server import STATIC

MAX_COMPRESSED_BYTES = 120_000
CODE = sorted(file for file in STATIC.rglob("*") if file.suffix in (".js", ".css"))
VENDORS = (STATIC / "vendor", Path(__file__).parents[3] / "page" / "vendor")
OWN = [file for file in CODE if file.parent == STATIC]


def test_scripts_and_styles_are_small() -> None:
    assert sum(len(gzip.compress(file.read_bytes())) for file in CODE) <= MAX_COMPRESSED_BYTES


def test_every_module_and_style_that_is_named_exists() -> None:
    named = [(file, name) for file in OWN for name in re.findall(r'from "\./([^"]+)"', file.read_text())]
    named += [(STATIC, name) for name in re.findall(r'"/static/([^"]+)"', (STATIC / "index.html").read_text())]
    assert [(file.name, name) for file, name in named if not (STATIC / name).is_file()] == []
    assert len(named) > 50


def test_nothing_is_loaded_from_elsewhere_and_nothing_is_inline() -> None:
    pages = [*OWN, STATIC / "index.html"]
    assert [
        file.name for file in pages if re.search(r"https?://|\beval\(|new Function|innerHTML", file.read_text())
    ] == []
    index = (STATIC / "index.html").read_text()
    assert not re.search(r"<script>|<style|\son\w+=|\sstyle=", index)


def test_each_library_has_its_licence() -> None:
    licences = {file.name for file in Path(STATIC / "vendor").glob("LICENSE-*.txt")}
    assert licences == {"LICENSE-htm.txt", "LICENSE-preact.txt", "LICENSE-uplot.txt"}


@pytest.mark.parametrize("vendor", VENDORS, ids=lambda vendor: vendor.parent.name)
def test_each_library_is_that_of_its_package(vendor: Path) -> None:
    listed = re.findall(r"^\| `([^`]+)` \|.*`([0-9a-f]{64})` \|$", (vendor / "README.md").read_text(), re.M)
    files = [file for file in vendor.iterdir() if file.suffix in (".js", ".css")]
    assert dict(listed) == {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    assert files
