"""Every setting as data: name, type, default, unit, meaning, agent. Nothing else reads the environment.

A value comes from, highest first: NAME=VALUE arguments (of `recipe` or of `make`), the environment, the
command's preset, the `.env` file, the default. An empty value counts as not given. Names that are no setting
are refused, except in the environment, which holds other programs' variables.
"""

from __future__ import annotations

import difflib
import io
import os
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal

from dotenv.parser import parse_stream
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, SecretStr, ValidationError

from recipe.errors import BadInputError
from recipe.presets import PRESETS

Raw = tuple[str, str]  # a value as it was written, and where

# Of a bad value, as much is shown as fits on a line beside its label.
SHOWN_CHARACTERS = 80

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
    *("GIT_SSL_CAINFO", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "UV_CACHE_DIR", "UV_PYTHON_INSTALL_DIR"),
    *("NIX_LD", "NIX_LD_LIBRARY_PATH", "NIX_PATH", "NIX_PROFILES", "NIX_REMOTE"),
    *("NIX_SSL_CERT_FILE", "NIX_USER_PROFILE_DIR"),
)


def _absolute(path: Path) -> Path:
    try:
        return path.expanduser().absolute()
    except RuntimeError as error:  # ~name of no user
        raise ValueError(str(error)) from error


AbsolutePath = Annotated[Path, AfterValidator(_absolute)]


def setting(
    default: object = ...,
    *,
    meaning: str,
    unit: str = "",
    derived: str = "",
    agent: str = "all",
    form: str = "",
    factory: Callable[[dict[str, Any]], object] | None = None,
    **bounds: Any,
) -> Any:
    """A field and what the tables show of it; `derived` says in words what `factory` computes, `form` a pattern."""
    extra: dict[str, Any] = {"unit": unit, "derived": derived, "agent": agent, "form": form}
    if factory is not None:
        return Field(default_factory=factory, description=meaning, json_schema_extra=extra, **bounds)
    return Field(default, description=meaning, json_schema_extra=extra, **bounds)


class Checkouts(BaseModel):
    """Which agent's recipe, and where its sources lie: all that the comparison with the pins needs."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)
    _sources: dict[str, str] = PrivateAttr(default_factory=dict)

    agent: Literal["camel", "terminus-2"] = setting("camel", meaning="which agent solves the tasks")
    miles_dir: AbsolutePath = setting(Path("/root/miles"), meaning="checkout of Miles, as in the image")
    sglang_dir: AbsolutePath = setting(
        Path("/sgl-workspace/sglang"), meaning="checkout of SGLang, as in the image"
    )
    megatron_path: AbsolutePath = setting(
        Path("/root/Megatron-LM"), meaning="Megatron-LM, which the image's digest pins"
    )
    harbor_dir: AbsolutePath | None = setting(None, meaning="checkout of Harbor")

    def source(self, name: str) -> str:
        """Where the value of the setting `name` (lower case) came from."""
        return self._sources.get(name, "default")

    @property
    def recipe(self) -> str:
        """The recipe's name in pins/."""
        return self.agent.replace("-", "")


class Settings(Checkouts):
    """The resolved settings of one run. Build it with `load`; `Settings(**public)` reads a dump back."""

    engine: Literal["local"] = setting(
        meaning="what samples and trains: `local` is a tiny Inkling on this machine"
    )
    agent: Literal["camel"] = setting("camel", meaning="which agent solves the tasks")
    tasks_dir: AbsolutePath = setting(meaning="folder of Harbor task directories")
    sandbox_backend: Literal["local"] = setting(
        meaning="where sandboxes run: `local` is bubblewrap on this machine"
    )

    num_rollout: int = setting(100, unit="rollouts", meaning="rollouts, one optimizer step each", ge=1)
    rollout_batch_size: int = setting(16, unit="groups", meaning="complete groups kept per rollout", ge=1)
    over_sampling_batch_size: int = setting(
        20, unit="groups", meaning="groups started per rollout; the surplus is aborted", ge=1
    )
    n_samples_per_prompt: int = setting(
        8,
        unit="trials",
        meaning="trials per prompt, the GRPO group; one alone has no spread to learn from",
        ge=2,
    )
    global_batch_size: int = setting(
        unit="samples",
        meaning="samples of one optimizer step",
        derived="ROLLOUT_BATCH_SIZE x N_SAMPLES_PER_PROMPT",
        factory=lambda data: data["rollout_batch_size"] * data["n_samples_per_prompt"],
        ge=1,
    )
    lr: float = setting(
        1e-5,
        meaning="constant learning rate of Adam; for Inkling-Small 3e-5 was stable, 5e-5 collapsed",
        gt=0,
        allow_inf_nan=False,
    )
    max_seq_len: int = setting(
        32768,
        unit="tokens",
        meaning="of a training sample (prompt and all turns); a longer one is truncated",
        ge=2,
    )
    max_response_len: int = setting(16384, unit="tokens", meaning="of one model turn", ge=1)
    seed: int = setting(42, meaning="keys every random stream and the order of the prompts", ge=0)
    deterministic: bool = setting(
        default=False, meaning="1: the same seed gives the same metrics on the same machine; slower"
    )

    runs_root: AbsolutePath = setting(Path("runs"), meaning="folder of all runs", validate_default=True)
    run_name: str = setting(
        meaning="this run's folder in RUNS_ROOT; a used one is refused",
        derived="inkling-grpo-AGENT-<UTC time>",
        factory=lambda data: f"inkling-grpo-{data['agent']}-{datetime.now(UTC):%Y%m%d-%H%M%S}",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$",
        form="at most 100 letters, digits and . _ -, the first a letter or a digit",
    )
    prompt_data: AbsolutePath = setting(
        meaning="JSONL of prompts, one row a task",
        derived="a row for each task of TASKS_DIR, written into the run folder",
        factory=lambda data: data["runs_root"] / data["run_name"] / "launcher" / "prompts.jsonl",
    )
    load_dir: AbsolutePath | None = setting(
        None, meaning="an earlier run's checkpoints/ to start from; optimizer and rollout count start fresh"
    )
    save_interval: int = setting(
        99, unit="rollouts", meaning="between checkpoints (weights only); the last rollout always saves", ge=1
    )
    dump_details: bool = setting(
        default=True, meaning="1: samples and token ids of each rollout in dump_details/"
    )
    cache_dir: AbsolutePath = setting(
        Path(".cache"), meaning="what later runs reuse: the local engine's warm start", validate_default=True
    )

    agent_max_concurrent: int = setting(
        unit="trials",
        meaning="trials that run at once; further ones queue",
        derived="OVER_SAMPLING_BATCH_SIZE x N_SAMPLES_PER_PROMPT",
        factory=lambda data: data["over_sampling_batch_size"] * data["n_samples_per_prompt"],
        ge=1,
    )
    agent_server_host: str = setting("0.0.0.0", meaning="address that the agent server binds")  # noqa: S104
    agent_server_port: int = setting(11000, meaning="its port; 0: any free one", ge=0, le=65535)
    session_server_port: int = setting(
        30000, meaning="port of the session server; 0: any free one", ge=0, le=65535
    )
    agent_model_name: str = setting(
        "inkling-small",
        meaning="model name that the agent sends, as openai/<name>",
        pattern=r"^[\w.-]+$",
        form="letters, digits and . _ - only",
    )
    harbor_agent_max_iterations: int = setting(50, unit="turns", meaning="per trial", ge=1)
    harbor_max_seq_len: int = setting(
        1_048_576,
        unit="tokens",
        meaning="the agent's own bound on its context (MAX_SEQ_LEN bounds the sample)",
        ge=1,
    )
    harbor_agent_timeout_multiplier: float = setting(
        12, meaning="scales each task's agent timeout", gt=0, allow_inf_nan=False
    )
    harbor_agent_call_timeout_sec: float = setting(
        10800,
        unit="s",
        meaning="deadline of one whole trial: queue, sandbox, agent, verifier",
        gt=0,
        allow_inf_nan=False,
    )
    rollout_timeout_sec: float = setting(
        unit="s",
        meaning="deadline of one rollout's sampling; the job ends with an error",
        derived="2 x HARBOR_AGENT_CALL_TIMEOUT_SEC: one wave of trials and one refill",
        factory=lambda data: 2 * data["harbor_agent_call_timeout_sec"],
        gt=0,
        allow_inf_nan=False,
    )
    max_dropped_groups: int = setting(
        unit="groups",
        meaning="dropped in a row, after which the job ends with an error",
        derived="3 x OVER_SAMPLING_BATCH_SIZE: the rollout's groups and two refills",
        factory=lambda data: 3 * data["over_sampling_batch_size"],
        ge=1,
    )

    env_file: AbsolutePath = setting(
        Path(".env"), meaning="file of NAME=VALUE lines; may be missing, unless named", validate_default=True
    )
    dry_run: bool = setting(
        default=False, meaning="1: print what would run, then stop; nothing is started or written"
    )

    def public(self) -> dict[str, Any]:
        """Every setting as plain JSON, keyed by its lower-case name; secrets are left out."""
        secret = {name for name in type(self).model_fields if isinstance(getattr(self, name), SecretStr)}
        return self.model_dump(mode="json", exclude=secret)

    @property
    def builds_prompt_data(self) -> bool:
        """Whether PROMPT_DATA was not given: then the launcher writes it."""
        return "prompt_data" not in self._sources


def load(preset: str | None = None, arguments: Iterable[str] = ()) -> Settings:
    """Resolves the settings of a command. Raises BadInputError for an unknown name or a bad value."""
    return resolve(_raw(preset, arguments))


def load_checkouts(arguments: Iterable[str] = ()) -> Checkouts:
    """The checkouts alone: nothing that a run requires has to be set. Raises BadInputError."""
    raw = _raw(None, arguments)
    return _validated(Checkouts, {name: raw[name] for name in Checkouts.model_fields if name in raw})


def _raw(preset: str | None, arguments: Iterable[str]) -> dict[str, Raw]:
    written = _arguments(arguments)
    given = _environment()
    env_file = written.get("env_file") or given.get("env_file") or (".env", "default")
    chosen = (
        {name.lower(): (value, f"preset {preset}") for name, value in PRESETS[preset].items()}
        if preset
        else {}
    )
    layers = [
        _env_file(env_file[0], required=env_file[1] != "default"),
        chosen,
        given,
        written,
    ]
    return {name: raw for layer in layers for name, raw in layer.items()}


def resolve(raw: Mapping[str, Raw]) -> Settings:
    """Validates values as written. Raises BadInputError: the setting, what it takes, where it was set."""
    return _validated(Settings, raw)


def _validated[S: Checkouts](kind: type[S], raw: Mapping[str, Raw]) -> S:
    try:
        settings = kind.model_validate({name: value for name, (value, _) in raw.items()})
    except ValidationError as error:
        raise _bad_value(error, raw) from None
    settings._sources = {name: source for name, (_, source) in raw.items()}
    return settings


def child_environment(**added: str) -> dict[str, str]:
    """The environment for a program that we start: of the user's what PASSED_ON names and LC_*, and `added`."""
    kept = {name: value for name, value in os.environ.items() if name in PASSED_ON or name.startswith("LC_")}
    return kept | added


def _arguments(arguments: Iterable[str]) -> dict[str, Raw]:
    """NAME=VALUE words; those of make's command line reach us as one variable that the Makefile exports."""
    # make writes a backslash before each space and backslash of a value, and doubles each dollar sign.
    words = re.findall(r"(?:\\.|[^\\\s])+", os.environ.get("MAKE_VARIABLES", ""))
    from_make = [(re.sub(r"\\(.)", r"\1", word).replace("$$", "$"), "make argument") for word in words]
    found = {}
    for word, source in [*from_make, *((word, "argument") for word in arguments)]:
        name, equals, value = word.partition("=")
        if not equals:
            raise BadInputError(f"{word!r} is not a setting", expected="NAME=VALUE", where=source)
        _known(name, source)
        found[name.lower()] = (value, source)
    return _given(found)


def _environment() -> dict[str, Raw]:
    names = {name: name.upper() for name in Settings.model_fields}
    return _given(
        {name: (os.environ[key], "environment") for name, key in names.items() if key in os.environ}
    )


def _env_file(written: str, *, required: bool) -> dict[str, Raw]:
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
            _known(line.key, where)
            found[line.key.lower()] = (line.value or "", where)
    return _given(found)


def _given(found: Mapping[str, Raw]) -> dict[str, Raw]:
    return {name: raw for name, raw in found.items() if raw[0]}


def _known(name: str, where: str) -> None:
    names = [field.upper() for field in Settings.model_fields]
    if name in names:
        return
    nearest = difflib.get_close_matches(name.upper(), names, n=1)
    raise BadInputError(
        f"{name} is not a setting",
        expected=f"{nearest[0]}, perhaps" if nearest else "a name of the settings table",
        where=where,
        run="make settings",
    )


def _bad_value(error: ValidationError, raw: Mapping[str, Raw]) -> BadInputError:
    # A derived default is not computed when what it derives from is bad: that is no error of its own.
    problems = [problem for problem in error.errors() if problem["type"] != "default_factory_not_called"]
    problem = problems[0]
    name = str(problem["loc"][0])
    if problem["type"] == "missing":
        return BadInputError(f"{name.upper()} is not set", expected=Settings.model_fields[name].description)
    value, source = raw[name]
    field = Settings.model_fields[name]
    secret = "Secret" in str(field.annotation)
    extra: dict[str, Any] = field.json_schema_extra  # type: ignore[assignment]
    form = extra["form"] if problem["type"] == "string_pattern_mismatch" else ""
    expected = form or problem["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    shown = repr(value) if len(value) <= SHOWN_CHARACTERS else f"{value[:SHOWN_CHARACTERS]!r} and more"
    others = ", ".join(sorted({str(other["loc"][0]).upper() for other in problems[1:]}))
    return BadInputError(
        f"{name.upper()} has a bad value" + (f" (and so have: {others})" if others else ""),
        expected=expected + (f" [{extra['unit']}]" if extra["unit"] else ""),
        found="(secret)" if secret else shown,
        where=source,
    )
