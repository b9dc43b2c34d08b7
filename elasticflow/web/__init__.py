"""The page of a pool in a browser: `eflow ui`.

A process of its own folds the ledger once, and sends what has changed to each browser (decision record 0057). It reads
what any client reads, decides nothing, and writes commands only with `--operator`.
"""
