"""W&B's key as it travels to a job: never in an argument, a variable or a record, only in a file for its owner."""

from __future__ import annotations

import os

from recipe.job import netrc, tracking_environment
from recipe.run.parts import Run


def write_login(run: Run) -> None:
    """The key, where the job will log in with it, in a file of netrc's form until the run's end."""
    path, key = netrc(run.folder.path), run.settings.wandb_api_key
    run.running.callback(path.unlink, missing_ok=True)
    if key is None or "NETRC" not in tracking_environment(run.settings, run.folder.path):
        return
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w") as file:
        file.write(f"machine api.wandb.ai\n  login user\n  password {key.get_secret_value()}\n")
