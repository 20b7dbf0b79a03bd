"""Stands in for Miles' train.py: parses every flag, lets an actor run one rollout, and writes what it has seen.

Its step, its checkpoint and the update of the weights are lines of the log alone. Then it does what
`<run name>.json` of the folder `behaviour` beside it says, which a test may write meanwhile:
{"print": [lines], "server": title, "exit": code}. Without "exit" it runs on.
"""

from __future__ import annotations

import hashlib
import json
import netrc
import os
import subprocess
import sys
import time
from pathlib import Path

import ray
from miles.ray.rollout.rollout_manager import RolloutManager
from miles.utils import log_forms
from miles.utils.arguments import parse_args

import recipe.plugins


def main() -> None:
    args = parse_args()
    run = Path(args.save).parent
    print("the stand-in of Miles starts", flush=True)
    ray.init(log_to_driver=False)
    # As in Miles, the actor has variables of its own beside the job's.
    own = {"runtime_env": {"env_vars": {"NCCL_CUMEM_ENABLE": "0"}}}
    manager = ray.remote(num_cpus=0)(RolloutManager).options(**own).remote(args)
    seen = {
        "argv": sys.argv,
        "folder": str(Path.cwd()),
        "file": recipe.plugins.__file__,
        "environment": dict(os.environ),
        "login": login(),
        "manager": ray.get(manager.generate.remote()),
    }
    (run / "seen.json").write_text(json.dumps(seen))
    lines = log_forms.timed("update_weights") + log_forms.sampled(0, seen["manager"]["metrics"])
    lines += log_forms.trained(0, grad_norm=log_forms.NAN, valid=False) + log_forms.timed("save_model")
    print(*lines, sep="\n", flush=True)
    save(Path(args.save), 0)
    obey(Path(__file__).parent / "behaviour" / f"{run.name}.json")


def save(folder: Path, rollout: int) -> None:
    """As Megatron, which names a checkpoint last."""
    (folder / f"iter_{rollout:07d}").mkdir()
    (folder / "latest_checkpointed_iteration.txt").write_text(f"{rollout}")


def login() -> str | None:
    """A hash of the key that wandb would find."""
    if "NETRC" not in os.environ:
        return None
    *_, key = netrc.netrc(os.environ["NETRC"]).authenticators("api.wandb.ai")
    return hashlib.sha256(key.encode()).hexdigest()


def obey(file: Path) -> None:
    told, servers = 0, []
    while True:
        orders = json.loads(file.read_text()) if file.exists() else {}
        if orders.get("server") and not servers:
            # As an inference engine: it calls itself so, and has the job's environment.
            servers.append(subprocess.Popen([orders["server"], "600"], executable="/bin/sleep"))
        for line in orders.get("print", [])[told:]:
            print(line, flush=True)
            told += 1
        if "exit" in orders:
            sys.exit(orders["exit"])
        time.sleep(0.1)


main()
