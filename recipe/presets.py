"""What a run on one machine sets differently from production: engine, scale and sandbox backend."""

from __future__ import annotations

from pathlib import Path

SMOKE: dict[str, str] = {
    "ENGINE": "local",
    "SANDBOX_BACKEND": "local",
    "TASKS_DIR": str(Path(__file__).parent / "tasks" / "smoke"),
    # Everything listens on loopback, on ports asked for at the start.
    "AGENT_SERVER_HOST": "127.0.0.1",
    "AGENT_SERVER_PORT": "0",
    "SESSION_SERVER_PORT": "0",
    # Three rollouts show that the reward rises; four prompts of eight trials take about ten seconds.
    "NUM_ROLLOUT": "3",
    "ROLLOUT_BATCH_SIZE": "4",
    "N_SAMPLES_PER_PROMPT": "8",
    # One group more than is kept, so that surplus trials are aborted in every rollout, as in production.
    "OVER_SAMPLING_BATCH_SIZE": "5",
    # Eight sandboxes wait for the model rather than for the two cores that it needs too.
    "AGENT_MAX_CONCURRENT": "8",
    # For the tiny model of 13 million parameters: 1.5e-3 to 2e-3 learned over all seeds, 3e-3 was unstable.
    "LR": "2e-3",
    # A trial's prompt is about 370 tokens, and a turn's right answer below 60.
    "MAX_SEQ_LEN": "2048",
    "MAX_RESPONSE_LEN": "96",
    "HARBOR_AGENT_MAX_ITERATIONS": "4",
    # Saves in the middle and at the end: both paths run.
    "SAVE_INTERVAL": "2",
    # A trial takes a second or two, and at most a rollout's 40 queue before it; the deadline ends a hang.
    "HARBOR_AGENT_CALL_TIMEOUT_SEC": "120",
    "HARBOR_AGENT_TIMEOUT_MULTIPLIER": "1",
    "SEED": "1",
}

PRESETS: dict[str, dict[str, str]] = {
    "smoke": SMOKE,
    # Ten rollouts bring the mean reward from about 0.4 to above 0.8.
    "learn": {**SMOKE, "NUM_ROLLOUT": "10", "SAVE_INTERVAL": "10"},
}
