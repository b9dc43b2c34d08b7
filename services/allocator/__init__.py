"""Who gets how many GPUs now?

Consumes the ledger. Emits AllocationDecided at every scheduling event and whenever the planned shares change,
and ProfileCompleted once a scaling curve is known well enough to promise on. Scaling probes measure a job on idle
GPUs beyond its known curve.
Guarantees: every promised job holds at least its minimum satisfactory share; the rest of the GPUs goes to the jobs with
the greatest marginal return.
"""
