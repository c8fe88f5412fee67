"""The checkout is flat (`from ir.compute import Dag`); the wheel is one package (`tilewright.ir.compute`).

`ir`, `data`, `tasks` and most other room names belong to someone on the package index, and a user's own `data.py`
would shadow ours. So the wheel holds the rooms inside `tilewright`, and this file rewrites their imports on the way.
"""

import ast
import re
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOMS = ("flows", "tasks", "search", "codegen", "data", "ir")
PACKAGES = find_packages(include=[f"{room}{tail}" for room in ("tilewright", *ROOMS) for tail in ("", ".*")])
SHIPPED = [
    "py.typed",
    "**/*.sql",
    "**/*.h",
    "**/*.c",
    "**/*.cu",
    "**/*.cuh",
    "**/*.json",
    "**/*.html",
    "**/*.css",
    "**/*.js",
]


def one_name(source: str, path: str) -> str:
    """from ir.compute import Dag      -->      from tilewright.ir.compute import Dag

    Raises SyntaxError for `import ir.compute`: the name it binds would change its meaning.
    """
    lines = source.encode().splitlines(keepends=True)
    imports = [n for n in ast.walk(ast.parse(source, path)) if isinstance(n, ast.Import | ast.ImportFrom)]
    for node in sorted(imports, key=lambda n: (n.lineno, n.col_offset), reverse=True):
        if isinstance(node, ast.Import):
            if any(_room(name.name) for name in node.names):
                raise SyntaxError(f"{path}:{node.lineno}: write `from room.module import name`, not `import room`")
        elif node.level == 0 and _room(node.module or ""):
            line, at = lines[node.lineno - 1], node.col_offset
            lines[node.lineno - 1] = line[:at] + re.sub(rb"^from(\s+)", rb"from\1tilewright.", line[at:])
    return b"".join(lines).decode()


def _room(module: str) -> bool:
    return module.split(".")[0] in ROOMS


class OneName(build_py):
    """Moves the rooms under `tilewright` in a wheel; an editable install stays flat."""

    def finalize_options(self) -> None:
        super().finalize_options()
        if not self.editable_mode:
            inside = {p if p.startswith("tilewright") else f"tilewright.{p}": p for p in PACKAGES}
            self.packages = list(inside)
            self.package_dir = {new: old.replace(".", "/") for new, old in inside.items()}

    def build_module(self, module, module_file, package):  # type: ignore[no-untyped-def]
        built = super().build_module(module, module_file, package)
        path = Path(built[0])
        path.write_text(one_name(path.read_text("utf-8"), str(module_file)), "utf-8")
        return built


if __name__ == "__main__":
    setup(packages=PACKAGES, cmdclass={"build_py": OneName}, package_data={"": SHIPPED}, include_package_data=False)
