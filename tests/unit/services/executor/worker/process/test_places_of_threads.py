"""Where users' code is in each thread of a worker, for a job that hangs."""

import os
import sys
import threading
from pathlib import Path
from types import ModuleType

from elasticflow.services.executor.worker.process.users_process import places_of_threads

HANGS = """
def train(begun, released):
    begun.set()
    released.wait()
"""


def test_the_line_of_users_code_in_which_a_thread_hangs_is_named_once(tmp_path: Path, monkeypatch) -> None:
    file = tmp_path / "stuck_train.py"
    file.write_text(HANGS)
    module = ModuleType("stuck_train")
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "stuck_train", module)
    monkeypatch.chdir(tmp_path)
    exec(compile(HANGS, str(file), "exec"), vars(module))
    released, begun = threading.Event(), [threading.Event() for _ in range(2)]
    threads = [threading.Thread(target=module.train, args=(each, released), daemon=True) for each in begun]
    try:
        for thread, each in zip(threads, begun, strict=True):
            thread.start()
            each.wait()
        assert places_of_threads().count(" at stuck_train.py:4 in train") == 1
    finally:
        released.set()
        for thread in threads:
            thread.join()
    assert " at stuck_train.py:4 in train" not in places_of_threads()


def test_a_working_folder_that_is_gone_is_no_obstacle(tmp_path: Path, monkeypatch) -> None:
    """The telemetry thread asks: an error would end it, and with it all reports of the job."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "gone"
    folder.mkdir()
    os.chdir(folder)
    folder.rmdir()
    assert any("test_places_of_threads.py:" in place for place in places_of_threads())
