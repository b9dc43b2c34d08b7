"""The second caller of the services' policies: a recorded ledger replayed, and whole pools on a virtual clock."""
