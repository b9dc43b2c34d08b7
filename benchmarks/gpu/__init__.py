"""What only a GPU can show, within the time for which a machine is lent: see README.md."""
