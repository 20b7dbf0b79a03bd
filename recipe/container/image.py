"""The image of each recipe: how it is built from the pins, and what it then tells of itself."""

from __future__ import annotations

import hashlib
import json

from recipe.container.node import check_form
from recipe.pins import PROJECT_ROOT, Pins

CONTEXT = PROJECT_ROOT / "container"
SCRIPTS = "/opt/inkling-grpo"  # in the image
# Harbor and CAMEL run on the head node only, in an environment of their own.
IN_IMAGE = ("miles", "sglang")
# As the OCI distribution specification has it: a host is told from a folder by its dot or port.
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_HOST = r"(?=localhost[:/]|[^/]*[.:])[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)*(?::[0-9]{1,5})?"
REPOSITORY = rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*"


def record(pins: Pins, recipe: str) -> str:
    """What the image holds, as one line of JSON: the content of its /etc/inkling-grpo/pins.json."""
    sources = pins.recipes[recipe].sources
    paths = pins.image.paths
    facts = {
        "schema": 1,
        "recipe": recipe,
        "image": pins.image.reference,
        "sources": {
            name: {"path": paths[name], "url": sources[name].url, "rev": sources[name].rev}
            for name in IN_IMAGE
        },
        "imports": {"sglang": f"{paths['sglang']}/python/sglang"},
    }
    return json.dumps(facts, sort_keys=True)


def tag(pins: Pins, recipe: str) -> str:
    """The image's tag, by the record's SHA-256: other pins are another image, and a node can tell.

    Twelve digits tell a handful of images apart; the prefix keeps YAML from reading a number.
    """
    return f"pins-{hashlib.sha256(record(pins, recipe).encode()).hexdigest()[:12]}"


def name(pins: Pins, recipe: str, repository: str | None = None) -> str:
    """repository:tag; the repository (with its registry) is `inkling-grpo-RECIPE` when not given.

    Raises BadInputError for one that no registry could have.
    """
    if repository is None:
        repository = f"inkling-grpo-{recipe}"
    check_form("repository", repository, REPOSITORY, "[HOST[:PORT]/]NAME in lower case, without a tag")
    return f"{repository}:{tag(pins, recipe)}"


def build_command(
    pins: Pins, recipe: str, *, program: str = "docker", repository: str | None = None
) -> list[str]:
    """The build, with every argument of the Containerfile; `program` is docker or podman."""
    sources = pins.recipes[recipe].sources
    arguments = {"BASE": pins.image.reference, "RECIPE": recipe}
    for source in IN_IMAGE:
        arguments[f"{source.upper()}_URL"] = sources[source].url
        arguments[f"{source.upper()}_REV"] = sources[source].rev
        arguments[f"{source.upper()}_DIR"] = pins.image.paths[source]
    arguments |= {"PINS": record(pins, recipe), "TAG": tag(pins, recipe)}
    words = [word for key, value in arguments.items() for word in ("--build-arg", f"{key}={value}")]
    build = [program, "build", *words, "--tag", name(pins, recipe, repository)]
    return [*build, "--file", str(CONTEXT / "Containerfile"), str(CONTEXT)]


def check_command(pins: Pins, recipe: str) -> list[str]:
    """What a node runs inside the container before it joins Ray: exits 0 when it is at these pins."""
    return ["python3", f"{SCRIPTS}/check.py", tag(pins, recipe)]
