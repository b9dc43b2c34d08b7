"""`elasticflow` as users install it: built as wheel and sdist, and installed into a folder."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
# The inputs of a build; other files of a checkout are not copied.
SOURCES = (
    "elasticflow",
    "shared",
    "services",
    "simulator",
    "LICENSE",
    "MANIFEST.in",
    "README.md",
    "pyproject.toml",
    "setup.py",
)


def copy_of_checkout(folder: Path) -> Path:
    """Copy the sources, so that a build neither writes into the checkout nor reads files of an older build."""
    for name in SOURCES:
        source, copy = ROOT / name, folder / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(source, copy, symlinks=True, ignore=ignored)
        elif source.is_file():
            shutil.copy(source, copy)
    return folder


def python(*arguments: str | Path, cwd: Path, **environment: str) -> str:
    """The output of a Python process, without the environment of this one. Fails if the process fails."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("EF_", "NATS_"))}
    ran = subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env=kept | {"PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    return ran.stdout


def build(checkout: Path, folder: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it."""
    python("-m", "build", "--no-isolation", "--outdir", folder, cwd=checkout)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


def install(wheel: Path, site: Path) -> Path:
    """Install the wheel without dependencies, which this environment has; `PYTHONPATH=site` finds it."""
    python("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", site, wheel, cwd=site.parent)
    return site
