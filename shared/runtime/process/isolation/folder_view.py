"""The root folder of an isolated process: an empty one, with the system's folders for reading, and its own.

It is made by the first process of the namespaces, which keeps the machine's root at HOST until the worker's own folders
are known, and then removes it.
"""

import os
from collections.abc import Iterable
from contextlib import suppress

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
_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/sys"),
    *("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime"),
    *("/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/protocols", "/etc/services", "/etc/timezone"),
    *("/etc/passwd", "/etc/group", "/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/etc/mime.types"),
)
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "infiniband")
_GPU_DEVICES = "nvidia"  # the start of their names


class FolderView:
    """owner: user of the worker's folders; None: of this process."""

    def __init__(self, *, owner: int | None) -> None:
        self._owner = owner

    def make(self, readable: Iterable[str], hidden: Iterable[str], *, shares_memory: bool) -> None:
        """Replace this namespace's root. readable: folders and files beside the system's; absent ones are left out.

        hidden: folders and files that would appear within them. shares_memory: /dev/shm is the machine's.
        """
        make_mounts_private()
        mount_memory(_PLACE, options="mode=755,size=4m")
        os.mkdir(f"{_PLACE}{HOST}")
        move_root_to(_PLACE, HOST)
        for folder, mode in (("/tmp", "1777"), ("/var/tmp", "1777"), ("/run", "755")):
            os.makedirs(folder)
            mount_memory(folder, options=f"mode={mode},size=10%")
        for path in sorted({*_SYSTEM, *readable}, key=len):  # some may be below these: a checkout in /tmp
            self._show(path)
        for path in hidden:
            _hide(path)
        make_devices(shares_memory=shares_memory)
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
        """From now on nothing can be added."""
        unmount(HOST)
        os.rmdir(HOST)

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
        """After a run without isolation, or under another user, its files belong to another one."""
        if self._owner is None or os.stat(folder).st_uid == self._owner:
            return
        for parent, _, files in os.walk(folder):
            for name in (parent, *(os.path.join(parent, file) for file in files)):
                with suppress(FileNotFoundError):
                    os.chown(name, self._owner, self._owner, follow_symlinks=False)


def make_devices(*, shares_memory: bool) -> None:
    os.makedirs("/dev", exist_ok=True)
    mount_memory("/dev", options="mode=755,size=1m")
    gpus = (name for name in os.listdir(f"{HOST}/dev") if name.startswith(_GPU_DEVICES))
    for name in (*_DEVICES, *gpus):
        device = f"/dev/{name}"
        if os.path.exists(HOST + device):
            _make_mount_point(device, is_folder=os.path.isdir(HOST + device))
            bind(HOST + device, device)
    for name, target in (("fd", "fd"), ("stdin", "fd/0"), ("stdout", "fd/1"), ("stderr", "fd/2")):
        os.symlink(f"/proc/self/{target}", f"/dev/{name}")
    os.mkdir("/dev/shm")
    if shares_memory:
        bind(f"{HOST}/dev/shm", "/dev/shm")
    else:
        mount_memory("/dev/shm", options="mode=1777,size=50%")


def _make_mount_point(path: str, *, is_folder: bool) -> None:
    if os.path.lexists(path):
        return
    os.makedirs(path if is_folder else os.path.dirname(path), exist_ok=True)
    if not is_folder:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))


def _hide(path: str) -> None:
    """By an empty file or folder, if the path is visible."""
    if os.path.isdir(path):
        mount_memory(path, options="mode=755,size=4m")
    elif os.path.exists(path):
        bind(f"{HOST}/dev/null", path)
