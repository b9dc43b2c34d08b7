"""Names that an error offers for one that nobody has."""

from elasticflow.shared.messages.close_names import close_names, did_you_mean


def test_similar_names_and_those_that_begin_with_it_are_offered() -> None:
    known = ("digits-3f9a1c", "digits-77aa01", "hans", "text")
    assert close_names("han", known) == ("hans",)
    assert sorted(close_names("digits", known)) == ["digits-3f9a1c", "digits-77aa01"]
    assert did_you_mean("txet", known) == "; did you mean text?"
    assert did_you_mean("zzz", known) == did_you_mean("", known) == did_you_mean("a", ()) == ""


def test_of_very_many_names_the_neighbours_are_compared() -> None:
    """The order of the names does not matter."""
    many = [f"job-{number:05d}" for number in range(20_000)]
    assert "job-12345" in close_names("job-12345x", many)
    assert close_names("job-1234x", reversed(many)) == close_names("job-1234x", many)
    assert close_names("zob-00001", many) == (), "too far away in order"
