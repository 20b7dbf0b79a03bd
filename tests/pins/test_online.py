"""The online ring over real HTTP on loopback: what is served is ok, what is not is a drift, silence is a skip."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from drifting import change, commit, git_service, only_drift, other_digit, reply

from recipe.drift import online
from recipe.drift.lines import Line
from recipe.errors import BadInputError
from recipe.pins import UPSTREAM, Pins, Recipe, load_pins
from recipe.process import free_port


@pytest.fixture
def upstream(tmp_path, serve):
    """A git server with one repository that is pinned as each source, by a commit that is no branch's tip."""
    rev = commit(tmp_path / "upstream" / "source", {"file": "text"})
    commit(tmp_path / "upstream" / "source", {"file": "later"})
    url = serve(git_service(tmp_path / "upstream")) + "/source/.git"
    with Path(os.environ["GIT_CONFIG_GLOBAL"]).open("a") as config:
        config.write("[uploadpack]\nallowAnySHA1InWant = true\nallowFilter = true\n")
    return url, rev


def pinned_at(pins: Pins, url: str, rev: str) -> Pins:
    """The pins with each source at `url`; only the form https of an address is given up."""
    recipes = {
        name: Recipe.model_construct(
            {key: one.model_copy(update={"url": url, "rev": rev}) for key, one in recipe.sources.items()}
        )
        for name, recipe in pins.recipes.items()
    }
    return pins.model_copy(update={"recipes": recipes})


def registry(pins: Pins, digest: str):
    """A registry that wants an anonymous token and has one manifest."""

    def answer(request) -> None:
        host = f"http://{request.headers['Host']}"
        if request.path.startswith("/token?"):
            assert f"scope=repository%3A{pins.image.repository.replace('/', '%2F')}%3Apull" in request.path
            reply(request, 200, body=b'{"token": "anonymous"}')
        elif request.headers.get("Authorization") != "Bearer anonymous":
            scope = f"repository:{pins.image.repository}:pull"
            challenge = f'Bearer realm="{host}/token",service="registry",scope="{scope}"'
            reply(request, 401, {"WWW-Authenticate": challenge})
        elif request.path == f"/v2/{pins.image.repository}/manifests/{digest}":
            assert "image.index" in request.headers["Accept"]
            reply(request, 200, {"Docker-Content-Digest": digest})
        else:
            reply(request, 404)

    return answer


def model_hub(pins: Pins, revision: str):
    def answer(request) -> None:
        there = request.path == f"/api/models/{pins.model.repository}/revision/{revision}"
        reply(request, 200 if there else 404, body=json.dumps({"sha": revision}).encode() if there else b"{}")

    return answer


def lines(tree: Path, pins: Pins, hosts: dict[str, str], *, require: bool = True) -> list[Line]:
    return list(online.check(tree, pins, require=require, **hosts))


def test_what_is_served_is_ok(tree, upstream, serve):
    pins = pinned_at(load_pins(tree), *upstream)
    hosts = {
        "registry": serve(registry(pins, pins.image.digest)),
        "model_hub": serve(model_hub(pins, pins.model.revision)),
    }
    told = lines(tree, pins, hosts)
    assert [line.status for line in told] == ["ok"] * 9, [str(line) for line in told]


def test_a_commit_that_the_server_lacks_is_a_drift(tree, upstream, serve):
    url, rev = upstream
    pins = pinned_at(load_pins(tree), url, other_digit(rev))
    bad = [line for line in lines(tree, pins, nowhere(), require=False) if line.bad]
    assert len(bad) == 7
    facts = bad[0].facts
    assert facts["expected"] == other_digit(rev)
    assert "not our ref" in facts["found"]
    assert facts["where"].startswith(f"{UPSTREAM}:")
    assert url in facts["where"]
    assert "make pins-bump" in facts["run"]


def test_a_digest_that_the_registry_does_not_have_is_a_drift(tree, serve):
    pins = load_pins(tree)
    has = pins.image.digest
    line = change(tree / UPSTREAM, has, other_digit(has))
    base = serve(registry(pins, has))
    facts = only_drift(iter(image_and_model(tree, nowhere() | {"registry": base})))
    assert (facts["expected"], facts["found"]) == (other_digit(has), "HTTP 404")
    assert facts["where"].startswith(
        f"{UPSTREAM}:{line} ({base}/v2/{pins.image.repository}/manifests/sha256:"
    )
    assert facts["run"].startswith("skopeo inspect docker://docker.io/")


def test_another_digest_in_the_registrys_answer_is_a_drift(tree, serve):
    pins = load_pins(tree)
    other = other_digit(pins.image.digest)
    base = serve(lambda request: reply(request, 200, {"Docker-Content-Digest": other}))
    facts = only_drift(iter(image_and_model(tree, nowhere() | {"registry": base})))
    assert (facts["expected"], facts["found"]) == (pins.image.digest, other)


def test_a_model_revision_that_the_hub_does_not_have_is_a_drift(tree, serve):
    pins = load_pins(tree)
    base = serve(model_hub(pins, other_digit(pins.model.revision)))
    facts = only_drift(iter(image_and_model(tree, nowhere() | {"model_hub": base})))
    assert (facts["expected"], facts["found"]) == (pins.model.revision, "HTTP 404")
    assert facts["where"].startswith(f"{UPSTREAM}:")


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_service_proves_no_drift(tree, serve, status):
    base = serve(lambda request: reply(request, status))
    told = image_and_model(tree, {"registry": base, "model_hub": base})
    assert [line.status for line in told] == ["skip", "skip"]
    assert all(f"answers HTTP {status}" in line.facts["reason"] for line in told)


def test_a_busy_git_server_proves_no_drift(tree, serve):
    pins = pinned_at(load_pins(tree), serve(lambda request: reply(request, 503)) + "/x.git", "0" * 40)
    told = lines(tree, pins, nowhere(), require=False)
    assert {line.status for line in told} == {"skip"}
    assert "503" in told[0].facts["reason"]


def test_an_unreachable_host_is_a_skip_under_auto_and_a_failure_under_require(tree):
    hosts = nowhere()
    pins = pinned_at(load_pins(tree), f"{hosts['registry']}/x.git", "0" * 40)
    auto, required = (lines(tree, pins, hosts, require=require) for require in (False, True))
    assert {line.status for line in auto} == {"skip"}
    assert {line.status for line in required} == {"FAIL"}
    assert all("is not reachable" in line.facts["reason"] for line in auto + required)


@pytest.fixture
def proxy(monkeypatch):
    """Sets the proxy, and clears what else could name one."""
    for name in ("http_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return lambda value: monkeypatch.setenv("https_proxy", value)


@pytest.mark.parametrize("value", ["socks5://127.0.0.1:1", "ftp://127.0.0.1", "http://\x01"])
def test_a_proxy_of_another_kind_is_refused(tree, proxy, value):
    proxy(value)
    with pytest.raises(BadInputError) as refused:
        lines(tree, load_pins(tree), nowhere())
    assert "*_proxy" in str(refused.value)


@pytest.mark.parametrize("value", ["junk.invalid", "http://[", "http://127.0.0.1:99999"])
def test_a_proxy_that_is_nowhere_reaches_nothing(tree, proxy, value):
    proxy(value)
    told = lines(tree, load_pins(tree), nowhere(), require=False)
    assert {line.status for line in told} == {"skip"}
    assert all(line.facts["reason"] for line in told)


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"WWW-Authenticate": 'Bearer realm="http://["'}, b""),
        ({"WWW-Authenticate": 'Bearer realm="::"'}, b""),
        ({"WWW-Authenticate": "Basic"}, b""),
        ({}, b"[" * 100_000),
    ],
)
@pytest.mark.parametrize("status", [200, 401])
def test_an_odd_answer_is_a_line_of_its_own(tree, serve, status, headers, body):
    base = serve(lambda request: reply(request, status, headers, body))
    told = image_and_model(tree, {"registry": base, "model_hub": base})
    assert {line.status for line in told} <= {"DRIFT", "skip"}
    assert len(told) == 2


def nowhere() -> dict[str, str]:
    """Addresses where nothing listens."""
    base = f"http://127.0.0.1:{free_port()}"
    return {"registry": base, "model_hub": base}


def image_and_model(tree: Path, hosts: dict[str, str]) -> list[Line]:
    """The lines of image and model; the sources are asked for where nothing listens."""
    pins = pinned_at(load_pins(tree), f"http://127.0.0.1:{free_port()}/x.git", "0" * 40)
    told = lines(tree, pins, hosts, require=False)
    return [line for line in told if line.name.startswith(("image", "model"))]
