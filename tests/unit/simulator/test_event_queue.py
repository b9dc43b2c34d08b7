"""Virtual time of the trace-driven simulation."""

from elasticflow.simulator.virtual_time import Engine


def test_time_never_goes_backwards() -> None:
    engine, seen = Engine(10.0), list[tuple[str, float]]()

    def note(name: str) -> None:
        seen.append((name, engine.now_s))

    def schedule_the_past() -> None:
        note("first")
        engine.at(5.0, lambda: note("past"))
        engine.after(0.0, lambda: note("now"))

    engine.at(30.0, lambda: note("last"))
    engine.at(20.0, schedule_the_past)
    engine.run(100.0)
    assert seen == [("first", 20.0), ("past", 20.0), ("now", 20.0), ("last", 30.0)]


def test_a_run_ends_at_its_end_and_goes_on_from_there() -> None:
    engine, seen = Engine(0.0), list[float]()
    for at_s in (3.0, 1.0, 2.0):
        engine.at(at_s, lambda: seen.append(engine.now_s))
    engine.run(2.0)
    assert seen == [1.0, 2.0]
    engine.run(9.0, done=lambda: True)
    assert seen == [1.0, 2.0]
    engine.run(9.0)
    assert seen == [1.0, 2.0, 3.0]


def test_callbacks_of_one_instant_run_by_rank_and_then_in_their_order() -> None:
    engine, seen = Engine(0.0), list[str]()
    for name, rank in (("last", (2, "")), ("b", (1, "b")), ("a", (1, "a")), ("first", (0, "")), ("second", (0, ""))):
        engine.at(1.0, lambda name=name: seen.append(name), rank=rank)
    engine.run(1.0)
    assert seen == ["first", "second", "a", "b", "last"]
