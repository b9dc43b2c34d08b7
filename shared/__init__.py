"""What several packages need: the language of the bus, the algorithms, and everything that touches the world."""
