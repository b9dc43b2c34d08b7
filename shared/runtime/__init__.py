"""Everything that touches the world: the bus, the clock, processes, settings, telemetry."""
