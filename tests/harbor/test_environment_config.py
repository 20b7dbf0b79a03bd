"""What the agent server is told of its sandboxes: whole, without secrets, and nothing that Harbor would ignore."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from harbor.models.trial.config import EnvironmentConfig
from standin.harbor_checkout import settings_of

from recipe.errors import BadInputError
from recipe.harbor import agent_server, environment_config
from recipe.process import LOOPBACK

CLUSTER = {
    "gke_project_id": "my-project",
    "gke_region": "us-central1",
    "gke_cluster_name": "sandboxes",
    "gke_tools_image": f"us-docker.pkg.dev/p/r/tools@sha256:{'0' * 64}",
}
# Names that a Harbor of the pins takes, as its source says them in one way or another.
CONSTRUCTOR = (
    "project_id, cluster_name, region, namespace, registry_location, registry_name, sandbox_tools_image=None,"
    "cloud_build_config_path=None, cloud_build_machine_type='', cloud_build_disk_size_gb=200,"
    "memory_limit_multiplier=None, *, keepalive=None, **kwargs"
)
SOURCE = f'''
class GKEOptions(EnvironmentOptions):
    pod_privileged: bool | str = "auto"
    pod_ready_timeout_sec: int | None = None

class GKEEnvironment(BaseEnvironment):
    """Tasks without a network need cluster_default_deny_egress, which comes later."""

    def __init__(self, environment_dir, {CONSTRUCTOR}):
        self.up = kwargs.get("compose_up_timeout_sec", 60)
        self.timeout = kwargs.pop("cloud_build_timeout_sec")
        self._kwargs = kwargs

    def pool(self):
        return self._kwargs["cloud_build_worker_pool"]  # not pod_annotations
'''
FIELDS = [
    "type",
    "force_build",
    "delete",
    "override_cpus",
    "override_memory_mb",
    "override_storage_mb",
    "kwargs",
]
BUILD = {"steps": [{"name": "docker"}], "logsBucket": "gs://somebody-else", "options": {"machineType": "E2"}}


@pytest.fixture
def harbor(tmp_path: Path) -> Path:
    folder = tmp_path / "harbor"
    texts = {
        environment_config.ENVIRONMENTS / "gke.py": SOURCE,
        environment_config.ENVIRONMENTS
        / "base.py": "class BaseEnvironment:\n    def __init__(self, mounts): ...\n",
        Path("src/harbor/models/trial/config.py"): "class EnvironmentConfig:\n"
        + "".join(f"    {name}: int\n" for name in FIELDS),
        environment_config.BUILD_CONFIG: yaml.safe_dump(BUILD),
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def real_harbor(tmp_path: Path) -> Path:
    """Harbor 0.25, laid out as a checkout."""
    spec = importlib.util.find_spec("harbor")
    (package,) = spec.submodule_search_locations
    shutil.copytree(
        package, tmp_path / "real/src/harbor", ignore=shutil.ignore_patterns("__pycache__", "*.ts*")
    )
    return tmp_path / "real"


def written(tmp_path: Path, harbor: Path | None, backend: str, **values: Any) -> dict[str, Any]:
    settings = settings_of(tmp_path, sandbox_backend=backend, run_name="one", **values)
    path = environment_config.write(settings, tmp_path, harbor)
    return json.loads(path.read_text()) if path else {}


def test_gke_is_told_its_cluster_its_image_and_its_sizes(tmp_path: Path, harbor: Path) -> None:
    told = written(tmp_path, harbor, "gke", **CLUSTER, daytona_api_key="planted", gke_pod_privileged="false")
    kwargs = told.pop("kwargs")
    sizes = {"override_cpus": 1, "override_memory_mb": 2048, "override_storage_mb": 6144}
    assert told == {"type": "gke", "force_build": False, "delete": True, **sizes}
    assert kwargs == {
        "project_id": "my-project",
        "cluster_name": "sandboxes",
        "region": "us-central1",
        "namespace": "default",
        "registry_location": "us-central1",
        "registry_name": "harbor-sandboxes",
        "sandbox_tools_image": CLUSTER["gke_tools_image"],
        "cloud_build_config_path": str(tmp_path / "cloudbuild.yaml"),
        "cloud_build_machine_type": "E2_STANDARD_2",
        "cloud_build_disk_size_gb": 200,
        "cloud_build_timeout_sec": 7200,
        "compose_up_timeout_sec": 1200,
        "pod_privileged": False,
        "keepalive": ["sh", "-c", "sleep infinity"],
    }
    assert "planted" not in (tmp_path / "environment.json").read_text()


def test_the_build_config_is_harbors_without_the_bucket_of_its_maintainers(
    tmp_path: Path, harbor: Path
) -> None:
    written(tmp_path, harbor, "gke", **CLUSTER)
    options = {"machineType": "E2", "logging": "CLOUD_LOGGING_ONLY"}
    assert yaml.safe_load((tmp_path / "cloudbuild.yaml").read_text()) == {
        "steps": BUILD["steps"],
        "options": options,
    }
    (harbor / environment_config.BUILD_CONFIG).write_text("- no mapping\n")
    with pytest.raises(BadInputError, match="Cloud Build config can't be read"):
        written(tmp_path, harbor, "gke", **CLUSTER)
    own = tmp_path / "own.yaml"
    with pytest.raises(BadInputError, match="Cloud Build config is missing"):
        written(tmp_path, harbor, "gke", **CLUSTER, gke_cloud_build_config_path=own)
    own.write_text("steps: []\n")
    told = written(tmp_path, harbor, "gke", **CLUSTER, gke_cloud_build_config_path=own)
    assert told["kwargs"]["cloud_build_config_path"] == str(own)


def test_each_way_in_which_a_source_names_an_option_is_read(tmp_path: Path, harbor: Path) -> None:
    more = {"gke_pod_ready_timeout_sec": 600, "gke_memory_limit_multiplier": 2}
    pool = {"gke_cloud_build_worker_pool": "projects/p/locations/us-central1/workerPools/w"}
    kwargs = written(tmp_path, harbor, "gke", **CLUSTER, **more, **pool)["kwargs"]
    assert kwargs["pod_ready_timeout_sec"] == 600
    assert kwargs["memory_limit_multiplier"] == 2
    assert kwargs["cloud_build_worker_pool"].endswith("/w")


def test_an_option_that_this_harbor_lacks_is_refused_by_its_name(tmp_path: Path, harbor: Path) -> None:
    with pytest.raises(BadInputError, match="would ignore") as refused:
        written(tmp_path, harbor, "gke", **CLUSTER, gke_cluster_default_deny_egress=True)
    assert refused.value.facts["expected"] == "one that takes cluster_default_deny_egress"
    config = harbor / "src/harbor/models/trial/config.py"
    config.write_text(config.read_text().replace("override_cpus", "cpus"))
    with pytest.raises(BadInputError, match="would ignore") as refused:
        written(tmp_path, harbor, "gke", **CLUSTER)
    assert refused.value.facts["expected"] == "one that takes override_cpus"


def test_a_source_that_is_no_python_is_told(tmp_path: Path, harbor: Path) -> None:
    (harbor / environment_config.ENVIRONMENTS / "gke.py").write_text("class (")
    with pytest.raises(BadInputError, match="can't be read"):
        written(tmp_path, harbor, "gke", **CLUSTER)


def test_upstream_harbor_lacks_what_the_pinned_one_has(tmp_path: Path, real_harbor: Path) -> None:
    build = real_harbor / environment_config.BUILD_CONFIG
    build.parent.mkdir(parents=True)
    build.write_text(yaml.safe_dump(BUILD))
    with pytest.raises(BadInputError, match="would ignore") as refused:
        written(tmp_path, real_harbor, "gke", **CLUSTER)
    lacking = refused.value.facts["expected"]
    assert "sandbox_tools_image" in lacking
    assert "project_id" not in lacking


def test_prebuilt_images_want_all_three_settings_and_a_file(tmp_path: Path, harbor: Path) -> None:
    manifest = tmp_path / "manifest.json"
    account = "a@p.iam.gserviceaccount.com"
    both = {"gke_registry_token_impersonator": account, "gke_registry_token_service_account": account}
    for some in ({}, both):
        with pytest.raises(BadInputError, match="Compose tasks can't be used"):
            written(tmp_path, harbor, "gke", **CLUSTER, gke_compose_prebuilt_manifest_path=manifest, **some)


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        (
            "daytona",
            {"auto_stop_interval_mins": 210, "auto_delete_interval_mins": 0},
        ),
        ("modal", {"sandbox_timeout_secs": 12600}),
    ],
)
def test_left_sandboxes_end_by_themselves_and_are_known_by_their_run(
    tmp_path: Path, real_harbor: Path, backend: str, expected: dict[str, Any]
) -> None:
    assert environment_config.run_label(tmp_path) is None
    kwargs = written(tmp_path, real_harbor, backend)["kwargs"]
    label = environment_config.run_label(tmp_path)
    assert kwargs == expected | {"labels": {"run": label}}
    # Of this run alone, whatever it is called, and for as long as it lasts.
    assert re.fullmatch("[0-9a-f]{32}", label)
    assert written(tmp_path, real_harbor, backend)["kwargs"] == kwargs
    for broken in ("[]", "5", "{", '{"kwargs": null}', "[" * 100000):
        (tmp_path / environment_config.FILE).write_text(broken)
        assert environment_config.run_label(tmp_path) is None
    assert written(tmp_path, real_harbor, backend)["kwargs"]["labels"]["run"] != label
    longer = written(
        tmp_path, real_harbor, backend, harbor_agent_call_timeout_sec=90000, rollout_timeout_sec=10**6
    )
    assert 86400 in longer["kwargs"].values() or 1530 in longer["kwargs"].values()


def test_what_we_only_add_is_left_out_where_a_harbor_lacks_it(tmp_path: Path, harbor: Path) -> None:
    assert written(tmp_path, harbor, "daytona") == {}
    assert written(tmp_path, harbor, "docker") == {}


@pytest.mark.parametrize("backend", ["daytona", "modal", "docker", "e2b"])
def test_sizes_work_on_every_backend(tmp_path: Path, real_harbor: Path, backend: str) -> None:
    told = written(tmp_path, real_harbor, backend, sandbox_memory_mb=4096)
    assert (told["type"], told["override_memory_mb"], told["override_cpus"]) == (backend, 4096, None)


def test_our_own_server_gets_the_sizes_alone(tmp_path: Path) -> None:
    told = written(tmp_path, None, "local", sandbox_cpus=1)
    assert "kwargs" not in told
    assert told["override_cpus"] == 1
    assert written(tmp_path, None, "local") == {}


@pytest.mark.parametrize("words", [["--environment", "local"], ["--environment-config", "environment.json"]])
def test_our_own_server_takes_a_name_or_a_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    written(tmp_path, None, "local", sandbox_memory_mb=300)
    served = []

    async def serve(trials: agent_server.Trials, **_: Any) -> None:
        served.append(dict(trials.backend.environment))

    monkeypatch.setattr(agent_server, "serve", serve)
    paths = [
        "--tasks-dir",
        ".",
        "--trials-dir",
        ".",
        "--host",
        LOOPBACK,
        "--port",
        "1",
        "--max-concurrent",
        "1",
    ]
    assert agent_server.main([*words, *paths]) == 0
    size = served[0].get("override_memory_mb")
    assert size == (300 if "--environment-config" in words else None)
    assert served[0]["import_path"].endswith(":LocalEnvironment")
    EnvironmentConfig(**served[0])
