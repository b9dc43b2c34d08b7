"""A process of its own: trains one job on one GPU, as one of the job's workers. Only this room knows torch.

Nobody imports it: the launcher starts `python -m services.executor.worker`, a fork server that has torch
loaded and forks a child for each worker. They talk over sockets (shared/messages/worker_frames.py).

    fork_server.py        forks, reaps, dies with its executor
    worker_process.py     a child's life: channel, training, exit code
    log_file.py           where its output goes
    channel.py            the worker's end of its channel
    training.py           the loop, readable from top to bottom
    setting_up.py         from the assignment to a worker that can train
    trainer.py            one step of one worker, and what it changes
    membership.py         the other workers: what all agree on at each step
    groups.py             connections between workers, and how a loss shows
    meeting.py            where the workers of a generation meet
    meeting_store.py      what they tell each other there, until it is given up
    mesh.py               gloo's connections between them, made in attempts
    plan.py               what they must have in common
    changes.py            another generation, prepared beside the training; who survives a loss
    handover.py           the job's state from memory to memory
    fingerprint.py        whether all still hold the same
    training_function.py  what the user's class must offer, and how it is found
    device.py             the CPU slot or GPU that it works on
    virtual_nodes.py      parts of a batch, fixed for life: who carries which, and their seeds (pure)
    summation_tree.py     the one order in which they are summed (pure)
    data_order.py         (seed, iteration, virtual node) -> samples (pure)
    data_set.py           what the user's data set is, and how a job goes through it
    loading.py            reads parts of a map-style one
    streams.py            reads parts of one that is read in order
    read_ahead.py         batches of the steps to come, at hand when they are due
    reader_process.py     a process that reads them, and how they come from it
    bitwise.py            a step to the bit: train() for each virtual node, in lockstep
    lockstep.py           calls that meet on their way (pure)
    coroutine.py          a call that can be left in its middle and gone back to (pure)
    script.py             a script as a training function
    surroundings.py       where scripts run
    in_turn.py            its passes through one loop as the calls of one step
    tree_reduce.py        sums of tensors along the tree, here and between workers
    shared_gradients.py   the gradient of the global batch, for one call after another
    buffers.py            buffers by virtual nodes, and how they are combined
    repeatability.py      whether a step follows from what is declared
    fast.py               a step with plain all-reduces
    torchrun.py           a script as it is, begun anew at each change
    torchrun_environment.py  what torchrun tells its workers (pure)
    script_progress.py    how far such a script is, by what it does
    checkpoint.py         whole or not at all, newest generation first
    saving.py             checkpoints beside the training
    tensor_tree.py        a state as its outline and its tensors (pure)
    pacing.py             a CPU slot is a fixed share of a core
    telemetry.py          how far, how fast, or that nothing moves
"""
