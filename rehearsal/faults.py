"""The faults, one row each: how it is caused, when, what the user is told, and how the job ends."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from recipe.events import Event
from rehearsal import clock, mounts
from rehearsal.aftermath import tail
from rehearsal.job import Job, signal_all

Cause = Callable[[Job], None]
When = Callable[[Event], bool]


def nothing(_job: Job) -> Iterator[str]:
    """No more is asked than of every job."""
    yield from ()


@dataclass(frozen=True)
class Fault:
    """`prepare` is called before the job starts and `cause` when an event is `when`; `check` yields what is wrong."""

    name: str
    how: str
    code: int
    says: str = ""
    prepare: Cause | None = None
    when: When | None = None
    cause: Cause | None = None
    check: Callable[[Job], Iterator[str]] = nothing
    skip: Callable[[], str | None] = lambda: None


def phase(name: str, rollout: int | None = 0) -> When:
    """When this phase begins, in this rollout."""
    wanted = ("phase", name, rollout)
    return lambda event: bool(wanted == (event["kind"], event.get("phase"), event.get("rollout")))


def trial_started(event: Event) -> bool:
    """When some trial of the policy has been posted to the agent server."""
    return _posted(event) and event["rollout"] is not None


def lesson_started(event: Event) -> bool:
    """When some scripted trial of the warm start, which is no rollout's, has been posted."""
    return _posted(event) and event["rollout"] is None


def _posted(event: Event) -> bool:
    return event["kind"] == "trial" and bool(event["state"] == "started")


def kill(pattern: str) -> Cause:
    """Kills the newest of the job's processes with such a command line; waits for one."""

    def cause(job: Job) -> None:
        pids = _wait(job, lambda: job.pids(pattern), f"a process of the job is {pattern!r}")
        signal_all(pids[-1:], signal.SIGKILL)

    return cause


def freeze(pattern: str) -> Cause:
    return lambda job: signal_all(job.pids(pattern), signal.SIGSTOP)


def in_mid_turn(number: int) -> Cause:
    """Signals the first process of every second sandbox, when some agent has had a reply and most sandboxes are there.

    A rollout needs one at least of the groups that this hits, so that it can't end without it; the others go on.
    """

    def running(job: Job) -> list[int]:
        said = [file.read_bytes() for file in job.folder.glob("trials/*/agent/trajectory.jsonl")]
        begun = any(b'"assistant"' in text and b'"metrics"' not in text for text in said)
        pids = job.pids(SANDBOX) if begun else []
        return pids if len(pids) >= MOST else []

    def cause(job: Job) -> None:
        signal_all(_wait(job, lambda: running(job), "an agent has had a reply")[::2], number)

    return cause


def kill_sandboxes(job: Job) -> None:
    """Each one that is there or begins within some seconds: one alone may be ending, its trial's work done."""
    deadline = time.monotonic() + 5
    while job.code is None and time.monotonic() < deadline:
        signal_all(job.pids(SANDBOX), signal.SIGKILL)
        time.sleep(0.02)


def _wait(job: Job, found: Callable[[], list[int]], what: str) -> list[int]:
    """The processes that are found at last."""
    deadline = time.monotonic() + 60
    while not (pids := found()):
        if job.code is not None or time.monotonic() > deadline:
            raise LookupError(f"it never came to be that {what}")
        time.sleep(0.02)
    return pids


def launcher(number: int) -> Cause:
    def cause(job: Job) -> None:
        assert job.process is not None
        job.process.send_signal(number)

    return cause


def settings(*words: str) -> Cause:
    return lambda job: job.settings.extend(words)


def small_scratch(job: Job) -> None:
    """TMPDIR gets full in a second or more; so many rollouts that one begins after that."""
    mounts.small("t")(job)
    job.settings.append("NUM_ROLLOUT=6")


def cold(job: Job) -> None:
    """The job has an empty cache, so that it begins with its warm start."""
    job.settings.append(f"CACHE_DIR={job.root / 'cache'}")


def copy_tasks(job: Job) -> None:
    """The job uses a copy of the tasks, which a fault may spoil."""
    assert job.tasks.is_dir()


def verifier(text: str) -> Cause:
    """Every task's verifier becomes this shell text, once the tasks have passed their check."""

    def cause(job: Job) -> None:
        for test in job.tasks.glob("*/tests/test.sh"):
            test.write_text(f"#!/bin/bash\n{text}\n")

    return cause


def one_verifier(text: str) -> Cause:
    def cause(job: Job) -> None:
        (job.tasks / "append-line" / "tests" / "test.sh").write_text(f"#!/bin/bash\n{text}\n")

    return cause


def flood(job: Job) -> None:
    """Every file that a task's agent may show becomes one of 10 MB."""
    for file in job.tasks.glob("*/environment/*"):
        if file.name != "Dockerfile":
            file.write_text("x" * 10_000_000)


def remove_run_folder(job: Job) -> None:
    job.notes["removed"] = True
    deadline = time.monotonic() + 10
    while job.folder.exists() and time.monotonic() < deadline:  # others write into it meanwhile
        shutil.rmtree(job.folder, ignore_errors=True)


def corrupt_row(job: Job) -> None:
    rows = [
        f'{{"label": "{name}", "prompt": [{{"role": "user", "content": "x"}}], '
        f'"metadata": {{"agent_name": "camel", "instance_id": "{name}"}}}}'
        for name in ("append-line", "count-lines", "sort-names")
    ]
    rows[1] = rows[1][:40]
    file = job.root / "prompts.jsonl"
    file.write_text("\n".join(rows) + "\n")
    job.settings.append(f"PROMPT_DATA={file}")


def dropped(reason: str) -> Callable[[Job], Iterator[str]]:
    """Some group was dropped for this reason."""

    def check(job: Job) -> Iterator[str]:
        found = [event for event in job.events if event["kind"] == "group" and event["reason"] == reason]
        if not found:
            yield f"no group was dropped as {reason}"

    return check


def _beside(job: Job) -> Job:
    """Another job, started; it is ended with this one."""
    other = Job()
    job.closing.callback(other.end)
    other.start()
    return other


def some_trial_failed(job: Job) -> Iterator[str]:
    """One trial is told as the infrastructure's failure; its group may have been the surplus one."""
    if not any(event["kind"] == "trial" and event.get("exit_status") == "AgentError" for event in job.events):
        yield "no trial ended as AgentError"


def cut_checkpoint(job: Job) -> None:
    """A first job runs to its end; its last checkpoint is cut in the middle, and the second one starts from it."""
    first = _beside(job)
    first.wait()
    weights = max(first.folder.glob("checkpoints/iter_*/*.safetensors"))
    with weights.open("r+b") as file:
        file.truncate(int.from_bytes(os.urandom(4)) % weights.stat().st_size)
    job.settings.append(f"LOAD_DIR={first.folder / 'checkpoints'}")


def untrained(job: Job) -> None:
    """Weights that were never trained: what they sample is no word of the protocol."""
    from recipe.engines.local import checkpoint
    from recipe.engines.local.model import build_model, tiny_config

    weights = {name: value.detach().numpy() for name, value in build_model(tiny_config()).named_parameters()}
    checkpoint.save(job.root / "untrained", 0, weights)
    job.settings.append(f"LOAD_DIR={job.root / 'untrained'}")


def second_run(job: Job) -> None:
    job.notes["other"] = _beside(job)


def second_succeeds(job: Job) -> Iterator[str]:
    other = job.notes["other"]
    other.wait()
    if other.code != 0:
        yield f"the second run ended with {other.code}: {tail(other)}"


def agent_server_is_told(job: Job) -> Iterator[str]:
    with suppress(FileNotFoundError):
        size = sum(file.stat().st_size for file in (job.folder / "logs").iterdir())
        if size > 2_000_000:
            yield f"the logs hold {size} bytes of one run"


NAN, HANG = "echo nan > /logs/verifier/reward.txt", "sleep 600"
SANDBOX = r"^/usr/bin/python3 .*/execd\.py"  # its first process
MOST = 6  # of the twelve that run at once
AGENT_SERVER, DRIVER = "recipe.harbor.agent_server", "recipe.engines.local.driver"
ALL_DROP = r"6 groups in a row were dropped"

FAULTS = (
    Fault("sandbox dies mid-turn", "kill -9 of the first process of every second sandbox", 0, when=trial_started,
          cause=in_mid_turn(signal.SIGKILL), check=some_trial_failed),
    Fault("sandbox dies in the warm start", "the same, again and again for some seconds", 1,
          "a scripted trial of .* went wrong", prepare=cold, when=lesson_started, cause=kill_sandboxes),
    Fault("verifier writes nothing", "one task's test.sh is `true`", 0, prepare=copy_tasks, when=phase("generate"),
          cause=one_verifier("true")),
    Fault("verifier writes NaN", "every test.sh writes nan", 1, ALL_DROP, prepare=copy_tasks, when=phase("generate"),
          cause=verifier(NAN), check=dropped("agent_error")),
    Fault("verifier writes 7.5", "every test.sh writes 7.5", 1, ALL_DROP, prepare=copy_tasks, when=phase("generate"),
          cause=verifier("echo 7.5 > /logs/verifier/reward.txt"), check=dropped("agent_error")),
    Fault("verifier hangs", "one task's test.sh sleeps; its time-out is 30 s", 0, prepare=copy_tasks,
          when=phase("generate"), cause=one_verifier(HANG)),
    Fault("trial never ends", "SIGSTOP of the first process of every second sandbox", 0, when=trial_started,
          cause=in_mid_turn(signal.SIGSTOP), check=some_trial_failed),
    Fault("agent server killed", "kill -9", 1, "agent server ended unexpectedly", when=phase("generate"),
          cause=kill(AGENT_SERVER)),
    Fault("agent server frozen", "SIGSTOP", 1, when=phase("generate"), cause=freeze(AGENT_SERVER),
          says=ALL_DROP, prepare=settings("HARBOR_AGENT_CALL_TIMEOUT_SEC=20")),
    Fault("session server killed", "kill -9 of the driver, in which it is", 1, "the job ended as",
          when=phase("generate"), cause=kill(DRIVER)),
    Fault("policy actor killed", "kill -9", 1, "died", when=phase("generate"), cause=kill("ray::PolicyActor")),
    Fault("trainer killed", "kill -9", 1, "died", when=phase("train"), cause=kill("ray::TrainerActor")),
    Fault("Ray head killed", "kill -9 of gcs_server", 1, when=phase("generate"), cause=kill("gcs_server")),
    Fault("a node's actors gone", "kill -9 of raylet", 1, when=phase("generate"), cause=kill("raylet/raylet")),
    Fault("disk full in RUNS_ROOT", "it is filled to the last byte", 1, "disk is full|No space left",
          prepare=mounts.small("runs"), when=phase("generate"), cause=mounts.fill("runs"), skip=mounts.why_not),
    # No sandbox can start then: what a started one writes is in memory.
    Fault("disk full in TMPDIR", "it is filled to the last byte after a rollout", 1,
          ALL_DROP + ".*make room where TMPDIR is", prepare=small_scratch, when=phase("train"),
          cause=mounts.fill("t"), skip=mounts.why_not),
    Fault("run folder removed", "rm -r during a rollout", 1, when=phase("generate"), cause=remove_run_folder),
    Fault("corrupt prompt row", "the second of three rows is cut", 2, "line 2|:2|row 2", prepare=corrupt_row),
    Fault("task deleted", "rm -r of one task during the run", 0, prepare=copy_tasks, when=phase("generate"),
          cause=lambda job: shutil.rmtree(job.tasks / "append-line")),
    Fault("all groups dropped", "every test.sh is `true`", 1, ALL_DROP, prepare=copy_tasks, when=phase("generate"),
          cause=verifier("true"), check=dropped("agent_error")),
    Fault("all rewards equal", "every test.sh writes 1", 0, prepare=copy_tasks, when=phase("generate"),
          cause=verifier("echo 1 > /logs/verifier/reward.txt")),
    Fault("loss is not finite", "LR=1e38: the weights overflow", 1, "finite|NaN", prepare=settings("LR=1e38")),
    Fault("policy answers garbage", "weights that were never trained", 0, prepare=untrained),
    Fault("flood of tool output", "10 MB in each file that a task shows", 0, prepare=copy_tasks,
          when=phase("generate"), cause=flood, check=agent_server_is_told),
    *(
        Fault(f"clock jumps {name}", "the wall clock of every process, by an hour", 0, prepare=clock.prepare,
              when=phase("generate"), cause=clock.jump(hours), check=clock.jumped)
        for name, hours in (("forward", 1), ("back", -1))
    ),
    Fault("second run meanwhile", "another launcher on this machine", 0, when=phase("generate"), cause=second_run,
          check=second_succeeds),
    Fault("checkpoint cut", "LOAD_DIR's weights are cut at a random byte", 2, "not complete", prepare=cut_checkpoint),
    *(
        Fault(f"{name} in {at}", f"to the launcher when {at} begins", code, when=phase(at, rollout),
              prepare=cold if at == "warm_start" else None, cause=launcher(number))
        for at, rollout in (("start", None), ("warm_start", None), ("update_weights", 0), ("generate", 1),
                            ("train", 1), ("save", 1))
        for name, number, code in (("Ctrl-C", signal.SIGINT, 130), ("SIGTERM", signal.SIGTERM, 130),
                                   ("SIGKILL", signal.SIGKILL, -9))
    ),
)  # fmt: skip
