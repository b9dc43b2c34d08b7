"""Machines on one Ethernet: network namespaces on a bridge, whose packets can be dropped by source.

All of it lives in the namespaces of one process and ends with it, however that dies: no namespace has a name.

The seeds of a benchmark run several at a time, each as a command with network and process namespaces of its own.
"""

import argparse
import asyncio
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from elasticflow.shared.runtime.bus.nats.embedded_server import find_server
from elasticflow.shared.runtime.bus.streams import MAX_PAYLOAD_BYTES
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
        self._port: dict[str, str] = {}
        self._holder: dict[str, subprocess.Popen[bytes]] = {}
        for number, name in enumerate(names, start=1):
            self._add(name, number)

    def start(
        self, machine: str, command: Sequence[str | Path], *, env: Mapping[str, str], log: Path
    ) -> subprocess.Popen[bytes]:
        """Start a program on a machine."""
        with log.open("ab") as output:
            return subprocess.Popen(
                [*self.on(machine), *command],
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
            _run(*self.on(target), "iptables", "--wait", *rule)

    def limit(self, machine: str, megabits_per_s: int) -> None:
        """Make the machine's link this slow, in both directions."""
        rule = ("root", "tbf", "rate", f"{megabits_per_s}mbit", "burst", "256kb", "latency", "200ms")
        _run(*self.on(machine), "tc", "qdisc", "replace", "dev", "eth0", *rule)
        _run("tc", "qdisc", "replace", "dev", self._port[machine], *rule)

    def heal(self) -> None:
        """Drop no packet any more."""
        for machine in self.address:
            _run(*self.on(machine), "iptables", "--wait", "-F", "INPUT")

    def _add(self, name: str, number: int) -> None:
        holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "echo; exec sleep infinity"],
            stdout=subprocess.PIPE,
            preexec_fn=preexec_die_with_parent(),
        )
        assert holder.stdout is not None
        holder.stdout.readline()  # from here on it is in its own namespace
        self._holder[name], self.address[name], self._port[name] = holder, f"10.9.0.{number}", f"port{number}"
        _run("ip", "link", "add", self._port[name], "type", "veth", "peer", "name", "eth0", "netns", str(holder.pid))
        _run("ip", "link", "set", self._port[name], "master", "bridge0", "up")
        for step in ("link set lo up", f"address add {self.address[name]}/24 dev eth0", "link set eth0 up"):
            _run(*self.on(name), "ip", *step.split())

    def on(self, machine: str) -> tuple[str, ...]:
        """Start of a command that runs on this machine."""
        return ("nsenter", "--target", str(self._holder[machine].pid), "--net")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=30)


# --- a cluster of three nats-servers, each on a machine of its own -------------------------------------


SERVERS = ("server-1", "server-2", "server-3")


def url_of(network: Network, server: str) -> str:
    return f"nats://{network.address[server]}:4222"


def start_server(network: Network, name: str, folder: Path) -> subprocess.Popen[bytes]:
    """folder: holds its configuration, its log and, in a folder with its name, its streams."""
    address = network.address[name]
    routes = ", ".join(f'"nats://{network.address[other]}:6222"' for other in SERVERS)
    config = folder / f"{name}.conf"
    config.write_text(
        f'server_name: {name}\nhost: "{address}"\nport: 4222\nmax_payload: {MAX_PAYLOAD_BYTES}\n'
        f'jetstream {{ store_dir: "{folder / name}", sync_interval: always, max_file_store: 20GB }}\n'
        f'cluster {{ name: c, listen: "{address}:6222", routes: [{routes}] }}\n'
    )
    return network.start(name, [find_server(), "--config", config], env=os.environ, log=folder / f"{name}.log")


# --- seeds, each in namespaces of its own --------------------------------------------------------------


Result = TypeVar("Result")
TIMEOUT_S = 600.0  # of one seed


def seed_options(prog: str, description: str | None, *, num_seeds: int, num_parallel: int) -> argparse.ArgumentParser:
    """A parser with --seeds, --first, --parallel and --out, and these defaults."""
    parser = argparse.ArgumentParser(prog=prog, description=description)
    parser.add_argument("--seeds", type=int, default=num_seeds, help="number of seeds (default: %(default)s)")
    parser.add_argument("--first", type=int, default=0, help="first seed (default: %(default)s)")
    parser.add_argument("--parallel", type=int, default=num_parallel, help="seeds at a time (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="write all results to this file, as JSON")
    return parser


def run_seeds(
    module: str,
    options: argparse.Namespace,
    made: Callable[..., Result],
    row: Callable[[Result], str],
    arguments: Sequence[str] = (),
) -> list[Result]:
    """The results of the seeds that the options of `seed_options` name; a row is printed of each, as soon as it ends.

    made: from the members of a JSON object. Raises as `run_isolated`.
    """
    objects = run_isolated(
        module,
        range(options.first, options.first + options.seeds),
        num_parallel=options.parallel,
        on_result=lambda result: print(row(made(**result)), flush=True),
        arguments=arguments,
    )
    return [made(**each) for each in objects]


def run_isolated(
    module: str,
    seeds: range,
    *,
    num_parallel: int,
    on_result: Callable[[dict[str, Any]], None],
    arguments: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """The JSON objects that `python -m module SEED FOLDER ARGUMENTS` print last, by seed. Leaves nothing behind.

    on_result: called in the order of their ends. Raises RuntimeError with the error of a seed, TimeoutError.
    """
    for number in (signal.SIGINT, signal.SIGTERM):  # a process started in the background may ignore Ctrl-C
        signal.signal(number, signal.default_int_handler)
    return asyncio.run(_run_all(module, seeds, num_parallel, on_result, arguments))


async def _run_all(
    module: str, seeds: range, num_parallel: int, on_result: Callable[[dict[str, Any]], None], arguments: Sequence[str]
) -> list[dict[str, Any]]:
    turn = asyncio.Semaphore(num_parallel)

    async def run(seed: int) -> dict[str, Any]:
        async with turn:
            result = await run_seed(module, seed, arguments)
        on_result(result)
        return result

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(run(seed)) for seed in seeds]
    return [task.result() for task in running]


async def run_seed(module: str, seed: int, arguments: Sequence[str] = ()) -> dict[str, Any]:
    """One seed. Raises RuntimeError, TimeoutError."""
    with tempfile.TemporaryDirectory(prefix="seed-") as folder:
        process = await asyncio.create_subprocess_exec(
            *(*ISOLATED, sys.executable, "-m", module, str(seed), folder, *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            preexec_fn=preexec_die_with_parent(),
        )
        try:
            async with asyncio.timeout(TIMEOUT_S):
                output, errors = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            raise RuntimeError(f"seed {seed} failed:\n{errors.decode()[-4000:]}")
    return json.loads(output.splitlines()[-1])
