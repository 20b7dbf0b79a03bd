"""What is worth an alarm while a run goes on: a table of conditions, each with its limit, its reason and what to do.

A limit that is called measured was measured on this project's runs of the tiny model, with both agents; none of
these numbers was measured on Inkling-Small.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from recipe.errors import BadInputError
from recipe.plugins.audit import GROWTH, LEAST_RATIO
from recipe.watch import conditions
from recipe.watch.conditions import LEAST_GROUPS, LEAST_TRIALS, STALL_PHASES, STALL_SECONDS, STANDARD_ERRORS


@dataclass(frozen=True)
class Alarm:
    """One condition. `check` gets the history, the settings and the limit, and says what it found.

    `when` tells it, with the limit and its unit; `why` is the reason for that limit.
    `after`: the kind of event after which it is looked at; a tick is a moment in which nothing happens.
    """

    name: str
    check: conditions.Check
    limit: float
    when: str
    why: str
    do: str
    action: Literal["warn", "stop"] = "warn"
    after: str = "rollout"


# fmt: off
ALARMS = (
    Alarm("entropy-collapse", conditions.moved("entropy", "entropy", up=False), 0.3,
          "the entropy of the last 3 rollouts is below {:g} of that of the first 3",
          "measured: down to 0.63 while the reward doubled",
          "look at trajectories for repetition; start from an earlier checkpoint with a lower LR"),
    Alarm("entropy-explosion", conditions.moved("entropy", "entropy", up=True), 2,
          "the entropy of the last 3 rollouts is above {:g} times that of the first 3",
          "measured: up to 1.2 while learning, 1.5 and rising where the protocol came apart at too high an LR",
          "start from an earlier checkpoint with a lower LR"),
    Alarm("kl", conditions.newest("kl", "KL to the reference"), 0.25,
          "the KL to the reference is above {:g} nats a token",
          "measured: up to 0.12 while learning",
          "start from an earlier checkpoint with a lower LR (3e-5 was the highest stable one)"),
    Alarm("reward-fall", conditions.reward_fall, 0.5,
          f"the mean reward of the last 5 rollouts is below {{:g}} of the best such mean, and {STANDARD_ERRORS:g} "
          "standard errors below it",
          "in 3,000 simulated runs without any change it was never raised; a fall to a fifth is seen after 2 to 4",
          "start from the checkpoint before the fall with a lower LR", "stop"),
    Alarm("early-endings", conditions.early_endings, 0.6,
          "unsolved trials of the last 3 rollouts take less than {:g} of the turns they took in the first 3, and are "
          "not truncated more often",
          "giving up on a hard task costs the policy nothing; measured: the turns only rose",
          "read trajectories of unsolved tasks: the reward does not show this"),
    Alarm("longer-replies", conditions.moved("response_tokens_mean", "tokens", up=True), 2.5,
          "the trajectories of the last 3 rollouts have more than {:g} times the tokens of those of the first 3",
          "measured: up to 1.6 while learning; rollouts take as much longer",
          "look at trajectories for repetition; MAX_SEQ_LEN cuts the longest"),
    Alarm("shorter-replies", conditions.moved("response_tokens_mean", "tokens", up=False), 0.4,
          "the trajectories of the last 3 rollouts have less than {:g} of the tokens of those of the first 3",
          "measured: no less than 1; the loss weighs each trajectory the same, which favours short ones",
          "look whether thinking or tool calls went missing"),
    Alarm("not-finite", conditions.not_finite, 0,
          "the newest loss, gradient norm, KL, entropy or difference is not finite, or the optimizer skipped its step",
          "Megatron's own check is off in this recipe, so nothing else tells",
          "one skipped step does no harm; look at that rollout's trajectories"),
    Alarm("skipped-updates", conditions.skipped_updates, 3,
          "the optimizer took no step, or the loss was not finite, in {:g} rollouts in a row",
          "nothing is learned, at full cost; a single one happens",
          "look at grad_norm: where it stays NaN though the weights move, it is the optimizer's flags that lose it, "
          "and a run may go on with this alarm left out of STOP_ON", "stop"),
    Alarm("train-rollout-difference", conditions.newest("logprob_difference", "mean difference"), 0.1,
          "the trainer's log-probabilities differ from the engine's by more than {:g} nats a token in the mean",
          "Miles' examples: 0.01 with bf16 weights, 0.27 with a quantized engine; measured: 2e-6",
          "look for routing replay that is off, a failed weight update or a kernel that differs"),
    Alarm("uniform-groups", conditions.uniform_groups, 0.5,
          f"more than {{:.0%}} of the last {LEAST_GROUPS} kept groups have equal rewards, which teach nothing",
          "the limit of later versions of Miles; fewer groups say little",
          "leave out the prompts that are always or never solved"),
    Alarm("infrastructure", conditions.infrastructure, 0.05,
          f"more than {{:.0%}} of the last {LEAST_TRIALS} trials failed by no doing of the policy",
          "the limits of later versions of Miles; each failure costs its whole group",
          "look at logs/agent_server.log, at the backend's quota and at AGENT_MAX_CONCURRENT"),
    Alarm("truncation", conditions.newest("truncated_ratio", "share"), 0.25,
          "more than {:.0%} of a rollout's trajectories are cut at a limit of tokens",
          "the limit of later versions of Miles",
          "raise MAX_SEQ_LEN or MAX_RESPONSE_LEN, or leave out the tasks that need more"),
    Alarm("malformed", conditions.newest("malformed_ratio", "share"), 0.25,
          "more than {:.0%} of a rollout's trajectories have a malformed reply",
          "measured: up to 9 % while learning, 13 % and then 34 % where the protocol came apart",
          "start from an earlier checkpoint with a lower LR"),
    Alarm("token-audit", conditions.strict_tokens, 0.5,
          "more than {:g} x AUDIT_MAX_STRICT of the trajectories hold tokens that nobody sampled or replayed so",
          "at AUDIT_MAX_STRICT itself the job ends; measured: up to 3 %",
          "events.jsonl has an example, kind audit, of what was rendered otherwise"),
    Alarm("native-tool-blocks", conditions.native_blocks, LEAST_RATIO,
          f"Inkling's own tool calls are in {{:.0%}} or more of Terminus-2's rewarded trajectories, and in more than "
          f"{GROWTH:g} times as many as at first",
          "once rewarded, the habit grows until replies can't be parsed",
          "read these trajectories; start from an earlier checkpoint with a lower LR"),
    Alarm("stall", conditions.stall, 6,
          f"a phase that has ended {STALL_PHASES} times lasts longer than {{:g}} times its median, and than "
          f"{STALL_SECONDS / 60:g} min",
          "the limits of later versions of Miles",
          "look at the open trials with `recipe status` and at logs/train.log; Ctrl-C stops cleanly", after="tick"),
    Alarm("host-memory", conditions.low_memory, 0.05,
          "less than {:.0%} of the head's memory is available",
          "Ray's own monitor, off in this recipe, acts there; the kernel kills what it likes, and later",
          "free memory on the head; each of SESSION_SERVERS takes 1.3 GB", after="resources"),
    Alarm("disk", conditions.low_disk, 1,
          "RUNS_ROOT has less room than {:g} checkpoint takes: the last one, or 550 GB of Inkling-Small before that",
          "a checkpoint that is cut short is lost, and the run with it",
          "remove old checkpoints; raise SAVE_INTERVAL for the next run", after="resources"),
    Alarm("sandbox-hours", conditions.sandbox_hours, 1,
          "all sandboxes together were there for more than {:g} x SANDBOX_HOURS_MAX",
          "the limit that was set",
          "start from the checkpoint with a higher SANDBOX_HOURS_MAX", "stop", after="resources"),
    Alarm("sandbox-orphans", conditions.orphans, 0,
          "more than {:g} sandboxes have outlived their trials",
          "what nobody deletes is paid for until somebody does",
          "recipe sandboxes clean --run RUN --delete", after="sandbox"),
)
# fmt: on
NAMES = tuple(alarm.name for alarm in ALARMS)
HEAD = """\
# Alarms

Written from recipe/watch/alarms.py by `recipe pins-check --write`.

The launcher looks at these while a run goes on; `recipe alarms RUN` looks at a run's events once more. An alarm
speaks once for as long as its condition holds. STOP_ON chooses which alarms stop the run after saving a checkpoint:
names with commas between, or `none` alone; when it is empty, those marked `stop`. A limit that is called measured was
measured on the tiny model of the local engine: on Inkling-Small none was, so look before you trust one.

| alarm | when | action | why this limit | what to do |
|---|---|---|---|---|"""


def named(settings: Mapping[str, Any]) -> list[str]:
    """The names in STOP_ON, in small letters."""
    return [name.strip().casefold() for name in str(settings.get("stop_on") or "").split(",") if name.strip()]


def stopping(stop_on: str) -> frozenset[str]:
    """The alarms that stop a run with this STOP_ON. Raises BadInputError, with the nearest name, for no alarm."""
    names = named({"stop_on": stop_on})
    if names == ["none"]:
        return frozenset()
    for name in names:
        if name == "none":
            raise BadInputError("`none` in STOP_ON stands alone", expected="none, or names", found=stop_on)
        if name not in NAMES:
            nearest = difflib.get_close_matches(name, NAMES, n=1) or ["none", *NAMES]
            raise BadInputError("STOP_ON names no alarm", expected=", ".join(nearest), found=name)
    return frozenset(names or (alarm.name for alarm in ALARMS if alarm.action == "stop"))


def markdown() -> str:
    """docs/alarms.md."""
    rows = [
        f"| `{of.name}` | {of.when.format(of.limit)} | {of.action} | {of.why} | {of.do} |" for of in ALARMS
    ]
    return "\n".join([HEAD, *rows, ""])
