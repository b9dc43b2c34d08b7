"""A traceback shows users' frames whole, and those of the engine in a line."""

import traceback
from collections.abc import Callable

from elasticflow.services.executor.worker.engine.training_function import in_users_code
from elasticflow.services.executor.worker.loop.run_worker import _failed, folded
from elasticflow.shared.frozen_values import fast_replace

ENGINE = in_users_code.__wrapped__.__code__.co_filename  # type: ignore[attr-defined]
SHARED = fast_replace.__code__.co_filename


def calling(file: str, inner: Callable[[], None]) -> Callable[[], None]:
    """A function of this file that calls another."""
    names: dict[str, object] = {"inner": inner}
    exec(compile("def outer():\n    inner()\n", file, "exec"), names)
    return names["outer"]  # type: ignore[return-value]


def raises() -> None:
    raise ValueError("no label")


def text_of(*files: str) -> str:
    call = raises
    for file in reversed(files):
        call = calling(file, call)
    try:
        call()
    except ValueError:
        return traceback.format_exc()
    raise AssertionError


def test_frames_of_the_engine_above_and_between_users_frames_are_one_line_each() -> None:
    text = text_of(ENGINE, SHARED, ENGINE, "/home/me/train.py", ENGINE, SHARED, "<frozen runpy>", "/home/me/train.py")
    lines = folded(text).splitlines()
    assert [line for line in lines if "frames of elasticflow" in line] == [
        "  … 3 frames of elasticflow (eflow explain --traceback shows them)"
    ] * 2
    assert sum("/home/me/train.py" in line for line in lines) == 2
    assert not any(ENGINE in line or SHARED in line for line in lines)
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[-3:] == text.splitlines()[-3:], "the raise and the error"


def test_the_report_of_a_failure_has_the_whole_traceback_if_some_of_it_is_folded() -> None:
    text, without_engine = text_of(ENGINE, SHARED, "/home/me/train.py"), text_of("/home/me/train.py")
    failed = _failed("no", text)
    assert (failed.traceback, failed.whole_traceback) == (folded(text), text)
    failed = _failed("no", without_engine)
    assert (failed.traceback, failed.whole_traceback) == (without_engine, "")


def test_each_part_of_a_chain_is_folded() -> None:
    first = text_of(ENGINE, SHARED, "/home/me/train.py")
    chain = first + "\nDuring handling of the above exception, another exception occurred:\n\n" + first
    assert folded(chain).count("… 2 frames of elasticflow") == 2
    assert "During handling of the above exception, another exception occurred:" in folded(chain)
