"""A worker process trains one job on one GPU, together with the job's other workers. Only this package imports torch.
A runner process executes tasks of one padding load on one GPU. An installer process installs packages for a job, a
fetcher gets its data.

No package imports it: the launcher starts `python -m elasticflow.services.executor.worker`, a fork server that loads
torch and forks a child for each worker and runner. They talk over sockets (shared/messages/worker_protocol/frames.py).

    process/      one operating-system process
        keeper.py               the fork server's parent: ends what is left if that is killed
        fork_server.py          forks workers and runners, reaps them, ends with its executor
        first_message.py        whether a fork becomes a worker, a runner, an installer or a fetcher
        run_worker.py           from the fork to the exit code
        channel.py              messages from and to the executor; the lease
        job_environment.py      the job's variables, and the folders that it imports from
        users_module.py         imports a module of the user's code
        log_file.py             where output goes
        device.py               the CPU slot or GPU: memory, errors, timing
        device_numbers.py       numbers that a device computes, on their way to the host
        numa_binding.py         the cores next to its GPU
        compiled_models.py      what torch.compile must do for equal bits
        traceback_text.py       tracebacks without the engine's frames
        process_title.py        the job's name in `ps`
        cpu_throttle.py         limits a CPU slot to a share of a core
        telemetry.py            reports progress, speed and lack of progress
    elastic/      workers that find, lose and join each other
        rendezvous.py           workers of a generation find and connect to each other
        rendezvous_store.py     its key-value store, with waits that can be aborted
        full_mesh.py            gloo's connections between them, made in attempts
        tcp_connections.py      finds and shuts down this process's connections
        groups.py               collectives between connected workers
        release.py              drops references to groups and reader processes in a thread
        transport.py            what moves a group's tensors: an interface, and a transfer
        device_transport.py     which of these a group needs for its device
        gloo_transport.py       between hosts
        nccl_transport.py       between GPUs
        staged_transport.py     between workers that share a GPU, by way of the host
        data_interface.py       the network interface of all of them
        peer_loss.py            detects the loss of a peer; the peer-loss watchdog
        compatibility_digest.py what workers must have in common
        switch.py               to another generation, without a stop
        state_transfer.py       the job's state from memory to memory
        nested_tensors.py       a state as its structure and its tensors (pure)
        plain_values.py         values between workers, which run no code in their reader
    steps/        training
        training_loop.py        from the assignment to the end of the job
        worker_setup.py         from the assignment to a worker that can train
        restored_state.py       the state with which all workers start, from a checkpoint
        local_training.py       a job in its user's process: no executor, no peers
        trainer.py              steps, evaluations, and the way from generation to generation
        training_step.py        one step: compute, agree
        step_metrics.py         what train() returned, agreed on one step late
        evaluation.py           the user's evaluation, by rank 0 or in parts on all workers
        step_agreement.py       what all workers agree on in each step; whether their states differ
        job_state.py            what a checkpoint or a state transfer carries; the step boundary to roll back to
        training_function.py    the interface of the user's class, and its import
        job_objects.py          the model, data and optimizer that it makes
        user_code_checks.py     what user code must return and do
        repeatability_check.py  whether a step depends on declared state only
        memory_growth.py        whether the memory grew step by step: a leak
        stragglers.py           which worker is persistently slow (pure)
        virtual_nodes.py        parts of a batch, fixed for life, and their workers (pure)
        random_seeds.py         seeds by phase, iteration and virtual node
        bitwise.py              a step with the same bits at any number of workers
        whole_batch.py          values of the whole batch within train()
        gradient_scaling.py     a GradScaler as state of the job
        fast.py                 a step with plain all-reduces
        dry_step.py             before a worker counts as ready: on a GPU each, else one that joins
        virtual_node_scheduler.py  synchronizes the calls of one step
        cooperative_thread.py   a call that can be suspended, and the threads of a process for them
        summation_tree.py       the order of every sum (pure)
        tree_reduce.py          sums of tensors along the tree within a worker
        shared_sum.py           its last part, with other workers, from within the last pass on
        tree_exchange.py        what they exchange and add, segment by segment
        flat_layout.py          where tensors lie in a flat buffer (pure)
        backward_pass.py        how a micro-batch's pass is weighted, and its gradients announced
        gradients_and_buffers.py   what the calls of one step share
        layer_statistics.py     which statistics of normalization layers a step has changed
    tasks/        a runner instead of a worker
        run_tasks.py            from the first message to the end: bundles one after another
        task_function.py        the function's import, and one call of it
        memory_limit.py         what tasks on a CPU slot may allocate
    training_tasks/   a training whose gradients are tasks of a padding load
        __main__.py             the manager's process, which a client starts
        manager.py              a worker that lets runners compute its gradients
        task_server.py          parameters out, gradients in, for one step after another
        step_tasks.py           which tasks are under way, done, and handed out twice (pure)
        task_steps.py           the runner's half of a step and the manager's
        gradient_task.py        the task function: what one virtual node adds to a step
        contribution_message.py   it as the fields and tensors of a message
        tensor_connection.py    the TCP connection between runner and manager
    fetching/     a fetcher instead of a worker
        fetch_data.py           from the order to the reply, by fsspec
    packages/     an installer instead of a worker
        install_packages.py     from the order to the reply
        installers.py           uv or pip as a child process
        loaded_packages.py      versions that no job can replace
    data/         samples
        dataset.py              recognizes the user's data set
        loader_settings.py      what a script's DataLoader says: kept or refused
        sample_order.py         (seed, iteration, virtual node) -> samples (pure)
        sample_readers.py       read map-style and streamed data sets
        streams.py              the job's place in a data set without a length
        stream_reader.py        reads such a data set, and comes to a place in it
        read_ahead.py           batches of coming steps
        device_copies.py        batches to the device, beside its work
        reader_process.py       a process that reads them
    checkpoint/   the job's state on disk
        store.py                complete or absent, newest generation first
        writer.py               when to write, and in the background
    scripts/      user scripts instead of a class
        elastic_script.py       a script with elasticflow.elastic(...), as a training function
        schedules.py            schedules step once a step, and are built for the job's steps
        torchrun_script.py      an unchanged torchrun script, restarted at each resize
        torchrun_progress.py    its progress, observed from outside
        own_rendezvous.py       where process groups of users' code meet
        script_environment.py   folder, arguments and environment variables
"""
