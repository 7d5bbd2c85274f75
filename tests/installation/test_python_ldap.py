"""`scripts/test` installs python-ldap where it can be compiled, and never fails because it cannot."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PIP = '#!/bin/sh\ncase $1 in -c) exit 1 ;; esac\necho "$@" >>"${0%/*}/pip.log"\nexit 1\n'


class Machine:
    """A folder of programs, the only ones that the function of the script finds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.stamp = folder / ".python-ldap-failed"
        for name in ("cat", "cksum", "dirname", "timeout"):
            self.add(name, f'#!/bin/sh\nPATH=/usr/bin:/bin exec {name} "$@"\n')
        self.add("id", "#!/bin/sh\necho 1000\n")
        self.add("slapd", "#!/bin/sh\n")
        self.add("python", PIP)

    def add(self, name: str, text: str) -> None:
        program = self._folder / name
        program.write_text(text)
        program.chmod(0o755)

    def install(self) -> str:
        """Run the function like the script does; return its messages."""
        text = (ROOT / "scripts/test").read_text(encoding="utf-8")
        start = text.index("install_python_ldap() {")
        function = text[start : text.index("\n}\n", start) + 3]
        setup = f"set -euo pipefail\nheading() {{ :; }}\nvenv={self._folder}\npython={self._folder}/python\n"
        done = subprocess.run(
            ["/bin/bash", "-c", f"{setup}{function}install_python_ldap"],
            cwd=ROOT, env={"PATH": str(self._folder)}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return done.stderr

    @property
    def pip_calls(self) -> list[str]:
        log = self._folder / "pip.log"
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_python_ldap_is_skipped_without_root_and_without_a_compiler(machine: Machine) -> None:
    assert "there is no C compiler" in machine.install()
    assert machine.pip_calls == []


def test_failed_installation_of_python_ldap_is_not_repeated_for_the_same_lock_file(machine: Machine) -> None:
    machine.add("cc", "#!/bin/sh\n")
    assert "could not be compiled: its tests are skipped" in machine.install()
    assert "could not be compiled earlier" in machine.install()
    (call,) = machine.pip_calls
    assert "--retries 0 --timeout 10" in call
    machine.stamp.write_text("of another lock file")
    machine.install()
    assert len(machine.pip_calls) == 2
