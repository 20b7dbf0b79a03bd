"""The parts of camel-ai that the agent uses, imported with camel's logging silenced first.

Left alone, camel configures the root logger when it is imported, and at INFO writes the whole history at
every request, which grows with the square of the turns.
"""

from __future__ import annotations

import logging

_camel = logging.getLogger("camel")
_camel.addHandler(logging.NullHandler())  # camel leaves the root logger alone when its own has a handler
_camel.setLevel(logging.CRITICAL + 1)  # some of its errors are for us to raise, none for it to print

from camel import __version__ as CAMEL_VERSION  # noqa: E402, N812
from camel.agents import ChatAgent  # noqa: E402
from camel.models import BaseModelBackend  # noqa: E402
from camel.toolkits import FunctionTool  # noqa: E402
from camel.types import ChatCompletion  # noqa: E402
from camel.utils import BaseTokenCounter  # noqa: E402

__all__ = [
    "CAMEL_VERSION",
    "BaseModelBackend",
    "BaseTokenCounter",
    "ChatAgent",
    "ChatCompletion",
    "FunctionTool",
]
