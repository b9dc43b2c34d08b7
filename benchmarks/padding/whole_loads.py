"""Whole loads: from the inputs of `elasticflow.map` to its results, through admission, bus, executor and runners."""

from benchmarks.padding.loaded_pool import loaded_pool, mapped
from benchmarks.padding.streams import measure_streams
from benchmarks.padding.task_functions import nothing, rest
from benchmarks.report import Measured, Row

_NUM_SLOTS = 2
_EMPTY_TASK_S = 1e-4
_RAW_MESSAGES = 2_000


async def measure_whole_loads(*, num_empty_tasks: int, num_tasks: int, task_s: float = 0.05) -> Measured:
    """Empty tasks per second beside single messages of nats-py, and the useful share of tasks of `task_s` seconds.

    The share is of two slots, from the call of `map` to its last result.
    """
    async with loaded_pool() as pool:
        empty = [None] * num_empty_tasks
        await mapped(pool, nothing, empty[:100], load_id="warm-up", task_s=_EMPTY_TASK_S)
        results, empty_s = await mapped(pool, nothing, empty, load_id="empty", task_s=_EMPTY_TASK_S)
        assert len(results) == num_empty_tasks
        _, long_s = await mapped(pool, rest, [task_s] * num_tasks, load_id="long", task_s=task_s)
    raw = (await measure_streams(num_messages=min(_RAW_MESSAGES, num_empty_tasks), tasks_per_bundle=()))["raw"]
    return {
        "empty_tasks": num_empty_tasks,
        "empty_tasks_per_s": num_empty_tasks / empty_s,
        "raw_messages_per_s": 1.0 / (1.0 / raw["publish_per_s"] + 1.0 / raw["pull_and_ack_per_s"]),
        "task_s": task_s,
        "tasks": num_tasks,
        "tasks_took_s": long_s,
        "useful_share": num_tasks * task_s / (_NUM_SLOTS * long_s),
    }


def rows(measured: Measured) -> list[Row]:
    raw = f"publish, pull and ack, one by one: {measured['raw_messages_per_s']:,.0f}/s"
    useful = f"{measured['tasks']} tasks took {measured['tasks_took_s']:.1f} s"
    return [
        Row("empty tasks of a whole load", f"{measured['empty_tasks_per_s']:,.0f}/s", ">= 5,000/s", raw),
        Row(f"useful share, tasks of {measured['task_s']:g} s", f"{measured['useful_share']:.1%}", "", useful),
    ]
