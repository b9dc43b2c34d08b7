"""Containers of rendered pods as processes of this machine, and NATS with the rendered configuration.

Folders of the test are in the place of volumes, and its values in the place of what Kubernetes fills in.
"""

import json
import os
import re
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from elasticflow.shared.runtime.bus.nats.embedded_server import find_server
from tests.helm.chart import ROOT, pods

TOKEN = "tokenOfThisTest0123"


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def nats(configuration: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A server that reads this file, in this folder."""
    (folder / "nats.conf").write_text(configuration)
    with (folder / "nats.log").open("w") as log:
        server = subprocess.Popen(
            [str(find_server()), "--config", str(folder / "nats.conf")],
            env={"NATS_TOKEN": TOKEN},
            stdout=log,
            stderr=log,
        )
    try:
        yield server
    finally:
        server.kill()
        server.wait()


def nats_configuration(values: dict[str, Any], folder: Path, port: int) -> str:
    """As NATS' own chart writes it: what is to be merged is merged, and what is between << and >> has no quotes."""
    jetstream = values["config"]["jetstream"]
    file_store = {"store_dir": str(folder), "max_file_store": f"<< {jetstream['fileStore']['maxSize']} >>"}
    whole = {"listen": f"127.0.0.1:{port}", "jetstream": file_store | jetstream["merge"], **values["config"]["merge"]}
    return re.sub(r'"<< (.*?) >>"', r"\1", json.dumps(whole))


class RenderedPods:
    """The pods of these objects. nats_port: of the server that the chart would have made."""

    def __init__(self, objects: list[dict[str, Any]], folder: Path, nats_port: int) -> None:
        self._pods, self._folder, self._nats_port = pods(objects), folder, nats_port
        self._pages: dict[str, int] = {}

    def folder_of(self, volume: str) -> Path:
        """A volume, by the name of its claim or secret, or of an empty one."""
        (self._folder / volume).mkdir(exist_ok=True)
        return self._folder / volume

    def answers(self, name: str, path: str, status: int) -> bool:
        """Whether the page of this pod has this status now."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._pages[name]}{path}", timeout=10) as answer:
                return answer.status == status
        except urllib.error.HTTPError as error:
            return error.code == status
        except OSError:
            return False

    def prepare(self, name: str) -> None:
        """Run the container that a pod runs before, and await its end."""
        with self.started(name, "initContainers") as process:
            assert process.wait(120) == 0

    @contextmanager
    def started(self, name: str, kind: str = "containers") -> Iterator[subprocess.Popen[bytes]]:
        """The first container of a kind, of the pod whose name begins like this."""
        pod = next(spec for of_pod, spec in self._pods.items() if of_pod.startswith(name))
        container = pod[kind][0]
        mounted = self._mounted(name, pod, container)
        environment = self._environment(name, container.get("env", []), mounted)
        with (self._folder / f"{name}-{kind}.log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable if word == "python" else _replaced(word, mounted) for word in container["command"]],
                cwd=self._folder,
                env=environment,
                stdout=log,
                stderr=log,
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def _mounted(self, name: str, pod: dict[str, Any], container: dict[str, Any]) -> dict[str, str]:
        """The folder in the place of each path."""
        volumes = {volume["name"]: volume for volume in pod.get("volumes", [])}
        folders: dict[str, str] = {}
        for mount in container.get("volumeMounts", []):
            volume = volumes[mount["name"]]
            claim, secret = volume.get("persistentVolumeClaim", {}), volume.get("secret", {})
            source = claim.get("claimName") or secret.get("secretName") or f"{name}-{volume['name']}"
            folders[mount["mountPath"]] = str(self.folder_of(source))
        return folders

    def _environment(self, name: str, variables: list[dict[str, Any]], mounted: Mapping[str, str]) -> dict[str, str]:
        own = {key: value for key, value in os.environ.items() if not key.startswith(("EF_", "NATS_"))}
        own |= {"PATH": f"{Path(sys.executable).parent}:{own['PATH']}", "PYTHONPATH": str(ROOT)}
        for variable in variables:
            own[variable["name"]] = _replaced(self._value(name, variable, own), mounted)
        self._pages[name] = unused_port()
        local = {"EF_METRICS_HOST": "127.0.0.1", "EF_METRICS_PORT": str(self._pages[name])}
        return own | local | {"EF_DIE_WITH_PARENT": "1"}

    def _value(self, name: str, variable: dict[str, Any], before: Mapping[str, str]) -> str:
        filled_in = {"metadata.name": f"{name}-0", "status.podIP": "127.0.0.1", "NATS_TOKEN": TOKEN}
        if (source := variable.get("valueFrom")) is not None:
            return filled_in[source["fieldRef"]["fieldPath"] if "fieldRef" in source else source["secretKeyRef"]["key"]]
        value = re.sub(r"\$\((\w+)\)", lambda name: before[name[1]], variable["value"])
        return value.replace("elasticflow-nats:4222", f"127.0.0.1:{self._nats_port}")


def _replaced(text: str, folders: Mapping[str, str]) -> str:
    for path, folder in folders.items():
        text = text.replace(path, folder)
    return text
