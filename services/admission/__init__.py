"""Can we promise this deadline? What could we promise instead?

Consumes wishes (`SubmitJob`, `CancelJob`, `HoldQuote`, `AmendJob`, `ScaleJob`, `ProfileJob`, `CheckpointJob`) from the
pool's work queue and the ledger; answers quotes.
Emits ProfileRequested, JobAdmitted, JobRejected, JobCancelled, CancelRefused, QuoteHeld, QuoteRefused,
JobAmended, AmendRefused, JobScaled, ScaleRefused, BoundEnded, JobMeasured, CheckpointRequested, CheckpointKept,
CheckpointRefused, as decisions on the plan.
Promises: an admitted job has a schedule that keeps its deadline beside all earlier promises; a rejected one is
told why, and the earliest deadline it could have had. Any number of replicas may run.
"""
