"""The speed of padding loads: how fast tasks and results pass the bus."""
