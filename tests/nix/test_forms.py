"""Python and Nix take and refuse the same pins/upstream.json."""

from __future__ import annotations

import json
from functools import reduce

import pytest
from flake_copy import PROJECT

from recipe.errors import BadInputError
from recipe.pins import UPSTREAM, parse_upstream

REMOVED = object()
SOURCE = ("recipes", "terminus2", "miles")
REFUSED = [
    (("schema",), True),
    (("schema",), 1.0),
    (("schema",), 2),
    (("schema",), "1"),
    (("other",), 1),
    (("model",), REMOVED),
    (("recipes",), 5),
    (("recipes", "terminus2"), REMOVED),
    (("recipes", "terminus3"), {}),
    (("recipes", "terminus2", "harbor"), REMOVED),
    (("recipes", "camel", "camel"), REMOVED),
    (("recipes", "terminus2", "sg-lang"), {}),
    (("image", "registry"), "Docker.io"),
    (("image", "registry"), "docker.io/x"),
    (("image", "repository"), "miles"),
    (("image", "repository"), "a/b c"),
    (("image", "digest"), "md5:0"),
    (("image", "paths", "megatron"), REMOVED),
    (("image", "paths", "harbor"), "/root/harbor"),
    (("image", "paths", "miles"), "root/miles"),
    (("image", "paths", "miles"), "/root/it's"),
    (("image", "paths"), []),
    (("model", "repository"), "a/b\n"),
    (("model", "revision"), "main"),
    ((*SOURCE, "url"), "ext::sh -c x"),
    ((*SOURCE, "url"), "https://a/b?c"),
    ((*SOURCE, "url"), "https://a"),
    ((*SOURCE, "rev"), "A" * 40),
    ((*SOURCE, "rev"), 7),
    ((*SOURCE, "rev"), None),
    ((*SOURCE, "narHash"), "sha256-"),
    ((*SOURCE, "narHash"), REMOVED),
    ((*SOURCE, "reason"), ""),
    ((*SOURCE, "reason"), "two\nlines"),
    ((*SOURCE, "reasons"), "one too many"),
]
TAKEN = [
    (("image", "registry"), "localhost:5000"),
    ((*SOURCE, "url"), "https://git.example:8443/group/miles.git"),
    ((*SOURCE, "narHash"), None),
    ((*SOURCE, "reason"), 'it\'s "so" $HOME'),
]


def changed(steps: tuple[str, ...], value: object) -> str:
    data = json.loads((PROJECT / UPSTREAM).read_text())
    *path, last = steps
    place = reduce(dict.__getitem__, path, data)
    if value is REMOVED:
        del place[last]
    else:
        place[last] = value
    return json.dumps(data)


def name_of(value: object) -> str | None:
    return ".".join(value) if isinstance(value, tuple) else None


@pytest.mark.parametrize(("steps", "value"), REFUSED, ids=name_of)
def test_python_refuses(steps, value):
    with pytest.raises(BadInputError, match=r"not as it should be|unknown|missing"):
        parse_upstream(PROJECT / UPSTREAM, changed(steps, value))


@pytest.mark.parametrize(("steps", "value"), REFUSED, ids=name_of)
def test_nix_refuses(flake, steps, value):
    (flake.folder / UPSTREAM).write_text(changed(steps, value))
    assert f"{UPSTREAM}: {steps[0]}" in flake.refusal("lib.pins")


@pytest.mark.parametrize(("steps", "value"), TAKEN, ids=name_of)
def test_both_take(flake, steps, value):
    text = changed(steps, value)
    parse_upstream(PROJECT / UPSTREAM, text)
    (flake.folder / UPSTREAM).write_text(text)
    assert flake.read("lib.pins") == json.loads(text)
