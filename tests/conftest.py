"""What every test starts from: an environment without settings, whoever runs the tests."""

from __future__ import annotations

import pytest

from recipe.settings import Settings


@pytest.fixture(autouse=True)
def _environment_without_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "MAKE_VARIABLES",
        "MAKEFLAGS",
        "MAKELEVEL",
        *(field.upper() for field in Settings.model_fields),
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def empty_folder(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """The working directory, without a .env."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
