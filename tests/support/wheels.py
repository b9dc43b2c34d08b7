"""Tiny packages that a node can install without a network."""

import base64
import hashlib
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path, PurePosixPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def make_wheel(
    folder: Path, name: str, version: str = "1.0", *, source: str = "", requires: tuple[str, ...] = ()
) -> Path:
    """A wheel with one module of this name. source: of the module; by default it has its version."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    files = {
        f"{name}.py": source or f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={_digest(text)},{len(text)}\n" for path, text in files.items())
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            archive.writestr(path, text)
    return wheel


def from_folder(folder: Path, *requirements: str) -> tuple[str, ...]:
    """Lines that install these from the folder only."""
    return ("--no-index", f"--find-links {folder}", *requirements)


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


def repack(folder: Path, *names: str) -> None:
    """Wheels of packages that this environment has, as an index would have them."""
    for package in map(distribution, names):
        tag = next(line for line in (package.read_text("WHEEL") or "").splitlines() if line.startswith("Tag: "))
        name = f"{package.name.replace('-', '_')}-{package.version}"
        with zipfile.ZipFile(folder / f"{name}-{tag.removeprefix('Tag: ')}.whl", "w") as wheel:
            packed = [file for file in package.files or () if _is_packed(file)]
            info = next(file.parts[0] for file in packed if file.parts[0].endswith(".dist-info"))
            for file in packed:
                wheel.write(str(file.locate()), str(file))
            wheel.writestr(f"{info}/RECORD", "".join(f"{file},,\n" for file in (*packed, f"{info}/RECORD")))


def _is_packed(file: PurePosixPath) -> bool:
    return ".." not in file.parts and "__pycache__" not in file.parts and file.name not in ("RECORD", "INSTALLER")


def needed_by(*names: str) -> set[str]:
    """These packages of this environment, and all that they need here."""
    found: dict[str, Distribution] = {}
    left = list(names)
    while left:
        name = canonicalize_name(left.pop())
        if name not in found:
            found[name] = distribution(name)
            needs = map(Requirement, found[name].requires or ())
            left += [each.name for each in needs if each.marker is None or each.marker.evaluate({"extra": ""})]
    return set(found)
