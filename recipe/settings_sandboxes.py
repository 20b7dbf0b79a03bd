"""The settings of the sandboxes, whatever runs them, as data; recipe/settings.py has all others."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, AllowInfNan, BaseModel, SecretStr

from recipe.forms import setting


def _header_fits(secret: SecretStr | None) -> SecretStr | None:
    # In a header anything else is refused by the client, whose error shows the whole header.
    text = secret.get_secret_value().strip() if secret else "none"
    if not re.fullmatch(r"[!#-&(-~]+", text):
        raise ValueError("printable ASCII without spaces or quotes")
    return secret and SecretStr(text)


Secret = Annotated[SecretStr | None, AfterValidator(_header_fits)]
Finite = Annotated[float | None, AllowInfNan(allow_inf_nan=False)]


def on_gke[T](data: dict[str, Any], value: T) -> T | None:
    """`value` on the backend gke only."""
    return value if data["sandbox_backend"] == "gke" else None


class SandboxSettings(BaseModel):
    """Where sandboxes run, with which credentials, and how large they are."""

    sandbox_backend: str = setting(
        "daytona",
        meaning="where sandboxes run: docker, daytona, modal, gke or another type of Harbor; `local`: bubblewrap here",
        pattern=r"^[a-z][a-z0-9-]*$",
        form="a type of Harbor",
    )
    daytona_api_key: Secret = setting(None, meaning="of Daytona")
    daytona_api_url: str | None = setting(
        None,
        meaning="another address of Daytona",
        pattern=r"^https?://[^\s/@?#]+(/[^\s?#]*)?$",
        form="http(s)://HOST/PATH, without a password or a query",
    )
    daytona_auto_stop_min: int | None = setting(
        None,
        unit="min",
        meaning="without a command, after which Daytona stops a sandbox that nobody removed; "
        "default: HARBOR_AGENT_CALL_TIMEOUT_SEC and 30 min",
        ge=1,
    )
    modal_token_id: Secret = setting(None, meaning="of Modal; or `modal token new` writes ~/.modal.toml")
    modal_token_secret: Secret = setting(None, meaning="of Modal")
    sandbox_cpus: int | None = setting(
        meaning="CPUs of every sandbox",
        derived="1 on gke, elsewhere the task's own",
        factory=lambda data: on_gke(data, 1),
        ge=1,
    )
    sandbox_memory_mb: int | None = setting(
        unit="MiB",
        meaning="memory of every sandbox",
        derived="2048 on gke, elsewhere the task's own",
        factory=lambda data: on_gke(data, 2048),
        ge=1,
    )
    sandbox_storage_mb: int | None = setting(
        unit="MiB",
        meaning="storage of every sandbox",
        derived="6144 on gke, elsewhere the task's own",
        factory=lambda data: on_gke(data, 6144),
        ge=1,
    )

    sandbox_hours_max: Finite = setting(
        None, unit="h", meaning="of all sandboxes together, after which the run stops with a checkpoint", gt=0
    )
    sandbox_hour_price: Finite = setting(
        None, unit="USD", meaning="what an hour of one sandbox costs, for the report", ge=0
    )
