"""Left sandboxes are listed and deleted: those of a run alone, tried again, and told where they stay."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from pydantic import SecretStr
from typer.testing import CliRunner, Result

from recipe.errors import BadInputError, RecipeError
from recipe.harbor import daytona, leftover_sandboxes, sandboxes_commands
from recipe.pins import load_pins
from recipe.resolve import load_sources

KEY = "dtn_planted"
RUN = "one"
LABEL = "0123456789abcdef"
TRIALS = ("write-greeting__AbC1234", "sort-lines__xyz0001")


@pytest.fixture(autouse=True)
def root(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of runs with one of them, and no pauses."""
    monkeypatch.setenv("HOME", str(empty_folder))
    monkeypatch.setenv("RUNS_ROOT", str(empty_folder / "runs"))
    monkeypatch.setattr(leftover_sandboxes, "PAUSES", (0.0, 0.0, 0.0))
    monkeypatch.setattr(daytona, "PAUSES", (0.0, 0.0))
    run = empty_folder / "runs" / RUN
    for name in TRIALS:
        (run / "trials" / name).mkdir(parents=True)
        (run / "trials" / name / "config.json").touch()
    (run / "launcher").mkdir()
    (run / "launcher" / "environment.json").write_text(json.dumps({"kwargs": {"labels": {"run": LABEL}}}))
    (run / "run_manifest.json").write_text('{"started": "2026-01-01"}')
    return empty_folder


def sandboxes(*words: str) -> Result:
    return CliRunner().invoke(sandboxes_commands.app, list(words))


def told(*words: str) -> dict[str, Any]:
    done = sandboxes(*words, "--json")
    return json.loads(done.stdout) | {"exit_code": done.exit_code}


def ids(answer: dict[str, Any]) -> list[str]:
    return [one["id"] for one in answer["sandboxes"]]


# Daytona.


class Account:
    """An organisation: its sandboxes, and what goes wrong with it."""

    def __init__(self) -> None:
        self.sandboxes = {
            "s1": sandbox("s1", {"harbor.managed": "true", "harbor.session_id": f"{TRIALS[0]}__env"}),
            "s2": sandbox("s2", {"harbor_owner_uid": f"sort-lines-{TRIALS[1]}-0123"}),
            "s3": sandbox("s3", {"harbor.managed": "true", "run": LABEL}),
            "s4": sandbox("s4", {"harbor.managed": "true", "run": RUN, "harbor.session_id": TRIALS[0]}),
            "s5": sandbox(
                "s5", {"harbor.managed": "true", "harbor.session_id": "write-greeting__Zzz9999__env"}
            ),
            "s6": sandbox("s6", {"owner": "somebody", "harbor": TRIALS[0]}),
        }
        self.stuck: set[str] = set()
        self.busy = 0  # answers of "too many requests" that are still to come
        self.one_list = False
        self.says: Any = None  # in place of the list
        self.asked: list[str] = []


def sandbox(name: str, labels: dict[str, str]) -> dict[str, Any]:
    return {"id": name, "name": name, "labels": labels, "state": "started"}


class Handler(BaseHTTPRequestHandler):
    account: Account

    def do_GET(self) -> None:
        self.work("GET")

    def do_DELETE(self) -> None:
        self.work("DELETE")

    def work(self, method: str) -> None:
        self.account.asked.append(f"{method} {self.path}")
        if self.headers["Authorization"] != f"Bearer {KEY}":
            self.answer(401, {"message": "no"})
        elif self.account.busy:
            self.account.busy -= 1
            self.answer(429, {"message": "slow down"})
        else:
            self.answer(*(self.page() if method == "GET" else self.remove()))

    def page(self) -> tuple[int, Any]:
        items = list(self.account.sandboxes.values())
        if self.account.says is not None:
            return 200, self.account.says
        if self.account.one_list:
            return 200, items
        start = int(parse_qs(urlsplit(self.path).query).get("cursor", ["0"])[0])
        more = start + 2 < len(items)
        return 200, {"items": items[start : start + 2], "nextCursor": str(start + 2) if more else None}

    def remove(self) -> tuple[int, Any]:
        name = self.path.rpartition("/")[2]
        if name in self.account.stuck:
            self.account.sandboxes[name]["state"] = "destroying"
            return 200, {}
        return (200, {}) if self.account.sandboxes.pop(name, None) else (404, {})

    def answer(self, status: int, data: Any) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(data if isinstance(data, bytes) else json.dumps(data).encode())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    account = Account()
    handler = type("Handler", (Handler,), {"account": account})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("DAYTONA_API_KEY", KEY)
        monkeypatch.setenv("DAYTONA_API_URL", f"http://127.0.0.1:{server.server_port}/api")
        yield account
        server.shutdown()


@pytest.mark.parametrize("one_list", [False, True])
def test_only_the_runs_own_are_listed_over_all_pages(account: Account, one_list: bool) -> None:
    account.one_list = one_list
    answer = told("list")
    assert ids(answer) == ["s1", "s2", "s3"]
    assert (answer["run"], answer["backend"], answer["deleted"]) == (RUN, "daytona", False)
    assert ids(told("list", "--all")) == ["s1", "s2", "s3", "s4", "s5"]
    assert not any(line.startswith("DELETE") for line in account.asked)


def test_nothing_is_deleted_unless_that_is_said(account: Account) -> None:
    done = sandboxes("clean", "--run", RUN)
    assert done.exit_code == 0
    assert "3 sandboxes of one at daytona; nothing was deleted" in done.stdout
    assert len(account.sandboxes) == 6


def test_what_is_deleted_is_gone_and_the_others_stay(account: Account) -> None:
    done = sandboxes("clean", "--delete")
    assert done.exit_code == 0
    assert "3 sandboxes of one at daytona, 0 could not be deleted" in done.stdout
    assert set(account.sandboxes) == {"s4", "s5", "s6"}
    assert ids(told("clean", "--all", "--delete")) == ["s4", "s5"]
    assert set(account.sandboxes) == {"s6"}


def test_a_busy_service_is_asked_again(account: Account) -> None:
    account.busy = 2
    assert told("clean", "--delete")["exit_code"] == 0
    assert set(account.sandboxes) == {"s4", "s5", "s6"}


def test_a_sandbox_that_is_stuck_is_named_and_the_exit_code_is_1(account: Account) -> None:
    account.stuck = {"s2"}
    answer = told("clean", "--delete")
    assert answer["exit_code"] == 1
    errors = {one["id"]: one["error"] for one in answer["sandboxes"]}
    assert errors == {"s1": None, "s2": "still destroying", "s3": None}
    assert sum(line == "DELETE /api/sandbox/s2" for line in account.asked) == 3
    done = sandboxes("clean", "--delete")
    assert "NOT deleted: still destroying" in done.stdout


def test_a_service_that_stays_busy_ends_with_what_is_left(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = leftover_sandboxes.delete

    def made_busy(*arguments: Any) -> dict[str, str]:
        account.busy = 10**6
        return delete(*arguments)

    monkeypatch.setattr(leftover_sandboxes, "delete", made_busy)
    answer = told("clean", "--delete")
    assert answer["exit_code"] == 1
    assert all("429 Too Many Requests" in one["error"] for one in answer["sandboxes"])


def test_a_refused_key_is_told_and_not_shown(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAYTONA_API_KEY", "dtn_another")
    done = sandboxes("list")
    assert isinstance(done.exception, RecipeError)
    assert done.exception.facts["found"] == "401 Unauthorized"
    assert "dtn_another" not in str(done.exception)
    assert account.asked == ["GET /api/sandbox?limit=200"]


@pytest.mark.parametrize(
    "says",
    [
        b"null",
        3,
        "abc",
        {},
        {"items": None},
        ["a"],
        [{"labels": {"harbor.managed": "1"}}],
        b"[" * 100000,
        b"<html>",
    ]
    + [[{"id": bad, "labels": {"harbor.managed": "1"}}] for bad in (5, "../organizations/1", "-x", "")]
    + [[{"id": "x", "labels": [["harbor.managed"]]}]],
)
def test_a_list_of_another_form_is_told_and_deletes_nothing(account: Account, says: Any) -> None:
    account.says = says
    error = sandboxes("clean", "--all", "--delete").exception
    assert isinstance(error, RecipeError)
    assert "answers in another form" in str(error) or "does not answer" in str(error)
    assert not any(line.startswith("DELETE") for line in account.asked)


def test_labels_without_a_value_are_passed_over(account: Account) -> None:
    account.says = [
        {"id": "x", "name": None, "labels": {"harbor.managed": None}},
        {"id": "y", "labels": None},
    ]
    assert ids(told("list")) == []
    assert ids(told("list", "--all")) == ["x"]


def test_a_colleagues_run_of_the_same_name_is_not_ours(root: Path, account: Account) -> None:
    account.says = [sandbox("theirs", {"harbor.managed": "true", "run": RUN})]
    assert ids(told("list")) == []
    (root / "runs" / RUN / "launcher" / "environment.json").write_text("[")
    assert ids(told("list")) == []


def test_a_service_that_sends_byte_by_byte_is_given_up(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop = threading.Event()

    def drip(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        with contextlib.suppress(OSError):
            while not stop.wait(0.05):
                handler.wfile.write(b" ")
                handler.wfile.flush()

    monkeypatch.setattr(Handler, "do_GET", drip)
    monkeypatch.setattr(daytona, "ANSWER_SECONDS", 0.3)
    try:
        assert "TimeoutError" in str(sandboxes("list").exception)
    finally:
        stop.set()


def test_a_listing_that_takes_too_long_is_given_up(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daytona, "LISTING_SECONDS", 0.0)
    assert "has no end" in str(sandboxes("list").exception)


def test_a_key_that_no_header_can_hold_is_never_shown() -> None:
    key = "dtn_SECRET\n"
    settings = load_sources().model_copy(update={"daytona_api_key": SecretStr(key)})
    with pytest.raises(RecipeError) as failed:
        daytona.Daytona(settings, patient=False).call("DELETE", "/x")
    assert "SECRET" not in str(failed.value)
    told = daytona.told(httpx.LocalProtocolError(f"Illegal header value {key!r}"))
    assert told == "LocalProtocolError"


def test_a_list_without_an_end_is_told(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daytona, "PAGES", 2)
    assert "has no end" in str(sandboxes("list").exception)


# The other backends: programs that stand in for theirs, and write down how they were called.


@pytest.fixture
def program(root: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Puts a shell script on PATH; its calls are the lines of the file that is given back."""
    folder, calls = root / "bin", root / "calls"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")

    def make(name: str, body: str) -> Path:
        path = folder / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {calls}\ncd {root}\n{body}\n')
        path.chmod(0o755)
        return calls

    return make


FOREIGN_FILES = (
    "/home/somebody/docker-compose.yaml",
    "/home/somebody/harbor/environments/docker/docker-compose.yaml",
    "/home/somebody/harbor/environments/docker/docker-compose-build.yaml",
    "/x/src/harbor/environments/docker/docker-compose-build.yaml/of/mine.yaml",
)


def test_docker_deletes_the_projects_of_harbors_compose_files(
    root: Path, program: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOX_BACKEND", "docker")
    files = "/x/src/harbor/environments/docker/docker-compose-build.yaml"
    package = "/x/site-packages/harbor/environments/docker/docker-compose-prebuilt.yaml"
    rows = [
        ("running", "write-greeting__abc1234__env", f"/tmp/y.yaml,{files}"),
        ("exited", "write-greeting__abc1234__env", f"/tmp/y.yaml,{files}"),
        ("running", "sort-lines__other__env", package),
        *(("running", TRIALS[1], file) for file in FOREIGN_FILES),
    ]
    (root / "rows").write_text("".join("\t".join(row) + "\n" for row in rows))
    calls = program(
        "docker",
        'case "$1" in version) echo 28;; ps) cat rows;; compose) grep -v write-greeting rows > new; mv new rows;; esac',
    )
    answer = told("clean", "--delete")
    assert (ids(answer), answer["exit_code"]) == (["write-greeting__abc1234__env"], 0)
    lines = calls.read_text().splitlines()
    down = "docker compose --project-name=write-greeting__abc1234__env down --volumes --remove-orphans --timeout=5"
    assert [line for line in lines if "compose --" in line] == [down]
    assert ids(told("list", "--all")) == ["sort-lines__other__env"]
    for line in ("null", "WARNING: no swap", "running\tx", f"running\t-x\t{files}"):
        (root / "rows").write_text(f"{line}\n")
        assert "Docker answers in another form" in str(sandboxes("list").exception)


def test_gke_asks_for_the_pods_of_the_cluster_with_its_own_kubeconfig(
    root: Path, program: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"SANDBOX_BACKEND": "gke", "GKE_PROJECT_ID": "p-1", "GKE_REGION": "us-central1"}
    given |= {"GKE_CLUSTER_NAME": "c", "GKE_TOOLS_IMAGE": f"t@sha256:{'0' * 64}", "GKE_NAMESPACE": "work"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    kubeconfig = root / ".kube/gke_p-1_us-central1_c"
    kubeconfig.parent.mkdir()
    kubeconfig.touch()
    for name in ("gcloud", "gke-gcloud-auth-plugin"):
        program(name, "")
    pods = [pod("write-greeting-abc1234-env"), pod("other-0000000-env")]
    pods[0]["metadata"]["deletionTimestamp"] = "now"
    (root / "pods").write_text(json.dumps({"items": pods}))
    calls = program("kubectl", 'case "$*" in *"get pods"*) cat pods;; esac')
    answer = told("clean", "--delete")
    assert answer["sandboxes"] == [
        {"id": "write-greeting-abc1234-env", "state": "terminating", "error": "still terminating"}
    ]
    assert answer["exit_code"] == 1
    place = f"kubectl --kubeconfig={kubeconfig} --context=gke_p-1_us-central1_c --namespace=work"
    assert set(calls.read_text().splitlines()) == {
        f"{place} get pods --selector=app=sandbox --output=json",
        f"{place} delete pod write-greeting-abc1234-env --ignore-not-found --wait=false",
    }
    for answer in (
        "null",
        "3",
        "{}",
        '{"items": ["a"]}',
        '{"items": [{"metadata": {"name": "-x"}}]}',
        "W1: x\n{}",
    ):
        (root / "pods").write_text(answer)
        assert "Gke answers in another form" in str(sandboxes("list").exception)
    program("kubectl", "echo 'error: Unauthorized' >&2; exit 1")
    assert sandboxes("list").exception.facts["found"] == "error: Unauthorized"


def pod(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"session": name}}, "status": {"phase": "Running"}}


MODAL = """
import json, os, pathlib
from types import SimpleNamespace as Of
state = pathlib.Path(os.environ["HOME"], "modal.json")
assert os.environ["MODAL_TOKEN_SECRET"] == "planted"
exception = Of(NotFoundError=KeyError)
class Client:
    def from_env():
        print("WARNING: a newer client is there")
        return Of(hello=lambda: None)
class App:
    def lookup(name):
        assert name == "__harbor__"
        return Of(app_id="ap-1")
class Sandbox:
    def list(app_id):
        for name, tags in json.loads(state.read_text()).items():
            yield Of(object_id=name, get_tags=lambda tags=tags: tags)
    def from_id(name):
        left = json.loads(state.read_text())
        return Of(terminate=lambda: (left.pop(name), state.write_text(json.dumps(left))))
"""


@pytest.fixture
def modal(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pinned Harbor's environment with a client of Modal that stands in; what it calls Modal is the file."""
    monkeypatch.setenv("SANDBOX_BACKEND", "modal")
    monkeypatch.setenv("MODAL_TOKEN_ID", "ak-1")
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "planted")
    monkeypatch.setenv("HARBOR_HOME", str(root / "harbor"))
    home = root / "harbor" / load_pins().recipes["camel"].sources["harbor"].rev
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home / "environment"], check=True)
    (site,) = home.glob("environment/lib/*/site-packages")
    (site / "modal.py").write_text(MODAL)
    (home / "installed.json").touch()
    (root / "modal.json").write_text(
        json.dumps({"sb-1": {"run": LABEL}, "sb-2": {"harbor.session_id": "x__env"}})
    )
    return root / "modal.json"


def test_modal_is_asked_by_its_own_client_in_the_pinned_harbors_environment(modal: Path) -> None:
    assert ids(told("list", "--all")) == ["sb-1", "sb-2"]
    answer = told("clean", "--delete")
    assert (ids(answer), answer["exit_code"]) == (["sb-1"], 0)
    assert list(json.loads(modal.read_text())) == ["sb-2"]


@pytest.mark.parametrize("line", ["junk", '{"id": 1}', "[]", '{"id": "sb", "tags": ["a"]}'])
def test_what_modals_client_says_in_another_form_is_told(
    root: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setattr(leftover_sandboxes, "ask_modal", lambda *_: f"{line}\n")
    with pytest.raises(RecipeError, match="Modal answers in another form"):
        leftover_sandboxes.listed(leftover_sandboxes.ModalHost(load_sources()))


def test_without_the_pinned_harbor_modal_can_not_be_asked(
    modal: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARBOR_HOME", str(root / "none"))
    error = sandboxes("list").exception
    assert isinstance(error, BadInputError)
    assert error.facts["run"] == "make harbor"


def test_local_folders_of_dead_servers_are_listed_and_swept_and_those_in_use_stay(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(root))
    scratch = root / f"inkling-grpo-{os.getuid()}"
    scratch.mkdir()
    for name in ("1-living", "2-dead"):
        (scratch / name).mkdir()
    living = os.open(scratch / "1-living", os.O_RDONLY)
    fcntl.flock(living, fcntl.LOCK_EX)
    try:
        assert ids(told("list", "--backend", "local")) == ["2-dead"]
        answer = told("clean", "--backend", "local", "--delete")
    finally:
        os.close(living)
    assert (ids(answer), answer["exit_code"]) == (["2-dead"], 0)
    assert [path.name for path in scratch.iterdir()] == ["1-living"]


# What is chosen, and what is refused.


def test_a_runs_backend_is_that_of_its_own_settings(root: Path, account: Account) -> None:
    public = load_sources(["RUN_NAME=one"]).public()
    job = root / "runs" / RUN / "launcher" / "job.json"
    job.write_text(json.dumps({"settings": public | {"sandbox_backend": "e2b"}}))
    error = sandboxes("list").exception
    assert isinstance(error, BadInputError)
    assert error.facts["found"] == "e2b"
    assert ids(told("list", "--backend", "daytona")) == ["s1", "s2", "s3"]


@pytest.mark.parametrize(
    "job", ["[]", "5", '{"settings": null}', '{"settings": []}', "junk", "[" * 100000, "{}"]
)
def test_a_damaged_job_file_asks_for_the_backend(root: Path, account: Account, job: str) -> None:
    (root / "runs" / RUN / "launcher" / "job.json").write_text(job)
    error = sandboxes("clean", "--delete").exception
    assert isinstance(error, BadInputError)
    assert "--backend" in error.facts["run"]
    assert not account.asked
    assert ids(told("list", "--backend", "daytona")) == ["s1", "s2", "s3"]


@pytest.mark.parametrize("run", [".", "..", "/etc", "./"])
def test_a_folder_that_is_no_run_is_refused(root: Path, account: Account, run: str) -> None:
    (root / "runs" / "job.log").touch()
    error = sandboxes("clean", "--run", run, "--delete").exception
    assert isinstance(error, BadInputError)
    assert "no such run" in str(error)
    assert not account.asked


@pytest.mark.parametrize(
    ("name", "of_run"),
    [
        ("write-greeting__AbC1234", True),
        ("write-greeting__AbC1234__env", True),
        ("write-greeting-abc1234-env", True),
        ("write-greeting-write-greeting__AbC1234-0123", True),
        ("prod-write-greeting__AbC1234", False),
        ("write-greeting__AbC12345__env", False),
        ("write-greeting", False),
        ("prod-job-log-collector", False),
        ("job.log", False),
        ("no-config", False),
        ("None", False),
        ("", False),
        (None, False),
    ],
)
def test_a_sandbox_is_a_runs_by_its_trials_whole_name_alone(
    root: Path, name: str | None, of_run: bool
) -> None:
    run = root / "runs" / RUN
    (run / "trials" / "job.log").touch()
    (run / "trials" / "no-config").mkdir()
    for nameless in ("__", "..."):
        (run / "trials" / nameless).mkdir()
        (run / "trials" / nameless / "config.json").touch()
    found = leftover_sandboxes.Sandbox("x", "running", [name])
    host = SimpleNamespace(sandboxes=lambda: iter([found]))
    assert leftover_sandboxes.of_run(host, run) == ([found] if of_run else [])


def test_a_run_that_is_still_followed_keeps_its_sandboxes(root: Path, account: Account) -> None:
    with (root / "runs" / RUN / "launcher" / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        error = sandboxes("clean", "--delete").exception
    assert isinstance(error, BadInputError)
    assert "another launcher follows this run" in str(error)
    assert len(account.sandboxes) == 6


def test_what_is_not_there_or_contradicts_itself_is_refused(root: Path, account: Account) -> None:
    assert "no such run" in str(sandboxes("list", "--run", "none").exception)
    assert "exclude each other" in str(sandboxes("list", "--run", RUN, "--all").exception)
    assert ids(told("list", "--run", str(root / "runs" / RUN))) == ["s1", "s2", "s3"]
    shutil.rmtree(root / "runs")
    assert "there is no run yet" in str(sandboxes("list").exception)


@pytest.mark.parametrize("source", ["environment", ".env", "make"])
def test_all_of_the_engine_local_are_the_local_ones(root: Path, monkeypatch, source: str) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(root))
    if source == ".env":
        (root / ".env").write_text("ENGINE=local\n")
    else:
        monkeypatch.setenv("ENGINE", "local")
    if source == "make":
        monkeypatch.setenv("MAKE_VARIABLES", "ENGINE=local")
    assert (told("list", "--all")["backend"], told("clean", "--all")["backend"]) == ("local", "local")
    monkeypatch.setenv("SANDBOX_BACKEND", "gke")
    assert "GKE_PROJECT_ID" in str(sandboxes("list", "--all").exception)
    assert "DAYTONA_API_KEY" in str(sandboxes("list", "--all", "--backend", "daytona").exception)


def test_a_backend_that_can_not_be_asked_says_what_to_set_and_which_others_there_are(root: Path) -> None:
    for backend, needed in (
        ("daytona", "DAYTONA_API_KEY"),
        ("gke", "GKE_PROJECT_ID"),
        ("modal", "MODAL_TOKEN_ID"),
    ):
        for words in (("list", "--all", "--backend", backend), ("clean", "--delete", "--backend", backend)):
            error = sandboxes(*words).exception
            assert isinstance(error, BadInputError)
            assert needed in error.facts["expected"]
            assert error.facts["where"] == f"the backend {backend}"
            assert "--backend: daytona, modal, gke, docker, local" in error.facts["run"]
    assert sandboxes("list", "--all").exception.facts["where"] == "the backend daytona"


def test_a_planted_link_is_followed_by_no_clean_up(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(root))
    precious = root / "precious"
    (precious / "1-work").mkdir(parents=True)
    (root / f"inkling-grpo-{os.getuid()}").symlink_to(precious)
    for words in (["list"], ["clean", "--delete"]):
        error = sandboxes(*words, "--all", "--backend", "local").exception
        assert "not safely ours" in str(error)
    assert (precious / "1-work").is_dir()


def test_a_folder_that_can_not_be_removed_is_named_and_the_others_go(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(root))
    scratch = root / f"inkling-grpo-{os.getuid()}"
    scratch.mkdir()
    for name in ("1-bad", "2-good"):
        (scratch / name).mkdir()
    remove = shutil.rmtree

    def refuse(path: Path, **options: Any) -> None:
        if path.name == "1-bad":
            raise OSError("Device or resource busy")
        remove(path, **options)

    monkeypatch.setattr(shutil, "rmtree", refuse)
    answer = told("clean", "--all", "--backend", "local", "--delete")
    assert answer["exit_code"] == 1
    errors = {one["id"]: one["error"] for one in answer["sandboxes"]}
    assert errors.pop("1-bad").endswith("Device or resource busy")
    assert errors == {"2-good": None}
    assert [path.name for path in scratch.iterdir()] == ["1-bad"]
