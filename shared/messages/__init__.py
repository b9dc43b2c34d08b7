"""The messages of the bus: commands, events, the values in them, and their bytes. Pure, no I/O."""
