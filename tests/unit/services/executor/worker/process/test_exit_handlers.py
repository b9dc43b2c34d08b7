"""What users' code expects at the end of a process that ends by `os._exit`."""

import subprocess
import sys
import textwrap
from pathlib import Path

from tests.support.executor_process import ROOT

AT_HOME = """
import atexit, gzip, tempfile, threading, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

text = open("text.csv", "w")
text.write("last line")
packed = gzip.open("packed.gz", "wt")
packed.write("last line")
kept = [text, packed]
kept.append(kept)
atexit.register(lambda: Path("second").write_text(str(Path("uploaded").exists())))
atexit.register(lambda: Path("first").write_text(str(Path("second").exists())))
folder = tempfile.TemporaryDirectory(dir=".", prefix="temporary")
pool = ThreadPoolExecutor(1)
pool.submit(lambda: (time.sleep(0.1), Path("pooled").touch()))
threading.Thread(target=lambda: (time.sleep(0.1), Path("uploaded").touch())).start()
"""


def files_after(folder: Path, before: str, after: str) -> set[str]:
    folder.mkdir()
    program = f"{textwrap.dedent(before)}\n{AT_HOME}\n{after}"
    subprocess.run([sys.executable, "-c", program], cwd=folder, env={"PYTHONPATH": str(ROOT)}, check=True, timeout=60)
    assert (folder / "text.csv").read_text() == "last line"
    return {f"{file.name} {file.read_bytes()[10:]!r}" for file in folder.iterdir() if not file.is_dir()} | {
        file.name[:4] for file in folder.iterdir() if file.is_dir()
    }


def test_a_process_leaves_what_python_would_leave(tmp_path: Path) -> None:
    """Nothing that its parent had registered before the fork."""
    before = """
        import atexit, os, tempfile
        from pathlib import Path
        from elasticflow.services.executor.worker.process.exit_handlers import EXIT_HANDLERS
        atexit.register(lambda: Path("of the parent").touch())
        of_parent = tempfile.TemporaryDirectory()
        EXIT_HANDLERS.begin()
    """
    after = "EXIT_HANDLERS.run(30)\nassert Path(of_parent.name).exists()\nof_parent.cleanup()\nos._exit(0)"
    ours = files_after(tmp_path / "ours", before, after)
    assert ours == files_after(tmp_path / "python", "", "")
    assert {"first b''", "uploaded b''", "pooled b''"} <= ours


def test_a_thread_without_end_delays_the_end_only(tmp_path: Path) -> None:
    program = """
import os, threading
from elasticflow.services.executor.worker.process.exit_handlers import EXIT_HANDLERS
EXIT_HANDLERS.begin()
threading.Thread(target=threading.Event().wait).start()
EXIT_HANDLERS.run(0.01)
os._exit(7)
"""
    ended = subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": str(ROOT)}, timeout=60, check=False)
    assert ended.returncode == 7


def test_handlers_run_where_no_thread_can_start(tmp_path: Path) -> None:
    """As at the end of a job that has started as many processes as it may."""
    program = """
import atexit, os, threading
from pathlib import Path
from elasticflow.services.executor.worker.process.exit_handlers import EXIT_HANDLERS
EXIT_HANDLERS.begin()
atexit.register(lambda: Path("ran").touch())
def refuse(thread):
    raise RuntimeError("can't start new thread")
threading.Thread.start = refuse
EXIT_HANDLERS.run(30)
EXIT_HANDLERS.run(30)
os._exit(7)
"""
    environment = {"PYTHONPATH": str(ROOT)}
    ended = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, timeout=60, check=False)
    assert ended.returncode == 7
    assert (tmp_path / "ran").exists()
