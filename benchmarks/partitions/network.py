"""Machines on one Ethernet: network namespaces on a bridge, whose packets can be dropped by source.

All of it lives in the namespaces of one process and ends with it, however that dies: no namespace has a name.
"""

import itertools
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from elasticflow.shared.runtime.process.process_termination import preexec_die_with_parent

NEEDED_PROGRAMS = ("ip", "iptables", "nsenter", "unshare")
# A command behind this has network and process namespaces of its own. When the first process in them ends, the kernel
# ends all others.
ISOLATED = ("unshare", "--net", "--pid", "--fork", "--kill-child=SIGKILL", "--mount-proc")


def why_not() -> str:
    """Why this machine cannot make partitions; "" if it can."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    missing = [program for program in NEEDED_PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    rule = "ip link add bridge0 type bridge && iptables -A INPUT -s 10.9.0.1 -j DROP"
    attempt = subprocess.run([*ISOLATED, "sh", "-c", rule], capture_output=True, text=True, timeout=30, check=False)
    return "" if attempt.returncode == 0 else f"network namespaces are not permitted: {attempt.stderr.strip()[:200]}"


class Network:
    """Machines 10.9.0.1, 10.9.0.2, ... This process is on the same bridge, as 10.9.0.254.

    Only for a process behind `ISOLATED`.
    """

    def __init__(self, names: Iterable[str]) -> None:
        _run("ip", "link", "set", "lo", "up")
        _run("ip", "link", "add", "bridge0", "type", "bridge")
        _run("ip", "link", "set", "bridge0", "up")
        _run("ip", "address", "add", "10.9.0.254/24", "dev", "bridge0")
        self.address: dict[str, str] = {}
        self._holder: dict[str, subprocess.Popen[bytes]] = {}
        for number, name in enumerate(names, start=1):
            self._add(name, number)

    def start(
        self, machine: str, command: Sequence[str | Path], *, env: Mapping[str, str], log: Path
    ) -> subprocess.Popen[bytes]:
        """Start a program on a machine."""
        with log.open("ab") as output:
            return subprocess.Popen(
                [*self._on(machine), *command],
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=preexec_die_with_parent(),
            )

    def drop(self, sources: Iterable[str], targets: Iterable[str]) -> None:
        """Drop every packet from these machines to those."""
        for source, target in itertools.product(tuple(sources), tuple(targets)):
            rule = ("-A", "INPUT", "-s", self.address[source], "-j", "DROP")
            _run(*self._on(target), "iptables", "--wait", *rule)

    def heal(self) -> None:
        """Drop no packet any more."""
        for machine in self.address:
            _run(*self._on(machine), "iptables", "--wait", "-F", "INPUT")

    def _add(self, name: str, number: int) -> None:
        holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo; exec sleep infinity"],
            stdout=subprocess.PIPE,
            preexec_fn=preexec_die_with_parent(),
        )
        assert holder.stdout is not None
        holder.stdout.readline()  # from here on it is in its own namespace
        self._holder[name], self.address[name] = holder, f"10.9.0.{number}"
        _run("ip", "link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
        _run("ip", "link", "set", f"port{number}", "master", "bridge0", "up")
        for step in ("link set lo up", f"address add {self.address[name]}/24 dev eth0", "link set eth0 up"):
            _run(*self._on(name), "ip", *step.split())

    def _on(self, machine: str) -> tuple[str, ...]:
        return ("nsenter", "--target", str(self._holder[machine].pid), "--net")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=30)
