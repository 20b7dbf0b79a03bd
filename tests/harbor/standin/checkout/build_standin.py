"""Builds the stand-in's editable wheel with nothing but the standard library, so that no index is asked."""

from __future__ import annotations

import os
import time
import zipfile
from pathlib import Path

NAME = "harbor-0.20.0"


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """With UV_STANDIN_HOLD it says so in that file, and waits until somebody removes it."""
    hold = os.environ.get("UV_STANDIN_HOLD")
    if hold:
        Path(hold).write_text("held")
        deadline = time.monotonic() + 60
        while Path(hold).exists() and time.monotonic() < deadline:
            time.sleep(0.01)
    files = {
        "harbor.pth": f"{Path(__file__).parent / 'src'}\n",
        "harbor_standin.py": "INSTALLED = True\n",
        f"{NAME}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{NAME}.dist-info/METADATA": "Metadata-Version: 2.1\nName: harbor\nVersion: 0.20.0\n",
    }
    files[f"{NAME}.dist-info/RECORD"] = "".join(f"{name},,\n" for name in files)
    wheel = f"{NAME}-py3-none-any.whl"
    with zipfile.ZipFile(Path(wheel_directory) / wheel, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return wheel
