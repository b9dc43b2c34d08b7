"""Five processes of one shape: a pure policy and a thin shell. They meet only on the bus."""
