"""The scheduling algorithms, as pure functions over values and arrays: no clock, no bus, no randomness without a seed.

jobs/          scaling curves, confidence, the table of jobs, the pool as planners see it
availability/  GPUs that are not promised over time; filling one job or many jobs into them; earliest completion
admission/     the plan of all promises, the search for one more promise, pricing, quotas
allocation/    how many GPUs each job gets now (ElasticFlow, Algorithm 2)
placement/     which GPUs each job gets: buddy blocks on the topology tree
proofs/        infeasibility certificates of rejections
padding/       tasks in idle windows: yield and cost (PaddingTorch, section 3.2), best length, which load gets a GPU
heterogeneous/ step times by GPU type; virtual nodes of one job on GPUs of several types (VirtualFlow, section 5)
compiled/      compilation of the loops with numba
"""
