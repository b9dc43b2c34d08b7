"""A filter of system calls (seccomp) for users' code, by the libseccomp of the system. Linux only.

It refuses what the default profiles of container runtimes refuse and no training needs: each is a way into the kernel
that has had faults. Programs that ask for one of these find it as on a machine that forbids it.
"""

import ctypes
import errno
import os

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
    """At the import: a fork that runs between two threads' system calls must not load any library."""
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


def filter_problem() -> str:
    """Why there is no filter here; "" if there is."""
    return "" if _library is not None else f"{_LIBRARY} is not installed"


def filter_system_calls() -> None:
    """For this process and all that it starts, which must not gain new rights. No effect without the library.

    Raises OSError.
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
        _checked(_library.seccomp_load(rules), "seccomp_load")
    finally:
        _library.seccomp_release(rules)


def _refuse(library: ctypes.CDLL, rules: int, name: str, error: int, *when: _Comparison) -> None:
    number = library.seccomp_syscall_resolve_name(name.encode())
    if number < 0:  # this machine has no such call, or this library does not know it
        return
    conditions = (_Comparison * len(when))(*when)
    result = library.seccomp_rule_add_array(rules, _REFUSE | error, number, len(when), conditions)
    _checked(result, f"seccomp_rule_add {name}")


def _checked(result: int, what: str) -> None:
    if result < 0:
        raise OSError(-result, f"{what}: {os.strerror(-result)}")
