"""How long training takes: the one model of virtual cluster, trace-driven simulation and replay."""
