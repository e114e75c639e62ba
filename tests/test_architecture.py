"""The layers hold, at rest and at import, and the files of the project agree with each other."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PACKAGES = ("advisor", "collectors", "analyzers", "dashboard")
FRAMEWORKS = ("torch", "triton", "dash", "plotly")
MAX_LINES = 450
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))

# Packages whose every module must load without a framework.
LIGHT = (
    "advisor.model", "advisor.store", "advisor.hardware", "advisor.codegen", "advisor.report",
    "analyzers", "collectors",
)  # fmt: skip


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def lint_imports(folder: Path) -> tuple[int, str]:
    """Run the import contracts over the project's copy in `folder`."""
    done = subprocess.run(
        [sys.executable, "-c", "from importlinter.cli import lint_imports_command as c; c()"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(folder), "PATH": "", "COLUMNS": "200"},
    )
    return done.returncode, done.stdout + done.stderr


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The packages and their contracts, to be broken on purpose."""
    for package in PACKAGES:
        ignore = shutil.ignore_patterns("__pycache__", "schemas")
        shutil.copytree(ROOT / package, tmp_path / package, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


PLANTED = (
    ("advisor/report/planted.py", "import torch", "no-torch"),
    ("advisor/codegen/planted.py", "import triton.language", "no-torch"),
    ("advisor/hardware/planted.py", "import plotly", "no-dash"),
    ("advisor/model/findings.py", "import numpy", "light-start"),
    ("analyzers/planted.py", "import collectors.planted", "layers"),
    ("collectors/planted.py", "import collectors.live", "live-apart"),
    ("advisor/model/planted.py", "import advisor.report.planted", "layers"),
    ("dashboard/planted.py", "import advisor.hardware.planted", "figures-only"),
    ("analyzers/planted.py", "import advisor.store", "no-store"),
    ("advisor/report/planted.py", "import advisor.hardware.planted", "report-formats"),
)


def test_contracts_hold_and_catch_planted_imports(copy: Path) -> None:
    status, text = lint_imports(copy)
    assert status == 0, text
    for path, line, _ in PLANTED:
        with (copy / path).open("a", encoding="utf-8") as file:
            file.write(f"\n{line}\n")
    status, text = lint_imports(copy)
    assert status == 1
    contracts = project()["tool"]["importlinter"]["contracts"]
    broken = {c["id"] for c in contracts if re.search(re.escape(c["name"]) + " BROKEN", text)}
    assert broken == {contract for _, _, contract in PLANTED} == {c["id"] for c in contracts}


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_light_packages_load_no_framework() -> None:
    names = [
        name
        for name in map(module_name, SOURCES)
        if name.startswith(LIGHT) and not name.startswith("collectors.live")
        and not name.endswith("__main__")
    ]  # fmt: skip
    assert len(names) > 20
    code = (
        "import importlib, json, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        f"print(json.dumps([name for name in {FRAMEWORKS!r} if name in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == []


def test_importing_advisor_loads_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import advisor; print(set(sys.modules) - before)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = {name for name in re.findall(r"'([\w.]+)'", done.stdout) if name != "advisor"}
    assert loaded <= {"__future__"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_sources_are_short_described_and_finished(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= MAX_LINES
    assert not re.search(r"\b(TODO|FIXME|XXX)\b", text)
    assert not text or text.startswith(('"""', 'r"""')), "a module says what it holds"


def pins() -> list[Requirement]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_every_direct_dependency_is_pinned_once_for_every_python(python: str) -> None:
    here = {"python_version": python, "platform_system": "Linux", "extra": ""}
    exact = {
        pin.name: next(iter(pin.specifier)).version
        for pin in pins()
        if pin.marker is None or pin.marker.evaluate(here)
    }
    table = project()["project"]
    wanted = [
        *table["dependencies"],
        *(r for e in table["optional-dependencies"].values() for r in e),
    ]
    for requirement in map(Requirement, wanted):
        if requirement.name == "setuptools":  # comes with the environment
            continue
        assert requirement.specifier.contains(exact[requirement.name]), requirement


def test_pins_are_exact() -> None:
    assert all(str(pin.specifier).startswith("==") for pin in pins())


def test_ci_runs_the_readme_test_command_and_nothing_else() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    commands = [line for line in script.splitlines() if line and line[0] != "#"]
    assert commands == ["set -eu", 'cd "$(dirname "$0")/.."', "exec make test"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make test" in readme
    assert "make demo" in readme


def test_the_architecture_names_every_package() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    packages = {module_name(path) for path in SOURCES if path.name == "__init__.py"}
    missing = {p for p in packages if p.count(".") <= 1 and f"`{p}`" not in text}
    assert missing - {"advisor.model.schemas", "advisor"} == set()


def test_the_readme_names_only_commands_that_exist() -> None:
    from advisor.cli.main import COMMANDS

    known = {name for name, _, _ in COMMANDS}
    for document in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "Makefile"):
        text = (ROOT / document).read_text(encoding="utf-8")
        used = set(re.findall(r"fusion-advisor ([a-z]+)", text))
        assert used <= known, document


def test_declared_entry_points_resolve() -> None:
    table = project()["project"]
    targets = [*table["scripts"].values(), *table["entry-points"]["torch_dynamo_backends"].values()]
    for target in targets:
        assert importlib.util.find_spec(target.partition(":")[0]) is not None, target
