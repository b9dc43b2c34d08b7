"""Who gets how many GPUs now?

Consumes the ledger. Emits AllocationDecided at every scheduling event and whenever the planned shares change,
and ProfileCompleted once a scaling curve is known well enough to promise on. A job tries idle GPUs of which its curve
knows nothing (`trials`).
Promises: every promised job holds at least its minimum satisfactory share; what is left goes where it pays most.
"""
