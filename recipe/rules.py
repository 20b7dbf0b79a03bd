"""Which combinations of settings are refused: one list, each rule with its reason."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from recipe.errors import BadInputError
from recipe.settings import Settings


@dataclass(frozen=True)
class Rule:
    """`names` are the settings it is about, as they stand in `expected`."""

    names: tuple[str, ...]
    expected: str
    holds: Callable[[Settings], bool]
    reason: str


RULES = (
    Rule(
        ("over_sampling_batch_size", "rollout_batch_size"),
        "OVER_SAMPLING_BATCH_SIZE >= ROLLOUT_BATCH_SIZE",
        lambda s: s.over_sampling_batch_size >= s.rollout_batch_size,
        "a rollout starts the first number of groups and keeps the second",
    ),
    Rule(
        ("global_batch_size", "rollout_batch_size", "n_samples_per_prompt"),
        "GLOBAL_BATCH_SIZE = ROLLOUT_BATCH_SIZE x N_SAMPLES_PER_PROMPT",
        lambda s: s.global_batch_size == s.rollout_batch_size * s.n_samples_per_prompt,
        "a rollout is one optimizer step; else Miles drops samples or takes the batch as one group",
    ),
    Rule(
        ("max_response_len", "max_seq_len"),
        "MAX_RESPONSE_LEN < MAX_SEQ_LEN",
        lambda s: s.max_response_len < s.max_seq_len,
        "a sample holds the prompt as well as the turns",
    ),
    Rule(
        ("harbor_agent_call_timeout_sec", "rollout_timeout_sec"),
        "HARBOR_AGENT_CALL_TIMEOUT_SEC < ROLLOUT_TIMEOUT_SEC",
        lambda s: s.harbor_agent_call_timeout_sec < s.rollout_timeout_sec,
        "one hanging trial must end before the rollout gives up",
    ),
    Rule(
        ("agent_server_port", "session_server_port"),
        "AGENT_SERVER_PORT and SESSION_SERVER_PORT differ, unless 0",
        lambda s: s.agent_server_port != s.session_server_port or s.agent_server_port == 0,
        "both servers run on this machine",
    ),
)


def check(settings: Settings) -> None:
    """Raises BadInputError with every broken rule: expected, found with sources, reason."""
    broken = [rule for rule in RULES if not rule.holds(settings)]
    if broken:
        names = dict.fromkeys(name for rule in broken for name in rule.names)
        raise BadInputError(
            "these settings do not go together: " + "; ".join(rule.reason for rule in broken),
            expected="; ".join(rule.expected for rule in broken),
            found=", ".join(f"{n.upper()}={getattr(settings, n)} ({settings.source(n)})" for n in names),
        )
