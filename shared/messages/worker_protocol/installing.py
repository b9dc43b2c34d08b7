"""Messages between an executor and the process that installs the packages of one job. Pure.

The order is the first message of a forked process; it sends one reply and ends.
"""

from dataclasses import dataclass

from elasticflow.shared.messages.job_environment import Requirements
from elasticflow.shared.messages.limits import Text

PACKAGES = "packages"  # the folder within that of the order


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallPackages:
    """Install packages into PACKAGES in this folder, which exists and is otherwise empty."""

    folder: str
    requirements: Requirements


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagesInstalled:
    """All packages are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagesNotInstalled:
    """The requirements cannot be met here; error: why, with the last lines of the installer."""

    error: Text


ToInstaller = InstallPackages
FromInstaller = PackagesInstalled | PackagesNotInstalled
