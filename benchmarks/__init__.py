"""Speed, side by side with a peer or a physical limit measured in the same run: a table and JSON."""
