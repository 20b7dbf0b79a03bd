"""Credentials of the sandbox backends: found before the start, given to the server alone, never shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from standin.harbor_checkout import settings_of

from recipe.errors import BadInputError
from recipe.harbor import backends
from recipe.pins import PROJECT_ROOT
from recipe.resolve import load_sources

KEY = {"daytona_api_key": "planted-1"}
TOKENS = {"modal_token_id": "planted-2", "modal_token_secret": "planted-3"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def refusals(backend: str, **values: str) -> list[BadInputError]:
    return list(backends.check(settings_of(Path("/none"), sandbox_backend=backend, **values)))


def test_each_backend_wants_its_own_credentials_and_shows_none(home: Path) -> None:
    assert not refusals("daytona", **KEY)
    assert not refusals("modal", **TOKENS)
    refused = [
        *refusals("daytona", **TOKENS),
        *refusals("modal", **KEY),
        *refusals("modal", modal_token_id="planted-2"),
        *refusals("modal", modal_token_secret="planted-3"),
    ]
    expected = [error.facts["expected"] for error in refused]
    assert [text.split(" in the environment")[0] for text in expected] == [
        "DAYTONA_API_KEY",
        "MODAL_TOKEN_ID and MODAL_TOKEN_SECRET",
        "MODAL_TOKEN_SECRET",
        "MODAL_TOKEN_ID",
    ]
    assert not any("planted" in f"{error}{error.facts}" for error in refused)


def test_modals_own_file_will_do_but_not_beside_half_a_token(home: Path) -> None:
    (home / ".modal.toml").write_text("[default]\n")
    assert not refusals("modal")
    assert len(refusals("modal", modal_token_id="planted-2")) == 1


def test_only_the_chosen_backends_credentials_reach_the_server() -> None:
    def of(backend: str, **more: str) -> dict[str, str]:
        return backends.credentials(
            settings_of(Path("/none"), sandbox_backend=backend, **KEY, **TOKENS, **more)
        )

    assert of("daytona") == {"DAYTONA_API_KEY": "planted-1"}
    address = {"DAYTONA_API_URL": "https://daytona.example/api"}
    assert of("daytona", daytona_api_url=address["DAYTONA_API_URL"]) == of("daytona") | address
    assert of("modal") == {"MODAL_TOKEN_ID": "planted-2", "MODAL_TOKEN_SECRET": "planted-3"}
    assert of("docker", wandb_api_key="planted-4") == of("e2b") == {}


@pytest.mark.parametrize(
    ("script", "found"),
    [
        (None, "docker: No such file or directory"),
        ("echo Cannot connect to the Docker daemon >&2; exit 1", "Cannot connect to the Docker daemon"),
        ("sleep 60", "docker did not answer in 0.3 s"),
        ("echo 28.0.1", None),
    ],
)
def test_docker_has_to_answer(home: Path, monkeypatch: pytest.MonkeyPatch, script, found) -> None:
    folder = home / "bin"
    folder.mkdir()
    if script is not None:
        (folder / "docker").write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{script}\n")
        (folder / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    if script == "sleep 60":
        monkeypatch.setattr(backends, "DOCKER_SECONDS", 0.3)
    assert [error.facts["found"] for error in refusals("docker")] == ([found] if found else [])


def test_another_backend_of_harbor_passes_through_and_is_said_so() -> None:
    assert not refusals("e2b")
    assert "e2b goes to Harbor as it is" in str(
        backends.note(settings_of(Path("/none"), sandbox_backend="e2b"))
    )
    for name in backends.BACKENDS:
        assert backends.note(settings_of(Path("/none"), sandbox_backend=name)) is None


GKE = {
    "gke_project_id": "my-project",
    "gke_region": "us-central1",
    "gke_cluster_name": "sandboxes",
    "gke_tools_image": f"us-docker.pkg.dev/p/r/tools@sha256:{'0' * 64}",
}


def test_gke_wants_its_cluster_its_credentials_and_its_programs(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(home))
    nothing, programs = refusals("gke")
    assert all(name.upper() in nothing.facts["expected"] for name in GKE)
    assert programs.facts["found"] == "no gcloud, no gke-gcloud-auth-plugin on PATH"
    file = home / ".kube/gke_my-project_us-central1_sandboxes"
    credentials, _ = refusals("gke", **GKE)
    assert credentials.facts["where"] == str(file)
    assert credentials.facts["run"] == "recipe gke credentials"
    file.parent.mkdir()
    file.touch()
    for name in backends.GKE_PROGRAMS:
        (home / name).touch(mode=0o755)
    assert refusals("gke", **GKE) == []
    of_gke = backends.credentials(settings_of(Path("/none"), sandbox_backend="gke", **GKE))
    assert of_gke == {"KUBECONFIG": str(file)}


def test_pods_reach_the_session_servers_at_the_head_node() -> None:
    settings = settings_of(Path("/none"), sandbox_backend="gke", head_ip="10.0.0.1", **GKE)
    assert settings.miles_router_external_host == settings.miles_host_ip == "10.0.0.1"
    assert settings_of(Path("/none"), sandbox_backend="docker").miles_router_external_host is None


def test_daytona_must_not_stop_sandboxes_before_their_trials_deadline() -> None:
    def of(minutes: int) -> list[BadInputError]:
        return refusals("daytona", **KEY, harbor_agent_call_timeout_sec=3600, daytona_auto_stop_min=minutes)

    assert of(61) == []
    (refused,) = of(60)
    assert refused.facts["found"] == "DAYTONA_AUTO_STOP_MIN=60"
    assert not refusals("daytona", **KEY)


def test_the_page_of_the_backends_has_a_row_for_each_and_is_as_the_table_writes_it() -> None:
    page = (PROJECT_ROOT / "docs/sandboxes.md").read_text()
    assert backends.markdown(page) == page
    for name in backends.BACKENDS:
        assert f"\n| {name} | " in page
    with pytest.raises(BadInputError, match="lost its mark"):
        backends.markdown("# Sandboxes\n")


def test_a_local_sandbox_needs_some_memory() -> None:
    assert not refusals("local", sandbox_memory_mb="64")
    assert not refusals("docker", sandbox_memory_mb="63")[1:]
    (refused,) = refusals("local", sandbox_memory_mb="63")
    assert refused.facts["found"] == "63"


def test_what_is_wrong_on_any_machine_is_told_apart_from_what_is_missing_here() -> None:
    def of(backend: str, **values: str) -> list[str]:
        settings = settings_of(Path("/none"), sandbox_backend=backend, **values)
        return [error.problem for error in backends.given(settings)]

    assert of("gke") == ["the backend gke needs to know its cluster"]
    assert of("gke", **GKE) == of("daytona") == of("modal") == of("docker") == of("e2b") == []
    assert len(of("daytona", daytona_auto_stop_min="1")) == 1
    gke = settings_of(Path("/none"), sandbox_backend="gke")
    assert not any("to know its cluster" in error.problem for error in backends.here(gke))


@pytest.mark.parametrize("name", ["daytona_api_key", "modal_token_id", "modal_token_secret"])
def test_a_secret_that_no_header_can_hold_is_refused_and_not_shown(
    name: str, empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name.upper(), " dtn_SECRET\n")
    assert getattr(load_sources(), name).get_secret_value() == "dtn_SECRET"
    for bad in ("dtn_SECRET\x01x", "dtn_SECRET x", '"dtn_SECRET"', "dtn_SECRETé", " "):
        monkeypatch.setenv(name.upper(), bad)
        with pytest.raises(BadInputError, match=f"{name.upper()} has a bad value") as refused:
            load_sources()
        assert "dtn_" not in str(refused.value)
        assert refused.value.facts["found"] == "(secret)"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("SANDBOX_BACKEND", value) for value in ("-x", "1x", "A")),
        *(
            (name, value)
            for name in ("SANDBOX_HOURS_MAX", "SANDBOX_HOUR_PRICE")
            for value in ("inf", "nan", "1e999")
        ),
    ],
)
def test_no_option_is_a_backend_and_no_sum_is_without_end(empty_folder: Path, name: str, value: str) -> None:
    with pytest.raises(BadInputError, match=f"{name} has a bad value"):
        load_sources([f"{name}={value}"])
