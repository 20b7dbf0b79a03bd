"""The ring that needs a network: what is pinned can still be had, and is what the pin says; anonymously."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from recipe.drift.lines import Line, compare, place, skip
from recipe.errors import BadInputError
from recipe.json_text import Step
from recipe.pins import UPSTREAM, Pins, Source
from recipe.programs import TIMED_OUT, git, last_line

# A host that takes longer to connect is as good as none for a check that people wait for.
CONNECT_SECONDS, ANSWER_SECONDS = 5.0, 30.0
MANIFESTS = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
# docker.io names images; its API is on another host.
REGISTRY_HOSTS = {"docker.io": "registry-1.docker.io"}
MODEL_HUB = "https://huggingface.co"
# Answers of a host that is there but does not serve us now: too many requests, or it is broken.
BUSY = {429, 500, 502, 503, 504}
# The same as git words it, and a connection that ended.
BUSY_GIT = re.compile(
    r"returned error: (429|5\d\d)|RPC failed|early EOF|timed out|Could not resolve|Connection re"
)


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
        if problem := self.tried[host]:
            raise UnreachableError(problem)

    def ask(self, method: str, url: str, headers: dict[str, str] | None = None) -> httpx.Response:
        """The answer, whatever its status. Raises UnreachableError also for a busy or broken server."""
        try:
            answer = self.client.request(method, url, headers=headers)
        except httpx.HTTPError as error:
            raise UnreachableError(f"{urlsplit(url).netloc} is not reachable ({error})") from None
        if answer.status_code in BUSY:
            raise UnreachableError(f"{urlsplit(url).netloc} answers HTTP {answer.status_code}")
        return answer


def check(
    root: Path, pins: Pins, *, require: bool, registry: str | None = None, model_hub: str = MODEL_HUB
) -> Iterator[Line]:
    """A line for each source, the image and the model.

    An unreachable host is a skip; with `require` a failure. `registry` and `model_hub` are base URLs; the registry
    is the pinned image's own when None.
    """

    def told(
        name: str, expected: str, find: Callable[[], str], steps: Sequence[Step], at: str, run: str
    ) -> Line:
        where = f"{place(root, UPSTREAM, *steps)} ({at})"
        try:
            return compare(name, expected, find(), where=where, run=run)
        except (UnreachableError, httpx.InvalidURL, ValueError) as error:
            return Line("FAIL", name, {"reason": str(error)}) if require else skip(name, error)

    with _client() as client, tempfile.TemporaryDirectory() as scratch:
        network, bare = Network(client), Path(scratch)
        git(bare, "init", "--quiet", "--bare")
        for recipe, sources in pins.recipes.items():
            for name, source in sources.sources.items():
                run = f"git ls-remote {source.url}, then make pins-bump with a commit that is there"
                find, steps = partial(_commit, network, bare, source), ("recipes", recipe, name, "rev")
                yield told(f"{name} of {recipe}: commit is served", source.rev, find, steps, source.url, run)
        image, model = pins.image, pins.model
        host = registry or f"https://{REGISTRY_HOSTS.get(image.registry, image.registry)}"
        url = f"{host}/v2/{image.repository}/manifests/{image.digest}"
        find, run = partial(_digest, network, url), f"skopeo inspect docker://{image.reference}"
        name = "image: manifest of this digest is served"
        yield told(name, image.digest, find, ("image", "digest"), url, run)
        url = f"{model_hub}/api/models/{model.repository}/revision/{model.revision}"
        find, run = partial(_sha, network, url), f"open {model_hub}/{model.repository}/commits/main"
        yield told("model: revision is served", model.revision, find, ("model", "revision"), url, run)


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


def _commit(network: Network, bare: Path, source: Source) -> str:
    """Fetches the commit alone; `git ls-remote` would list tips only."""
    network.reach(source.url)
    done = git(bare, "fetch", "--quiet", "--depth", "1", "--filter=tree:0", source.url, source.rev)
    if done.returncode == TIMED_OUT or BUSY_GIT.search(done.stderr):
        raise UnreachableError(last_line(done.stderr))
    if done.returncode:
        return last_line(done.stderr)
    return git(bare, "rev-parse", "FETCH_HEAD").stdout.strip()


def _digest(network: Network, url: str) -> str:
    """Distribution API: HEAD of the manifest by digest, with the anonymous token that a 401 tells how to get."""
    headers = {"Accept": ", ".join(MANIFESTS)}
    answer = network.ask("HEAD", url, headers)
    if answer.status_code == 401:
        token = _token(network, answer.headers.get("WWW-Authenticate", ""))
        answer = network.ask("HEAD", url, headers | {"Authorization": f"Bearer {token}"})
    if not answer.is_success:
        return f"HTTP {answer.status_code}"
    return str(answer.headers.get("Docker-Content-Digest", "a manifest without its digest"))


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


def _sha(network: Network, url: str) -> str:
    answer = network.ask("GET", url)
    found = _json(answer).get("sha", "an answer without sha")
    return str(found) if answer.is_success else f"HTTP {answer.status_code}"


def _json(answer: httpx.Response) -> dict[str, Any]:
    try:
        data = answer.json()
    except (ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) else {}
