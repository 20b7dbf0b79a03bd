"""What ran, with what and how it ended: run_manifest.json for programs, run_manifest.md for people."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from recipe.algorithm import GRPO
from recipe.doctor.lineage import lineage
from recipe.errors import RecipeError
from recipe.files import write_whole
from recipe.pins import load_pins
from recipe.run.folder import RunFolder, write_json
from recipe.settings import Settings
from recipe.tasks.folders import content_hash, fetched
from recipe.tasks.prompts import Row

PROJECT = Path(__file__).resolve().parents[2]
# What the readable form names; the JSON form has every installed package.
MAIN_PACKAGES = ("inkling-grpo", "ray", "torch", "transformers", "harbor", "camel-ai", "tml-renderers")


class Manifest:
    """Written when the run starts, whenever more is known, and once more when it has ended."""

    def __init__(self, folder: RunFolder, facts: dict[str, Any]) -> None:
        self._folder = folder
        self._facts = facts

    @classmethod
    def begin(
        cls, folder: RunFolder, settings: Settings, rows: Sequence[Row], argv: Sequence[str]
    ) -> Manifest:
        """A new run's."""
        manifest = cls(folder, {})
        manifest.add(
            started=_now(),
            ended=None,
            exit_code=None,
            error=None,
            argv=list(argv),
            commit=commit(),
            pins=pinned(settings),
            settings=settings.with_sources(),
            prompt_data={
                "path": str(settings.prompt_data),
                "rows": len(rows),
                "sha256": hashlib.sha256(settings.prompt_data.read_bytes()).hexdigest(),
            },
            thinking_effort=GRPO.thinking_effort,
            tasks_source=fetched(settings.tasks_dir),
            load_dir=lineage(settings),
            tasks={
                name: content_hash(settings.tasks_dir / name)
                for name in sorted({row.instance_id for row in rows})
            },
            python=sys.version,
            platform=platform.platform(),
            packages={found.name: found.version for found in importlib.metadata.distributions()},
        )
        return manifest

    @classmethod
    def reopen(cls, folder: RunFolder) -> Manifest:
        """That of a run which was begun before."""
        facts = json.loads((folder.path / "run_manifest.json").read_text())
        if not isinstance(facts, dict) or not facts.keys() >= {"ended", "exit_code"}:
            raise ValueError("run_manifest.json is no manifest")
        return cls(folder, facts)

    @property
    def starts_from(self) -> dict[str, Any] | None:
        """What `lineage` told of LOAD_DIR."""
        facts: dict[str, Any] | None = self._facts["load_dir"]
        return facts

    @property
    def ended(self) -> str | None:
        """When the run ended, with its exit code."""
        return (
            f"{self._facts['ended']}, exit code {self._facts['exit_code']}" if self._facts["ended"] else None
        )

    def add(self, **facts: Any) -> None:
        """Writes `facts` beside what is known already."""
        self._facts |= facts
        self._write()

    def finish(self, error: BaseException | None) -> None:
        """Records the end: exit code 0, or the error and what it exits with."""
        code = 0 if error is None else error.exit_code if isinstance(error, RecipeError) else 1
        self.add(ended=_now(), exit_code=code, error=None if error is None else str(error))

    def _write(self) -> None:
        write_json(self._folder.path / "run_manifest.json", self._facts)
        write_whole(self._folder.path / "run_manifest.md", _readable(self._facts))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def pinned(settings: Settings) -> dict[str, Any]:
    """What this run's sources, image and model are pinned to."""
    pins = load_pins()
    sources = pins.recipes[settings.recipe].sources
    return {
        "image": pins.image.reference,
        "model": f"{pins.model.repository}@{pins.model.revision}",
        **{name: f"{source.url}@{source.rev}" for name, source in sources.items()},
    }


def commit() -> str | None:
    """This project's commit, with "-dirty" when files differ from it; None outside a checkout."""
    if not (PROJECT / ".git").exists():
        return None
    git = ["git", "-C", str(PROJECT), "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        found = subprocess.run(git, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()


def _readable(facts: dict[str, Any]) -> str:
    prompts = facts["prompt_data"]
    lines = ["# Run", ""]
    lines += [f"- {key}: {facts[key]}" for key in ("started", "ended", "exit_code", "error", "commit")]
    lines += [f"- command: `{' '.join(facts['argv'])}`"]
    lines += [f"- prompt data: {prompts['rows']} rows, sha256 {prompts['sha256']}, {prompts['path']}"]
    lines += [f"- {key}: {facts[key]}" for key in ("python", "platform")]
    lines += ["", "| pinned | to |", "|---|---|"]
    lines += [f"| {name} | {pin} |" for name, pin in facts["pins"].items()]
    for node in facts.get("nodes", ()):
        lines += ["", f"## Node {node['ip']}", "", "| what | found |", "|---|---|"]
        lines += [f"| {name} | {value} |" for name, value in node.items()]
    lines += ["", "| setting | value | source |", "|---|---|---|"]
    lines += [
        f"| {name.upper()} | {of['value']} | {of['source']} |" for name, of in facts["settings"].items()
    ]
    lines += ["", "| task | sha256 of its files |", "|---|---|"]
    lines += [f"| {name} | {digest} |" for name, digest in facts["tasks"].items()]
    lines += ["", "| package | version |", "|---|---|"]
    lines += [
        f"| {name} | {facts['packages'][name]} |" for name in MAIN_PACKAGES if name in facts["packages"]
    ]
    return "\n".join(lines) + "\n"
