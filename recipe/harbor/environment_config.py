"""The sandboxes' configuration as Harbor's agent servers take it: a JSON file without secrets.

An option that the Harbor at hand lacks is refused, by reading its source: Harbor ignores it in silence.
"""

from __future__ import annotations

import ast
import json
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from recipe.errors import BadInputError
from recipe.files import read_text, write_whole
from recipe.harbor.backends import auto_stop_minutes
from recipe.settings import Settings

ENVIRONMENTS = Path("src/harbor/environments")
MODELS = Path("src/harbor/models")  # a trial's configuration among them
BUILD_CONFIG = Path("examples/gke-grpo-rollout/cloudbuild-buildkit.yaml")
OVERRIDES = ("cpus", "memory_mb", "storage_mb")
# Settings that are keywords of Harbor's environment gke, less their gke_.
GKE = (
    *("project_id", "cluster_name", "region", "namespace", "registry_location", "registry_name"),
    *("cloud_build_machine_type", "cloud_build_disk_size_gb", "cloud_build_timeout_sec"),
    *(
        "cloud_build_worker_pool",
        "compose_up_timeout_sec",
        "memory_limit_multiplier",
        "pod_ready_timeout_sec",
    ),
    *("compose_prebuilt_manifest_path", "registry_token_impersonator", "registry_token_service_account"),
)
FILE = "environment.json"
MODAL_DAY_SECONDS = 86400  # no sandbox of Modal lives longer


def write(settings: Settings, folder: Path, harbor: Path | None = None) -> Path | None:
    """`folder`/environment.json, or None where the backend's name says it all.

    `harbor`: the checkout whose agent server reads it; None: ours, which takes the sizes only.
    Raises BadInputError for an option that the checkout lacks.
    """
    sizes = {f"override_{name}": getattr(settings, f"sandbox_{name}") for name in OVERRIDES}
    kwargs = _kwargs(settings, folder, harbor) if harbor else {}
    if not kwargs and not any(sizes.values()):
        return None
    config = {"type": settings.sandbox_backend, "force_build": False, "delete": True, **sizes}
    if harbor:
        _require(config, set(_names((harbor / MODELS).rglob("*.py"))), harbor)
        config["kwargs"] = kwargs
    path = folder / FILE
    write_whole(path, json.dumps(config, indent=2) + "\n")
    return path


def run_label(folder: Path) -> str | None:
    """What `write` had the sandboxes of the run with this `folder` labelled with; None where they have no label."""
    try:
        return str(json.loads((folder / FILE).read_text())["kwargs"]["labels"]["run"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None


def _kwargs(settings: Settings, folder: Path, harbor: Path) -> dict[str, Any]:
    kind, sources = settings.sandbox_backend, harbor / ENVIRONMENTS
    known = set(_names([sources / f"{kind}.py", *(sources / kind).glob("*.py"), sources / "base.py"]))
    if kind == "gke":
        wanted = _gke(settings, folder, harbor)
        _require(wanted, known, harbor)
        return wanted
    minutes = auto_stop_minutes(settings)
    # Nobody asks for these, and a Harbor that lacks them does without: how a sandbox that is left ends by itself,
    # and by which label it is found again. A stopped one would hold disk, and Harbor never starts it again. Others of
    # the account may have a run of the same name; a server that is started anew keeps the label of the first.
    ours = {
        "daytona": {"auto_stop_interval_mins": minutes, "auto_delete_interval_mins": 0},
        "modal": {"sandbox_timeout_secs": min(60 * minutes, MODAL_DAY_SECONDS)},
    }.get(kind)
    added: dict[str, Any] = (
        {**ours, "labels": {"run": run_label(folder) or secrets.token_hex(16)}} if ours else {}
    )
    return {name: value for name, value in added.items() if name in known}


def _gke(settings: Settings, folder: Path, harbor: Path) -> dict[str, Any]:
    own = settings.gke_cloud_build_config_path
    if own and not own.is_file():
        raise BadInputError(
            "the Cloud Build config is missing",
            expected="a file",
            found=own,
            where="GKE_CLOUD_BUILD_CONFIG_PATH",
        )
    given = {name: getattr(settings, f"gke_{name}") for name in GKE}
    manifest, *accounts = (given[name] for name in GKE[-3:])
    if manifest and not (all(accounts) and manifest.is_file()):
        raise BadInputError(
            "images that were built for Compose tasks can't be used",
            expected="a file, and both accounts of its token",
            found=", ".join(f"GKE_{name.upper()}={given[name]}" for name in GKE[-3:]),
        )
    optional = {"cluster_default_deny_egress": True} if settings.gke_cluster_default_deny_egress else {}
    return {
        **{
            name: str(one) if isinstance(one, Path) else one for name, one in given.items() if one is not None
        },
        **optional,
        "sandbox_tools_image": settings.gke_tools_image,
        "cloud_build_config_path": str(settings.gke_cloud_build_config_path or _build_config(folder, harbor)),
        "pod_privileged": {"auto": "auto", "true": True, "false": False}[settings.gke_pod_privileged],
        # In place of the image's entry point too: that may exit, or want arguments.
        "keepalive": ["sh", "-c", "sleep infinity"],
    }


def _build_config(folder: Path, harbor: Path) -> Path:
    """Harbor's own Cloud Build config, without its maintainers' bucket for logs: nobody else can write there."""
    source, path = harbor / BUILD_CONFIG, folder / "cloudbuild.yaml"
    try:
        config = yaml.safe_load(read_text(source))
        config.pop("logsBucket", None)
        config["options"] = {**(config.get("options") or {}), "logging": "CLOUD_LOGGING_ONLY"}
    except (yaml.YAMLError, AttributeError, TypeError) as error:
        raise BadInputError("Harbor's Cloud Build config can't be read", found=error, where=source) from None
    write_whole(path, yaml.safe_dump(config, sort_keys=False))
    return path


def _require(wanted: dict[str, Any], known: set[str], harbor: Path) -> None:
    if missing := [name for name in wanted if name not in known]:
        raise BadInputError(
            "this Harbor would ignore options of its sandboxes",
            expected=f"one that takes {', '.join(missing)}",
            found="its source does not name them",
            where=harbor / "src/harbor",
            run="the same command without HARBOR_COMMIT, or without the settings of these names",
        )


def _names(files: Iterable[Path]) -> Iterator[str]:
    """What sources of Harbor name in their code: parameters, fields, keys. Raises BadInputError where it is none.

    Its environments take options in all of these ways, so a name that stands in none of them is ignored.
    """
    for file in filter(Path.is_file, files):
        try:
            tree = ast.parse(read_text(file))
        except SyntaxError as error:
            raise BadInputError("a source of Harbor can't be read", found=error, where=file) from None
        for node in ast.walk(tree):
            match node:
                case (
                    ast.arg(arg=name)
                    | ast.AnnAssign(target=ast.Name(id=name))
                    | ast.Constant(value=str(name))
                ):
                    yield name
