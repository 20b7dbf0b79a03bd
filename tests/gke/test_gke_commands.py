"""`recipe gke` over stand-ins for gcloud, kubectl and docker: what each command calls, keeps, refuses and ends."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

from recipe.errors import BadInputError, RecipeError
from recipe.gke.tools_image import content_hash

EVERYTHING = ("GKE_CREATE_NETWORK=1", "GKE_PRIVATE_NODES=1", "GKE_NAMESPACE=boxes-of-us")
EVERYTHING += ("GKE_AUTHORIZED_NETWORKS=192.0.2.7/32", "GKE_ZONES=us-central1-a,us-central1-b,us-central1-f")
POOLS = "GKE_NODE_POOLS=sandboxes=n2-standard-16 more=c3-standard-22"
POOL = {"locations": ["a", "b", "c"]}
COMMANDS = {
    "create": ("create",),
    "create everything": ("create", *EVERYTHING, POOLS),
    "create little": ("create", "GKE_ENABLE_APIS=0", "GKE_COMPOSE_REGISTRY_READ=0", "GKE_NODE_IMAGE_GC=0"),
    "credentials": ("credentials",),
    "scale": ("scale", "4"),
    "scale pools": ("scale", "4", "more=0", POOLS, "--yes"),
    "down": ("down", "--yes"),
    "clear-sandboxes": ("clear-sandboxes", "--yes"),
    "apply-network-policies": ("apply-network-policies",),
    "no web": ("apply-network-policies", "--no-web-egress", "GKE_NAMESPACE=boxes-of-us"),
    "status": ("status",),
    "delete": ("delete", "--yes"),
    "tools-image": ("tools-image", "HARBOR_DIR=harbor"),
    "tools-image by Docker": ("tools-image", "HARBOR_DIR=harbor", "GKE_TOOLS_BUILDER=docker"),
}


@pytest.fixture
def tools(machine):
    """The folder of the tools' Dockerfile in a Harbor checkout."""
    folder = machine.folder / "harbor" / "examples" / "gke-grpo-rollout" / "tools"
    folder.mkdir(parents=True)
    folder.joinpath("Dockerfile").write_text("FROM scratch\n")
    return folder


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_a_pasted_dry_run_makes_the_very_calls_of_the_command(machine, tools, words) -> None:
    def begin() -> None:
        machine.reset()
        if words[0] in ("scale", "status", "down"):
            machine.there(sandboxes=POOL, more=POOL, boxes={"status": "RUNNING"})
        if "GKE_TOOLS_BUILDER=docker" in words:
            machine.answer("images describe.*json", times=1, code=1, errors="NOT_FOUND")
            machine.answer("images describe.*value", output="sha256:" + "a" * 64)

    begin()
    told = machine.recipe(*words, "--dry-run")
    assert told.exit_code == 0, told.output
    assert machine.calls == []
    assert list(machine.home.iterdir()) == []
    machine.paste(told.stdout)
    pasted = machine.calls
    begin()
    done = machine.recipe(*words)
    assert done.exit_code == 0, done.output
    assert machine.calls == pasted != []


def test_a_dry_run_needs_neither_programs_nor_harbor(machine, monkeypatch) -> None:
    monkeypatch.setenv("PATH", "")
    for words in COMMANDS.values():
        told = machine.recipe(*words, "--dry-run", "HARBOR_HOME=nowhere")
        assert told.exit_code == 0, told.output
        assert told.stderr == ""
        assert "gcloud" in told.stdout


@pytest.mark.parametrize("name", ["down", "clear-sandboxes", "delete"])
def test_what_destroys_only_says_so_without_yes(machine, name) -> None:
    told = machine.recipe(name)
    assert told.exit_code == 0
    assert machine.calls == []
    assert f"nothing was done: end every run on the cluster, then recipe gke {name} --yes" in told.stderr
    assert told.stdout == machine.recipe(name, "--yes", "--dry-run").stdout != ""


def test_a_second_create_keeps_what_is_there(machine) -> None:
    assert machine.recipe("create", *EVERYTHING).exit_code == 0
    before = len(machine.calls)
    again = machine.recipe("create", *EVERYTHING)
    assert again.exit_code == 0, again.output
    assert [call for call in machine.calls[before:] if "create" in call] == []
    assert again.stderr.count("is there: kept") == 8  # six of the project, the cluster, its pool


def test_a_create_that_broke_off_goes_on_from_there(machine) -> None:
    machine.answer("node-pools create", times=1, code=1, errors="ERROR: quota N2_CPUS exceeded\n")
    with pytest.raises(RecipeError) as error:
        raise machine.recipe("create").exception
    assert "quota N2_CPUS exceeded" in error.value.facts["found"]
    assert error.value.facts["run"].startswith("gcloud container node-pools create sandboxes")
    assert not machine.called("get-credentials")
    assert machine.recipe("create").exit_code == 0
    assert len(machine.called("clusters create")) == 1
    assert len(machine.called("node-pools create")) == 2


def cluster(**other: object) -> dict[str, object]:
    return {
        "status": "RUNNING",
        "networkConfig": {"datapathProvider": "ADVANCED_DATAPATH"},
        "workloadIdentityConfig": {"workloadPool": "proj-1.svc.id.goog"},
        "network": "default",
        "subnetwork": "default",
        "releaseChannel": {"channel": "STABLE"},
        **other,
    }


POOL_AS_ASKED = {
    "config": {
        "machineType": "n2-standard-16",
        "diskType": "pd-balanced",
        "diskSizeGb": 250,
        "serviceAccount": "harbor-sandbox-nodes@proj-1.iam.gserviceaccount.com",
        "kubeletConfig": {"imageGcHighThresholdPercent": 50},
    }
}


def test_a_cluster_as_asked_for_is_not_warned_of(machine) -> None:
    zones = {"locations": ["us-central1-f", "us-central1-a"]}
    allowed = {"masterAuthorizedNetworksConfig": {"cidrBlocks": [{"cidrBlock": "192.0.2.7/32"}]}}
    machine.there(
        boxes=cluster(**zones, **allowed),
        sandboxes=POOL_AS_ASKED,
        **{"harbor-sandboxes": {"format": "DOCKER"}},
    )
    words = ("GKE_ZONES=us-central1-a,us-central1-f", "GKE_AUTHORIZED_NETWORKS=192.0.2.7/32")
    assert "warning" not in machine.recipe("create", *words).stderr


def test_what_differs_is_told_and_changed_only_when_asked(machine) -> None:
    found = cluster(
        releaseChannel={"channel": "RAPID"}, networkConfig={"datapathProvider": "LEGACY_DATAPATH"}
    )
    pool = {"config": POOL_AS_ASKED["config"] | {"machineType": "e2-small", "diskSizeGb": 10}}
    machine.there(boxes=found, sandboxes=pool, **{"harbor-sandboxes": {"format": "DOCKER"}})
    told = machine.recipe("create")
    assert told.exit_code == 0
    assert (
        "the channel of container clusters boxes is RAPID, not stable; create --update changes" in told.stderr
    )
    assert "(only V2 enforces policies) of container clusters boxes is LEGACY_DATAPATH" in told.stderr
    assert not machine.called(" update ")
    assert machine.recipe("create", "--update").exit_code == 0
    channel, machine_type = machine.called(" update ")
    assert "--release-channel=stable" in channel
    # Google takes the three of them together only.
    assert {"--machine-type=n2-standard-16", "--disk-type=pd-balanced", "--disk-size=250"} <= set(
        machine_type
    )


def test_a_grant_is_tried_until_google_knows_the_account(machine) -> None:
    machine.answer(
        "logging.logWriter", times=2, code=1, errors="INVALID_ARGUMENT: Service account does not exist."
    )
    done = machine.recipe("create")
    assert done.exit_code == 0, done.output
    assert done.stderr.count("not yet; again in") == 2
    machine.answer("monitoring.viewer", code=1, errors="INVALID_ARGUMENT: Service account does not exist.")
    with pytest.raises(RecipeError, match="granting roles/monitoring"):
        raise machine.recipe("create").exception
    assert len(machine.called("monitoring.viewer")) == 1 + 4


def test_a_grant_that_is_not_allowed_is_not_tried_again(machine) -> None:
    machine.answer("logging.logWriter", code=1, errors="ERROR: PERMISSION_DENIED: setIamPolicy")
    with pytest.raises(RecipeError) as error:
        raise machine.recipe("create").exception
    assert "docs/gke.md" in error.value.facts["run"]
    assert len(machine.called("logging.logWriter")) == 1


def test_a_cloud_build_account_that_nobody_names_is_a_warning(machine) -> None:
    machine.answer("get-default-service-account", code=1, errors="ERROR: no such method")
    done = machine.recipe("create")
    assert done.exit_code == 0
    assert "warning: no role is granted to Cloud Build" in done.stderr
    assert not machine.called("artifactregistry.writer")


def test_what_can_not_be_looked_at_is_not_taken_as_missing(machine) -> None:
    machine.answer(
        "clusters describe",
        code=1,
        errors="ERROR: code=403, message=Required 'x.get' permission (or it may not exist)",
    )
    with pytest.raises(RecipeError):
        raise machine.recipe("create").exception
    assert not machine.called("clusters create")


def test_an_answer_that_can_not_be_read_is_told(machine) -> None:
    machine.answer("clusters describe", output="a notice")
    with pytest.raises(RecipeError) as error:
        raise machine.recipe("create").exception
    assert error.value.facts["found"] == "a notice"


@pytest.mark.parametrize("output", ["", '"x"', "null", "[]", "{}", "[" * 200_000, '{"locations": ['])
def test_an_answer_of_another_form_is_neither_missing_nor_there(machine, output) -> None:
    machine.answer("describe", output=output)
    for words in (("create",), ("scale", "3")):
        with pytest.raises(RecipeError, match="looking at what is there") as error:
            raise machine.recipe(*words).exception
        assert len(str(error.value)) < 4000
    assert all("describe" in call or "services" in call for call in machine.calls)


@pytest.mark.parametrize("zones", [None, [], {}, "x"])
def test_a_pool_of_no_zones_is_not_scaled(machine, zones) -> None:
    machine.there(sandboxes={"locations": zones, "autoscaling": [1]})
    with pytest.raises(RecipeError, match="the zones of node pool sandboxes"):
        raise machine.recipe("scale", "3").exception
    assert len(machine.calls) == 1


def test_facts_of_another_form_are_told_as_they_are(machine) -> None:
    odd = {"config": [1], "status": {"a": 1}, "locations": [None]}
    machine.there(boxes=odd | {"masterAuthorizedNetworksConfig": {"cidrBlocks": ["x"]}}, sandboxes=odd)
    done = machine.recipe("create", "GKE_AUTHORIZED_NETWORKS=192.0.2.7/32")
    assert done.exit_code == 0, done.output
    assert "the status of container clusters boxes is {'a': 1}, not RUNNING" in done.stderr


def test_a_missing_login_helper_is_not_a_missing_namespace(machine) -> None:
    machine.answer("get namespace", code=1, errors="exec: executable gke-gcloud-auth-plugin not found\n")
    with pytest.raises(RecipeError, match="looking at what is there"):
        raise machine.recipe("create", "GKE_NAMESPACE=ours").exception
    assert not machine.called("create namespace")


@pytest.mark.parametrize(
    ("asked", "answer"), [("projects describe", ""), ("images describe.*value", "latest")]
)
def test_a_value_of_another_form_is_not_used(machine, tools, asked, answer) -> None:
    machine.answer(asked, output=answer)
    words = ("tools-image", "HARBOR_DIR=harbor") if "images" in asked else ("create",)
    with pytest.raises(RecipeError, match="can't be read"):
        raise machine.recipe(*words).exception


def test_who_is_signed_out_is_told_to_sign_in(machine) -> None:
    machine.answer(
        "services enable", code=1, errors="ERROR: You do not currently have an active account selected."
    )
    with pytest.raises(RecipeError) as error:
        raise machine.recipe("create").exception
    assert error.value.facts["run"] == "gcloud auth login"


def test_the_kubeconfig_is_the_clusters_own_and_nobody_elses(machine) -> None:
    machine.recipe("credentials")
    file = machine.home / ".kube" / "gke_proj-1_us-central1_boxes"
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    machine.recipe("clear-sandboxes", "--yes")
    assert len(machine.called("get-credentials")) == 1
    ours = {f"--kubeconfig={file}", "--context=gke_proj-1_us-central1_boxes", "--namespace=default"}
    assert [set(call) >= ours for call in machine.calls if call[0] == "kubectl"] == [True]
    machine.recipe("delete", "--yes")
    assert not file.exists()


def test_nodes_are_rounded_up_to_as_many_in_each_zone(machine) -> None:
    machine.there(sandboxes=POOL, more={"locations": ["a", "b"]})
    done = machine.recipe("scale", "4", "more=5", POOLS)
    assert done.exit_code == 0, done.output
    sizes = [
        re.findall(r"pool=(\w+)|nodes=(\d+)", " ".join(call))
        for call in machine.calls
        if "describe" not in call
    ]
    assert [["".join(found) for found in size] for size in sizes] == [
        ["sandboxes", "6", "6"],
        ["sandboxes", "2"],
        ["more", "6", "6"],
        ["more", "3"],
    ]


@pytest.mark.parametrize(
    "words", [("scale", "POOL"), ("scale", "GKE_ZONES=us-central1-a"), ("scale", "3", "default-pool=3")]
)
def test_a_size_that_is_not_clear_is_refused(machine, words) -> None:
    machine.there(sandboxes=POOL, **{"default-pool": POOL})
    with pytest.raises(BadInputError):
        raise machine.recipe(*words).exception
    assert machine.calls == []


@pytest.mark.parametrize("words", [("0",), ("3",), ("6", "more=0"), ("3", "--yes", "more=3")])
def test_a_pool_that_would_lose_nodes_or_is_not_there_stops_all_before_a_change(machine, words) -> None:
    machine.there(sandboxes=POOL | {"autoscaling": {"enabled": True, "totalMinNodeCount": 6}})
    if "--yes" not in words:
        machine.there(sandboxes=POOL | {"autoscaling": {"totalMinNodeCount": 6}}, more=POOL)
    with pytest.raises(
        BadInputError, match="would lose nodes" if "--yes" not in words else "no node pool more"
    ):
        raise machine.recipe("scale", *words, POOLS).exception
    assert all("describe" in call for call in machine.calls)
    machine.there(sandboxes=POOL | {"autoscaling": {"totalMinNodeCount": 6}}, more=POOL)
    assert machine.recipe("scale", *words, POOLS, "--yes").exit_code == 0
    assert machine.recipe("scale", "4", POOLS).exit_code == 0, "rounded up to the six that are there"


def test_zero_nodes_end_the_autoscaling_too(machine) -> None:
    machine.there(sandboxes=POOL)
    machine.recipe("down", "--yes")
    update, resize = machine.called("--node-pool=sandboxes")
    assert "--no-enable-autoscaling" in update
    assert "--num-nodes=0" in resize


def test_without_web_egress_the_policy_is_not_applied_and_taken_back(machine) -> None:
    machine.recipe("apply-network-policies", "--no-web-egress")
    (apply,) = machine.called(" apply ")
    assert "--selector=inkling-grpo/egress!=web" in apply
    assert machine.called("delete networkpolicy allow-web")


def test_status_shows_what_the_programs_tell(machine) -> None:
    machine.answer("get pods", output="trial-7   Running\n")
    machine.answer("clusters describe", output="boxes RUNNING\n")
    shown = machine.recipe("status").stdout
    assert "boxes RUNNING\ntrial-7   Running" in shown


def test_the_tools_image_is_built_once_for_its_content(machine, tools) -> None:
    first = machine.recipe("tools-image", "HARBOR_DIR=harbor")
    tag = f"harbor-sandbox-tools:tools-{content_hash(tools)}"
    assert len(machine.called(f"builds submit {tools}")) == 1
    name = "us-central1-docker.pkg.dev/proj-1/harbor-sandboxes/harbor-sandbox-tools"
    assert first.stdout == f"GKE_TOOLS_IMAGE={name}@sha256:{'a' * 64}\n"
    again = machine.recipe("tools-image", "HARBOR_DIR=harbor")
    assert again.stdout == first.stdout
    assert f"{tag} is there: kept" in again.stderr
    tools.joinpath("Dockerfile").rename(tools / "Dockerfile.old")
    tools.joinpath("Dockerfile").write_text("FROM other\n")
    machine.recipe("tools-image", "HARBOR_DIR=harbor")
    assert len(machine.called("builds submit")) == 2


def test_without_harbor_there_is_no_tools_image(machine) -> None:
    with pytest.raises(BadInputError) as error:
        raise machine.recipe("tools-image", "HARBOR_HOME=nowhere").exception
    assert error.value.facts["run"] == "make harbor"
    assert machine.calls == []


@pytest.mark.parametrize("name", ["GKE_PROJECT_ID", "GKE_REGION", "GKE_CLUSTER_NAME"])
def test_a_place_that_is_not_set_is_named_before_anything_is_done(machine, monkeypatch, name) -> None:
    monkeypatch.delenv(name)
    with pytest.raises(BadInputError, match=f"{name} is not set"):
        raise machine.recipe("create", "--dry-run").exception
    assert machine.calls == []


@pytest.mark.parametrize(
    "word",
    ["HARBOR_DIR=/x/${x}$(touch PWNED)`touch PWNED`\"'", "HARBOR_DIR=/x/${DIGEST}"],
)
def test_a_pasted_line_runs_nothing_that_a_value_holds(machine, monkeypatch, word) -> None:
    monkeypatch.setenv("DIGEST", "other")
    folder = machine.folder / word.partition("=/")[2] / "examples" / "gke-grpo-rollout" / "tools"
    folder.mkdir(parents=True)
    folder.joinpath("Dockerfile").touch()
    given = f"HARBOR_DIR={folder.parents[2]}"
    told = machine.recipe("tools-image", given, "--dry-run")
    machine.paste(told.stdout)
    (submit,) = machine.called("builds submit")
    assert str(folder) in submit
    assert list(machine.folder.rglob("PWNED")) == []


def test_a_comment_of_a_dry_run_has_no_second_line(machine, monkeypatch) -> None:
    monkeypatch.setenv("HOME", f"{machine.home}\ntouch PWNED\n")
    told = machine.recipe("credentials", "--dry-run")
    assert told.exit_code == 0, told.output
    assert "# touch PWNED" in told.stdout
    machine.paste(told.stdout)
    assert list(machine.folder.rglob("PWNED")) == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("kubectl", ("credentials",)),
        ("kubectl", ("scale", "3")),
        ("gke-gcloud-auth-plugin", ("scale", "3")),
        ("gke-gcloud-auth-plugin", ("delete", "--yes")),
        ("kubectl", ("tools-image", "HARBOR_DIR=harbor")),
    ],
)
def test_a_program_that_a_command_does_not_call_may_be_missing(
    machine, tools, monkeypatch, name, words
) -> None:
    machine.there(sandboxes=POOL)
    machine.bin.joinpath(name).unlink()
    for other in ("env", "chmod", "rm"):
        machine.bin.joinpath(other).symlink_to(shutil.which(other))
    monkeypatch.setenv("PATH", str(machine.bin))
    done = machine.recipe(*words)
    assert done.exit_code == 0, done.output
    assert machine.calls


@pytest.mark.parametrize("words", [("status",), ("down", "--yes"), ("clear-sandboxes", "--yes")])
def test_a_command_for_pods_needs_kubectl_before_its_first_call(machine, monkeypatch, words) -> None:
    machine.bin.joinpath("kubectl").unlink()
    monkeypatch.setenv("PATH", str(machine.bin))
    with pytest.raises(BadInputError, match="kubectl is not on PATH"):
        raise machine.recipe(*words).exception
    assert machine.calls == []


@pytest.mark.parametrize("name", ["gcloud", "kubectl", "gke-gcloud-auth-plugin"])
def test_a_program_that_is_missing_is_named_with_how_to_get_it(machine, monkeypatch, name) -> None:
    machine.bin.joinpath(name).unlink()
    monkeypatch.setenv("PATH", str(machine.bin))
    with pytest.raises(BadInputError, match=f"{name} is not on PATH") as error:
        raise machine.recipe("create").exception
    assert "install" in error.value.facts["run"]
    assert machine.calls == []


@pytest.mark.parametrize(
    "word",
    [
        "GKE_PROJECT_ID=$(id)",
        "GKE_REGION=us-central1-a",
        "GKE_NODE_POOLS=sandboxes",
        "GKE_ZONES=a,b",
        "GKE_AUTHORIZED_NETWORKS=1.2.3.4,anything",
        "GKE_TOOLS_IMAGE=image:latest",
        "GKE_NODE_SERVICE_ACCOUNT=--impersonate-service-account",
        "GKE_NODE_SERVICE_ACCOUNT=--impersonate@x",
        "GKE_POD_RANGE=10.4.0.0/14,10.8.0.0/14",
        "GKE_SUBNET_RANGE=10.0.0.0/20,10.1.0.0/20",
        "GKE_SERVICE_RANGE=10.0.0.0/20,10.1.0.0/20",
        "GKE_NODE_POOLS=a=n2-standard-16 a=e2-small",
        "GKE_ZONES=europe-west4-a",
        "GKE_ZONES=us-central1-a,us-central1-a",
        "GKE_NAMESPACE=kube-system",
        "GKE_NAMESPACE=gke-managed-system",
        "GKE_REGION=us-central\N{ARABIC-INDIC DIGIT ONE}",
        "GKE_CLOUD_BUILD_MACHINE_TYPE=E2_\N{ARABIC-INDIC DIGIT ONE}",
        "GKE_PROJECT_ID=example.com:proj",
    ],
)
def test_a_value_of_another_form_is_refused(machine, word) -> None:
    with pytest.raises(BadInputError, match="has a bad value"):
        raise machine.recipe("create", "--dry-run", word).exception


def test_ranges_may_have_a_space_after_the_comma(machine) -> None:
    told = machine.recipe("create", "--dry-run", "GKE_AUTHORIZED_NETWORKS=192.0.2.7/32, 198.51.100.0/24")
    assert "--master-authorized-networks=192.0.2.7/32,198.51.100.0/24 " in told.stdout


@pytest.mark.parametrize(
    "word", ["GKE_NAMESPACE=kubes", "GKE_NODE_POOLS=a=n2 b=n2", "GKE_ZONES=us-central1-a"]
)
def test_values_near_those_that_are_refused_are_taken(machine, word) -> None:
    assert machine.recipe("create", "--dry-run", word).exit_code == 0


def test_an_interruption_ends_the_program(machine) -> None:
    machine.answer("clusters create", output="hang")
    run = "from recipe import cli; from recipe.gke.commands import app; cli.app.add_typer(app, name='gke'); cli.main()"
    command = [sys.executable, "-c", run, "gke", "create"]
    process = subprocess.Popen(command, cwd=machine.folder, stderr=subprocess.PIPE, text=True)
    with process:
        try:
            hanging = machine.bin / "hanging"
            deadline = time.monotonic() + 30
            while not (hanging.exists() and hanging.read_text()):
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.05)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "interrupted (SIGINT)" in errors
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(hanging.read_text()), 0)
        pytest.fail("gcloud still runs")
