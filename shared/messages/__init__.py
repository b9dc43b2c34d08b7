"""The language of the bus: values, facts, wishes, their life cycle and their bytes. Pure, no I/O."""
