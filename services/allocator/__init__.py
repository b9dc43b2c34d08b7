"""Decides how many GPUs each job has now.

Consumes the ledger. Emits AllocationDecided at every scheduling event and whenever the planned shares change,
ProfileCompleted once a scaling curve is complete enough for promises, and NodeDrainStarted shortly before the announced
end of a node, with an allocation that does without it. Promises with slack lend GPUs to profiling runs. Scaling probes
measure a job on idle GPUs, on more than its curve contains.
Guarantees: every promised job holds at least its minimum satisfactory share; the rest of the GPUs goes to the jobs with
the greatest marginal return.
"""
