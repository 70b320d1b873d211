"""What a run was measured on."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path


def machine() -> dict[str, str]:
    """Interpreter, system and processor, in words."""
    return {
        "python": sys.version.split()[0],
        "system": platform.system(),
        "processor": _processor(),
    }


def cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return platform.processor()
    lines = info.read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if "model name" in line]
    return names[0] if names else platform.machine()
