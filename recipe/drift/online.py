"""The ring that needs a network: what is pinned can still be had, and is what the pin says; anonymously."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from recipe.drift.flake import Locked, read_lock
from recipe.drift.lines import Line, compare, skip
from recipe.errors import BadInputError
from recipe.files import read_text
from recipe.given import child_environment
from recipe.json_text import Step, line_of
from recipe.pins import UPSTREAM, Pins, Source
from recipe.programs import TIMED_OUT, ask, git, last_line

# A host that takes longer to connect is as good as none for a check that people wait for.
CONNECT_SECONDS, ANSWER_SECONDS = 5.0, 30.0
# Nix downloads and unpacks nixpkgs (60 MB) to tell its hash.
NIX_SECONDS = 600
MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
# docker.io names images; its API is on another host.
REGISTRY_HOSTS = {"docker.io": "registry-1.docker.io"}
# Answers of a host that is there but does not serve us now: too many requests, or it is broken.
BUSY = {429, 500, 502, 503, 504}
# The same as git words it, and a connection that ended.
BUSY_GIT = re.compile(
    r"returned error: (429|5\d\d)|RPC failed|early EOF|timed out|Could not resolve|Connection re"
)


@dataclass(frozen=True)
class Endpoints:
    """Base URLs of the services; `registry` stands for the pinned image's own when None."""

    registry: str | None = None
    model_hub: str = "https://huggingface.co"
    nix_inputs: str = "https://github.com"


class UnreachableError(Exception):
    """A host that can't be asked now: no drift is proven by it."""


@dataclass
class Network:
    """The HTTP client, and which hosts answered: each is tried once."""

    client: httpx.Client
    tried: dict[str, str | None] = field(default_factory=dict)

    def reach(self, url: str) -> None:
        """Raises UnreachableError when the host of `url` gives no answer at all."""
        parts = urlsplit(url)
        host = f"{parts.scheme}://{parts.netloc}"
        if host not in self.tried:
            try:
                self.client.head(host)
                self.tried[host] = None
            except httpx.HTTPError as error:
                self.tried[host] = f"{parts.netloc} is not reachable ({error})"
        problem = self.tried[host]
        if problem:
            raise UnreachableError(problem)

    def ask(self, method: str, url: str, headers: dict[str, str] | None = None) -> httpx.Response:
        """The answer, whatever its status. Raises UnreachableError also for a busy or broken server."""
        self.reach(url)
        try:
            answer = self.client.request(method, url, headers=headers)
        except httpx.HTTPError as error:
            raise UnreachableError(f"{urlsplit(url).netloc}: {error}") from None
        if answer.status_code in BUSY:
            raise UnreachableError(f"{urlsplit(url).netloc} answers HTTP {answer.status_code}")
        return answer


def check(root: Path, pins: Pins, *, require: bool, endpoints: Endpoints | None = None) -> Iterator[Line]:
    """A line for each source, the image, the model and the flake's inputs.

    An unreachable host is a skip; with `require` a failure.
    """
    endpoints = endpoints or Endpoints()
    text = read_text(root / UPSTREAM)

    def pinned_at(*steps: Step) -> str:
        return f"{UPSTREAM}:{line_of(text, steps)}"

    with _client() as client, tempfile.TemporaryDirectory() as scratch:
        network, bare = Network(client), Path(scratch)
        git(bare, "init", "--quiet", "--bare")
        for recipe, sources in pins.recipes.items():
            for name, source in sources.sources.items():
                where = pinned_at("recipes", recipe, name, "rev")
                served = partial(_commit, network=network, bare=bare, source=source, where=where)
                yield _tried(f"{name} of {recipe}: commit is served", served, require=require)
        image = partial(
            _image, network=network, pins=pins, url=endpoints.registry, where=pinned_at("image", "digest")
        )
        yield _tried("image: manifest of this digest is served", image, require=require)
        model = partial(
            _model, network=network, pins=pins, hub=endpoints.model_hub, where=pinned_at("model", "revision")
        )
        yield _tried("model: revision is served", model, require=require)
        yield from _flake(root, network, endpoints.nix_inputs, require=require)


def _client() -> httpx.Client:
    timeout = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
    try:
        return httpx.Client(timeout=timeout, follow_redirects=True)
    except (ValueError, ImportError, OSError, httpx.InvalidURL) as error:
        raise BadInputError(
            "the network can't be asked as the environment says",
            expected="http://HOST:PORT as a proxy, and files of certificates that are there",
            found=error,
            where="the environment: *_proxy, SSL_CERT_FILE, SSL_CERT_DIR",
        ) from None


def _tried(name: str, ask: Callable[[str], Line], *, require: bool) -> Line:
    try:
        return ask(name)
    except (UnreachableError, httpx.InvalidURL, ValueError) as error:
        return Line("FAIL", name, {"reason": str(error)}) if require else skip(name, error)


def _commit(name: str, network: Network, bare: Path, source: Source, where: str) -> Line:
    """Fetches the commit alone; `git ls-remote` would list tips only."""
    network.reach(source.url)
    done = git(bare, "fetch", "--quiet", "--depth", "1", "--filter=tree:0", source.url, source.rev)
    if done.returncode == TIMED_OUT or BUSY_GIT.search(done.stderr):
        raise UnreachableError(last_line(done.stderr))
    found = (
        git(bare, "rev-parse", "FETCH_HEAD").stdout.strip()
        if done.returncode == 0
        else last_line(done.stderr)
    )
    return compare(
        name,
        source.rev,
        found,
        where=f"{where} ({source.url})",
        run=f"git ls-remote {source.url}, then make pins-bump with a commit that is there",
    )


def _image(name: str, network: Network, pins: Pins, url: str | None, where: str) -> Line:
    """Distribution API: HEAD of the manifest by digest, with the anonymous token that a 401 tells how to get."""
    image = pins.image
    base = url or f"https://{REGISTRY_HOSTS.get(image.registry, image.registry)}"
    manifest = f"{base}/v2/{image.repository}/manifests/{image.digest}"
    headers = {"Accept": ", ".join(MANIFESTS)}
    answer = network.ask("HEAD", manifest, headers)
    if answer.status_code == 401:
        token = _token(network, answer.headers.get("WWW-Authenticate", ""))
        answer = network.ask("HEAD", manifest, headers | {"Authorization": f"Bearer {token}"})
    served = answer.headers.get("Docker-Content-Digest", "a manifest without its digest")
    return compare(
        name,
        image.digest,
        served if answer.is_success else f"HTTP {answer.status_code}",
        where=f"{where} ({manifest})",
        run=f"skopeo inspect docker://{image.reference}",
    )


def _token(network: Network, challenge: str) -> str:
    """RFC 6750 as registries use it: Bearer realm="URL",service="...",scope="..."."""
    fields = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    realm = fields.pop("realm", None)
    if realm is None:
        raise UnreachableError(
            f"the registry asks for a login that is not known here: {challenge or 'no challenge'}"
        )
    answer = network.ask("GET", str(httpx.URL(realm).copy_merge_params(fields)))
    data = _json(answer)
    token = data.get("token") or data.get("access_token")
    if not token:
        raise UnreachableError(
            f"{urlsplit(realm).netloc} gives no anonymous token (HTTP {answer.status_code})"
        )
    return str(token)


def _model(name: str, network: Network, pins: Pins, hub: str, where: str) -> Line:
    model = pins.model
    url = f"{hub}/api/models/{model.repository}/revision/{model.revision}"
    answer = network.ask("GET", url)
    return compare(
        name,
        model.revision,
        _json(answer).get("sha", "an answer without sha")
        if answer.is_success
        else f"HTTP {answer.status_code}",
        where=f"{where} ({url})",
        run=f"open {hub}/{model.repository}/commits/main",
    )


def _json(answer: httpx.Response) -> dict[str, Any]:
    try:
        data = answer.json()
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}


def _flake(root: Path, network: Network, host: str, *, require: bool) -> Iterator[Line]:
    """The hashes of flake.lock, as Nix computes them from what is served now."""
    lock = root / "flake.lock"
    nix = shutil.which("nix", path=child_environment().get("PATH"))
    if nix is None or not lock.is_file():
        yield skip("flake.lock: hashes", "there is no flake.lock" if nix else "nix is not installed")
        return
    try:
        nodes = read_lock(root).nodes
    except BadInputError as error:
        yield skip("flake.lock: hashes", error.problem)
        return
    for node, content in nodes.items():
        if content.locked is not None:
            where = f"flake.lock:{line_of(read_text(lock), ['nodes', node, 'locked', 'narHash'])}"
            told = partial(_nar_hash, nix=nix, network=network, host=host, locked=content.locked, where=where)
            yield _tried(f"flake.lock: {node} has its hash", told, require=require)


def _nar_hash(name: str, nix: str, network: Network, host: str, locked: Locked, where: str) -> Line:
    network.reach(host)
    url = f"github:{locked['owner']}/{locked['repo']}/{locked['rev']}"
    options = ["--extra-experimental-features", "nix-command flakes"]
    done = ask([nix, *options, "flake", "metadata", "--json", url], folder=Path("/"), seconds=NIX_SECONDS)
    if done.returncode == TIMED_OUT:
        raise UnreachableError(last_line(done.stderr))
    try:
        found = json.loads(done.stdout)["locked"]["narHash"]
    except (ValueError, LookupError, TypeError):
        found = last_line(done.stderr or done.stdout)
    return compare(
        name,
        locked["narHash"],
        found,
        where=where,
        run="nix flake update, then make pins-bump SOURCE=<input>",
    )
