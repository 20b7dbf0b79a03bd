"""The model card of an export, made from its run's manifest; and the upload."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from recipe.errors import BadInputError, RecipeError

BASE = "thinkingmachines/Inkling-Small"
OF_MILES = f"""license: apache-2.0
base_model: {BASE}
tags: [inkling, grpo, reinforcement-learning]
---

# {{name}}

Trained from [{BASE}](https://huggingface.co/{BASE}) with GRPO on terminal tasks.

The weights are under Apache-2.0; their use is also subject to the Thinking Machines Model Acceptable Use Policy."""
OF_LOCAL = """tags: [inkling, grpo, test]
---

# {name}

A tiny Inkling that was trained from random weights to test the job: it holds nothing of any released model."""
# Of a run's settings, those that decide what was learnt. No path is told: the card is for others.
TOLD = (
    *("engine", "agent", "num_rollout", "rollout_batch_size", "n_samples_per_prompt", "lr", "max_seq_len"),
    *("max_response_len", "seed"),
)


def card(checkpoint: Path, *, is_local: bool) -> str:
    """README.md of the export of RUN/checkpoints/iter_N; without a manifest it says only which checkpoint."""
    run = checkpoint.parent.parent
    facts: dict[str, Any] = {"run": run.name, "checkpoint": checkpoint.name}
    try:
        manifest = json.loads((run / "run_manifest.json").read_text())
        settings, data = manifest["settings"], manifest["prompt_data"]
        facts |= {key: manifest[key] for key in ("started", "ended", "commit")} | manifest["pins"]
        facts |= {name: settings[name]["value"] for name in TOLD}
        facts["prompt data"] = f"{data['rows']} rows, sha256 {data['sha256']}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        facts["run manifest"] = f"not readable ({type(error).__name__})"
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts.items())
    text = (OF_LOCAL if is_local else OF_MILES).format(name=run.name)
    return f"---\n{text}\n\n| fact | value |\n|---|---|\n{rows}\n"


def require_repository(repository: str) -> None:
    """Raises BadInputError for what can be no repository's name."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined] # documented

    try:
        validate_repo_id(repository)
    except HFValidationError as error:
        raise BadInputError("there can be no such repository", found=error) from None


def push(
    exported: Path, repository: str, token: str | None, *, endpoint: str | None = None, private: bool = True
) -> str:
    """Uploads an export and returns its address; what is there already is not sent again.

    Raises RecipeError when the hub refuses.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    hub = HfApi(endpoint=endpoint, token=token)
    try:
        address = hub.create_repo(repository, private=private, exist_ok=True)
        hub.upload_folder(repo_id=repository, folder_path=exported, commit_message="Export of a run")
    except HfHubHTTPError as error:
        raise RecipeError("the upload failed", found=error, where=repository) from None
    return str(address)
