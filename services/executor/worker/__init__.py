"""A worker process trains one job on one GPU, together with the job's other workers. Only this package imports torch.
A runner process executes tasks of one padding load on one GPU. An installer process installs packages for a job,
or makes its environment; a fetcher gets its data.

Imports run from below to above in this order: interface, process, group, checkpoint, data, engine, scripts, loop.

No package imports it: the launcher starts `python -m elasticflow.services.executor.worker`, a fork server that loads
torch and forks a child for each worker and runner. They talk over sockets (shared/messages/worker_protocol/frames.py).

    fork_server_parent.py   ends what is left if the fork server is killed
    fork_server.py          forks workers, runners, installers and fetchers, reaps them, ends with its executor
    interface.py                what users' code is to a worker: a training function, and its failure
    process/      one operating-system process
        channel.py              messages from and to the executor; the lease
        commands.py             where this process's threads are, and users' commands beside it
        exit_handlers.py        what Python does at the end of a process, before the worker's own end
        users_code.py           which modules are the user's, and their import; the variables and folders of a job
        users_process.py        what users' code does to its process: ends, forks, timers, standard input
        working_folder.py       the folder in which a job's processes work
        log_file.py             where output goes
        device.py               the CPU slot or GPU: memory, errors, advice, timing, near cores, numbers it computes
        compiled_models.py      what torch.compile must do for equal bits
        cpu_slot_limits.py      what a CPU slot may use: a share of a core, and the memory of tasks
        telemetry.py            reports progress, speed and lack of progress
    group/        workers that find, lose and join each other
        rendezvous.py           workers of a generation find and connect to each other
        rendezvous_store.py     its key-value store, with waits that can be aborted
        tcp_connections.py      this process's connections: their secret, their network interface, their end
        gang_group.py           torch's process group of the workers that hold one model together
        groups.py               collectives between connected workers, their end, the transport that a device needs
        transport.py            what moves a group's tensors: an interface, and a transfer
        gloo_transport.py       between hosts, or between workers that share a GPU, by way of the host
        nccl_transport.py       between GPUs
        peer_loss.py            detects the loss of a peer; the peer-loss watchdog
        compatibility_digest.py what workers must have in common
        state_transfer.py       the job's state from memory to memory
        nested_tensors.py       a state as its structure and its tensors (pure)
    checkpoint/   the job's state on disk
        shards.py               a state of which each worker of a gang has some rows (pure)
        store.py                complete or absent, newest generation first
        files.py                files with their digest, whole, of parts, or of a model; parts of parameters
        writer.py               when to write, and in the background
    data/         samples
        dataset.py              recognizes the user's data set; the job's place in one without a length
        loader_settings.py      what a script's DataLoader says: kept or refused
        sample_order.py         (seed, iteration, virtual node) -> samples (pure)
        sample_readers.py       read map-style and streamed data sets, and those without a length
        read_ahead.py           batches of coming steps, read by a process, and on their way to the device
        virtual_nodes.py        parts of a batch, fixed for life, and their workers (pure)
        random_seeds.py         seeds by phase, iteration and virtual node
    engine/       a step
        restored_state.py       the state with which all workers start, from a checkpoint
        trainer.py              steps, evaluations, and the way from generation to generation
        training_step.py        one step: compute, agree
        straggler_detection.py  which worker is persistently slower than its peers (pure)
        memory_growth.py        a leak, told from a batch that is too large
        step_metrics.py         what train() returned, agreed on one step late
        step_agreement.py       what all workers agree on in each step; whether their states differ
        job_state.py            the model, data and optimizer; what a checkpoint or a state transfer carries
        training_function.py    the import of the user's class, and what its errors mean
        user_code_checks.py     what user code must return and do
        check_points.py         the steps in which checks of the first ones run again
        values_of_parts.py      what user code takes from one part of a batch as if that were the whole
        undeclared_state.py     modules and tensors that train() changes beside the job's state
        unseen_changes.py       what users' code changes, and the processes that read do not see
        kept_tensors.py         tensors that user code keeps from step to step, of which it is warned
        additional_state.py     objects beside the model and the optimizer that are state
        plain_state.py          attributes of a job, variables of a script, modules and callbacks that are state
        plain_values.py         numbers, texts, small arrays, and containers and objects of them, as copies
        changed_attributes.py   attributes that user code gives any module while it trains
        changed_bindings.py     variables that it binds to another module or function meanwhile
        model_structure.py      modules, parameters and hooks of the model, which stay
        queues_in_buffers.py    queues of samples in buffers, of which a mean is wrong
        bitwise_steps.py        a step with the same bits at any number of workers
        whole_batch.py          values of the whole batch within train()
        gradient_scaling.py     a GradScaler as state of the job
        gradient_digest.py      whether all optimizers step with the same gradient
        gang.py                 the workers that hold one model together by FSDP2, and act as one
        local_shards.py         the rows of divided tensors that this process holds
        fast_steps.py           a step with plain all-reduces
        virtual_node_scheduler.py  synchronizes the calls of one step
        cooperative_thread.py   a call that can be suspended, and the threads of a process for them
        tree_reduce.py          sums of tensors along the tree, within a worker and with others
        summation_tree.py       the order of every sum (pure)
        gradients_and_buffers.py   what the calls of one step share, statistics of layers, gradients that outlive it
        sharded_optimizer.py    an optimizer of which each worker holds a part, and new owners of the parts
    scripts/      user scripts instead of a class
        elastic_script.py       a script with elasticflow.elastic(...), as a training function
        schedules.py            schedules step once a step, and are built for the job's steps
        torchrun_script.py      an unchanged torchrun script, restarted at each resize; its progress
        snapshot_watch.py       which saves of such a script are its snapshots
        script_environment.py   folder, arguments, environment variables, and where its process groups meet
    loop/         from the assignment to the end
        training_loop.py        from the assignment to the end of the job
        worker_setup.py         from the assignment to a worker that can train; its first, dry step
        local_training.py       a job in its user's process: no executor, no peers
        repeatability_check.py  whether a step depends on declared state only
        speed_measurement.py    the speed of a job in a profiling run
        switch.py               to another generation, without a stop
        run_worker.py           from the fork to the exit code; the job's name in `ps`, tracebacks without the engine
    tasks/        a runner instead of a worker
        run_tasks.py            from the first message to the end: bundles one after another
    training_tasks/   a training whose gradients are tasks of a padding load
        __main__.py             the manager's process, which a client starts
        manager.py              a worker that lets runners compute its gradients: parameters out, gradients in
        task_steps.py           the runner's half of a step and the manager's
        gradient_task.py        the task function: what one virtual node adds to a step
        tensor_connection.py    the TCP connection between runner and manager, and what it carries
    preparation/  before a job starts
        fetch_data.py           a fetcher gets its data, by fsspec
        install_packages.py     an installer installs its packages, by uv or pip
        make_environment.py     or makes its own Python environment
"""
