"""scripts/korvet keeps .venv in the clone: only if it must, once, and never over another program's.

The virtual environment is made by hand, and its python only writes down its arguments. No package is fetched.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

FAKE_PYTHON = """#!/bin/sh
echo "$*" >> "$(dirname "$0")/asked"
exit ${FAKE_EXIT:-0}
"""


class Clone:
    """A clone with the scripts, a pyproject.toml, locks and a virtual environment that does nothing."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "scripts").mkdir(parents=True)
        for name in ("korvet", "setup.bash"):
            shutil.copy(ROOT / "scripts" / name, root / "scripts" / name)
        self.pyproject = root / "pyproject.toml"
        self.pyproject.write_text("[project]\n")
        for name in ("requirements.lock", "requirements-build.lock"):
            (root / name).touch()
        self.bin = root / ".venv" / "bin"
        self.bin.mkdir(parents=True)
        self._program("python", FAKE_PYTHON)
        self._program("korvet", '#!/bin/sh\necho "korvet $*"\n')
        (root / ".venv" / ".korvet-root").write_text(f"{root}\n")

    def _program(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def start(self, command: Path | None = None, verb: str = "topics", **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(command or self.root / "scripts" / "korvet"), *verb.split()],
            env={"PATH": os.environ["PATH"], "KORVET_PYTHON": sys.executable, **environment},
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, command: Path | None = None, verb: str = "topics", **environment: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of ``scripts/korvet topics`` or of another verb."""
        process = self.start(command, verb, **environment)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    @property
    def installs(self) -> int:
        """The number of times that pip was asked to install the clone."""
        asked = self.bin / "asked"
        return asked.read_text().count(f"--editable {self.root}\n") if asked.exists() else 0


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path.resolve() / "a clone")


def test_first_use_installs_and_later_uses_do_not(clone: Clone) -> None:
    code, out, err = clone.run()
    assert (code, out, clone.installs) == (0, "korvet topics\n", 1)
    assert err.startswith(f"korvet: bringing {clone.root}/.venv up to date ")
    assert err.count("\n") == 1
    assert clone.run() == (0, "korvet topics\n", "")
    assert clone.installs == 1


def test_first_use_of_the_pipeline_installs_its_extra(clone: Clone) -> None:
    clone.run()
    code, out, err = clone.run(verb="pipeline archive")
    assert (code, out) == (0, "korvet pipeline archive\n")
    assert "takes some minutes" in err
    assert f"--editable {clone.root}[spark]\n" in (clone.bin / "asked").read_text()
    assert clone.run(verb="pipeline archive") == (0, "korvet pipeline archive\n", "")
    assert clone.run() == (0, "korvet topics\n", "")
    assert clone.installs == 1


@pytest.mark.parametrize("words", ["pipeline", "pipeline --help", "pipeline archive -h"])
def test_help_of_the_pipeline_waits_for_no_spark(clone: Clone, words: str) -> None:
    clone.run()
    assert clone.run(verb=words) == (0, f"korvet {words}\n", "")


def test_changed_pyproject_installs_again(clone: Clone) -> None:
    clone.run()
    clone.pyproject.write_text("[project]\nname = 'korvet'\n")
    assert clone.run()[0] == 0
    assert clone.installs == 2


def test_failed_installation_is_tried_again(clone: Clone) -> None:
    code, out, err = clone.run(FAKE_EXIT="1")
    assert (code, out) == (1, "")
    assert "could not install what requirements.lock names" in err
    assert clone.run()[0] == 0
    assert clone.installs == 1


def test_several_first_uses_at_once_install_once(clone: Clone) -> None:
    processes = [clone.start() for _ in range(4)]
    assert [process.communicate(timeout=60)[0] for process in processes] == ["korvet topics\n"] * 4
    assert clone.installs == 1


def test_symbolic_link_finds_the_clone(clone: Clone, tmp_path: Path) -> None:
    link = tmp_path / "korvet"
    link.symlink_to(clone.root / "scripts" / "korvet")
    assert clone.run(link)[:2] == (0, "korvet topics\n")


def test_environment_of_unknown_origin_is_left_alone(clone: Clone) -> None:
    (clone.root / ".venv" / ".korvet-root").unlink()
    code, _, err = clone.run()
    assert code == 1
    assert err.endswith(
        f"korvet: {clone.root}/.venv exists and was not made by this script: move it away and try again\n"
    )
    assert (clone.bin / "korvet").exists()
    assert clone.installs == 0


def test_environment_of_another_clone_is_left_alone(clone: Clone, tmp_path: Path) -> None:
    other = Clone(tmp_path.resolve() / "another clone")
    assert other.run()[0] == 0
    shutil.rmtree(clone.root / ".venv")
    (clone.root / ".venv").symlink_to(other.root / ".venv")
    before = sorted(other.bin.parent.rglob("*"))
    code, out, err = clone.run()
    assert (code, out) == (1, "")
    assert err.startswith(f"korvet: {clone.root}/.venv is a symbolic link: ")
    assert err.count("\n") == 1
    assert sorted(other.bin.parent.rglob("*")) == before
    assert other.run() == (0, "korvet topics\n", "")


def test_missing_python_is_one_line(clone: Clone, tmp_path: Path) -> None:
    named = str(tmp_path / "nowhere")
    code, _, err = clone.run(KORVET_PYTHON=named)
    assert (code, err.count("\n")) == (1, 1)
    assert err.startswith(f"korvet: KORVET_PYTHON={named} is no Python 3.11 or newer with the venv module: ")


def python(directory: Path, options: str, prefix: str = "/opt") -> Path:
    """A Python that says it was configured with these options for this prefix."""
    told = f"import sys, sysconfig; sys.base_prefix = '{prefix}'; sysconfig.get_config_var = lambda name: '{options}'"
    return program(directory, f'exec "{sys.executable}" -c "{told}\n$2"')


def program(directory: Path, text: str) -> Path:
    directory.mkdir()
    path = directory / "python3.11"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def found_python(*directories: Path, name: str = "") -> Path:
    """The choice of the scripts.

    :param name: the value of KORVET_PYTHON.
    """
    bash = shutil.which("bash")
    assert bash is not None
    chosen = f"set -euo pipefail; . '{ROOT}/scripts/setup.bash'; python=$(find_python) || exit 1; echo \"$python\""
    environment = {"PATH": ":".join(map(str, directories)), "KORVET_PYTHON": name, "root": "/"}
    done = subprocess.run(
        [bash, "-c", chosen], env=environment, capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    return Path(done.stdout.strip())


def test_optimized_python_goes_before_others_of_the_path(tmp_path: Path) -> None:
    slower, faster = python(tmp_path / "slower", ""), python(tmp_path / "two words", "--enable-optimizations")
    broken = program(tmp_path / "broken", "echo no such version >&2; exit 127")
    path = (broken.parent, slower.parent, faster.parent)
    assert found_python(*path) == faster
    assert found_python(broken.parent, slower.parent) == slower
    distribution = python(tmp_path / "distribution", "", "/usr")
    assert found_python(slower.parent, distribution.parent) == distribution


def test_named_python_is_taken_as_the_shell_would(tmp_path: Path) -> None:
    slower, faster = python(tmp_path / "two words", ""), python(tmp_path / "faster", "--enable-optimizations")
    assert found_python(slower.parent, faster.parent, name="python3.11") == slower
    assert found_python(faster.parent, name=str(slower)) == slower
