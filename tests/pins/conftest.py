"""A copy of the project as git has it, real git repositories, and a service on loopback."""

from __future__ import annotations

import os
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from drifting import Answer, git

from recipe.pins import PROJECT_ROOT


@pytest.fixture(autouse=True)
def _own_git_configuration(tmp_path_factory, monkeypatch):
    config = tmp_path_factory.mktemp("git") / "config"
    config.write_text(
        "[user]\nname = t\nemail = t@localhost\n[init]\ndefaultBranch = main\n[commit]\ngpgSign = no\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)


@pytest.fixture
def tree(tmp_path, whole_tree):
    """A copy of the project to change."""
    return shutil.copytree(whole_tree, tmp_path / "tree")


@pytest.fixture(scope="session")
def whole_tree(tmp_path_factory):
    """The project's files that git has or would take, as a repository of their own."""
    root = tmp_path_factory.mktemp("project") / "tree"
    listed = git(PROJECT_ROOT, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in filter(None, listed.split("\0")):
        if (PROJECT_ROOT / name).is_file() and not (PROJECT_ROOT / name).is_symlink():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(PROJECT_ROOT / name, root / name)
    git(root.parent, "init", "--quiet", str(root))
    git(root, "add", "--all")
    return root


@pytest.fixture
def serve():
    """Starts an HTTP service on loopback that answers as told; its base URL."""
    servers = []

    def start(answer: Answer) -> str:
        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *arguments: object) -> None:
                pass

            def do_GET(self) -> None:
                answer(self)

            do_POST = do_HEAD = do_GET  # noqa: N815

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
