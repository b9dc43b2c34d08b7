"""Who announces the end of this machine, and how to ask: metadata services of clouds, Slurm, a file.

A source blocks, for a bounded time. It raises OSError if nobody answers; what an answer means is in `answers`.
"""

import http.client
import os
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import urlsplit

from elasticflow.services.executor.end_notices.answers import aws_end, azure_end, file_end, gcp_end, slurm_end

CLOUDS = ("aws", "gcp", "azure")
FILE = "file:"
METADATA_ADDRESS = "http://169.254.169.254"  # of each of these clouds, by IPv4; nothing to be resolved

_REPLY_S = 2.0  # link-local services answer within milliseconds
_MAX_ANSWER_BYTES = 65_536
_SCONTROL_S = 10.0
_LEAVE_OUT = "leave --until-notice out"


class Answer(NamedTuple):
    """texts: as they were read. since_s: since when they hold; None: since they were first read."""

    texts: tuple[str | None, ...]
    since_s: float | None = None


class Source(Protocol):
    """every_s: the pause between two questions. absent: what it means if nobody has answered since the start."""

    every_s: float
    absent: str

    def ask(self) -> Answer:
        """Raises OSError if nobody answers."""
        ...

    def end_s(self, answer: Answer, since_s: float) -> float | None:
        """Raises ValueError if the answer cannot be understood."""
        ...


def source_of(until_notice: str, address: str, *, has_gpus: bool, environment: Mapping[str, str]) -> Source:
    """until_notice: aws, gcp, azure, slurm or file:PATH. address: of the metadata service; "": that of the cloud."""
    metadata = MetadataService(address or METADATA_ADDRESS)
    match until_notice:
        case "aws":
            return AwsSource(metadata)
        case "gcp":
            return GcpSource(metadata, has_gpus=has_gpus)
        case "azure":
            return AzureSource(metadata)
        case "slurm":
            return SlurmSource(environment)
        case _:
            return FileSource(Path(until_notice.removeprefix(FILE)))


# --- metadata services ---------------------------------------------------------------------------------


class Reply(NamedTuple):
    status: int
    text: str
    flavor: str  # by which Compute Engine tells its metadata service from others


class MetadataService:
    """Asked directly: a proxy of the environment would answer for another machine."""

    def __init__(self, address: str) -> None:
        self.address = address

    def reply(self, path: str, headers: Mapping[str, str], method: str = "GET") -> Reply:
        """Raises OSError."""
        parts = urlsplit(self.address)
        deadline_s = time.monotonic() + _REPLY_S
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 80, timeout=_REPLY_S)
        try:
            connection.request(method, path, headers=dict(headers))
            response = connection.getresponse()
            body = b""
            while chunk := response.read1(4096):
                body += chunk
                if len(body) > _MAX_ANSWER_BYTES or time.monotonic() > deadline_s:
                    raise OSError("its answer does not end")
            return Reply(response.status, body.decode(errors="replace"), response.headers.get("Metadata-Flavor", ""))
        except http.client.HTTPException as error:
            raise OSError(f"its answer is no HTTP: {type(error).__name__}") from error
        finally:
            connection.close()

    def absent(self, service: str, machine: str) -> str:
        return f"no {service} metadata service answers at {self.address}: this machine is no {machine}, {_LEAVE_OUT}"


def _content(path: str, reply: Reply) -> str:
    if reply.status != http.client.OK:
        raise OSError(f"{path}: it answers {reply.status}")
    return reply.text


_AWS_TOKEN = "/latest/api/token"
_AWS_ITEMS = ("/latest/meta-data/spot/instance-action", "/latest/meta-data/events/recommendations/rebalance")


class AwsSource:
    """An EC2 instance, by IMDSv2: each question carries a token.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/configuring-instance-metadata-service.html
    """

    every_s = 5.0  # as AWS recommends

    def __init__(self, metadata: MetadataService) -> None:
        self._metadata = metadata
        self._token = ""
        self.absent = metadata.absent("EC2", "EC2 instance")

    def ask(self) -> Answer:
        return Answer(tuple(self._item(path) for path in _AWS_ITEMS))

    def end_s(self, answer: Answer, since_s: float) -> float | None:
        instance_action, rebalance = answer.texts
        return aws_end(instance_action, rebalance)

    def _item(self, path: str) -> str | None:
        """None: there is no such item, so nothing is announced."""
        reply = self._reply(path)
        if reply.status == http.client.UNAUTHORIZED:  # the token has expired
            self._token = ""
            reply = self._reply(path)
        return None if reply.status == http.client.NOT_FOUND else _content(path, reply)

    def _reply(self, path: str) -> Reply:
        if not self._token:
            for_6_hours = {"X-aws-ec2-metadata-token-ttl-seconds": "21600"}
            self._token = _content(_AWS_TOKEN, self._metadata.reply(_AWS_TOKEN, for_6_hours, "PUT"))
        return self._metadata.reply(path, {"X-aws-ec2-metadata-token": self._token})


_GCP_ITEMS = ("/computeMetadata/v1/instance/preempted", "/computeMetadata/v1/instance/maintenance-event")


class GcpSource:
    """An instance of Compute Engine.

    https://cloud.google.com/compute/docs/metadata/querying-metadata
    """

    every_s = 1.0  # its shortest notice is of 30 s

    def __init__(self, metadata: MetadataService, *, has_gpus: bool) -> None:
        self._metadata, self._has_gpus = metadata, has_gpus
        self.absent = metadata.absent("Compute Engine", "instance of Compute Engine")

    def ask(self) -> Answer:
        return Answer(tuple(self._item(path) for path in _GCP_ITEMS))

    def end_s(self, answer: Answer, since_s: float) -> float | None:
        preempted, maintenance_event = answer.texts
        return gcp_end(preempted or "", maintenance_event or "", since_s, has_gpus=self._has_gpus)

    def _item(self, path: str) -> str:
        reply = self._metadata.reply(path, {"Metadata-Flavor": "Google"})
        if reply.flavor != "Google":
            raise OSError("another service answers there")
        return _content(path, reply).strip()


_AZURE_EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
_AZURE_NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
_NO_EVENTS = '{"Events": []}'


class AzureSource:
    """A virtual machine of Azure. Its events are read only: none is acknowledged, which would hasten it.

    https://learn.microsoft.com/en-us/azure/virtual-machines/linux/scheduled-events
    """

    every_s = 1.0  # as Azure recommends: its shortest notice is of 30 s

    def __init__(self, metadata: MetadataService) -> None:
        self._metadata = metadata
        self._machine = ""
        self._is_enabled = False
        self.absent = metadata.absent("Azure", "virtual machine of Azure")

    def ask(self) -> Answer:
        """The first question enables the events of a machine, and may be answered two minutes later only."""
        self._machine = self._machine or self._text(_AZURE_NAME)
        try:
            events = self._text(_AZURE_EVENTS)
        except TimeoutError:
            if self._is_enabled:
                raise
            events = _NO_EVENTS
        self._is_enabled = True
        return Answer((events, self._machine))

    def end_s(self, answer: Answer, since_s: float) -> float | None:
        scheduled_events, machine = answer.texts
        return azure_end(scheduled_events or "", machine or "", since_s)

    def _text(self, path: str) -> str:
        return _content(path, self._metadata.reply(path, {"Metadata": "true"})).strip()


# --- Slurm and files -----------------------------------------------------------------------------------


class SlurmSource:
    """The allocation in which this node runs. Its end moves with `scontrol update TimeLimit` and with a preemption."""

    every_s = 30.0  # each question is one to Slurm's controller, from each node
    absent = (
        "neither scontrol nor SLURM_JOB_END_TIME tells the end of an allocation: this machine is in no allocation of "
        f"Slurm, {_LEAVE_OUT}"
    )

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._job_id = environment.get("SLURM_JOB_ID", "")
        self._end_time = environment.get("SLURM_JOB_END_TIME", "")
        self._has_answered = False

    def ask(self) -> Answer:
        try:
            answer = Answer((self._shown(),))
        except OSError:
            if self._has_answered or not self._end_time:
                raise
            answer = Answer((f"EndTime={self._end_time}",))
        self._has_answered = True
        return answer

    def end_s(self, answer: Answer, since_s: float) -> float | None:
        return slurm_end(answer.texts[0] or "")

    def _shown(self) -> str:
        if not self._job_id:
            raise OSError("SLURM_JOB_ID is not set")
        command = ("scontrol", "show", "job", "--oneliner", self._job_id)
        environment = {**os.environ, "SLURM_TIME_FORMAT": "%s"}  # seconds since 1970: local times may be ambiguous
        try:
            shown = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False, timeout=_SCONTROL_S
            )
        except subprocess.TimeoutExpired:
            raise OSError(f"scontrol does not answer within {_SCONTROL_S:.0f} s") from None
        if shown.returncode != 0:
            raise OSError(f"scontrol: {shown.stderr.strip()[:200]}")
        return shown.stdout


class FileSource:
    """A file that announces the end while it is there: a time, or a duration since it was written."""

    every_s = 1.0

    def __init__(self, path: Path) -> None:
        self._path = path
        self.absent = f"the file {path} cannot be read: make its folder, or {_LEAVE_OUT}"

    def ask(self) -> Answer:
        """A file that is not there announces nothing; without its folder it never could."""
        try:
            with self._path.open(errors="replace") as file:
                return Answer((file.read(_MAX_ANSWER_BYTES),), os.fstat(file.fileno()).st_mtime)
        except FileNotFoundError:
            self._path.parent.stat()
            return Answer(("",))

    def end_s(self, answer: Answer, since_s: float) -> float | None:
        return file_end(answer.texts[0] or "", since_s)
