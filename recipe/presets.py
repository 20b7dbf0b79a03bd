"""What each command sets, by engine: how a run on one machine differs from production is all here."""

from __future__ import annotations

from pathlib import Path

from recipe.errors import BadInputError
from recipe.given import Given

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

OF_AGENT = {
    ("local", "terminus-2"): {
        # Its replies are JSON with an analysis and a plan: 60 to 110 tokens.
        "MAX_RESPONSE_LEN": "160",
        # Most of these tokens are the protocol's own: at 2e-3 it came apart, from the fourth rollout on.
        "LR": "1e-3",
    }
}

PRESETS: dict[str, dict[str, dict[str, str]]] = {
    # By command and engine; a command's first engine is its default.
    "smoke": {
        "local": SMOKE,
        # The seed's small end-to-end check on the cluster.
        "miles": {
            "ENGINE": "miles",
            "NUM_ROLLOUT": "3",
            "ROLLOUT_BATCH_SIZE": "4",
            "N_SAMPLES_PER_PROMPT": "2",
            "OVER_SAMPLING_BATCH_SIZE": "6",
        },
    },
    # Ten rollouts bring the mean reward from about 0.4 to above 0.8.
    "learn": {"local": {**SMOKE, "NUM_ROLLOUT": "10", "SAVE_INTERVAL": "10"}},
    "train-camel": {"miles": {"ENGINE": "miles", "AGENT": "camel"}},
    "train-terminus2": {"miles": {"ENGINE": "miles", "AGENT": "terminus-2"}},
}
# What gives a command its name can't be set to something else.
FIXED = {"train-camel": ("engine", "agent"), "train-terminus2": ("engine", "agent")}


def preset_of(command: str, explicit: Given, agent: str) -> Given:
    """What `command` sets, for this agent and the engine that was given. Raises BadInputError for another engine."""
    engines = PRESETS[command]
    engine, source = explicit.get("engine", (next(iter(engines)), "default"))
    if engine not in engines:
        raise BadInputError(
            f"`{command}` does not run on this engine",
            expected=f"ENGINE={' or '.join(engines)}",
            found=engine,
            where=source,
        )
    chosen = engines[engine] | OF_AGENT.get((engine, agent), {})
    preset = {name.lower(): (value, f"preset {command}") for name, value in chosen.items()}
    for name in FIXED.get(command, ()):
        value, source = explicit.get(name, preset[name])
        if value != preset[name][0]:
            raise BadInputError(
                f"`{command}` is {name.upper()}={preset[name][0]}",
                found=f"{name.upper()}={value}",
                where=source,
            )
    return preset
