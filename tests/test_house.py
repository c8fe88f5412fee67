"""What holds for the whole house: directions, imports, entrypoints, clean text, and the wheel."""

from __future__ import annotations

import ast
import os
import re
import runpy
import shutil
import socket
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

HOME = Path(__file__).resolve().parent.parent
SETUP = runpy.run_path(str(HOME / "setup.py"), run_name="setup")
ROOMS: tuple[str, ...] = SETUP["ROOMS"]
BUILT = {"build", "dist", "__pycache__"}


def python(code: str, *, cwd: Path = HOME, exe: str | Path = sys.executable, **env: str) -> str:
    """Runs code in a fresh interpreter and returns what it printed."""
    done = subprocess.run([exe, "-c", code], cwd=cwd, env=os.environ | env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def files() -> Iterator[Path]:
    """The project's own files: no environments, caches, stores or build products."""
    for folder, below, names in os.walk(HOME):
        hidden = {name for name in below if (name.startswith(".") and name != ".ci") or name.endswith(".egg-info")}
        below[:] = sorted(set(below) - hidden - BUILT)
        yield from (Path(folder, name) for name in sorted(names) if name != ".git")


def shipped() -> list[Path]:
    return [p for p in files() if p.relative_to(HOME).parts[0] in (*ROOMS, "tilewright")]


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(HOME)}:{line}"


# ------------------------------------------------------------------------------------------------ directions


def test_import_contracts_hold() -> None:
    python("import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))")


def test_lifted_tasks_are_for_flows_alone() -> None:
    """Everyone else calls the plain function; `tasks.policy` costs an import of Prefect and a server."""
    lifted = re.compile(r"^\s*from tasks(\.policy import| import .*\bpolicy\b)", re.M)
    code = (path for path in shipped() if path.suffix == ".py" and path.parts[-2] != "flows")
    assert not [path for path in code if lifted.search(path.read_text())]


def test_the_public_face_is_light() -> None:
    """`import tilewright` costs milliseconds: what is heavy is imported by the call that needs it."""
    heavy = "{'prefect', 'xgboost', 'duckdb', 'pyarrow', 'onnx', 'typer', 'flows'}"
    assert python(f"import sys, tilewright; print(sorted({heavy} & set(sys.modules)))").strip() == "[]"


def test_nothing_is_named_like_a_room() -> None:
    """`tilewright/data.py` would be overwritten by the room in the wheel; `flows/data.py` would shadow it."""
    taken = [
        p for folder in ("tilewright", "flows") for p in (HOME / folder).iterdir() if p.stem in (*ROOMS, "tilewright")
    ]
    assert not taken


# ------------------------------------------------------------------------------------------------ Prefect


@pytest.mark.prefect
@pytest.mark.xdist_group("prefect")
@pytest.mark.parametrize(
    "deployment", yaml.safe_load((HOME / "prefect.yaml").read_text())["deployments"], ids=lambda d: d["name"]
)
def test_deployment_loads_and_takes_its_parameters(deployment: dict[str, object], tmp_path: Path) -> None:
    """Prefect turns a broken import into a placeholder flow and says nothing; here it is an error."""
    entrypoint, given = str(deployment["entrypoint"]), deployment.get("parameters") or {}
    module = entrypoint.rpartition(".")[0]
    if not (HOME / module.replace(".", "/")).with_suffix(".py").exists():
        pytest.skip(f"{module} does not exist yet")
    python(
        "import inspect\n"
        "from prefect.flows import load_flow_from_entrypoint\n"
        f"flow = load_flow_from_entrypoint({entrypoint!r}, use_placeholder_flow=False)\n"
        f"inspect.signature(flow.fn).bind(**{given!r})\n"
        f"flow.validate_parameters({given!r}) if flow.should_validate_parameters else None\n",
        PREFECT_HOME=str(tmp_path / "prefect"),
        DO_NOT_TRACK="1",
    )


def test_pinned_prefect_is_the_deployed_one() -> None:
    assert yaml.safe_load((HOME / "prefect.yaml").read_text())["prefect-version"] == version("prefect")


# ------------------------------------------------------------------------------------------------ text


def test_no_file_names_a_machine() -> None:
    """Folders of one machine, its name and addresses of package registries stay out of the repository."""
    host = re.escape(socket.gethostname())
    machine = re.compile(
        rf"(?<![\w.}}>])/(?:work|root|home)/\w|pypi\.org|pythonhosted|{host if len(host) > 7 else '(?!)'}"
    )
    found = [
        f"{where(path, number)}: {line.strip()[:100]}"
        for path in files()
        if path != Path(__file__).resolve() and b"\0" not in (data := path.read_bytes())
        for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1)
        if machine.search(line)
    ]
    assert not found, "\n".join(found)


def test_rooms_are_named_in_imports_alone() -> None:
    """The wheel renames the rooms in import statements; a module named in a string would keep its old name.

    Write `__name__`, `SomeClass.__module__` or `importlib.resources.files(__package__)` instead.
    """
    rooms = "|".join(ROOMS)
    code = [path for path in shipped() if path.suffix == ".py"]
    modules = {".".join(p.relative_to(HOME).with_suffix("").parts) for p in code if p.parts[-2] != "tilewright"}
    statement = re.compile(rf"^\s*(?:from|import) (?:{rooms})\b.*", re.M)
    found = []
    for path in code:
        tree = ast.parse(path.read_text())
        SETUP["one_name"](path.read_text(), str(path))  # refuses `import room`
        prose = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
                text = node.value
                if text in modules or statement.search(text):
                    found.append(f"{where(path, node.lineno)}: {text[:80]!r}")
    assert not found, "\n".join(found)


# ------------------------------------------------------------------------------------------------ the wheel


@pytest.mark.parametrize(
    ("flat", "inside"),
    [
        ("from ir.compute import Dag\n", "from tilewright.ir.compute import Dag\n"),
        ("def f():\n    from data import query\n", "def f():\n    from tilewright.data import query\n"),
        ("from  ir.x import (\n    A,\n    B,\n)\n", "from  tilewright.ir.x import (\n    A,\n    B,\n)\n"),
        ("é; from ir import a; from data import b", "é; from tilewright.ir import a; from tilewright.data import b"),
        ('"""\nfrom ir to data\n"""\n', '"""\nfrom ir to data\n"""\n'),
        ("from irx import y\nfrom . import ir\nimport numpy\n", "from irx import y\nfrom . import ir\nimport numpy\n"),
    ],
)  # fmt: skip
def test_imports_are_rewritten(flat: str, inside: str) -> None:
    assert SETUP["one_name"](flat, "example.py") == inside


def test_a_bare_import_of_a_room_is_refused() -> None:
    with pytest.raises(SyntaxError, match="from room"):
        SETUP["one_name"]("import ir.compute\n", "example.py")


HOSTILE = 'raise AssertionError("a stranger was imported: " + __name__)\n'

IMPORT_ALL = f"""
import pkgutil, sys
import tilewright
for found in pkgutil.walk_packages(tilewright.__path__, "tilewright."):
    try:
        __import__(found.name)
    except ModuleNotFoundError as missing:  # an optional third party
        if missing.name.split(".")[0] in {(*ROOMS, "tilewright")}:
            raise
bare = {{name.split(".")[0] for name in sys.modules}} & set({ROOMS})
assert not bare, bare
print(tilewright.__file__)
"""


@pytest.mark.slow
@pytest.mark.prefect
@pytest.mark.xdist_group("prefect")
def test_the_wheel_is_one_package_among_strangers(tmp_path: Path) -> None:
    """Built, installed into a clean environment and imported beside a user's own `ir/`, `tasks/`, `data.py`, ..."""
    if int(version("setuptools").split(".")[0]) < 77:
        pytest.skip("building the wheel needs setuptools >= 77; `make .venv` installs it")
    source, wheels, clean, user = (tmp_path / name for name in ("source", "wheels", "clean", "user"))
    for path in files():
        target = source / path.relative_to(HOME)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", wheels, source], check=True)
    (wheel,) = wheels.iterdir()

    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    rooms = (p.relative_to(HOME).as_posix() for p in shipped())
    assert packed == {name if name.startswith("tilewright/") else f"tilewright/{name}" for name in rooms}

    subprocess.run([sys.executable, "-m", "venv", "--without-pip", clean], check=True)
    subprocess.run([*pip, "--python", clean / "bin/python", "install", "--no-deps", wheel], check=True)
    site = clean / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    (site / "third_parties.pth").write_text(sysconfig.get_path("purelib") + "\n")  # not its .pth files: nothing of ours

    for room in ROOMS[::2]:
        (user / room).mkdir(parents=True)
        (user / room / "__init__.py").write_text(HOSTILE)
    for room in ROOMS[1::2]:
        (user / f"{room}.py").write_text(HOSTILE)
    home = str(tmp_path / "prefect")
    printed = python(IMPORT_ALL, cwd=user, exe=clean / "bin/python", PREFECT_HOME=home, DO_NOT_TRACK="1", PYTHONPATH="")
    assert printed.strip().startswith(str(site))
    assert (clean / "bin/tilewright").exists()
