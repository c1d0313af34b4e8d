"""Generators of clients read our document: `python -m tests.conformance.generators [TARGET ...]`.

`openapi-python-client`, `openapi-typescript` and `@hey-api/openapi-ts` come into `.parts/generators`. It ends with 0 when each of
them made a client of each document without a word of complaint, what they made compiles, and no client has more than four
models for each operation.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).resolve().parent
ROOT: Final = HERE.parent.parent
TOOLS: Final = ROOT / ".parts" / "generators"
TARGETS: Final = [str(HERE / "desk.py"), str(HERE / "library.py"), str(ROOT / "examples" / "shop" / "app.py")]
NPM_PACKAGES: Final = ("openapi-typescript@7.13.0", "@hey-api/openapi-ts@0.95.0", "typescript@5.9.3")
PYTHON_PACKAGES: Final = ("openapi-python-client==0.29.1", "ruff")


def main(targets: list[str]) -> int:
    set_up()
    wrong = 0
    for target in targets or TARGETS:
        for name, complaint in complaints(target):
            wrong += bool(complaint)
            sys.stdout.write(f"{'WRONG' if complaint else 'right'} {name}: {target}\n{complaint}")
    return 1 if wrong else 0


def set_up() -> None:
    if (TOOLS / "ready").exists():
        return
    TOOLS.mkdir(parents=True, exist_ok=True)
    run(sys.executable, "-m", "venv", "python")
    run("python/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PYTHON_PACKAGES)
    (TOOLS / "package.json").write_text('{"private": true}')
    run("npm", "install", "--silent", "--no-package-lock", "--no-fund", "--no-audit", *NPM_PACKAGES)
    (TOOLS / "ready").touch()


def run(*words: str) -> None:
    subprocess.run(words, check=True, cwd=TOOLS)


def complaints(target: str) -> Iterator[tuple[str, str]]:
    """What each generator says against the document of a target; no text where it is content."""
    with tempfile.TemporaryDirectory() as folder:
        document = Path(folder) / "openapi.json"
        with document.open("w") as file:
            subprocess.run([sys.executable, "-m", "enfold", "openapi", target], check=True, stdout=file)
        yield "openapi-python-client", of_python(document)
        yield "openapi-typescript", of_program(document, "openapi-typescript", str(document), "-o", "types.ts")
        yield "@hey-api/openapi-ts", of_program(document, "openapi-ts", "-i", str(document), "-o", "client")
        strict = [
            "--noEmit",
            "--strict",
            "--skipLibCheck",
            "--target",
            "es2022",
            "--module",
            "esnext",
            "--moduleResolution",
            "bundler",
        ]
        yield "tsc", of_program(document, "tsc", *strict, "types.ts", "client/index.ts")


def of_python(document: Path) -> str:
    """It warns of every response and schema that it leaves out, and still ends with 0."""
    program = str(TOOLS / "python" / "bin" / "openapi-python-client")
    words = ["generate", "--meta", "none", "--fail-on-warning", "--path", str(document), "--output-path", "python"]
    return complaint_of([program, *words], document.parent) or _too_many_models(document)


def _too_many_models(document: Path) -> str:
    operations = len(json.loads(document.read_text())["paths"])
    models = len(list((document.parent / "python" / "models").glob("[!_]*.py")))
    return "" if models < 4 * operations else f"{models} models for {operations} operations\n"


def of_program(document: Path, name: str, *words: str) -> str:
    return complaint_of(["node", str(TOOLS / "node_modules" / ".bin" / name), *words], document.parent)


def complaint_of(command: list[str], folder: Path) -> str:
    done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True, timeout=300)
    return "" if done.returncode == 0 else f"{done.stdout}\n{done.stderr}\n"


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
