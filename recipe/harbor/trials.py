"""One Harbor trial: typed arguments in, a reply out that says whether its reward may be trained on.

| exit_status                 | when                                                              | reward |
|-----------------------------|-------------------------------------------------------------------|--------|
| Submitted                   | the agent ended by itself                                         | yes    |
| TurnLimitExceeded           | the agent says so                                                 | yes    |
| SequenceLengthLimitExceeded | the agent says so                                                 | yes    |
| TimeLimitExceeded           | the agent's time was up                                           | yes    |
| AgentError                  | task, sandbox, model, verifier, an unknown error, no valid reward | null   |
| Unknown                     | no error and no reward                                            | null   |

The first four need a verifier's reward in [0, 1]; a verifier that gave none on a disk that the agent had filled
counts as one of 0. Only what is listed yields a reward: an exception that nobody thought of is a failure of ours,
never the policy's.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.models.trial.result import ExceptionInfo, TimingInfo, TrialResult
from harbor.trial.hooks import TrialEvent, TrialHookEvent
from harbor.trial.trial import Trial

from recipe.harbor.local_env import LocalEnvironment

AGENT_ERROR, UNKNOWN = "AgentError", "Unknown"
VALID = ("Submitted", "TurnLimitExceeded", "SequenceLengthLimitExceeded", "TimeLimitExceeded")
ERROR_CHARACTERS = 500
CLOCK_SECONDS = 1.0  # Harbor's time stamps may differ from its timer by so much

# What the pinned recipe's dashboards expect, as quotients of other metrics.
QUOTIENTS = {
    "time_per_turn": ("agent_run_time", "turns"),
    "model_query_time_avg": ("model_query_time_sum", "turns"),
    "env_execution_time_avg": ("env_execution_time_sum", "tool_calls"),
    "model_time_ratio": ("model_query_time_sum", "total_time"),
    "env_time_ratio": ("env_execution_time_sum", "total_time"),
    "eval_time_ratio": ("eval_time", "total_time"),
}

log = logging.getLogger("recipe.harbor")


@dataclass(frozen=True)
class TrialRequest:
    """`agent`: name of one of Harbor's own, or an import path; `environment`: fields of Harbor's configuration.

    `name`: the trial's folder below `trials_dir`; empty: Harbor makes one up.
    """

    task_dir: Path
    trials_dir: Path
    agent: str
    environment: Mapping[str, Any]
    model: str | None = None
    agent_options: Mapping[str, Any] = field(default_factory=dict)
    agent_timeout_multiplier: float = 1.0
    name: str = ""

    def config(self) -> TrialConfig:
        imported = ":" in self.agent
        return TrialConfig(
            task=TaskConfig(path=self.task_dir),
            trials_dir=self.trials_dir,
            trial_name=self.name,
            agent=AgentConfig(
                name=None if imported else self.agent,
                import_path=self.agent if imported else None,
                model_name=self.model,
                skip_model_parsing=True,  # else Harbor imports litellm, seconds long and in the event loop
                kwargs=dict(self.agent_options),
            ),
            environment=EnvironmentConfig(**self.environment),
            agent_timeout_multiplier=self.agent_timeout_multiplier,
        )


@dataclass
class TrialReply:
    """`reward`: in [0, 1], or None when there is none to train on; `agent_metrics`: measured ones only."""

    exit_status: str
    reward: float | None = None
    eval_report: dict[str, float] = field(default_factory=dict)
    agent_metrics: dict[str, float] = field(default_factory=dict)
    trial_name: str = ""
    error: str | None = None


async def run_trial(request: TrialRequest) -> TrialReply:
    """Runs it to its end. Raises CancelledError only.

    When this returns or raises, its local sandbox is gone, unless a warning in the log says that it does not end.
    """
    if request.name and (request.trials_dir / request.name).exists():
        return TrialReply(AGENT_ERROR, trial_name=request.name, error="there is a trial of this name already")
    try:
        trial = await Trial.create(request.config())
    except Exception as error:  # noqa: BLE001 (a task or an agent may raise anything)
        return TrialReply(AGENT_ERROR, trial_name=request.name, error=_shortened(error))
    environment = trial.agent_environment
    local = environment if isinstance(environment, LocalEnvironment) else None
    if local is not None:
        # A task that asks for a running service says so in its task.toml, in [metadata].
        keep_processes = bool(trial.task.config.metadata.get("keep_processes"))

        async def clear(_event: TrialHookEvent) -> None:
            await local.clear_for_verifier(keep_processes=keep_processes)

        async def end_of_cancelled(_event: TrialHookEvent) -> None:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                await local.stop(delete=True)

        trial.add_hook(TrialEvent.VERIFICATION_START, clear)
        # Before Harbor copies files out of it, which takes half of a flush's time.
        trial.add_hook(TrialEvent.AGENT_END, end_of_cancelled)
        trial.add_hook(TrialEvent.CANCEL, end_of_cancelled)
    try:
        result = await trial.run()
        disk_full = local is not None and local.disk_full
        return reply(result, agent_seconds=trial.agent_timeout_sec, disk_full=disk_full)
    except Exception as error:  # noqa: BLE001 (run raises CancelledError only, unless its folder can't be written)
        return TrialReply(AGENT_ERROR, trial_name=trial.config.trial_name, error=_shortened(error))
    finally:
        if local is not None:  # in a cancelled trial, Harbor does not wait for its own stop
            try:
                await asyncio.shield(local.stop(delete=True))
            except Exception as error:  # noqa: BLE001 (the reply stands, whatever is left)
                log.warning("trial %s: %s", trial.config.trial_name, error)


def reply(result: TrialResult, agent_seconds: float | None, *, disk_full: bool = False) -> TrialReply:
    """What the trial's result means for training.

    `agent_seconds`: the agent's time limit; `disk_full`: the verifier found no room.
    """
    rewards = (result.verifier_result.rewards or {}) if result.verifier_result else {}
    said = (result.agent_result.metadata or {}) if result.agent_result else {}
    failures = [result.exception_info, *(step.exception_info for step in result.step_results or [])]
    failure = next(filter(None, failures), None)
    timed_out = _timed_out(result, agent_seconds)
    if disk_full and not rewards and (timed_out or not _of_agent(failure)):
        rewards, failure = {"reward": 0.0, "disk_full": 1.0}, None
    status = "TimeLimitExceeded" if timed_out else said.get("exit_status", "Submitted")
    reward = rewards.get("reward", next(iter(rewards.values()))) if rewards else None  # as Miles' servers do
    if failure is not None and not timed_out:
        status, error = AGENT_ERROR, f"{failure.exception_type}: {failure.exception_message}"
    elif reward is None:
        status, error = AGENT_ERROR if timed_out else UNKNOWN, "the trial ended without a reward"
    elif not 0 <= reward <= 1:  # NaN is neither
        status, error = AGENT_ERROR, f"the verifier's reward is {reward}, expected 0 to 1"
    elif status not in VALID:
        status, error = AGENT_ERROR, f"the agent says exit_status {status!r}, expected one of {VALID}"
    else:
        error = None
    return TrialReply(
        status,
        reward=reward if error is None else None,
        eval_report=_numbers(rewards),
        agent_metrics=_metrics(result, _numbers(said)),
        trial_name=result.trial_name,
        error=error and error[:ERROR_CHARACTERS],
    )


def _timed_out(result: TrialResult, agent_seconds: float | None) -> bool:
    """Whether the agent used its time up: Harbor reports any TimeoutError of an agent as AgentTimeoutError."""
    spent = _seconds(result.agent_execution)
    if not _of_agent(result.exception_info):
        return False
    return spent is not None and agent_seconds is not None and spent >= agent_seconds - CLOCK_SECONDS


def _of_agent(failure: ExceptionInfo | None) -> bool:
    """Of those after which a verifier runs; the first one stays."""
    return failure is not None and failure.exception_type == "AgentTimeoutError"


def _metrics(result: TrialResult, measured: dict[str, float]) -> dict[str, float]:
    """The agent's own numbers, the phases' seconds, and what follows from them; nothing that was not measured."""
    phases = {
        "spawn_time": result.environment_setup,
        "agent_setup_time": result.agent_setup,
        "agent_run_time": result.agent_execution,
        "eval_time": result.verifier,
        "total_time": TimingInfo(started_at=result.started_at, finished_at=result.finished_at),
    }
    metrics = measured | _numbers({name: _seconds(phase) for name, phase in phases.items()})
    if result.agent_result is not None:
        tokens = {name: getattr(result.agent_result, name) for name in ("n_input_tokens", "n_output_tokens")}
        metrics |= _numbers(tokens)
    if "env_execution_time_sum" in metrics:
        metrics["total_tool_time"] = metrics["env_execution_time_sum"]
    for name, (part, whole) in QUOTIENTS.items():
        if part in metrics and metrics.get(whole):
            metrics[name] = metrics[part] / metrics[whole]
    return metrics


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """The finite numbers of `values`: JSON knows no others."""
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    }


def _seconds(phase: TimingInfo | None) -> float | None:
    if phase is None or phase.started_at is None or phase.finished_at is None:
        return None
    return float((phase.finished_at - phase.started_at).total_seconds())


def _shortened(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:ERROR_CHARACTERS]
