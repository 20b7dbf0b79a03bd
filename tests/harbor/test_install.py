"""The install of the pinned Harbor, by real git and uv from a repository that stands in for it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from proofs import processes_naming, wait_until
from standin.harbor_checkout import commit, git, make_repository, pins_of, settings_of

from recipe.errors import BadInputError, RecipeError
from recipe.harbor import install as module
from recipe.harbor.install import HarborInstall, install
from recipe.process import free_port

COMPAT = "src/harbor/agent_server/compat.py"


class Harbor:
    """The repository, what is pinned of it, and what an install said."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.repository = folder, folder / "repository"
        self.rev = make_repository(self.repository)
        self.said: list[str] = []

    def install(self, *, url: str | None = None, **settings: Any) -> HarborInstall:
        chosen = settings_of(self.folder, **settings)
        return install(chosen, pins_of(url or self.repository, self.rev), self.said.append)

    def pin(self, files: dict[str, str]) -> None:
        self.rev = commit(self.repository, files)

    @property
    def home(self) -> Path:
        return self.folder / "home" / self.rev

    @property
    def text(self) -> str:
        return "\n".join(self.said)


@pytest.fixture
def harbor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Harbor]:
    monkeypatch.setenv("UV_OFFLINE", "1")
    harbor = Harbor(tmp_path)
    yield harbor
    assert not processes_naming(harbor.home)


def imported(installed: HarborInstall) -> Path:
    code = "import harbor.agent_server as module; print(module.__file__)"
    return Path(subprocess.check_output([installed.python, "-c", code], text=True, cwd="/").strip())


@pytest.mark.parametrize("agent", ["camel", "terminus-2"])
def test_the_pinned_commit_is_installed_and_then_found_complete(harbor: Harbor, agent: str) -> None:
    first = harbor.install(agent=agent)
    assert first.checkout == harbor.home / "checkout"
    assert git(first.checkout, "rev-parse", "HEAD") == harbor.rev
    assert imported(first) == first.checkout / "src/harbor/agent_server/__init__.py"
    assert list(harbor.home.glob("environment/lib/*/site-packages/__pycache__/harbor_standin.*.pyc"))
    harbor.said.clear()
    assert harbor.install(agent=agent) == first
    assert len(harbor.said) == 2
    assert all(line.endswith("is there") for line in harbor.said)


def test_another_commit_is_installed_beside_the_pin_with_a_warning(harbor: Harbor) -> None:
    other = commit(harbor.repository, {"README": "later"})
    first, second = harbor.install(), harbor.install(harbor_commit=other)
    assert git(second.checkout, "rev-parse", "HEAD") == other
    assert first.python.exists()
    warnings = [line for line in harbor.said if line.startswith("warning")]
    assert len(warnings) == 1
    assert other in warnings[0]
    assert harbor.rev in warnings[0]
    with pytest.raises(BadInputError, match="HARBOR_COMMIT is not the pinned commit"):
        harbor.install(harbor_commit=other, strict_pins=1)


def test_a_commit_that_the_host_does_not_have_leaves_no_checkout(harbor: Harbor) -> None:
    with pytest.raises(RecipeError, match="could not be fetched") as failed:
        harbor.install(harbor_commit="0" * 40)
    assert not isinstance(failed.value, BadInputError)
    assert "0" * 40 in failed.value.facts["expected"]
    assert "git ls-remote" in failed.value.facts["run"]
    assert not list(harbor.folder.glob("home/*/checkout"))


def changed(checkout: Path) -> None:
    (checkout / COMPAT).write_text("interleaved_thinking = response_feedback = None\n")


def moved(checkout: Path) -> None:
    commit(checkout, {"README": "another commit"})


def no_repository(checkout: Path) -> None:
    (checkout / ".git").rename(checkout / "git")


@pytest.mark.parametrize("where", ["HARBOR_HOME", "HARBOR_DIR"])
@pytest.mark.parametrize(
    ("spoil", "found"),
    [(changed, f"{COMPAT} is changed"), (moved, None), (no_repository, "no git checkout")],
)
def test_a_spoilt_checkout_is_refused_and_stays_as_it_is(harbor: Harbor, where, spoil, found) -> None:
    settings = {}
    if where == "HARBOR_DIR":
        settings["harbor_dir"] = harbor.folder / "mine"
        git(harbor.folder, "clone", "--quiet", str(harbor.repository), "mine")
    checkout = harbor.install(**settings).checkout
    spoil(checkout)
    with pytest.raises(BadInputError, match="not the one that is pinned") as refused:
        harbor.install(**settings)
    assert refused.value.facts["found"] == (found or git(checkout, "rev-parse", "HEAD"))
    assert str(checkout) in refused.value.facts["where"]
    assert refused.value.facts["run"].startswith("git ")


@pytest.mark.parametrize(
    ("file", "text", "named"),
    [
        (COMPAT, "", "response_feedback reaches the agent"),
        ("src/harbor/agents/camel/camel.py", "", "CAMEL's logging is off"),
        ("uv.lock", "version = 1\n", "camel: commit"),
    ],
)
def test_a_harbor_without_what_is_relied_on_is_refused(harbor: Harbor, file, text, named) -> None:
    harbor.pin({file: text})
    with pytest.raises(BadInputError, match=named):
        harbor.install(agent="camel")
    assert not (harbor.home / "environment").exists()


def test_a_stale_lock_is_refused(harbor: Harbor) -> None:
    project = (harbor.repository / "pyproject.toml").read_text()
    harbor.pin({"pyproject.toml": project.replace('">=3.12"', '">=3.12,<3.14"')})
    with pytest.raises(BadInputError, match="uv could not install Harbor") as refused:
        harbor.install()
    assert "needs to be updated" in refused.value.facts["found"]
    assert "without HARBOR_COMMIT" in refused.value.facts["run"]
    assert not (harbor.home / "installed.json").exists()


def test_only_an_extra_that_the_run_needs_has_to_be_there(harbor: Harbor) -> None:
    project = (harbor.repository / "pyproject.toml").read_text()
    harbor.pin({"pyproject.toml": project.replace("camel = []\n", "")})
    lock = [module._bootstrap().find_uv(), "lock", "--quiet", "--python", sys.executable]
    subprocess.run([*lock, "--directory", str(harbor.repository)], check=True)
    rev = (
        harbor.repository / "uv.lock"
    ).read_text() + f"# {pins_of('', '').recipes['camel'].sources['camel'].rev}\n"
    harbor.pin({"uv.lock": rev})
    with pytest.raises(BadInputError, match="does not know camel") as refused:
        harbor.install(agent="camel")
    assert "pyproject.toml" in refused.value.facts["where"]
    harbor.install(agent="terminus-2")
    assert "daytona, gke, modal into" in harbor.text


def test_a_backend_with_an_extra_of_its_own_is_added_without_losing_the_others(harbor: Harbor) -> None:
    harbor.install()
    harbor.install(sandbox_backend="e2b")
    assert "camel, daytona, e2b, gke, modal into" in harbor.text
    harbor.said.clear()
    harbor.install()
    assert all(line.endswith("is there") for line in harbor.said)


INSTALL = """
import signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from standin.harbor_checkout import pins_of, settings_of
from recipe.harbor.install import install
folder = Path(sys.argv[2])
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
install(settings_of(folder), pins_of(folder / "repository", sys.argv[3]), print)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_install_leaves_no_process_and_is_made_anew(harbor: Harbor, number: int) -> None:
    hold = harbor.folder / "hold"
    argv = [sys.executable, "-c", INSTALL, str(Path(__file__).parent), str(harbor.folder), harbor.rev]
    installer = subprocess.Popen(
        argv, env={**os.environ, "UV_STANDIN_HOLD": str(hold)}, stderr=subprocess.DEVNULL
    )
    wait_until(hold.exists)
    installer.send_signal(number)
    assert installer.wait(30)
    hold.unlink()
    wait_until(lambda: not processes_naming(harbor.home))
    assert (harbor.home / "environment").is_dir()
    assert not (harbor.home / "installed.json").exists()
    half = harbor.home / "environment/lib/python3.12/site-packages/half_written"
    half.mkdir()
    assert imported(harbor.install()).is_file()
    assert not half.exists()
    assert "the checkout of Harbor" in harbor.text


def test_a_half_fetched_checkout_is_fetched_anew(harbor: Harbor) -> None:
    partial = harbor.home / "checkout.partial"
    git(harbor.folder, "init", "--quiet", str(partial))
    (partial / ".git/shallow.lock").write_text("of a git that was killed")
    assert imported(harbor.install()).is_file()
    assert not partial.exists()


def test_an_environment_whose_python_is_gone_is_made_anew(harbor: Harbor) -> None:
    python = harbor.install().python
    python.unlink()
    python.symlink_to("/nonexistent/python3.12")
    assert imported(harbor.install()).is_file()


def test_of_two_installs_at_once_one_waits_and_finds_the_others_work(harbor: Harbor, monkeypatch) -> None:
    hold = harbor.folder / "hold"
    monkeypatch.setenv("UV_STANDIN_HOLD", str(hold))
    with ThreadPoolExecutor(2) as threads, contextlib.ExitStack() as always:
        always.callback(hold.unlink, missing_ok=True)
        first = threads.submit(harbor.install)
        wait_until(hold.exists)
        second = threads.submit(harbor.install)
        wait_until(lambda: "another install of this Harbor is at work" in harbor.text)
        hold.unlink()
        assert first.result() == second.result()
    assert harbor.text.count("fetching") == harbor.text.count("installing") == 1
    assert harbor.text.count("is there") == 2


def test_the_wait_for_another_install_has_an_end(harbor: Harbor, monkeypatch) -> None:
    monkeypatch.setattr(module, "LOCK_SECONDS", 0.2)
    with module._alone(harbor.home, print), pytest.raises(RecipeError, match="did not end") as failed:
        harbor.install()
    assert str(harbor.home / "lock") in failed.value.facts["where"]
    assert harbor.install()


def test_a_hanging_install_ends_and_its_progress_is_said(harbor: Harbor, monkeypatch) -> None:
    hold = harbor.folder / "hold"
    monkeypatch.setenv("UV_STANDIN_HOLD", str(hold))
    monkeypatch.setattr(module, "SYNC_SECONDS", 1.0)
    monkeypatch.setattr(module, "TELL_EVERY_SECONDS", 0.3)
    with pytest.raises(RecipeError, match="uv had not ended after 1 s"):
        harbor.install()
    assert "uv is at work: Building harbor" in harbor.text
    hold.unlink()


def test_harbor_dir_is_used_where_it_lies_and_not_written_to(harbor: Harbor) -> None:
    mine = harbor.folder / "mine"
    git(harbor.folder, "clone", "--quiet", str(harbor.repository), "mine")
    installed = harbor.install(harbor_dir=mine)
    assert installed.checkout == mine
    assert imported(installed) == mine / "src/harbor/agent_server/__init__.py"
    assert git(mine, "status", "--porcelain") == ""
    assert not harbor.home.exists()
    assert imported(harbor.install()).is_relative_to(harbor.home)
    with pytest.raises(BadInputError, match="pinned"):
        harbor.install(harbor_dir=harbor.folder / "none")


@pytest.mark.parametrize("kind", ["file", "loop", "read-only"])
def test_an_unusable_harbor_home_is_bad_input(harbor: Harbor, kind: str) -> None:
    home = harbor.folder / "home"
    if kind == "file":
        home.write_text("a file")
    else:  # nobody, root neither, makes a folder in /proc
        home.symlink_to({"loop": "home", "read-only": "/proc"}[kind])
    with pytest.raises(BadInputError, match="could not be installed") as failed:
        harbor.install()
    assert "home" in failed.value.facts["where"]


def test_a_host_or_an_index_that_is_not_reached_is_one_error(harbor: Harbor, monkeypatch) -> None:
    url = f"http://127.0.0.1:{free_port()}/harbor.git"
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(RecipeError, match="could not be fetched") as no_host:
        harbor.install(url=url)
    found = no_host.value.facts["found"]
    assert found.startswith("unable to access")
    assert url in no_host.value.facts["run"]
    project = (harbor.repository / "pyproject.toml").read_text()
    harbor.pin({"pyproject.toml": project.replace("requires = []", 'requires = ["hatchling"]')})
    monkeypatch.delenv("UV_OFFLINE")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://localhost.invalid/simple")
    with pytest.raises(RecipeError, match="uv could not install") as no_index:
        harbor.install()
    assert "localhost.invalid" in no_index.value.facts["found"]
    monkeypatch.setattr(module, "_bootstrap", bootstrap_without_uv)
    with pytest.raises(RecipeError, match="uv is missing") as no_uv:
        harbor.install()
    for failed in (no_host, no_index, no_uv):
        told = str(failed.value)
        assert not re.search(r"(^|  )(error|fatal): ", told, re.MULTILINE)
        assert "\n  cause:" not in told
        for name in ("expected", "found", "where", "run"):
            assert len(re.findall(rf"^  {name} ", told, re.MULTILINE)) <= 1


def bootstrap_without_uv() -> Any:
    class BootstrapError(Exception): ...

    def find_uv() -> str:
        raise BootstrapError(
            "uv is missing, and python3 can't install it\n  run      apt-get install python3-venv"
        )

    return SimpleNamespace(BootstrapError=BootstrapError, find_uv=find_uv)


def test_credentials_of_hosts_indexes_and_proxies_are_never_shown(harbor: Harbor, monkeypatch) -> None:
    nowhere = f"user:planted@127.0.0.1:{free_port()}"
    with pytest.raises(RecipeError, match="could not be fetched") as no_host:
        harbor.install(url=f"http://{nowhere}/harbor.git")
    project = (harbor.repository / "pyproject.toml").read_text()
    harbor.pin({"pyproject.toml": project.replace("requires = []", 'requires = ["hatchling"]')})
    monkeypatch.delenv("UV_OFFLINE")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://{nowhere}/simple")
    with pytest.raises(RecipeError, match="uv could not install") as no_index:
        harbor.install()
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://localhost.invalid/simple")
    monkeypatch.setenv("http_proxy", f"http://{nowhere}")
    with pytest.raises(RecipeError, match="uv could not install") as no_proxy:
        harbor.install()
    for failed in (no_host, no_index, no_proxy):
        assert "planted" not in f"{failed.value}{failed.value.facts}"
        assert failed.value.facts["run"]
    assert "planted" not in harbor.text
    for log in harbor.folder.glob("home/*/*.log"):
        assert "planted" not in log.read_text()
