"""Garbage collection continues after the imports, and ignores the imported objects. Ctrl-C ends them at once."""

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from elasticflow.shared.library_imports import NOTHING_DONE, ending_at_interrupt, import_when_used, without_gc

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def as_before():
    yield
    gc.enable()


def test_no_garbage_is_collected_during_the_imports_nor_later_among_imported_objects():
    num_before = gc.get_freeze_count()
    with without_gc():
        assert not gc.isenabled()
        loaded = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= num_before + len(loaded)


def test_a_library_that_is_not_there_leaves_the_collector_on():
    with pytest.raises(ImportError), without_gc():
        raise ImportError("no such library")
    assert gc.isenabled()


@pytest.mark.parametrize("module", ["elasticflow", "elasticflow.simulator", "benchmarks.papers", "examples.demo"])
def test_ctrl_c_while_a_command_loads_ends_it_without_a_traceback(module: str, tmp_path: Path):
    (tmp_path / "typer.py").write_text("import signal\nsignal.raise_signal(signal.SIGINT)\n")
    ended = subprocess.run(
        [sys.executable, "-m", module],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{REPOSITORY}"},
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    said = NOTHING_DONE if module == "elasticflow" else ""  # the others send nothing
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", said)


def test_a_library_is_imported_when_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    package = tmp_path / "rarely_used"
    package.mkdir()
    (package / "__init__.py").write_text("from rarely_used.inner import value\n")
    (package / "inner.py").write_text("value = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    import_when_used("rarely_used")
    import rarely_used as stub  # as a library with a use for it does

    assert "rarely_used.inner" not in sys.modules
    assert stub.value == 7
    from rarely_used import inner

    assert stub.inner is inner is sys.modules["rarely_used.inner"]
    import_when_used("rarely_used")
    assert sys.modules["rarely_used"].value == 7
    import_when_used("there_is_no_such_library")
    assert "there_is_no_such_library" not in sys.modules


def test_ctrl_c_in_a_callback_of_the_imports_is_not_lost():
    program = (
        "import signal, weakref\n"
        "from elasticflow.shared.library_imports import NOTHING_DONE, ending_at_interrupt\n"
        "class Module: pass\n"
        "with ending_at_interrupt('nothing was done\\n'):\n"
        "    module = Module()\n"
        "    reference = weakref.ref(module, lambda _: signal.raise_signal(signal.SIGINT))\n"
        "    del module\n"
        "print('goes on')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "nothing was done\n")


def test_ctrl_c_after_the_imports_is_an_exception_again():
    with ending_at_interrupt():
        pass
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_an_ignored_ctrl_c_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with ending_at_interrupt():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
