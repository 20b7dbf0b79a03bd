"""The lines that Miles writes of a rollout: their forms, not its numbers."""

from __future__ import annotations

from typing import Any

NAN = "nan"


def logged(name: str, place: str, message: str) -> str:
    return f"[2026-08-07 10:20:30.123 {name}] {place} - {message}"


def of_worker(line: str) -> str:
    """As Ray passes on what an actor printed."""
    return f"\x1b[36m(MegatronTrainRayActor pid=4242, ip=10.0.0.2)\x1b[0m {line}"


def sampled(rollout: int, metrics: dict[str, Any]) -> list[str]:
    """The rollout manager's, once the samples are there; `metrics` are those of the rollout function."""
    table = printed(
        metrics
        | {
            "rollout/response_len/mean": "np.float64(812.5)",
            "rollout/truncated_ratio": 0.125,
            "rollout/zero_std/count_0.0": 1,
            "rollout/prefix_cache_hit_rate": NAN,
            "rollout/dynamic_filter/drop_agent_error": 2,
            "rollout/weight_version/names": ["1", "2"],
            "perf/rollout_time": 1800.25,
        }
    )
    return [
        logged("rollout_manager", "data_source.py:88", "First rollout sample: ['perf 7: {\"a\": 1}\\n']"),
        logged("rollout_manager", "metrics.py:89", f"perf {rollout}: {table}"),
    ]


def trained(rollout: int, *, reward: object = 0.5, grad_norm: object = 0.75, valid: bool = True) -> list[str]:
    """The actors', in the order of a step: the last stage's tables and the first rank's timers."""
    last, first = "actor_cell0_rank63", "actor_cell0_rank0"
    step = logged(
        last,
        "log_utils.py:544",
        f"step {rollout}: "
        + printed(
            {
                "train/loss": -0.0125,
                "train/entropy_loss": 0.4375,
                "train/train_rollout_logprob_abs_diff": 0.015625,
                "train/kl_loss": "tensor(0.0625)",
                "train/tis": 1.0,
                "train/pg_clipfrac": 0.0,
                "train/grad_norm": grad_norm,
                "train/lr-pg_0": 1e-05,
                "train/step": rollout,
            }
        ),
    )
    state = "true" if valid else "false"
    perf = printed(
        {
            "perf/train_wait_time": 1900.0,
            "perf/train_time": 950.5,
            "perf/update_weights_time": 61.0,
            "perf/actor_train_tok_per_s": 812.0,
        }
    )
    table = printed({"rollout/raw_reward": reward, "rollout/advantages": 0.0})
    return [
        of_worker(line)
        for line in (
            logged(first, "timer.py:32", "Timer train start"),
            logged(last, "log_utils.py:123", f"rollout {rollout}: {table}"),
            logged(
                last,
                "structured_log.py:16",
                f"ft op=train_step rollout={rollout} step=0 attempt=0 outcome=NORMAL valid_step={state}",
            ),
            step,
            step.replace("log_utils.py:544", "model.py:854")
            + " [repeated 2x across cluster] (Ray deduplicates)",
            logged(first, "timer.py:42", "Timer train end (elapsed: 950.5s)"),
            logged(first, "train_metric_utils.py:50", f"perf {rollout}: {perf}"),
        )
    ]


def timed(*timers: str) -> list[str]:
    return [of_worker(logged("actor_cell0_rank0", "timer.py:32", f"Timer {timer} start")) for timer in timers]


def printed(table: dict[str, Any]) -> str:
    """Python's repr, in which text stands as it is: `nan`, or what NumPy and torch print."""
    return "{" + ", ".join(f"{key!r}: {value}" for key, value in table.items()) + "}"
