"""Which combinations of settings are refused: one list, each rule with its reason."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from recipe.errors import BadInputError
from recipe.settings import Settings

# TP8 and EP8 fill a node, and each node is one pipeline stage of the 42 layers.
GPUS_PER_NODE = 8
PIPELINE_NODES = (6, 7, 8)


@dataclass(frozen=True)
class Rule:
    """`names` are the settings it is about, as they stand in `expected`."""

    names: tuple[str, ...]
    expected: str
    holds: Callable[[Settings], bool]
    reason: str
    engine: str = ""  # the only one that it is about


# 3e-5 was the highest learning rate that trained Inkling-Small stably; 5e-5 and 1e-4 collapsed.
HIGHEST_STABLE_LR = 3e-5
# Ray's own port on the head node, and where Miles' router takes a random one.
RAY_PORT = 6379
ROUTER_PORTS = range(3100, 5001)


def _session_ports(settings: Settings) -> range:
    return range(settings.session_server_port, settings.session_server_port + settings.session_servers)


def _ports_are_disjoint(s: Settings) -> bool:
    single = (s.agent_server_port, s.ray_dashboard_port, RAY_PORT)
    taken = [*single, *_session_ports(s)]
    return len(taken) == len(set(taken)) and not any(port in ROUTER_PORTS for port in taken)


RULES = (
    Rule(
        ("over_sampling_batch_size", "rollout_batch_size"),
        "OVER_SAMPLING_BATCH_SIZE >= ROLLOUT_BATCH_SIZE",
        lambda s: s.over_sampling_batch_size >= s.rollout_batch_size,
        "a rollout starts the first number of groups and keeps the second",
    ),
    Rule(
        ("global_batch_size", "rollout_batch_size", "n_samples_per_prompt"),
        "GLOBAL_BATCH_SIZE divides ROLLOUT_BATCH_SIZE x N_SAMPLES_PER_PROMPT",
        lambda s: (s.rollout_batch_size * s.n_samples_per_prompt) % s.global_batch_size == 0,
        "Miles drops the samples that are left over, and then takes the batch as one group",
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
    # What the tiny engine can't do.
    Rule(
        ("sandbox_backend", "engine"),
        "SANDBOX_BACKEND=local or docker with ENGINE=local",
        lambda s: s.sandbox_backend in ("local", "docker"),
        "its agent server has no other sandboxes",
        engine="local",
    ),
    Rule(
        ("global_batch_size", "rollout_batch_size", "n_samples_per_prompt"),
        "GLOBAL_BATCH_SIZE = ROLLOUT_BATCH_SIZE x N_SAMPLES_PER_PROMPT with ENGINE=local",
        lambda s: s.global_batch_size == s.rollout_batch_size * s.n_samples_per_prompt,
        "its rollout is one optimizer step",
        engine="local",
    ),
    Rule(
        ("agent_server_port", "session_server_port"),
        "AGENT_SERVER_PORT and SESSION_SERVER_PORT differ, unless 0",
        lambda s: s.agent_server_port != s.session_server_port or s.agent_server_port == 0,
        "both servers run on this machine",
        engine="local",
    ),
    Rule(
        ("agent_server_host",),
        "AGENT_SERVER_HOST on loopback with ENGINE=local",
        lambda s: re.fullmatch(r"localhost|127(\.\d{1,3}){3}", s.agent_server_host) is not None,
        "whoever reaches the agent server may start agents on this machine, and nobody else has to",
        engine="local",
    ),
    Rule(
        ("deterministic", "agent", "sandbox_backend"),
        "SANDBOX_BACKEND=local with DETERMINISTIC=1 and AGENT=terminus-2",
        lambda s: not s.deterministic or s.agent == "camel" or s.sandbox_backend == "local",
        "the prompt of a container's shell has the container's number",
        engine="local",
    ),
    # What the cluster's job relies on.
    Rule(
        ("head_ip", "cluster_config"),
        "HEAD_IP, or CLUSTER_CONFIG",
        lambda s: s.head_ip is not None,
        "the job, the agent server and the sandboxes meet on the head node",
        engine="miles",
    ),
    Rule(
        ("num_nodes",),
        "NUM_NODES = 6, 7 or 8",
        lambda s: s.num_nodes in PIPELINE_NODES,
        "one pipeline stage a node: 42 layers in fewer stages don't fit, in more they don't divide",
        engine="miles",
    ),
    Rule(
        ("gpus_per_node",),
        "GPUS_PER_NODE = 8",
        lambda s: s.gpus_per_node == GPUS_PER_NODE,
        "tensor and expert parallelism fill a node of 8",
        engine="miles",
    ),
    Rule(
        ("lr",),
        f"LR <= {HIGHEST_STABLE_LR:g}, or FORCE_LR=1",
        lambda s: s.lr <= HIGHEST_STABLE_LR or s.force_lr,
        "3e-5 was the highest learning rate that trained Inkling-Small stably; 5e-5 and 1e-4 collapsed",
        engine="miles",
    ),
    Rule(
        ("agent_server_port", "session_server_port", "session_servers"),
        "1 <= AGENT_SERVER_PORT, 1 <= SESSION_SERVER_PORT, SESSION_SERVER_PORT + SESSION_SERVERS <= 65536",
        lambda s: s.agent_server_port > 0 and _session_ports(s).start > 0 and _session_ports(s).stop <= 65536,
        "every session server has a port of its own, and all nodes must know them",
        engine="miles",
    ),
    Rule(
        ("agent_server_port", "ray_dashboard_port", "session_server_port", "session_servers"),
        "different ports for agent server, Ray's dashboard and each session server; none of Ray's "
        f"{RAY_PORT} or of {ROUTER_PORTS.start} to {ROUTER_PORTS.stop - 1}",
        _ports_are_disjoint,
        "they share the head node with Ray and with Miles' router, which takes a port of that range",
        engine="miles",
    ),
    Rule(
        ("deterministic", "engine"),
        "no DETERMINISTIC=1 with ENGINE=miles",
        lambda s: not s.deterministic,
        "SGLang batches what comes, so its bits depend on the load",
        engine="miles",
    ),
    Rule(
        ("sandbox_backend", "engine"),
        "another SANDBOX_BACKEND than local with ENGINE=miles",
        lambda s: s.sandbox_backend != "local",
        "the pinned Harbor's agent server has no such sandboxes",
        engine="miles",
    ),
)


def check(settings: Settings) -> None:
    """Raises BadInputError with every broken rule: expected, found with sources, reason."""
    of_engine = [rule for rule in RULES if rule.engine in ("", settings.engine)]
    broken = [rule for rule in of_engine if not rule.holds(settings)]
    if broken:
        names = dict.fromkeys(name for rule in broken for name in rule.names)
        raise BadInputError(
            "these settings do not go together: " + "; ".join(rule.reason for rule in broken),
            expected="; ".join(rule.expected for rule in broken),
            found=", ".join(f"{n.upper()}={getattr(settings, n)} ({settings.source(n)})" for n in names),
        )
