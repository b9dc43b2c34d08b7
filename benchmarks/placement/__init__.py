"""How long placement thinks, in large pools."""
