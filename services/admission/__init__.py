"""Can we promise this deadline? What could we promise instead?

Consumes commands (`SubmitJob`, `CancelJob`, `ReserveQuote`, `AmendJob`, `SetGpuLimits`, `ProfileJob`,
`RequestCheckpoint`, `OpenLoad`, `SealLoad`, `CancelLoad`) from the pool's work queue, and the ledger; answers quotes.
Emits ProfileRequested, JobAdmitted, JobRejected, JobCancelled, CancelRejected, QuoteReserved, QuoteRejected,
JobAmended, AmendRejected, GpuLimitsSet, GpuLimitsRejected, GpuLimitsCleared, JobProfiled, CheckpointRequested,
CheckpointUpToDate, CheckpointRejected, GpuTypeChanged, GpuTypeKept, LoadOpened, LoadRejected, LoadSealed, SealRejected,
LoadCancelled, CancelLoadRejected, as decisions on the plan.
Guarantees: an admitted job has a schedule that keeps its deadline beside all earlier promises; a rejected job gets
the reason, and the earliest deadline that it could have. Any number of replicas may run.
"""
