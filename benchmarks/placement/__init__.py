"""The time of one placement decision in large pools."""
