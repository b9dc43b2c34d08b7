"""Which saves of a script are its snapshots: those of torch.save, of torch's distributed checkpoints, of safetensors.

A snapshot holds what the script had done when it began to save, also if a thread or a process writes it meanwhile.
"""

import importlib.util
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from functools import partial, wraps
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

SAVED_WITH = "torch.save, torch.distributed.checkpoint or safetensors"


class SnapshotWatch:
    """done: the iterations of the script by now. note: gets them, once a save that began with them has ended."""

    def __init__(self, done: Callable[[], Fraction], note: Callable[[Fraction], None]) -> None:
        self._done, self._note = done, note
        self._is_within = False  # a save of the script's thread, whose files are no snapshots of their own

    def begin(self) -> None:
        """Watch all saves of this process from now on, also by modules that are imported later."""
        torch.save = self._noted(torch.save, _is_to_file)
        _after_import(
            {
                "torch.distributed.checkpoint.state_dict_saver": self._watch_distributed,
                "safetensors.torch": self._watch_safetensors,
            }
        )

    def _watch_distributed(self, saver: ModuleType) -> None:
        functions = vars(saver)
        functions["async_save"] = self._noted_later(functions["async_save"])
        # the thread of async_save calls it, too
        functions["save"] = self._noted(functions["save"], lambda *_, **__: _is_of_script())

    def _watch_safetensors(self, module: ModuleType) -> None:
        functions = vars(module)
        functions["save_file"] = self._noted(functions["save_file"], lambda *_, **__: True)

    def _noted(self, save: Callable[..., Any], counts: Callable[..., bool]) -> Callable[..., Any]:
        @wraps(save)
        def save_and_note(*args: Any, **kwargs: Any) -> Any:
            if self._is_within and _is_of_script():
                return save(*args, **kwargs)
            done = self._done()
            with self._one_snapshot():
                result = save(*args, **kwargs)
            if counts(*args, **kwargs):
                self._note(done)
            return result

        return save_and_note

    @contextmanager
    def _one_snapshot(self) -> Iterator[None]:
        if _is_of_script():
            self._is_within = True
        try:
            yield
        finally:
            if _is_of_script():
                self._is_within = False

    def _noted_later(self, async_save: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(async_save)
        def save_and_note(*args: Any, **kwargs: Any) -> Any:
            done = self._done()
            response = async_save(*args, **kwargs)
            upload = getattr(response, "upload_completion", response)  # of torch's newer kind of response
            upload.add_done_callback(lambda ended: None if ended.exception() else self._note(done))
            return response

        return save_and_note


def _is_to_file(obj: Any, f: Any, *_: Any, **__: Any) -> bool:
    """Whether torch.save writes to a path or an open file. A save to memory is no snapshot, nor is one into a stream by
    a thread, which writes a part of a distributed checkpoint. Parameters have torch.save's names."""
    del obj
    if isinstance(f, str | os.PathLike):
        return True
    if not _is_of_script():
        return False
    try:
        return f.fileno() >= 0
    except (AttributeError, io.UnsupportedOperation):
        return False


def _is_of_script() -> bool:
    return threading.current_thread() is threading.main_thread()


# --- modules that are imported later -------------------------------------------------------------------


def _after_import(changes: Mapping[str, Callable[[ModuleType], None]]) -> None:
    """Change each module, by its name, before other code can take a function from it."""
    later = dict(changes)
    for name, change in changes.items():
        if (module := sys.modules.get(name)) is not None:
            change(module)
            del later[name]
    sys.meta_path.insert(0, _ChangedModules(later))


class _ChangedModules(MetaPathFinder):
    def __init__(self, changes: dict[str, Callable[[ModuleType], None]]) -> None:
        self._changes = changes

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> ModuleSpec | None:
        change = self._changes.pop(fullname, None)
        if change is None:
            return None
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._changes[fullname] = change  # who only asks whether there is such a module imports none
        if spec is None or spec.loader is None:
            return None
        spec.loader.exec_module = partial(_execute, spec.loader.exec_module, change)
        return spec


def _execute(execute: Callable[[ModuleType], None], change: Callable[[ModuleType], None], module: ModuleType) -> None:
    execute(module)
    change(module)
