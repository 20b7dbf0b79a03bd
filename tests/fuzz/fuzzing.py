"""What the tests of any input share: how much they try, what a hang is, and values that are nearly right."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from recipe.cli import main

# The longest takes a second or two; a machine that does much else besides may take a hundred times as long.
HANG_SECONDS = 300


def tried(examples: int) -> settings:
    """So many examples, the same ones each time; more and others with the profile `long`."""
    long = settings.get_current_profile_name() == "long"
    return settings(
        max_examples=examples * 50 if long else examples,
        derandomize=not long,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


@contextlib.contextmanager
def no_hang() -> Iterator[None]:
    """Fails when what is within does not end, whether it computes or waits."""

    def give_up(_number: int, _frame: object) -> None:
        pytest.fail(f"no end within {HANG_SECONDS} s")  # no Exception, which some code catches

    previous = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(HANG_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def ended(*words: str) -> tuple[int, str, str]:
    """Exit code, output and errors of `recipe`."""
    out, told = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
    with pytest.MonkeyPatch.context() as patch, no_hang():
        for name, value in (("argv", ["recipe", *words]), ("stdout", out), ("stderr", told)):
            patch.setattr(sys, name, value)
        with pytest.raises(SystemExit) as exit_:
            main()
    for stream in (out, told):
        stream.seek(0)
    return int(exit_.value.code or 0), out.read(), told.read()


# Half pairs of surrogates among them, as JSON may name them and file names of other systems hold them.
TEXT = st.text(st.characters(), max_size=20) | st.sampled_from(
    [
        "",
        " ",
        "\0",
        "\n",
        "\r\n",
        "\ufeff",
        "\ud800",
        "\u202e",
        "..",
        "/",
        "~no-such-user",
        "a" * 300,
        "\x1b[2J",
        "[/b]",
        "[" * 3000,
    ]
)
NUMBERS = (
    st.integers(-3, 3)
    | st.integers()
    | st.floats()
    | st.sampled_from([2**31, 2**63, -(2**63) - 1, 10**30, 10**400, 1e300, 0.5])
)
# In a JSON text, what Python's own values don't write: each stands for the text beside it.
ODD_JSON = {
    "@deep": "[" * 100_000 + "]" * 100_000,
    **{f"@{depth} deep": '{"a":' * depth + "1" + "}" * depth for depth in (130, 400, 1000, 3000, 9000)},
    "@digits": "9" * 5000,
    "@overflow": "-1e999",
    "@half": r'"\udc00"',
    "@twice": '{"role":"user","role":[]}',
}


def values(keys: st.SearchStrategy[str] = TEXT) -> st.SearchStrategy[Any]:
    """Anything that JSON can hold, with these keys, and what only `text_of` can write."""
    return st.recursive(
        st.none() | st.booleans() | NUMBERS | TEXT | st.sampled_from(sorted(ODD_JSON)),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
        max_leaves=8,
    )


def text_of(value: Any) -> bytes:
    """The value as JSON, with NaN, with half pairs of surrogates escaped, and the texts of ODD_JSON."""
    text = json.dumps(value)
    for name, odd in ODD_JSON.items():
        text = text.replace(json.dumps(name), odd)
    return text.encode()


def strict(text: bytes) -> Any:
    """What others than Python read in a JSON text. Raises ValueError for NaN and Infinity."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


ANY = values()


@st.composite
def nearly(draw: st.DrawFn, right: Any, other: st.SearchStrategy[Any] = ANY) -> Any:
    """A value that is right but for some of its parts, which are `other` ones, left out or there twice."""
    changed = [copy.deepcopy(right)]  # so that the whole is a part, too
    for _ in range(draw(st.integers(0, 3))):
        parent, key = draw(st.sampled_from(list(_parts(changed))))
        match draw(st.sampled_from(["replaced", "replaced", "left out", "added"])):
            case "replaced":
                parent[key] = draw(other)
            case "left out" if parent is not changed:
                del parent[key]
            case "added" if isinstance(parent, dict):
                parent[draw(TEXT)] = draw(other)
            case "added" if parent is not changed:
                parent.insert(key, copy.deepcopy(parent[key]))
    return changed[0]


def _parts(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a value: what it is in, and its key there."""
    for key, part in list(value.items() if isinstance(value, dict) else enumerate(value)):
        yield value, key
        if isinstance(part, dict | list):
            yield from _parts(part)


@st.composite
def cut(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """Bytes that may have lost a part, or got some in between."""
    text = draw(whole)
    if draw(st.booleans()):
        return text
    first, last = sorted(draw(st.tuples(*[st.integers(0, len(text))] * 2)))
    return text[:first] + draw(st.sampled_from([b"", b"", b"\xff\x00", b"\n", b'"'])) + text[last:]
