"""The image whose tools (tmux and the like) Harbor mounts into every sandbox: built once for its content."""

from __future__ import annotations

import hashlib
from pathlib import Path

from recipe.errors import BadInputError
from recipe.gke.calls import Calls, shell
from recipe.pins import load_pins

CONFIG = Path(__file__).with_name("tools_image.yaml")
IN_HARBOR = Path("examples/gke-grpo-rollout/tools")


def tools_image(calls: Calls) -> None:
    """Build the image of the sandboxes' tools from the pinned Harbor, where it is missing; print its setting."""
    settings = calls.settings
    commit = settings.harbor_commit or load_pins().recipes[settings.recipe].sources["harbor"].rev
    folder = (settings.harbor_dir or settings.harbor_home / commit / "checkout") / IN_HARBOR
    if folder.joinpath("Dockerfile").is_file():
        tag = f"tools-{content_hash(folder)}"
    elif calls.dry:
        tag = "tools-\0CONTENT_HASH\0"
        calls.tell("CONTENT_HASH is that of the pinned Harbor's folder, once `make harbor` has brought it")
    else:
        raise BadInputError(
            "the pinned Harbor is not here", expected=folder / "Dockerfile", run="make harbor"
        )
    host = f"{settings.gke_registry_location}-docker.pkg.dev"
    name = f"{host}/{settings.gke_project_id}/{settings.gke_registry_name}/harbor-sandbox-tools"
    describe = calls.gcloud("artifacts", "docker", "images", "describe", f"{name}:{tag}")
    if calls.look([*describe, "--format=json"]):
        calls.tell(f"{name}:{tag} is there: kept")
    else:
        _build(calls, folder, f"{name}:{tag}", host)
    only = "--format=value(image_summary.digest)"
    digest = calls.value("DIGEST", [*describe, only], r"sha256:[0-9a-f]{64}")
    line = f"GKE_TOOLS_IMAGE={name}@{digest}"
    print(shell(["echo", line]) if calls.dry else line)


def content_hash(folder: Path) -> str:
    """12 hex digits over the names and bytes of all files in `folder`."""
    total = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        total.update(f"{file.relative_to(folder)} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()[:12]


def _build(calls: Calls, folder: Path, image: str, host: str) -> None:
    if calls.settings.gke_tools_builder == "cloudbuild":
        flags = [f"--config={CONFIG}", f"--substitutions=_IMAGE={image}", "--suppress-logs"]
        flags += [f"--region={calls.settings.gke_region}"]
        calls.run(calls.gcloud("builds", "submit", str(folder), *flags), f"building {image}")
        return
    calls.require("docker")
    calls.run(calls.gcloud("auth", "configure-docker", host), f"letting Docker push to {host}")
    # The nodes' platform, whatever this machine's is.
    build = ["docker", "build", "--platform=linux/amd64", f"--tag={image}", str(folder)]
    calls.run(build, f"building {image}")
    calls.run(["docker", "push", image], "pushing it")
