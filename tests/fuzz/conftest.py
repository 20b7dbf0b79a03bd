"""`--hypothesis-profile=long` looks at fifty times as many examples, other ones each time."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("long")
