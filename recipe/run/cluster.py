"""Prepares a run on a cluster: the Ray that is there, its nodes, the pinned Harbor and its agent server."""

from __future__ import annotations

import shutil
from pathlib import Path

from recipe import plugins
from recipe.engines.miles.job import staged_plugins
from recipe.given import child_environment
from recipe.harbor import backends, environment_config
from recipe.harbor.install import install
from recipe.harbor.server import AgentServer
from recipe.pins import load_pins
from recipe.process import LOOPBACK
from recipe.run.dashboard import find_ray
from recipe.run.login import write_login
from recipe.run.nodes import look
from recipe.run.parts import Prepared, Run
from recipe.settings import Settings


def prepare(run: Run) -> Prepared:
    """Looks at the cluster and starts the agent server. Raises BadInputError where the start is refused."""
    settings = run.settings
    ray = find_ray(settings)
    staged = stage_plugins(run.folder.path)
    nodes = look(run, ray, staged, settings.skipped_checks)
    run.manifest.add(nodes=nodes)
    run.display.note(f"Ray at {ray.url}: {len(nodes)} nodes, nothing left on them")
    server = start_server(run)
    write_login(run)
    return Prepared(ray, server, (server.process,))


def stage_plugins(run_dir: Path) -> Path:
    """Copies the plugins as a package that travels alone."""
    staged = staged_plugins(run_dir)
    shutil.copytree(
        Path(plugins.__file__).parent,
        staged / "plugins",
        dirs_exist_ok=True,
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    # Without it, any other package of that name on a node would come first.
    (staged / "__init__.py").write_text('"""The plugins of a run, without the rest."""\n')
    return staged


def start_server(run: Run) -> AgentServer:
    """Installs the pinned Harbor where it is not yet, and starts its agent server."""
    settings: Settings = run.settings
    harbor = install(settings, load_pins(), run.display.note)
    if told := backends.note(settings):
        run.display.note(told)
    server = run.serve(
        _environment(settings),
        harbor_python=harbor.python,
        environment_config=environment_config.write(settings, run.folder.path / "launcher", harbor.checkout),
        credentials=backends.credentials(settings),
    )
    run.display.note(f"agent server at {settings.agent_server_url}, log {run.folder.agent_server_log}")
    return server


def _environment(settings: Settings) -> dict[str, str]:
    """The user's, in which no proxy stands between the agents and the session servers on the head node."""
    environment = child_environment()
    inside = [LOOPBACK, str(settings.head_ip)]
    for name in ("no_proxy", "NO_PROXY"):
        environment[name] = ",".join([*inside, *filter(None, [environment.get(name)])])
    return environment
