"""Every rule refuses what it is about, and the presets pass."""

from __future__ import annotations

import pytest

from recipe import rules
from recipe.errors import BadInputError
from recipe.presets import PRESETS
from recipe.settings import load

BROKEN = {
    "OVER_SAMPLING_BATCH_SIZE >= ROLLOUT_BATCH_SIZE": ["OVER_SAMPLING_BATCH_SIZE=3"],
    "GLOBAL_BATCH_SIZE = ROLLOUT_BATCH_SIZE x N_SAMPLES_PER_PROMPT": ["GLOBAL_BATCH_SIZE=16"],
    "MAX_RESPONSE_LEN < MAX_SEQ_LEN": ["MAX_RESPONSE_LEN=2048"],
    "HARBOR_AGENT_CALL_TIMEOUT_SEC < ROLLOUT_TIMEOUT_SEC": ["ROLLOUT_TIMEOUT_SEC=120"],
    "AGENT_SERVER_PORT and SESSION_SERVER_PORT differ, unless 0": [
        "AGENT_SERVER_PORT=9",
        "SESSION_SERVER_PORT=9",
    ],
}


def test_each_rule_has_its_failing_twin():
    assert [rule.expected for rule in rules.RULES] == list(BROKEN)


@pytest.mark.parametrize("expected", BROKEN)
def test_a_broken_rule_is_refused_with_its_reason_and_the_values(empty_folder, expected):
    settings = load("smoke", BROKEN[expected])
    with pytest.raises(BadInputError) as refused:
        rules.check(settings)
    rule = next(rule for rule in rules.RULES if rule.expected == expected)
    assert all(
        part in str(refused.value) for part in (expected, rule.reason, BROKEN[expected][0], "argument")
    )


@pytest.mark.parametrize("preset", PRESETS)
def test_the_presets_keep_every_rule(empty_folder, preset):
    rules.check(load(preset))
