"""Which GPUs, in which buddy block?

Consumes the ledger. Emits PlacementDecided: a new generation for each job whose GPUs change.
Promises: any shares that fit by count fit by place; buddy blocks, best fit, as few migrations as that takes.
"""
