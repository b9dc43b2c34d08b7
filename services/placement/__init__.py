"""Decides which GPUs each job has, in buddy blocks.

Consumes the ledger. Emits PlacementDecided: a new generation for each job whose GPUs change.
Guarantees: shares whose sum fits the pool can always be placed, in buddy blocks by best fit, with as few migrations as
necessary.
"""
