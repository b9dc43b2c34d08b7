"""The root folder of an isolated process: an empty one, with the system's folders for reading, and its own.

It is made by the first process of the namespaces, which keeps the machine's root at HOST until the worker's own folders
are known, and then removes it.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from elasticflow.shared.runtime.process.folder_tree import walk
from elasticflow.shared.runtime.process.isolation.system_calls import (
    bind,
    make_mounts_private,
    make_read_only,
    mount_memory,
    mount_processes,
    move_root_to,
    unmount,
)

HOST = "/.host"
_PLACE = "/tmp"  # exists everywhere; the machine's own is at HOST afterwards
_SMALL_BYTES = 4 << 20  # of a file system for mount points and links
_MEMORY = "/.memory"  # one file system for these folders, so that one size bounds them together
_SHARED_MEMORY = "/dev/shm"
_MEMORY_FOLDERS = {"/tmp": 0o1777, "/var/tmp": 0o1777, "/run": 0o755, _SHARED_MEMORY: 0o1777}  # and their modes
_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/sys"),
    *("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime"),
    *("/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/protocols", "/etc/services", "/etc/timezone"),
    *("/etc/passwd", "/etc/group", "/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/etc/mime.types"),
)
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


class FolderView:
    """owner: user of the worker's folders; None: of this process. memory_bytes, devices: as in `Isolation`."""

    def __init__(self, *, owner: int | None, memory_bytes: int, devices: Sequence[str] = ()) -> None:
        self._owner, self._memory_bytes, self._devices = owner, memory_bytes, devices

    def make(self, readable: Iterable[str], hidden: Iterable[str], *, shares_memory: bool) -> None:
        """Replace this namespace's root. readable: folders and files beside the system's; absent ones are left out.

        hidden: folders and files that would appear within them. shares_memory: /dev/shm is the machine's.
        """
        make_mounts_private()
        mount_memory(_PLACE, num_bytes=_SMALL_BYTES)
        os.mkdir(f"{_PLACE}{HOST}")
        move_root_to(_PLACE, HOST)
        _make_devices(self._devices)
        _make_memory_folders(self._bytes_of_files(), shares_memory=shares_memory)
        for path in sorted({*_SYSTEM, *readable}, key=len):  # some may be below these: a checkout in /tmp
            self._show(path)
        for path in hidden:
            _hide(path)
        os.makedirs("/proc", exist_ok=True)
        mount_processes("/proc")

    def show(self, readable: Iterable[str], writable: Iterable[str]) -> None:
        """Add folders of the worker; writable ones are made first, and belong to it from now on."""
        for folder in writable:
            os.makedirs(HOST + folder, exist_ok=True)
            self._hand_over(HOST + folder)
            self._show(folder, writable=True)
        for path in readable:
            self._show(path)

    def close(self) -> None:
        """Close the view: nothing can be added from now on."""
        unmount(HOST)
        os.rmdir(HOST)

    def _bytes_of_files(self) -> int:
        """Half of the machine's memory, as any tmpfs; less if the job has less."""
        half = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        return min(half, self._memory_bytes or half)

    def _show(self, path: str, *, writable: bool = False) -> None:
        source = HOST + path
        if os.path.islink(source):
            if not os.path.lexists(path):
                os.makedirs(os.path.dirname(path), exist_ok=True)
                os.symlink(os.readlink(source), path)
        elif os.path.exists(source):
            _make_mount_point(path, is_folder=os.path.isdir(source))
            bind(source, path)
            if not writable:
                make_read_only(path)

    def _hand_over(self, folder: str) -> None:
        """Give a folder and its files to the owner.

        They belong to another one after a run without isolation, or under another user.
        """
        if self._owner is None or os.stat(folder).st_uid == self._owner:
            return
        for entry in walk(Path(folder)):
            with suppress(FileNotFoundError):
                os.chown(entry.name or folder, self._owner, self._owner, dir_fd=entry.folder, follow_symlinks=False)


def _make_memory_folders(num_bytes: int, *, shares_memory: bool) -> None:
    """num_bytes: of all together."""
    os.mkdir(_MEMORY)
    mount_memory(_MEMORY, num_bytes=num_bytes)
    for number, (folder, mode) in enumerate(_MEMORY_FOLDERS.items()):
        source = f"{_MEMORY}/{number}"
        os.mkdir(source)
        os.chmod(source, mode)
        os.makedirs(folder)
        bind(f"{HOST}{folder}" if shares_memory and folder == _SHARED_MEMORY else source, folder)
    unmount(_MEMORY)
    os.rmdir(_MEMORY)


def _make_devices(more: Sequence[str]) -> None:
    os.mkdir("/dev")
    mount_memory("/dev", num_bytes=_SMALL_BYTES)
    for name in (*_DEVICES, *more):
        device = f"/dev/{name}"
        if os.path.exists(HOST + device):
            _make_mount_point(device, is_folder=os.path.isdir(HOST + device))
            bind(HOST + device, device)
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(f"/proc/self/{target}", f"/dev/{name}")


def _make_mount_point(path: str, *, is_folder: bool) -> None:
    if os.path.lexists(path):
        return
    os.makedirs(path if is_folder else os.path.dirname(path), exist_ok=True)
    if not is_folder:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))


def _hide(path: str) -> None:
    """Hide a path by an empty file or folder, if it is visible."""
    if os.path.isdir(path):
        mount_memory(path, num_bytes=_SMALL_BYTES)
    elif os.path.exists(path):
        bind(f"{HOST}/dev/null", path)
