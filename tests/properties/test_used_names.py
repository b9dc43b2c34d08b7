"""Commands about one name, repeated, late and in any order, starting jobs that end in any way."""

from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from elasticflow.services.admission.policy import POLICY, replies, replies_again
from elasticflow.services.allocator.policy import POLICY as ALLOCATOR
from elasticflow.services.placement.policy import POLICY as PLACEMENT
from elasticflow.shared.messages import events
from elasticflow.shared.messages.commands import CancelJob, SubmitJob
from elasticflow.shared.state.fold import ledger_fold
from elasticflow.shared.state.job import Job, Phase
from elasticflow.shared.state.pool import PoolState
from testbed.histories import LINEAR, NOW_S, History, pool, submit

NAME, DUE_S = "han", NOW_S + 400.0
UNKNOWN_SPEED, TOO_LONG = "unknown", 1_000_000


@dataclass
class Run:
    """What was sent, and which jobs were started by what. Each command has a number of iterations of its own."""

    history: History = field(default_factory=lambda: pool(4))
    sent: list[SubmitJob] = field(default_factory=list)
    started_by: dict[str, int] = field(default_factory=dict)  # by identity of the job
    num_admitted: dict[int, int] = field(default_factory=dict)  # by iterations of the command

    @property
    def known(self) -> Job | None:
        return self.history.state.job(NAME)

    def send(self, kind: str, *, names_the_job: bool) -> None:
        """A client looks at the pool, then sends a command; the network may keep it."""
        iterations = 50 + len(self.sent) + (TOO_LONG if kind == "too long" else 0)
        model = {"model_name": UNKNOWN_SPEED} if kind == "unmeasured" else {}
        command = submit(NAME, deadline_s=DUE_S, max_iterations=iterations, **model)
        ended = self.known if self.known is not None and not self.known.live else None
        replaces = ended.identity if ended is not None and names_the_job else ""
        self.sent.append(replace(command, replaces=replaces))

    def deliver(self, index: int) -> None:
        command, before = self.sent[index % len(self.sent)], self.known
        decided = self.history.decided(POLICY, command)
        self._note(decided, command, before)
        answers = replies(self.history.state, (command,), decided)
        assert answers, "no command is without an answer"
        assert replies_again(self.history.state, command, decided)

    def measure(self) -> None:
        """The profiling run of the job ends, if it has one."""
        if (job := self.known) is None or job.phase is not Phase.PROFILING or job.spec is None:
            return
        profile = events.ProfileCompleted(profile_key=job.spec.profile_key, iterations_per_s=LINEAR, at_s=NOW_S)
        self.history.then(profile)
        decided = self.history.decided(POLICY)
        self.num_admitted[job.spec.max_iterations] = self.num_admitted.get(job.spec.max_iterations, 0) + sum(
            isinstance(event, events.JobAdmitted) for event in decided
        )

    def end(self, how: str) -> None:
        job = self.known
        if job is None or job.phase is not Phase.ADMITTED:
            return
        if how == "cancelled":
            self.history.decided(POLICY, CancelJob(job_id=NAME, tenant="lab"))
            assert self.known is not None
            assert self.known.phase is Phase.CANCELLED
            return
        self.history.decided(ALLOCATOR)
        self.history.decided(PLACEMENT)
        job = self.history.started(NAME).state.live_jobs[NAME]
        if how == "failed":
            self.history.then(
                events.JobFailed(job_id=NAME, generation=job.generation, error="boom", iteration=3, at_s=NOW_S)
            )
        else:
            self.history.then(
                events.JobFinished(
                    job_id=NAME, generation=job.generation, iteration=10_000, condition="max_iterations", at_s=NOW_S
                )
            )
        ended = self.history.state.ended_jobs[NAME]
        for worker in ended.stopping:
            self.history.then(
                events.WorkersStopped(job_id=NAME, generation=worker.generation, node_id=worker.node_id, at_s=NOW_S)
            )

    def _note(self, decided: tuple[object, ...], command: SubmitJob, before: Job | None) -> None:
        iterations = command.spec.max_iterations
        for event in decided:
            if isinstance(event, events.JobAdmitted):
                self.num_admitted[iterations] = self.num_admitted.get(iterations, 0) + 1
        now = self.known
        if now is None or (before is not None and now.identity == before.identity):
            return
        assert now.identity not in self.started_by, "an identity is never used again"
        self.started_by[now.identity] = iterations
        if before is not None:
            assert not before.live
            assert before.phase is Phase.REJECTED or command.replaces == before.identity


@given(data=st.data())
def test_each_command_starts_at_most_one_job_and_takes_the_name_from_the_job_that_it_names(data: st.DataObject) -> None:
    run = Run()
    for _ in range(data.draw(st.integers(1, 14))):
        step = data.draw(st.sampled_from(("attempt", "attempt", "again", "again", "send", "deliver", "end", "measure")))
        if step == "attempt":  # the usual course, so that many jobs have the name one after the other
            run.send("fits", names_the_job=True)
            run.deliver(len(run.sent) - 1)
            run.end("failed")
        elif step == "send" or not run.sent:
            kind = data.draw(st.sampled_from(("fits", "fits", "too long", "unmeasured")))
            run.send(kind, names_the_job=data.draw(st.booleans()))
        elif step == "deliver":
            run.deliver(len(run.sent) - 1)
        elif step == "again":
            run.deliver(data.draw(st.integers(0, len(run.sent) - 1)))
        elif step == "end":
            run.end(data.draw(st.sampled_from(("failed", "cancelled", "finished"))))
        else:
            run.measure()
    assert max(run.num_admitted.values(), default=0) <= 1
    state = PoolState()
    for number, message in enumerate(run.history.messages, start=1):
        state = ledger_fold.evolve(ledger_fold.evolve(state, message, number), message, number)
    assert state == run.history.state
