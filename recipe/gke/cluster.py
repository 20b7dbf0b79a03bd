"""`recipe gke create`: each part of cluster.yaml is made where it is missing, and kept where it is there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from recipe.errors import RecipeError
from recipe.gke.calls import Calls

HERE = Path(__file__).parent
APIS = ("container", "compute", "artifactregistry", "cloudbuild", "iam")
# Its head says what is in it.
DATA: dict[str, Any] = yaml.safe_load((HERE / "cluster.yaml").read_text(encoding="utf-8"))

Values = dict[str, Any]


def create(calls: Calls, *, update: bool) -> None:
    """Makes what is missing. What differs from the settings is told, and with `update` changed where that can be.

    Raises RecipeError when a call fails: the same command goes on from there.
    """
    settings = calls.settings
    calls.require("kubectl", "gke-gcloud-auth-plugin")
    if settings.gke_authorized_networks is None:
        calls.tell("GKE_AUTHORIZED_NETWORKS is empty: the cluster's API may be called from anywhere")
    if settings.gke_enable_apis:
        apis = [f"{api}.googleapis.com" for api in APIS]
        calls.run(calls.gcloud("services", "enable", *apis), "switching on the project's APIs")
    _ensure_all(calls, "project", update=update)
    _grant(calls, "nodes", f"serviceAccount:{settings.gke_node_service_account}")
    _grant_cloud_build(calls)
    _ensure_all(calls, "cluster", update=update)
    credentials(calls)
    name = settings.gke_namespace
    if name != "default" and not calls.look(calls.kubectl("get", "namespace", name, "--output=json")):
        calls.run(calls.kubectl("create", "namespace", name), f"creating namespace {name}")
    if settings.gke_compose_registry_read:
        _grant_pods(calls)


def credentials(calls: Calls) -> None:
    """Write the cluster's own kubeconfig."""
    file = calls.settings.gke_kubeconfig
    calls.require("gke-gcloud-auth-plugin")
    calls.run(
        ["env", f"KUBECONFIG={file}", *calls.cluster("get-credentials")], f"writing the kubeconfig {file}"
    )
    # It may have been there before, and readable to others.
    calls.run(["chmod", "600", str(file)], f"kubectl uses it with KUBECONFIG={file}")


def pools(calls: Calls) -> dict[str, str]:
    """The machine type of each pool of sandbox nodes."""
    return dict(pool.split("=") for pool in calls.settings.gke_node_pools.split())


def _ensure_all(calls: Calls, group: str, *, update: bool) -> None:
    values = vars(calls.settings) | {"node_config": HERE / "node_config.yaml"}
    for part in DATA[group]:
        every = pools(calls) if part["name"] == "{pool}" else {"": ""}
        if all(values[name] for name in part.get("if", "").split()):
            for pool, machine in every.items():
                _ensure(calls, part, values | {"pool": pool, "machine": machine}, update=update)


def _ensure(calls: Calls, part: dict[str, Any], values: Values, *, update: bool) -> None:
    words, name = part["kind"].split(), part["name"].format_map(values)
    what, where = f"{part['kind']} {name}", list(_filled(part.get("where", []), values))
    there = calls.look(calls.gcloud(*words, "describe", name, *where, "--format=json"))
    if there is None:
        # An account is looked for by its address and made by its name.
        new = [name.partition("@")[0], *where, *_filled(part.get("flags", []), values)]
        calls.run(calls.gcloud(*words, "create", *new), f"creating {what}")
        return
    calls.tell(f"{what} is there: kept")
    changes = set()
    for fact in _chosen(part.get("facts", []), values):
        fact_name, path, expected, *flags = _filled(fact, values)
        if _one_form(value := found(there, path)) != _one_form(expected):
            hint = "; create --update changes that" if flags and not update else ""
            calls.tell(f"warning: {fact_name} of {what} is {value}, not {expected}{hint}")
            changes.add(tuple(flags))
    for change in sorted(filter(None, changes)) if update else ():
        calls.run(calls.gcloud(*words, "update", name, *where, *change), f"changing {what}")


def _chosen(entries: list[Any], values: Values) -> Iterator[Any]:
    """The entries, without those whose `if` is not set."""
    for entry in entries:
        if not isinstance(entry, dict):
            yield entry
        elif values[entry["if"]]:
            yield entry.get("flag") or entry["fact"]


def _filled(texts: list[Any], values: Values) -> Iterator[str]:
    return (text.format_map(values) for text in _chosen(texts, values))


def found(value: Any, path: str) -> Any:
    """What lies at `path`, into each item of a list."""
    for key in path.split("."):
        items = value if isinstance(value, list) else [value]
        items = [item.get(key) if isinstance(item, dict) else None for item in items]
        value = items if isinstance(value, list) else items[0]
    return ",".join(map(str, value)) if isinstance(value, list) else value


def _one_form(value: Any) -> list[str]:
    """Google has some names in capitals, and lists in an order of its own."""
    return sorted(str(value).lower().split(","))


def _grant(calls: Calls, holder: str, member: str) -> None:
    for on, roles in DATA["grants"][holder].items():
        for role in roles:
            words = [*_filled(DATA["bindings"][on], vars(calls.settings)), f"--member={member}"]
            calls.grant(calls.gcloud(*words, f"--role={role}"), f"granting {role} on the {on} to {holder}")


def _grant_cloud_build(calls: Calls) -> None:
    """Which account it is depends on the project's age, and not everybody may ask."""
    only = "--format=value(serviceAccountEmail.basename())"
    try:
        ask = calls.gcloud("builds", "get-default-service-account", only)
        account = calls.value("CLOUD_BUILD", ask, r"\S+@\S+")
    except RecipeError as error:
        calls.tell(
            f"warning: no role is granted to Cloud Build (docs/gke.md has them): {error.facts['found']}"
        )
        return
    _grant(calls, "Cloud Build", f"serviceAccount:{account}")


def _grant_pods(calls: Calls) -> None:
    project, only = str(calls.settings.gke_project_id), "--format=value(projectNumber)"
    number = calls.value("PROJECT_NUMBER", calls.gcloud("projects", "describe", project, only), "[0-9]+")
    pool = f"projects/{number}/locations/global/workloadIdentityPools/{project}.svc.id.goog"
    member = f"principalSet://iam.googleapis.com/{pool}/namespace/{calls.settings.gke_namespace}"
    _grant(calls, "pods", member)
