"""System calls for namespaces, mounts and rights that Python lacks. Linux only; each raises OSError.

The library handles are made at the import: a fork that runs between two threads' system calls must not load any.
"""

import ctypes
import errno
import os
import platform
import signal
import struct
from typing import NamedTuple

CLONE_NEWNS = 0x0002_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000

_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 0x2, 0x4, 0x8
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x4_0000
_MNT_DETACH = 2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID = 0x1, 0x2
_PR_SET_DUMPABLE, _PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 4, 23, 24, 38
_CAPABILITY_VERSION_3 = 0x2008_0522
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_FEW_FILES = 1024  # mount points and links


class _Numbers(NamedTuple):
    clone: int
    pivot_root: int
    capset: int
    mount_setattr: int


_NUMBERS = {"x86_64": _Numbers(56, 155, 126, 442), "aarch64": _Numbers(220, 41, 91, 442)}.get(platform.machine())

_libc = ctypes.CDLL(None, use_errno=True)
_libc_with_gil = ctypes.PyDLL(None, use_errno=True)  # a fork must not lose the interpreter's lock


def fork_into_namespaces(flags: int) -> int:
    """Fork as os.fork, in a process with one thread. The child has new namespaces: of CLONE_NEWPID it is process 1."""
    if _NUMBERS is None:
        raise OSError(errno.ENOSYS, f"namespaces are not supported on {platform.machine()}")
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = _libc_with_gil.syscall(_NUMBERS.clone, ctypes.c_ulong(flags | signal.SIGCHLD), 0, 0, 0, 0)
    error = ctypes.get_errno()
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(error, f"clone: {os.strerror(error)}")
    return pid


def enter_user_namespace() -> None:
    """A new one, in which this process has all rights over nothing but itself."""
    _checked(_libc.unshare(CLONE_NEWUSER), "unshare")


def make_mounts_private() -> None:
    """Mounts of this namespace from now on do not appear in others."""
    _mount(None, "/", None, _MS_REC | _MS_PRIVATE)


def mount_memory(folder: str, *, num_bytes: int) -> None:
    """A file system in memory. Its files are bounded in number, too: empty ones take memory of the kernel."""
    pages = max(1, num_bytes // _PAGE_BYTES)  # a size of 0 is no limit
    options = f"mode=755,size={pages * _PAGE_BYTES},nr_inodes={pages + _FEW_FILES}"
    _mount("tmpfs", folder, "tmpfs", _MS_NOSUID | _MS_NODEV, options)


def mount_processes(folder: str) -> None:
    """/proc of this process's namespace."""
    _mount("proc", folder, "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)


def bind(source: str, target: str) -> None:
    """Make a file or folder, with all that is mounted in it, appear at another path too."""
    _mount(source, target, None, _MS_BIND | _MS_REC)


def make_read_only(path: str) -> None:
    """A mount and all mounts in it; programs in it gain no rights. Devices stay writable."""
    assert _NUMBERS is not None
    attributes = struct.pack("QQQQ", _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID, 0, 0, 0)
    call = _NUMBERS.mount_setattr, _AT_FDCWD, path.encode(), _AT_RECURSIVE, attributes, len(attributes)
    _checked(_libc.syscall(*call), f"mount_setattr {path}")


def move_root_to(folder: str, old_root: str) -> None:
    """A mount becomes the root; the old one appears at old_root, a path in it."""
    assert _NUMBERS is not None
    _checked(_libc.syscall(_NUMBERS.pivot_root, folder.encode(), f"{folder}{old_root}".encode()), "pivot_root")
    os.chdir("/")


def unmount(folder: str) -> None:
    """Unmount a folder, also if it is in use: it disappears for all processes of the namespace."""
    _checked(_libc.umount2(folder.encode(), _MNT_DETACH), f"umount {folder}")


def forbid_new_rights() -> None:
    """No program that this process or its children start gains rights from its file."""
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")


def set_readable_by_others(readable: bool) -> None:
    """Whether processes of the same user may read this process's memory and environment, and trace it."""
    _checked(_libc.prctl(_PR_SET_DUMPABLE, int(readable), 0, 0, 0), "prctl(PR_SET_DUMPABLE)")


def drop_capabilities() -> None:
    """Drop the capabilities of this thread, and those that a program could gain: its bounding set becomes empty."""
    assert _NUMBERS is not None
    capability = 0
    while _libc.prctl(_PR_CAPBSET_READ, capability, 0, 0, 0) >= 0:  # up to the last one that the kernel knows
        _checked(_libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0), "prctl(PR_CAPBSET_DROP)")
        capability += 1
    header, none = struct.pack("Ii", _CAPABILITY_VERSION_3, 0), struct.pack("6I", 0, 0, 0, 0, 0, 0)
    _checked(_libc.syscall(_NUMBERS.capset, header, none), "capset")


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str = "") -> None:
    encoded = (None if text is None else text.encode() for text in (source, target, kind))
    result = _libc.mount(*encoded, ctypes.c_ulong(flags), options.encode() or None)
    _checked(result, f"mount {source or ''} on {target}")


def _checked(result: int, what: str) -> None:
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{what}: {os.strerror(error)}")


# --- system call filter --------------------------------------------------------------------------------
# A filter of system calls (seccomp) for users' code, by the libseccomp of the system. Linux only.
#
# It refuses what the default profiles of container runtimes refuse and no training needs: each is a way into the
# kernel that has had faults. Programs that ask for one of these find it as on a machine that forbids it.

_LIBRARY = "libseccomp.so.2"
_ALLOW, _REFUSE = 0x7FFF_0000, 0x0005_0000  # the second with an error number
_MASKED_EQUAL = 7
_ALLOW_SPECULATION, _OPTIMIZE = (7, 1), (8, 2)  # attributes: no slower arithmetic; a tree instead of a list

_NOT_PERMITTED = (
    *("bpf", "perf_event_open", "userfaultfd", "ptrace", "keyctl", "add_key", "request_key"),
    *("mount", "umount", "umount2", "pivot_root", "chroot", "mount_setattr", "move_mount", "open_tree"),
    *("fsopen", "fsmount", "fsconfig", "fspick", "unshare", "setns", "open_by_handle_at", "fanotify_init"),
    *("init_module", "finit_module", "delete_module", "create_module", "query_module", "get_kernel_syms"),
    *("kexec_load", "kexec_file_load", "reboot", "swapon", "swapoff", "acct", "quotactl", "quotactl_fd", "syslog"),
    *("settimeofday", "clock_settime", "clock_settime64", "clock_adjtime", "clock_adjtime64", "stime", "adjtimex"),
    *("iopl", "ioperm", "vhangup", "lookup_dcookie", "nfsservctl", "_sysctl", "sysfs", "uselib", "ustat"),
    *("vm86", "vm86old"),
)
_ABSENT = ("io_uring_setup", "io_uring_enter", "io_uring_register", "clone3")  # their callers have another way
_NEW_NAMESPACES = (  # flags of clone: mounts, control groups, names, IPC, users, processes, network
    *(0x0002_0000, 0x0200_0000, 0x0400_0000, 0x0800_0000, 0x1000_0000, 0x2000_0000, 0x4000_0000),
)


class _Comparison(ctypes.Structure):
    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operation", ctypes.c_int),
        ("mask", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
    )


def _load() -> ctypes.CDLL | None:
    """Load the library at the import: a fork that runs between two threads' system calls must not load any library."""
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError:
        return None
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = (ctypes.c_uint32,)
    library.seccomp_release.argtypes = library.seccomp_load.argtypes = (ctypes.c_void_p,)
    library.seccomp_attr_set.argtypes = (ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32)
    library.seccomp_rule_add_array.argtypes = (
        *(ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint),
        ctypes.POINTER(_Comparison),
    )
    return library


_library = _load()
NO_FILTER = "no filter of the system calls of jobs"  # what a node reports without the library


def filter_problem() -> str:
    """Why there is no filter here; "" if there is."""
    return "" if _library is not None else f"{_LIBRARY} is not installed"


def filter_system_calls() -> None:
    """Filter the system calls of this process and all that it starts, which must not gain new rights.

    There is no effect without the library. Raises OSError.
    """
    if _library is None:
        return
    rules = _library.seccomp_init(_ALLOW)
    if not rules:
        raise OSError(errno.ENOMEM, "seccomp_init")
    try:
        for attribute in (_ALLOW_SPECULATION, _OPTIMIZE):
            _library.seccomp_attr_set(rules, *attribute)  # an older library lacks it
        for names, error in ((_NOT_PERMITTED, errno.EPERM), (_ABSENT, errno.ENOSYS)):
            for name in names:
                _refuse(_library, rules, name, error)
        for flag in _NEW_NAMESPACES:
            _refuse(_library, rules, "clone", errno.EPERM, _Comparison(0, _MASKED_EQUAL, flag, flag))
        _accepted(_library.seccomp_load(rules), "seccomp_load")
    finally:
        _library.seccomp_release(rules)


def _refuse(library: ctypes.CDLL, rules: int, name: str, error: int, *when: _Comparison) -> None:
    number = library.seccomp_syscall_resolve_name(name.encode())
    if number < 0:  # this machine has no such call, or this library does not know it
        return
    conditions = (_Comparison * len(when))(*when)
    result = library.seccomp_rule_add_array(rules, _REFUSE | error, number, len(when), conditions)
    _accepted(result, f"seccomp_rule_add {name}")


def _accepted(result: int, what: str) -> None:
    if result < 0:
        raise OSError(-result, f"{what}: {os.strerror(-result)}")
