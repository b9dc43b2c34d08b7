"""The mutations: what is changed where, which tests must notice, and what a user would lose if none did.

Each is in the heart of the system, and each differs from the original in what a user can see. The tests of each are
fast ones: unit tests, properties and simulated runs of a few seconds.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """old, new: text of the file; old is there exactly once. tests: files, or single tests as pytest names them."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    loses: str  # what a user would lose


_SERVICE = "tests/unit/shared/runtime/service"
_FOLD = "tests/unit/shared/state/fold"
_SCHEDULING = "tests/unit/shared/scheduling"
_ADMISSION = "tests/unit/services/admission"
_EXECUTOR = "tests/unit/services/executor"
_ENGINE = "tests/unit/services/executor/worker/engine"
_WORKER = "tests/unit/services/executor/worker"

# --- the ledger: one order of decisions, each of them once -----------------------------------------------

_LEDGER = (
    Mutation(
        name="compare-and-set dropped",
        file="shared/runtime/service/ledger_appender.py",
        old="expected_last_subject_sequence=self.plan_end(),",
        new="expected_last_subject_sequence=None,",
        tests=(f"{_SERVICE}/test_host.py",),
        loses="two replicas decide on the same GPUs, and both decisions count",
    ),
    Mutation(
        name="acknowledgement before append",
        file="shared/runtime/service/host.py",
        old="        if await self._append(result):\n            self._guard.fits()\n"
        "            await self._appender.append_events(result.reported)\n            await self._settle(result)\n",
        new="        await self._settle(result)\n        if await self._append(result):\n"
        "            self._guard.fits()\n"
        "            await self._appender.append_events(result.reported)\n",
        tests=(f"{_SERVICE}/test_host.py",),
        loses="a submission is lost if admission dies before it stores the decision",
    ),
    Mutation(
        name="a lost append taken for a stored one",
        file="shared/runtime/service/ledger_appender.py",
        old="stored = self._projection.last_decision_id == message_id",
        new="stored = True",
        tests=(f"{_SERVICE}/test_host.py",),
        loses="a submission without a decision: it was acknowledged, but the decision never reached the ledger",
    ),
    Mutation(
        name="a command decided on twice",
        file="shared/runtime/service/command_queue.py",
        old="        return self._folded().decision_on(pending.position)\n",
        new="        return None\n",
        tests=(f"{_SERVICE}/test_command_queue.py",),
        loses="a command that the queue delivers again takes effect again",
    ),
    Mutation(
        name="two commands about one job in one decision",
        file="shared/runtime/service/command_queue.py",
        old="            if (name := id_of(pending.command)) in about:\n                continue\n",
        new="            name = id_of(pending.command)\n",
        tests=(f"{_SERVICE}/test_command_queue.py",),
        loses="a command on a job is judged before an earlier one is folded",
    ),
    Mutation(
        name="a bad command acknowledged without a dead letter",
        file="shared/runtime/service/command_queue.py",
        old="            await self.dead_letter(item, *error.problems)\n            return\n",
        new="            await item.ack()\n            return\n",
        tests=(f"{_SERVICE}/test_command_queue.py",),
        loses="a command that cannot be read disappears, and nothing says why",
    ),
    Mutation(
        name="negative acknowledgement dropped",
        file="shared/runtime/service/command_queue.py",
        old="            await pending.item.nak()\n",
        new="            del pending\n",
        tests=(f"{_SERVICE}/test_command_queue.py",),
        loses="commands wait at a replica that must not decide, although others could",
    ),
    Mutation(
        name="a command that kills replicas gets one attempt more",
        file="shared/runtime/service/command_queue.py",
        old="if await self._attempts.begin(pending.position) < MAX_ATTEMPTS:",
        new="if await self._attempts.begin(pending.position) <= MAX_ATTEMPTS:",
        tests=(f"{_SERVICE}/test_attempts.py",),
        loses="a poison command takes down one replica more than the documents say",
    ),
    Mutation(
        name="a repeated event is another message",
        file="shared/runtime/service/ledger_encoding.py",
        old="    timeless = replace(event, at_s=0.0) if is_timeless else event\n",
        new="    timeless = event\n",
        tests=(f"{_SERVICE}/test_ledger_encoding.py",),
        loses="one crash that is reported twice counts as two, and a job fails too early",
    ),
    Mutation(
        name="a decision accepted on any subject",
        file="shared/runtime/service/ledger_encoding.py",
        old="    if isinstance(message, PlanDecided) and subject == subjects.plan(pool):\n",
        new="    if isinstance(message, PlanDecided):\n",
        tests=(f"{_SERVICE}/test_ledger_encoding.py",),
        loses="a message on a job's subject changes the plan without compare-and-set",
    ),
    Mutation(
        name="a clock that is behind counts as right",
        file="shared/runtime/service/decision_problems.py",
        old="return abs(self.offset_s) > max(slack_s, LEAST_SLACK_S)",
        new="return self.offset_s > max(slack_s, LEAST_SLACK_S)",
        tests=(f"{_SERVICE}/test_host.py",),
        loses="promises made by a planner that thinks it is earlier than it is",
    ),
    Mutation(
        name="a lease counted from its answer",
        file="shared/runtime/service/leader_lease.py",
        old="self._until_s = asked_at_s + ttl_s",
        new="self._until_s = self._clock.now_s() + ttl_s",
        tests=("tests/unit/simulator/pipeline/test_memory_bus.py",),
        loses="two replicas lead at once after a slow answer",
    ),
    Mutation(
        name="another snapshot than the ledger names",
        file="shared/runtime/service/snapshot_store.py",
        old="    if hashlib.sha256(data).hexdigest() != digest:\n",
        new="    if not data:\n",
        tests=(f"{_SERVICE}/test_snapshot_store.py",),
        loses="services start from a state that someone else has written",
    ),
    Mutation(
        name="a snapshot's sequence off by one",
        file="shared/runtime/service/snapshot_store.py",
        old="        return LedgerChain(self.state.sequence, self.chain)\n",
        new="        return LedgerChain(self.state.sequence + 1, self.chain)\n",
        tests=(f"{_SERVICE}/test_host.py",),
        loses="after a restart from a snapshot the ledger seems changed, and no service decides",
    ),
    Mutation(
        name="a message of a newer version accepted",
        file="shared/messages/codec.py",
        old="    if version > message_type.VERSION:\n",
        new="    if version > message_type.VERSION + 1:\n",
        tests=("tests/properties/test_messages.py::test_unknown_versions_are_refused",),
        loses="a service that is too old acts on half of a message",
    ),
)

# --- tenants, secrets and roles -------------------------------------------------------------------------

_TENANTS = (
    Mutation(
        name="tenant read from the message",
        file="shared/runtime/service/command_queue.py",
        old="        tenant = subjects.sender(item.subject)\n        if command.tenant != tenant:\n",
        new="        tenant = command.tenant\n        if command.tenant != tenant:\n",
        tests=(f"{_SERVICE}/test_command_queue.py",),
        loses="any tenant acts in the name of any other",
    ),
    Mutation(
        name="a secret in an error",
        file="shared/messages/codec.py",
        old='    is_shown = details["type"] != "missing" and "secrets" not in details["loc"]\n',
        new='    is_shown = details["type"] != "missing"\n',
        tests=("tests/unit/shared/messages/test_job_environment.py",),
        loses="a secret that is pasted unsealed stands in the answer and in the dead letter",
    ),
    Mutation(
        name="a secret in the reason of a failure",
        file="services/executor/processes/manager.py",
        old="self._failed(worker, without_secrets(str(error), secrets.values()))",
        new="self._failed(worker, str(error))",
        tests=(f"{_EXECUTOR}/processes/test_manager.py",),
        loses="a secret stands in the ledger, which every operator reads",
    ),
    Mutation(
        name="a sealed secret opens for any tenant",
        file="shared/runtime/process/secret_sealing.py",
        old='if (content["tenant"], content["name"]) == (tenant, secret.name) and',
        new='if content["name"] == secret.name and',
        tests=("tests/unit/shared/runtime/process/test_secret_sealing.py",),
        loses="a tenant runs a job with the sealed secret of another one",
    ),
    Mutation(
        name="answers on any subject",
        file="shared/runtime/service/command_queue.py",
        old="        if subjects.may_be_answered(tenant, self._pool, subject):\n",
        new="        if subject:\n",
        tests=(f"{_SERVICE}/test_command_queue.py",),
        loses="a sender lets a service publish on the subject of a plan or of another tenant",
    ),
    Mutation(
        name="other tenants' jobs in a reply",
        file="shared/runtime/service/ledger_appender.py",
        old="seen = without_other_jobs(self._projection.folded, tenant, reply)",
        new="seen = reply",
        tests=(f"{_SERVICE}/test_reply_publisher.py",),
        loses="the reply to a submission names the replanned jobs of other tenants",
    ),
    Mutation(
        name="a tenant cancels another one's job",
        file="services/admission/change_job.py",
        old="    if job is None or job.tenant != command.tenant:\n"
        "        why = no_such_job(session.pool, command.tenant, command.job_id)\n"
        "        return session.with_event(\n",
        new="    if job is None:\n"
        "        why = no_such_job(session.pool, command.tenant, command.job_id)\n"
        "        return session.with_event(\n",
        tests=(f"{_ADMISSION}/test_policy.py::test_another_tenant_cannot_cancel",),
        loses="any tenant ends any job",
    ),
    Mutation(
        name="a node reports on jobs of other nodes",
        file="shared/runtime/bus/nats/permissions.py",
        old='            subjects.job(pool, "*", node_id),\n',
        new='            subjects.job(pool, "*", "*"),\n',
        tests=("tests/unit/shared/runtime/bus/test_permissions.py",),
        loses="one compromised node ends the jobs of all",
    ),
    Mutation(
        name="a tenant's view has all jobs",
        file="shared/state/tenant_view.py",
        old="        gpu_limits=_of_jobs(state.gpu_limits, live),\n",
        new="        gpu_limits=dict(state.gpu_limits),\n",
        tests=("tests/unit/shared/state/test_tenant_view.py",),
        loses="a tenant sees which jobs others run, and how they are limited",
    ),
    Mutation(
        name="a command takes the id of any ended job",
        file="shared/state/fold/admission.py",
        old="return not known.live and (known.identity, known.tenant) == (other.replaces, other.tenant)",
        new="return not known.live and known.tenant == other.tenant",
        tests=(f"{_ADMISSION}/test_used_names.py",),
        loses="a repeated command starts its job a second time, in place of a later one",
    ),
    Mutation(
        name="a late report of an earlier job of the id counts",
        file="shared/state/fold/admission.py",
        old="        generation = known.generation + (is_new and bool(event.replaces))\n",
        new="        generation = known.generation\n",
        tests=(f"{_ADMISSION}/test_used_names.py",),
        loses="a mended job is said to be at risk, because the one that had failed was",
    ),
    Mutation(
        name="one job more than the quota",
        file="services/admission/quota_rules.py",
        old="    if max_jobs is None or num_jobs < max_jobs:\n",
        new="    if max_jobs is None or num_jobs <= max_jobs:\n",
        tests=(f"{_ADMISSION}/test_quota_rules.py",),
        loses="a tenant gets more than its operator grants",
    ),
    Mutation(
        name="usage of one minute forgotten",
        file="shared/state/fold/admission.py",
        old="            gpu_seconds=last.gpu_seconds + newest.gpu_seconds,\n",
        new="            gpu_seconds=newest.gpu_seconds,\n",
        tests=(f"{_FOLD}/test_admission.py",),
        loses="many small jobs within a minute evade a quota of GPU-hours",
    ),
    Mutation(
        name="hours before the period are billed",
        file="elasticflow/history/usage_report.py",
        old="        seconds = until_s - max(held.since_s, self._since_s)\n",
        new="        seconds = until_s - held.since_s\n",
        tests=("tests/unit/elasticflow/history/test_usage_report.py",),
        loses="a tenant pays GPU-hours of last month again",
    ),
)

# --- the fold: what the ledger says ---------------------------------------------------------------------

_STATE = (
    Mutation(
        name="a promise moved by a second",
        file="shared/state/fold/admission.py",
        old="        deadline_s=event.deadline_s,\n        least_gpu_seconds=0.0 if",
        new="        deadline_s=None if event.deadline_s is None else event.deadline_s + 1.0,\n"
        "        least_gpu_seconds=0.0 if",
        tests=(f"{_FOLD}/test_admission.py",),
        loses="a job ends a second after the deadline that it was promised",
    ),
    Mutation(
        name="progress of an older generation counts",
        file="shared/state/fold/workers.py",
        old="    if event.generation != job.training_generation:\n        return job\n",
        new="",
        tests=(f"{_FOLD}/test_state_transfer.py",),
        loses="a job counts steps that its present workers never did",
    ),
    Mutation(
        name="the loss of an older incarnation counts",
        file="shared/state/fold/nodes.py",
        old="    if node is None or node.incarnation != event.incarnation or not node.alive:\n        return state\n"
        "    ended_s =",
        new="    if node is None or not node.alive:\n        return state\n    ended_s =",
        tests=(f"{_FOLD}/test_nodes.py",),
        loses="a late report removes a node that has just joined, and stops its jobs",
    ),
    Mutation(
        name="workers of a rejected job end its successor",
        file="shared/state/fold/jobs.py",
        old="    if 0 < generation <= job.void_generation:\n        return False\n",
        new="",
        tests=(f"{_FOLD}/test_job_ends.py",),
        loses="a resubmitted job fails with the error of the rejected one",
    ),
    Mutation(
        name="crashes are not counted",
        file="shared/state/fold/jobs.py",
        old="        restarts=job.restarts + crashes,\n",
        new="        restarts=job.restarts,\n",
        tests=(f"{_FOLD}/test_workers.py",),
        loses="a job that crashes at each start restarts for ever, on GPUs of others",
    ),
    Mutation(
        name="an old checkpoint resets the crashes",
        file="shared/state/fold/jobs.py",
        old="    if iteration <= job.checkpoint_iteration or job.phase is Phase.PROFILING:\n",
        new="    if iteration < job.checkpoint_iteration or job.phase is Phase.PROFILING:\n",
        tests=(f"{_FOLD}/test_workers.py",),
        loses="a job that crashes at the same step each time never fails",
    ),
    Mutation(
        name="a reservation lasts too long",
        file="shared/state/pool.py",
        old="in_force = (quote for quote in self.quote_reservations.values() if now_s < quote.until_s)",
        new="in_force = (quote for quote in self.quote_reservations.values() if now_s <= quote.until_s)",
        tests=(f"{_ADMISSION}/test_reserve.py",),
        loses="GPUs stay reserved after a quote has expired",
    ),
)

# --- admission and allocation ---------------------------------------------------------------------------

_PLANS = (
    Mutation(
        name="deadline off by a second",
        file="shared/scheduling/availability/fill.py",
        old="            if done_s > window_s:\n",
        new="            if done_s > window_s + 1.0:\n",
        tests=(f"{_SCHEDULING}/test_admission_plan.py",),
        loses="a promise that its own plan breaks",
    ),
    Mutation(
        name="deadline without slack",
        file="shared/scheduling/jobs/scheduler_view.py",
        old="math.inf if deadline_s is None else deadline_s - state.config.deadline_slack_s)",
        new="math.inf if deadline_s is None else deadline_s)",
        tests=("tests/unit/services/monitor/test_policy.py",),
        loses="jobs end after their deadlines by the time of their last evaluation",
    ),
    Mutation(
        name="claims for more GPUs believed",
        file="shared/scheduling/jobs/scheduler_view.py",
        old="    return _credible(_rates_at_worst(state, measured, promised_at_s), measured)\n",
        new="    return _rates_at_worst(state, measured, promised_at_s)\n",
        tests=("tests/unit/shared/state/fold/test_speeds_at_places.py",),
        loses="a tenant that exaggerates breaks a promise of another, although its speed on one GPU is known",
    ),
    Mutation(
        name="replicas over two nodes",
        file="services/placement/policy.py",
        old="        gangs={job.job_id: spec_of(job).gpus_per_replica for job in jobs if has_gangs(job)},\n",
        new="",
        tests=("tests/unit/services/test_gangs.py",),
        loses="a model that needs the links of one node trains over two, or its mesh is refused by torch",
    ),
    Mutation(
        name="half a gang survives",
        file="shared/state/fold/jobs.py",
        old="lost.union(previous.lost), spec_of(job).gang_size)\n",
        new="lost.union(previous.lost), 1)\n",
        tests=("tests/unit/services/test_gangs.py",),
        loses="workers with parts of a model wait for a switch that cannot come, and each loss counts as two crashes",
    ),
    Mutation(
        name="growth into the replicas of others",
        file="shared/scheduling/allocation/allocation.py",
        old="    if not gangs_fit(plan):\n",
        new="    if False:\n",
        tests=("tests/unit/services/test_gangs.py",),
        loses="a promised job waits for a whole node that another one holds beyond its plan",
    ),
    Mutation(
        name="reservations ignored",
        file="shared/scheduling/admission/planned_pool.py",
        old="    held = tuple((quote, job) for quote in state.quotes_at(question.now_s) if (",
        new="    held = tuple((quote, job) for quote in () if (",
        tests=(f"{_ADMISSION}/test_reserve.py",),
        loses="a reserved quote is given to the next submission",
    ),
    Mutation(
        name="reserve of failures lent twice",
        file="shared/scheduling/admission/planned_pool.py",
        old="num_lent=there - planned.plan.num_gpus)",
        new="num_lent=there)",
        tests=("tests/unit/services/test_allocator_and_placement.py",),
        loses="one free GPU is allocated to two jobs",
    ),
    Mutation(
        name="promised schedules do not hold their GPUs",
        file="shared/scheduling/availability/plan_repair.py",
        old="    all_fit = sweep(availability, schedules, np.concatenate((order_K, reserved)), now_s, num_gpus) >= 0\n",
        new="    all_fit = sweep(availability, schedules, reserved, now_s, num_gpus) >= 0\n",
        tests=(f"{_SCHEDULING}/test_admission_plan.py",),
        loses="the minimum satisfactory shares of promised jobs are promised again",
    ),
    Mutation(
        name="a free GPU counted twice",
        file="shared/scheduling/availability/availability_profile.py",
        old="            if schedules.end_JM[job, segment] < np.inf:  # GPUs of a node that has left never come back\n"
        "                at_s[at], by[at] = schedules.end_JM[job, segment], held\n",
        new="            if schedules.end_JM[job, segment] < np.inf:  # GPUs of a node that has left never come back\n"
        "                at_s[at], by[at] = schedules.end_JM[job, segment], held + 1\n",
        tests=(f"{_SCHEDULING}/test_availability_profile.py",),
        loses="more GPUs are promised than there are",
    ),
    Mutation(
        name="resizes cost nothing",
        file="shared/scheduling/availability/fill.py",
        old="            ready_s = start_s + costs[level]\n",
        new="            ready_s = start_s\n",
        tests=(f"{_SCHEDULING}/test_admission_plan.py",),
        loses="deadlines missed by the stops of each resize",
    ),
    Mutation(
        name="rejection without the earliest deadline",
        file="services/admission/submission.py",
        old="earliest_deadline_s=refusal.earliest_deadline_s if refusal else None,",
        new="earliest_deadline_s=None,",
        tests=(f"{_ADMISSION}/test_policy.py",),
        loses="a user learns that a deadline is impossible, and not which one is possible",
    ),
    Mutation(
        name="the first step up instead of the best",
        file="shared/scheduling/allocation/allocation.py",
        old="        index = int(np.argmax(gains))\n",
        new="        index = int(np.argmax(gains > -np.inf))\n",
        tests=(f"{_SCHEDULING}/test_allocation.py",),
        loses="spare GPUs go to jobs that hardly gain from them",
    ),
    Mutation(
        name="padding before training",
        file="shared/scheduling/allocation/best_effort.py",
        old="    padding = {row for row in pool.others if spec_of(pool.listed[row]).job_class is JobClass.PADDING}\n",
        new="    padding = set[int]()\n",
        tests=("tests/unit/services/test_allocator_and_placement.py",),
        loses="a padding job holds the GPU that a training job could use",
    ),
)
# --- nodes, workers and GPUs ----------------------------------------------------------------------------

_NODES = (
    Mutation(
        name="fence skipped",
        file="services/executor/decisions/reconciler.py",
        old="    return not job.stopping and not older and job.started_at_s is None\n",
        new="    return not older and job.started_at_s is None\n",
        tests=(f"{_EXECUTOR}/decisions/test_reconciler.py",),
        loses="two generations of a job train at once, and overwrite each other's checkpoints",
    ),
    Mutation(
        name="a node lost before it is fenced",
        file="services/monitor/policy.py",
        old="outputs.append(FenceNode(node_id=node_id, incarnation=incarnation, revision=heartbeat.revision))",
        new='outputs.append(NodeLost(node_id=node_id, incarnation=incarnation, reason="silent", at_s=now_s))',
        tests=("tests/unit/services/monitor/test_policy.py",),
        loses="a node that is cut off trains on while its jobs start elsewhere",
    ),
    Mutation(
        name="silence of the monitor counts",
        file="services/monitor/policy.py",
        old="            if now_s - max(heartbeat.at_s, since_s) > silence_s:\n",
        new="            if now_s - heartbeat.at_s > silence_s:\n",
        tests=("tests/unit/services/monitor/test_policy.py",),
        loses="after an outage of the monitor all nodes are lost, and all jobs stop",
    ),
    Mutation(
        name="a heartbeat delivered twice counts twice",
        file="services/monitor/model.py",
        old="known.revision >= stored.revision:",
        new="known.revision > stored.revision:",
        tests=("tests/unit/services/monitor/test_policy.py",),
        loses="a dead node keeps its jobs for another timeout",
    ),
    Mutation(
        name="a fence without compare-and-set",
        file="services/monitor/node_watch.py",
        old="            await self._write(action.node_id, data, action.revision)\n",
        new="            await self._write(action.node_id, data, None)  # pyright: ignore\n",
        tests=("tests/unit/services/monitor/test_node_watch.py",),
        loses="a node is lost although its heartbeat has arrived",
    ),
    Mutation(
        name="a lease counted from the acknowledgement",
        file="services/executor/heartbeat.py",
        old="self._lease_until_s = sent_s + heartbeat.lease_s",
        new="self._lease_until_s = self._boot_s() + heartbeat.lease_s",
        tests=(f"{_EXECUTOR}/test_heartbeat.py",),
        loses="workers outlive the lease that the monitor counts, and train beside their successors",
    ),
    Mutation(
        name="two executors of one node",
        file="services/executor/heartbeat.py",
        old="self._bucket, self._node_id, data, expected_revision=expected_revision",
        new="self._bucket, self._node_id, data, expected_revision=None",
        tests=(f"{_EXECUTOR}/test_node_record.py",),
        loses="two executors under one name start two workers on one GPU",
    ),
    Mutation(
        name="a worker started twice",
        file="services/executor/decisions/reconciler.py",
        old="            if worker_id not in state.workers and gpu not in occupied:\n",
        new="            if gpu not in occupied:\n",
        tests=(f"{_EXECUTOR}/decisions/test_exit_classification.py",),
        loses="a worker that has just crashed starts again before its crash is in the ledger",
    ),
    Mutation(
        name="a drained node used",
        file="shared/state/topology.py",
        old="places[node.takes_jobs].append",
        new="places[node.alive].append",
        tests=("tests/unit/services/test_nodes_with_ends.py",),
        loses="a job is placed on a node that ends in a minute",
    ),
    Mutation(
        name="one GPU joins two jobs",
        file="services/placement/added_gpus.py",
        old="            for of_type in free.values():\n                of_type.difference_update(chosen)\n",
        new="",
        tests=("tests/unit/services/placement/test_added_gpus.py",),
        loses="two jobs share one GPU, and both are too slow",
    ),
    Mutation(
        name="large blocks broken up",
        file="shared/scheduling/placement/buddy_blocks.py",
        old="return first(self._in_smallest_free_block(self._preferred(candidates, s), s))",
        new="return first(self._preferred(candidates, s))",
        tests=(f"{_SCHEDULING}/test_placement.py",),
        loses="jobs in fragments, because small jobs stand in the middle of large blocks",
    ),
    Mutation(
        name="a run measured closer together than promised",
        file="services/placement/policy.py",
        old="        measured_level=measured_level,\n",
        new="",
        tests=("tests/unit/services/placement/test_measured_levels.py",),
        loses="a job is rejected for a bound of its speed, although GPUs to measure it on were free",
    ),
    Mutation(
        name="padding beside a worker",
        file="services/executor/decisions/policy.py",
        old="if since_s < CARRIES_A_JOB and gpu not in used)",
        new="if since_s < CARRIES_A_JOB)",
        tests=(f"{_EXECUTOR}/decisions/test_padding_slots.py",),
        loses="padding tasks take the memory of a worker that is about to write its checkpoint",
    ),
    Mutation(
        name="a bundle acknowledged before its results are stored",
        file="services/executor/loads/bundle_queue.py",
        old="            await self._store(self._results)\n            if unfinished:\n",
        new="            await item.ack()\n            await self._store(self._results)\n            if unfinished:\n",
        tests=(f"{_EXECUTOR}/loads/test_bundle_settlement.py",),
        loses="tasks of a map without a result, if the server is away for a moment",
    ),
    Mutation(
        name="a load ends one task early",
        file="services/monitor/policy.py",
        old="count.num_results >= load.num_tasks:",
        new="count.num_results >= load.num_tasks - 1:",
        tests=("tests/unit/services/monitor/test_load_reports.py",),
        loses="the last result of a map",
    ),
    Mutation(
        name="weights of tenants ignored",
        file="shared/scheduling/padding/hand_out.py",
        old="virtual_s=self.virtual_s + seconds / self.weight)",
        new="virtual_s=self.virtual_s + seconds)",
        tests=(f"{_SCHEDULING}/padding/test_hand_out.py",),
        loses="a tenant gets another share of the idle GPUs than its operator has set",
    ),
)

# --- training: the same bits on any number of GPUs ------------------------------------------------------

_TRAINING = (
    Mutation(
        name="a counter of the job counts parts of a batch",
        file="services/executor/worker/engine/additional_state.py",
        old="            self._plain.write(snapshot.plain, deletes=True)\n",
        new="            pass\n",
        tests=(f"{_ENGINE}/test_state_of_a_step.py",),
        loses="a schedule by an own counter runs faster on fewer GPUs, without a word",
    ),
    Mutation(
        name="a counter of a loop counts passes",
        file="services/executor/worker/engine/plain_state.py",
        old="            self.write(self._before, deletes=True)\n",
        new="",
        tests=(f"{_ENGINE}/test_plain_state.py",),
        loses="global_step of a script differs at each number of GPUs, and so do its weights",
    ),
    Mutation(
        name="a step that does not repeat passes",
        file="services/executor/worker/loop/repeatability_check.py",
        old='    if trainer.device.type == "cpu" and',
        new='    if trainer.device.type == "none" and',
        tests=(f"{_WORKER}/loop/test_repeatability_check.py",),
        loses="state in files and iterators gives other weights at each number of GPUs",
    ),
    Mutation(
        name="a layer that train() adds passes",
        file="services/executor/worker/engine/model_structure.py",
        old="        if added or removed:\n",
        new="        if removed:\n",
        tests=(f"{_ENGINE}/test_model_structure.py",),
        loses="a joining worker lacks a layer, and a worker with several parts has it several times",
    ),
    Mutation(
        name="a virtual node counted twice",
        file="services/executor/worker/data/virtual_nodes.py",
        old="        if rank >= most:\n            return range(0)\n",
        new="        if rank >= most:\n            return range(self.count - 1, self.count)\n",
        tests=(f"{_WORKER}/data/test_virtual_nodes.py",),
        loses="with more GPUs than parts, some samples count twice in each step",
    ),
    Mutation(
        name="a sum in another order",
        file="services/executor/worker/engine/summation_tree.py",
        old="        while self._partials and node.index % 2 and",
        new="        if self._partials and node.index % 2 and",
        tests=("tests/properties/test_worker_summation_tree.py",),
        loses="other bits after each resize: a run cannot be repeated",
    ),
    Mutation(
        name="gradients of several halves summed in another order",
        file="services/executor/worker/engine/tree_reduce.py",
        old="        partial, *between, last = there\n",
        new="        partial, last, *between = there\n",
        tests=(f"{_ENGINE}/test_tree_exchange.py",),
        loses="other bits after each resize, though only where one worker has four parts or more",
    ),
    Mutation(
        name="uneven parts weighted evenly",
        file="services/executor/worker/data/virtual_nodes.py",
        old="                weight=(stop - start) / self.global_batch_size,\n",
        new="                weight=1 / (self.count * num_parts),\n",
        tests=(f"{_WORKER}/data/test_virtual_nodes.py",),
        loses="samples of small parts count more than others",
    ),
    Mutation(
        name="the mean of means",
        file="services/executor/worker/engine/step_agreement.py",
        old="return tree_sum([weight * value for weight, value in zip(self._weights, values, strict=True)])",
        new="return tree_sum(list(values)) / len(values)",
        tests=(f"{_ENGINE}/test_step_agreement.py",),
        loses="the reported loss is not that of the batch",
    ),
    Mutation(
        name="one order of samples for all epochs",
        file="services/executor/worker/data/sample_order.py",
        old="    return np.random.default_rng((seed, epoch, lane, index)).permutation(size)\n",
        new="    return np.random.default_rng((seed, lane, index)).permutation(size)\n",
        tests=(f"{_WORKER}/data/test_sample_order.py",),
        loses="accuracy: each epoch has the same batches",
    ),
    Mutation(
        name="the last batch of the epochs not trained",
        file="services/executor/worker/data/sample_order.py",
        old="        return -(-epochs * self.size // self.global_batch_size)\n",
        new="        return epochs * self.size // self.global_batch_size\n",
        tests=(f"{_WORKER}/data/test_loader_settings.py",),
        loses="the last samples of a job that was asked for whole epochs",
    ),
    Mutation(
        name="equal random numbers in all virtual nodes",
        file="services/executor/worker/data/random_seeds.py",
        old="    key = (job_seed, phase, iteration, virtual_node + 1, micro_batch)\n",
        new="    key = (job_seed, phase, iteration, 0, micro_batch)\n",
        tests=(f"{_WORKER}/data/test_virtual_nodes.py",),
        loses="dropout drops the same units for every part of a batch",
    ),
    Mutation(
        name="BatchNorm statistics of one part",
        file="services/executor/worker/engine/gradients_and_buffers.py",
        old="torch._foreach_mul(list(floats.values()), micro_batch.weight)",
        new="torch._foreach_mul(list(floats.values()), float(micro_batch.virtual_node == 0))",
        tests=(f"{_ENGINE}/test_gradients_and_buffers.py",),
        loses="a BatchNorm learns from a part of the samples only",
    ),
    Mutation(
        name="a gradient clipped twice",
        file="services/executor/worker/engine/gradients_and_buffers.py",
        old="                gradient.copy_(untouched)\n",
        new="",
        tests=(f"{_ENGINE}/test_gradients_and_buffers.py",),
        loses="clipping and scaling take effect once for each part of a batch",
    ),
    Mutation(
        name="a worker that is behind sends its state",
        file="services/executor/worker/group/state_transfer.py",
        old="sources = [rank for rank, steps in enumerate(steps_done) if steps == max(steps_done)]",
        new="sources = [rank for rank, steps in enumerate(steps_done) if steps > NO_STATE]",
        tests=(f"{_WORKER}/group/test_state_transfer.py",),
        loses="joining workers begin with a state of mixed steps",
    ),
    Mutation(
        name="a checkpoint named before it is on the disk",
        file="services/executor/worker/checkpoint/files.py",
        old="        os.fsync(file.fileno())\n",
        new="",
        tests=(f"{_WORKER}/checkpoint/test_store.py",),
        loses="the newest checkpoints, if the machine loses power",
    ),
    Mutation(
        name="a damaged checkpoint loaded",
        file="services/executor/worker/checkpoint/store.py",
        old='                if hashlib.file_digest(file, "sha256").hexdigest() != entry.digest:\n',
        new="                if not entry.digest:\n",
        tests=(f"{_WORKER}/checkpoint/test_store.py",),
        loses="a job trains on from a torn file, or never starts again",
    ),
    Mutation(
        name="an older generation overwrites checkpoints",
        file="services/executor/worker/checkpoint/store.py",
        old="            if entry.generation > self._generation and not",
        new="            if entry.generation > self._generation + 1 and not",
        tests=(f"{_WORKER}/checkpoint/test_store.py",),
        loses="the work since a resize, if a worker of before it was stopped and wakes up",
    ),
    Mutation(
        name="workers with other code train together",
        file="services/executor/worker/group/compatibility_digest.py",
        old="    if differences:\n        advice",
        new="    if len(differences) > 1:\n        advice",
        tests=(f"{_WORKER}/group/test_compatibility_digest.py",),
        loses="a model that two versions of its code have trained",
    ),
)

# --- the simulator and its checker ----------------------------------------------------------------------

_SIMULATOR = (
    Mutation(
        name="a clock that goes backwards",
        file="simulator/virtual_time.py",
        old="(max(at_s, self.now_s), rank, self._tickets, callback)",
        new="(at_s, rank, self._tickets, callback)",
        tests=("tests/unit/simulator/test_event_queue.py",),
        loses="simulated completion times before their submissions",
    ),
    Mutation(
        name="simulated resizes cost nothing",
        file="simulator/trace/cluster_state.py",
        old="return now_s, begins_s + time.start_s(len(gpus), is_first=not iteration)",
        new="return now_s, begins_s",
        tests=("tests/unit/simulator/trace/test_cluster_state.py",),
        loses="simulations that promise more than the pool can keep",
    ),
    Mutation(
        name="the checker counts work after the deadline",
        file="simulator/verification/certificate_checker.py",
        old="done += rate * max(min(end, deadline) - max(start, ready), 0)",
        new="done += rate * max(end - max(start, ready), 0)",
        tests=("tests/unit/simulator/verification/test_certificate_checker.py",),
        loses="the proof that promises are kept: a late schedule passes",
    ),
    Mutation(
        name="the checker allows one GPU too many",
        file="simulator/verification/certificate_checker.py",
        old="            if held[most] > num_gpus:\n",
        new="            if held[most] > num_gpus + 1:\n",
        tests=("tests/unit/simulator/verification/test_certificate_checker.py",),
        loses="the proof that promises fit together",
    ),
)

MUTATIONS = (*_LEDGER, *_TENANTS, *_STATE, *_PLANS, *_NODES, *_TRAINING, *_SIMULATOR)
