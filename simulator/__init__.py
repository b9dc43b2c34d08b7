"""The second caller of the services' policies: replay of a ledger, and (to come) a virtual cluster."""
