"""What the user gave, before it is validated: NAME=VALUE arguments, the environment, the `.env` file.

Nothing else reads the environment. An empty value counts as not given. Names that are no setting are refused,
except in the environment, which holds other programs' variables.
"""

from __future__ import annotations

import difflib
import io
import os
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from dotenv.parser import parse_stream

from recipe.errors import BadInputError

Given = dict[str, tuple[str, str]]  # by the lower-case name: the value as it was written, and where

# All that a program which we start may need of the user's environment: a list, since nobody can tell what other
# variables hold. GIT_, CURL_ and NIX_ ones serve the comparison of the pins with the network.
PASSED_ON = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL"),
    *("TERM", "COLORTERM", "NO_COLOR", "COLUMNS", "LANG"),
    *("LANGUAGE", "TZ", "TMPDIR"),
    *("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "VIRTUAL_ENV"),
    *("LD_LIBRARY_PATH", "LD_PRELOAD"),
    *("CUDA_HOME", "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "HTTP_PROXY"),
    *("HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
    *("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"),
    *("CLOUDSDK_CONFIG", "CLOUDSDK_ACTIVE_CONFIG_NAME", "CLOUDSDK_PYTHON", "CLOUDSDK_CORE_ACCOUNT"),
    *("CLOUDSDK_AUTH_CREDENTIAL_FILE_OVERRIDE", "CLOUDSDK_AUTH_IMPERSONATE_SERVICE_ACCOUNT"),
    "GOOGLE_APPLICATION_CREDENTIALS",  # a file's name
    *("GIT_SSL_CAINFO", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "UV_CACHE_DIR", "UV_PYTHON_INSTALL_DIR"),
    *("NIX_LD", "NIX_LD_LIBRARY_PATH", "NIX_PATH", "NIX_PROFILES", "NIX_REMOTE"),
    *("NIX_SSL_CERT_FILE", "NIX_USER_PROFILE_DIR"),
)

# Variables of the agents that the pinned Harbor commits don't know: they would be ignored in silence.
NOT_AT_THE_PINS = (
    *("HARBOR_TERMINUS_PARSER", "HARBOR_TERMINUS_ENABLE_SUMMARIZE", "HARBOR_CAMEL_MAX_COMPACTIONS"),
    *("HARBOR_AGENT_TIMEOUT_SEC", "HARBOR_EXTRA_ARTIFACTS", "HARBOR_EXTRA_COLLECT"),
)


def child_environment(**added: str) -> dict[str, str]:
    """The environment for a program that we start: of the user's what PASSED_ON names and LC_*, and `added`."""
    kept = {name: value for name, value in os.environ.items() if name in PASSED_ON or name.startswith("LC_")}
    return kept | added


def hub_environment() -> dict[str, str]:
    """What huggingface_hub reads of the user's environment: HF_TOKEN, HF_ENDPOINT, HF_HUB_CACHE and the like."""
    return {name: value for name, value in os.environ.items() if name.startswith("HF_")}


def ray_token() -> dict[str, str]:
    """The header by which a Ray with token authentication lets us in, when RAY_AUTH_TOKEN is set."""
    token = os.environ.get("RAY_AUTH_TOKEN")
    return {"Authorization": f"Bearer {token}"} if token else {}


def arguments(words: Iterable[str], known: Collection[str], secret: Collection[str]) -> Given:
    """NAME=VALUE words, and those of make's command line, which the Makefile exports as one variable.

    Raises BadInputError for what is no setting, and for a secret: other users see command lines.
    """
    # make writes a backslash before each space and backslash of a value, and doubles each dollar sign.
    of_make = re.findall(r"(?:\\.|[^\\\s])+", os.environ.get("MAKE_VARIABLES", ""))
    from_make = [(re.sub(r"\\(.)", r"\1", word).replace("$$", "$"), "make argument") for word in of_make]
    found = {}
    for word, source in [*from_make, *((word, "argument") for word in words)]:
        name, equals, value = word.partition("=")
        if not equals:
            raise BadInputError(f"{word!r} is not a setting", expected="NAME=VALUE", where=source)
        require_known(name, known, source)
        if name.lower() in secret:
            raise BadInputError(
                f"{name} is a secret, and command lines are read by others",
                expected="it in the environment or in .env",
                where=source,
            )
        found[name.lower()] = (value, source)
    return _not_empty(found)


def environment(known: Collection[str]) -> Given:
    """The settings among the environment's variables. Raises BadInputError for one that would be ignored."""
    for name in NOT_AT_THE_PINS:
        if os.environ.get(name):
            require_known(name, known, "environment")
    names = {name.lower(): name for name in known}
    return _not_empty(
        {name: (os.environ[key], "environment") for name, key in names.items() if key in os.environ}
    )


def env_file(written: str, known: Collection[str], *, required: bool) -> Given:
    """The lines of the file `written`. Raises BadInputError when it, or a line, can't be read."""
    try:
        path = Path(written).expanduser()
        if not path.is_file():
            if required:
                raise BadInputError("the file that ENV_FILE names is missing", expected="a file", found=path)
            return {}
        text = path.read_text(encoding="utf-8")
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: ~name of no user
        raise BadInputError(
            "the settings file can't be read", expected="UTF-8 text", found=error, where=written
        ) from error
    found = {}
    for line in parse_stream(io.StringIO(text)):
        where = f"{path} line {line.original.line}"
        if line.error or (line.key is not None and line.value is None):
            raise BadInputError(
                "a line of the settings file can't be read", expected="NAME=VALUE", where=where
            )
        if line.key is not None:
            require_known(line.key, known, where)
            found[line.key.lower()] = (line.value or "", where)
    return _not_empty(found)


def require_known(name: str, known: Collection[str], where: str) -> None:
    """Raises BadInputError, with the nearest name, when `name` is no setting."""
    if name in NOT_AT_THE_PINS:
        raise BadInputError(
            f"{name} has no effect at the pinned Harbor commits", expected="it unset", where=where
        )
    if name not in known:
        nearest = difflib.get_close_matches(name.upper(), known, n=1)
        raise BadInputError(
            f"{name} is not a setting",
            expected=f"{nearest[0]}, perhaps" if nearest else "a name of the settings table",
            where=where,
            run="make settings",
        )


def _not_empty(found: Mapping[str, tuple[str, str]]) -> Given:
    return {name: given for name, given in found.items() if given[0]}
