"""A forked process that fetches data of a job by fsspec. It has the rights of a worker, and the job's variables: a URI
may name anything, and credentials are the job's own.
"""

import errno
import os
import sys
import traceback
from pathlib import Path, PurePosixPath
from typing import Any

from elasticflow.shared.messages.job_environment import without_secrets
from elasticflow.shared.messages.worker_protocol.forking import RESULT, FetchData, FromPreparer, NotPrepared, Prepared
from elasticflow.shared.runtime.remote_folder import credential_secrets, lacks_credentials

_MAX_TEXT = 8_000  # characters of an error


def fetch_data(order: FetchData) -> FromPreparer:
    os.environ.update(order.environment)
    try:
        fetch(order.uri, Path(order.folder) / RESULT)
    except Exception as error:  # libraries of many makers raise what they like
        values = order.environment.values()
        print(without_secrets(traceback.format_exc(), values), file=sys.stderr)
        said = _in_words(error, order.uri)
        if len(said) > _MAX_TEXT:  # the executor masks secrets, but not a part of one
            said = without_secrets(said, values)[:_MAX_TEXT]
        return NotPrepared(error=said)
    return Prepared()


def fetch(uri: str, target: Path) -> None:
    """Copy the file or folder into target, under its own name. Raises what the library for its protocol raises."""
    import fsspec.config
    from fsspec.core import url_to_fs

    fsspec.config.set_conf_env(fsspec.config.conf)  # FSSPEC_...: fsspec has read the variables when it was loaded
    system, path = _opened(url_to_fs, uri)
    found = system.info(path)
    copy = target / (PurePosixPath(path.partition("?")[0]).name or "data")
    target.mkdir()
    if found["type"] == "directory":
        copy.mkdir()
        system.get(f"{path.rstrip('/')}/", f"{copy}/", recursive=True)
    else:
        system.get_file(path, str(copy))


def _opened(url_to_fs: Any, uri: str) -> tuple[Any, str]:
    try:
        return url_to_fs(uri)
    except ImportError as error:
        raise ImportError(f"{error}; install it beside the executor of each node") from error


def _in_words(error: Exception, uri: str) -> str:
    if isinstance(error, FileNotFoundError):
        return f"it does not exist: {error}"
    if lacks_credentials(error):
        return f"the job has no credentials for it ({error}): pass {credential_secrets(uri)} with --secret"
    if isinstance(error, PermissionError):
        return f"permission denied: {error}; pass the credentials of its storage as variables, with --secret"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"the disk of this node is full: {error}"
    return f"{type(error).__name__}: {error}"
