"""The environment that a job gives the plugins."""

from __future__ import annotations

import pytest

from recipe.plugins import agent, filters

JOB = {
    "AGENT_MODEL_NAME": "inkling-small",
    "HARBOR_AGENT_NAME": "camel",
    "HARBOR_AGENT_MAX_ITERATIONS": "50",
    "HARBOR_MAX_SEQ_LEN": "1048576",
    "HARBOR_AGENT_CALL_TIMEOUT_SEC": "10",
    "MAX_DROPPED_GROUPS": "3",
}


@pytest.fixture(autouse=True)
def job(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*JOB, "AGENT_SERVER_URL", "MILES_ROUTER_EXTERNAL_HOST", "HARBOR_INTERLEAVED_THINKING"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.delenv("RUN_JOURNAL", raising=False)
    monkeypatch.delenv("DROP_ZERO_SPREAD_GROUPS", raising=False)
    for name, value in JOB.items():
        monkeypatch.setenv(name, value)
    agent.recent_errors.clear()
    filters._dropped.clear()
