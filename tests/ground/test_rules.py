"""Every rule refuses what it is about, and the presets pass."""

from __future__ import annotations

import pytest

from recipe import rules
from recipe.errors import BadInputError
from recipe.presets import PRESETS
from recipe.resolve import load

CLUSTER = ["HEAD_IP=10.0.0.1", "TASKS_DIR=tasks"]
# By the rule's reason, which is its own: a command and the settings that break this rule alone.
BROKEN = {
    "a rollout starts the first": ("smoke", "OVER_SAMPLING_BATCH_SIZE=3"),
    "Miles drops the samples": ("train-camel", "GLOBAL_BATCH_SIZE=100"),
    "a sample holds the prompt": ("smoke", "MAX_RESPONSE_LEN=2048"),
    "one hanging trial": ("smoke", "ROLLOUT_TIMEOUT_SEC=120"),
    "its agent server has no other": ("smoke", "SANDBOX_BACKEND=modal"),
    "its rollout is one optimizer step": ("smoke", "GLOBAL_BATCH_SIZE=16"),
    "both servers run on this machine": ("smoke", "AGENT_SERVER_PORT=9 SESSION_SERVER_PORT=9"),
    "whoever reaches the agent server": ("smoke", "AGENT_SERVER_HOST=0.0.0.0"),
    "the prompt of a container's shell": ("smoke", "DETERMINISTIC=1 AGENT=terminus-2 SANDBOX_BACKEND=docker"),
    "the job, the agent server and": ("train-camel", "HEAD_IP="),
    "one pipeline stage a node": ("train-camel", "NUM_NODES=5"),
    "tensor and expert parallelism": ("train-camel", "GPUS_PER_NODE=4"),
    "3e-5 was the highest": ("train-terminus2", "LR=0.0001"),
    "every session server has a port": ("train-camel", "SESSION_SERVER_PORT=65500"),
    "they share the head node": ("train-camel", "AGENT_SERVER_PORT=30063"),
    "SGLang batches what comes": ("train-camel", "DETERMINISTIC=1"),
    "the pinned Harbor's agent server": ("train-camel", "SANDBOX_BACKEND=local"),
}


def settings_of(command, *words):
    given = dict(word.split("=", 1) for word in ([] if command == "smoke" else CLUSTER))
    given |= dict(word.split("=", 1) for word in words)
    return load(command, [f"{name}={value}" for name, value in given.items()])


def test_each_rule_has_its_failing_twin():
    assert len(rules.RULES) == len(BROKEN)
    assert all(rule.reason.startswith(start) for rule, start in zip(rules.RULES, BROKEN, strict=True))


@pytest.mark.parametrize("reason", BROKEN)
def test_a_broken_rule_is_refused_with_its_reason_and_the_values(empty_folder, reason):
    command, words = BROKEN[reason]
    rule = next(rule for rule in rules.RULES if rule.reason.startswith(reason))
    with pytest.raises(BadInputError) as refused:
        rules.check(settings_of(command, *words.split()))
    told = [rule.expected, rule.reason, *(word for word in words.split() if not word.endswith("="))]
    assert all(part in str(refused.value) for part in told)


def test_a_learning_rate_that_collapses_can_be_forced(empty_folder):
    rules.check(settings_of("train-camel", "LR=5e-5", "FORCE_LR=1"))
    rules.check(settings_of("train-camel", "LR=3e-5"))


@pytest.mark.parametrize("port", ["8265", "6379", "3100", "30000"])
def test_no_two_listeners_of_the_head_node_share_a_port(empty_folder, port):
    with pytest.raises(BadInputError, match="they share the head node"):
        rules.check(settings_of("train-camel", f"AGENT_SERVER_PORT={port}"))


@pytest.mark.parametrize("nodes", ["6", "7", "8"])
@pytest.mark.parametrize("command", PRESETS)
def test_the_presets_keep_every_rule(empty_folder, command, nodes):
    rules.check(settings_of(command, f"NUM_NODES={nodes}"))
