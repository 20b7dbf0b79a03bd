"""The settings of the sandbox cluster on Google Kubernetes Engine, as data; recipe/settings.py has all others."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ValidationInfo, field_validator

from recipe.forms import AbsolutePath, setting

# Google's names; their greatest lengths differ by kind, and gcloud knows them.
NAME = (r"^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$", "lower-case letters, digits and -, the first a letter")
PROJECT = (NAME[0], f"{NAME[1]}: of DOMAIN:PROJECT the pinned Harbor makes names that no image may have")
REGION = (r"^[a-z]+-[a-z]+[0-9]+$", "a region, such as us-central1")
ZONES = (r"^[a-z]+-[a-z]+[0-9]+-[a-z](,[a-z]+-[a-z]+[0-9]+-[a-z])*$", "zones, with commas between")
ACCOUNT = (r"^[a-z0-9][a-z0-9-]*@[a-z0-9][a-z0-9.-]*$", "NAME@PROJECT.iam.gserviceaccount.com")
IMAGE = (r"^[A-Za-z0-9][A-Za-z0-9_.:/-]*@sha256:[0-9a-f]{64}$", "IMAGE@sha256:<64 hex digits>")
POOLS = (
    r"^[a-z][a-z0-9-]*=[a-z][a-z0-9-]*( [a-z][a-z0-9-]*=[a-z][a-z0-9-]*)*$",
    "POOL=MACHINE, spaces between",
)
WORKERS = (
    r"^projects/[a-z0-9-]+/locations/[a-z0-9-]+/workerPools/[A-Za-z0-9_-]+$",
    "projects/P/locations/REGION/workerPools/W",
)
MACHINE = (r"^[A-Za-z0-9_]+$", "a word")
# The cluster's own pods run in them: the network policies would cut them off.
NOT_OURS = ("kube-", "gke-managed-", "gmp-")


def _range(text: str) -> str:
    try:
        return str(ipaddress.IPv4Network(text.strip()))
    except ValueError:
        raise ValueError("a CIDR range, such as 10.0.0.0/20") from None


Range = Annotated[str, AfterValidator(_range)]
Ranges = Annotated[str, AfterValidator(lambda text: ",".join(map(_range, text.split(","))))]
Channel = Literal["rapid", "regular", "stable", "extended"]
Switch = Literal["auto", "true", "false"]
Builder = Literal["cloudbuild", "docker"]


def _text(form: tuple[str, str], default: object = ..., **facts: Any) -> Any:
    return setting(default, pattern=form[0], form=form[1], **facts)


def _network(data: dict[str, Any], suffix: str, otherwise: str) -> str:
    return f"{data['gke_cluster_name']}-{suffix}" if data["gke_create_network"] else otherwise


def _account(data: dict[str, Any]) -> str | None:
    project = data["gke_project_id"]
    return project and f"harbor-sandbox-nodes@{project}.iam.gserviceaccount.com"


class GkeSettings(BaseModel):
    """What `recipe gke` and the backend gke read."""

    gke_project_id: str | None = _text(PROJECT, None, meaning="Google Cloud project of the sandbox cluster")
    gke_region: str | None = _text(REGION, None, meaning="its region")
    gke_cluster_name: str | None = _text(NAME, None, meaning="its name")
    gke_tools_image: str | None = _text(IMAGE, None, meaning="printed by `recipe gke tools-image`")
    gke_namespace: str = _text(NAME, "default", meaning="namespace of the sandboxes' pods")
    gke_registry_name: str = _text(NAME, "harbor-sandboxes", meaning="repository of their images")
    gke_registry_location: str | None = _text(
        NAME, meaning="where it lies", derived="GKE_REGION", factory=lambda data: data["gke_region"]
    )

    # What `recipe gke create` makes.
    gke_node_pools: str = _text(POOLS, "sandboxes=n2-standard-16", meaning="of nodes for sandboxes")
    gke_disk_size_gb: int = setting(250, unit="GB", meaning="of their nodes: images and storage", ge=10)
    gke_disk_type: str = _text(NAME, "pd-balanced", meaning="of their nodes")
    gke_node_image_gc: bool = setting(default=True, meaning="1: their nodes drop unused images early")
    gke_system_machine_type: str = _text(NAME, "e2-standard-2", meaning="for the cluster's own pods")
    gke_zones: str | None = _text(ZONES, None, meaning="of all nodes; empty: Google chooses three")
    gke_release_channel: Channel = setting("stable", meaning="how soon the cluster takes new versions")
    gke_enable_apis: bool = setting(default=True, meaning="0: the project's APIs are on already")
    gke_create_network: bool = setting(default=False, meaning="1: a network of the cluster's own")
    gke_network: str = _text(
        NAME,
        meaning="of the nodes",
        derived="default; with GKE_CREATE_NETWORK GKE_CLUSTER_NAME-net",
        factory=lambda data: _network(data, "net", "default"),
    )
    gke_subnetwork: str = _text(
        NAME,
        meaning="in it",
        derived="GKE_NETWORK; with GKE_CREATE_NETWORK GKE_CLUSTER_NAME-subnet",
        factory=lambda data: _network(data, "subnet", data["gke_network"]),
    )
    gke_subnet_range: Range = setting("10.0.0.0/20", meaning="of nodes in a network of its own")
    gke_pod_range: Range = setting("10.4.0.0/14", meaning="of pods there")
    gke_service_range: Range = setting("10.8.0.0/20", meaning="of services there")
    gke_private_nodes: bool = setting(default=False, meaning="1: nodes have no address on the internet")
    gke_create_nat: bool = setting(default=True, meaning="0: private nodes have a way out already")
    gke_authorized_networks: Ranges | None = setting(
        None, meaning="ranges that may call the cluster's API, the head node's among them; empty: all"
    )
    gke_node_service_account: str | None = _text(
        ACCOUNT, meaning="of nodes", derived="harbor-sandbox-nodes of GKE_PROJECT_ID", factory=_account
    )
    gke_compose_registry_read: bool = setting(default=True, meaning="1: Compose tasks may pull their images")
    gke_tools_builder: Builder = setting("cloudbuild", meaning="builds the tools' image; or Docker, here")

    # Of the environment config for Harbor, one a keyword of its environment gke.
    gke_cloud_build_config_path: AbsolutePath | None = setting(None, meaning="another than Harbor's")
    gke_cloud_build_machine_type: str = _text(MACHINE, "E2_STANDARD_2", meaning="builds the tasks' images")
    gke_cloud_build_disk_size_gb: int = setting(200, unit="GB", meaning="of that machine", ge=10, le=4000)
    gke_cloud_build_timeout_sec: int = setting(7200, unit="s", meaning="of one build", ge=60, le=86400)
    gke_cloud_build_worker_pool: str | None = _text(WORKERS, None, meaning="a private pool that builds them")
    gke_compose_up_timeout_sec: int = setting(1200, unit="s", meaning="until a Compose task is up", ge=1)
    gke_pod_privileged: Switch = setting("auto", meaning="privileged pods; auto: for tasks with Docker")
    gke_pod_ready_timeout_sec: int | None = setting(
        None, unit="s", meaning="until a pod has to run; empty: as Harbor has it", ge=1
    )
    gke_memory_limit_multiplier: float | None = setting(
        None, meaning="memory limit of a pod over its request; empty: no limit", ge=1, allow_inf_nan=False
    )
    gke_cluster_default_deny_egress: bool = setting(
        default=False, meaning="1: the network policies are applied, so tasks without a network may run"
    )
    gke_compose_prebuilt_manifest_path: AbsolutePath | None = setting(
        None, meaning="manifest of images that were built for Compose tasks"
    )
    gke_registry_token_impersonator: str | None = _text(ACCOUNT, None, meaning="mints the token for them")
    gke_registry_token_service_account: str | None = _text(ACCOUNT, None, meaning="whose token it is")

    @field_validator("gke_node_pools", "gke_zones", "gke_namespace")
    @classmethod
    def _fits(cls, text: str | None, others: ValidationInfo) -> str | None:
        names = re.findall("(?:^|[ ,])([^ ,=]+)", text or "")
        if len(set(names)) < len(names):
            raise ValueError("each name once")
        elsewhere = {name[:-2] for name in names} - {others.data.get("gke_region")}
        if others.field_name == "gke_zones" and elsewhere:
            raise ValueError("zones of GKE_REGION")
        if others.field_name == "gke_namespace" and names[0].startswith(NOT_OURS):
            raise ValueError(f"none of Google's own: {'*, '.join(NOT_OURS)}*")
        return text

    @property
    def gke_context(self) -> str:
        """The cluster's name in a kubeconfig, as gcloud writes it."""
        return f"gke_{self.gke_project_id}_{self.gke_region}_{self.gke_cluster_name}"

    @property
    def gke_kubeconfig(self) -> Path:
        """The cluster's own kubeconfig; the user's default one is never touched."""
        return Path.home() / ".kube" / self.gke_context
