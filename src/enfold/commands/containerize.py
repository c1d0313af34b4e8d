"""The command `enfold containerize`: the container file of an application. It builds nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from enfold.commands.shared.command_options import parse_command
from enfold.commands.shared.targets import Target
from enfold.errors import CallError
from enfold.registry import Registry
from enfold.version import installed_version, origin

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from enfold.config import SourceEntry

USER: Final = 10001  # a number that needs no entry in the image
EXTRAS: Final = {"mcp": "mcp", "openapi": "openapi", "functions": None}  # what a source needs besides

TEMPLATE: Final = """\
# Made by `enfold containerize {target}`. Build it, and run it as a non-root user with a read-only file system:
#   docker build -f {name} -t {image} .
#   docker run --read-only --tmpfs /tmp -p 8000:8000 -e ENFOLD_SERVE_TOKEN {image}
{notes}FROM python:{python}-slim AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /venv
{install}
{needs}
FROM python:{python}-slim
COPY --from=build /venv /venv
WORKDIR /app
COPY . .
ENV PATH=/venv/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
USER {user}:{user}
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s CMD ["python", "-c", "{probe}"]
# More options come after the image's name: --workers 2 --allow-host api.example.org --allow-host 127.0.0.1 (the check above)
ENTRYPOINT ["enfold", "serve", "{target}", "--host", "0.0.0.0", "--port", "8000"]
"""
FROM_INDEX: Final = 'RUN /venv/bin/pip install "enfold[{extras}]=={version}"'
FROM_WHEEL: Final = """\
# Put the wheel of Enfold beside this file first: pip wheel --no-deps --wheel-dir . /path/to/enfold
COPY enfold-{version}-py3-none-any.whl /tmp/
RUN /venv/bin/pip install "enfold[{extras}] @ file:///tmp/enfold-{version}-py3-none-any.whl\""""
PROBE: Final = "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/healthz', timeout=2)"


def run(words: list[str], registry: Registry | None) -> int:
    """Write the file, or print it."""
    options = parse_command(
        "containerize", words, registry, "Write the container file of an application.", _add_options
    )
    text = _container_file(_target(options.target), options)
    if options.output == "-":
        print(text, end="")
        return 0
    _write(Path(options.output), text, overwrites=options.force)
    print(f"{options.output} is written. Build it with: docker build -f {options.output} .", file=sys.stderr)
    return 0


def _add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--output", default="Containerfile", metavar="FILE", help="where to write it; - prints it")
    parser.add_argument("--extra", action="append", default=[], help="another part of enfold, as in pip: nats, auth")
    parser.add_argument("--force", action="store_true", help="write over a file that is there")
    parser.add_argument(
        "--python", default=f"{sys.version_info[0]}.{sys.version_info[1]}", help="the version of Python"
    )


def _target(target: Target) -> Target:
    """The target, which has to be here to be put into an image."""
    if target.registry is not None:
        return target
    if target.kind not in ("program", "configuration", "document") or "://" in target.text:
        raise CallError(
            "VALIDATION_ERROR", "containerize needs a program or a configuration: enfold containerize app.py"
        )
    path = Path(target.text.partition(":")[0])
    if path.suffix and (path.is_absolute() or ".." in path.parts or not path.exists()):
        raise CallError(
            "VALIDATION_ERROR", f"{target.text} must be a file below this folder, which becomes the image's"
        )
    if any(sign in target.text for sign in '"\\\n'):
        raise CallError("VALIDATION_ERROR", "The name of the target must have no quotes, backslashes and line ends")
    return target


def _container_file(target: Target, options: Namespace) -> str:
    extras = ",".join(sorted({"http", *_extras(target), *options.extra}))
    install = FROM_INDEX if origin() is None else FROM_WHEEL
    return TEMPLATE.format(
        target=target.text,
        name=options.output if options.output != "-" else "Containerfile",
        image=Path(target.text.partition(":")[0]).stem.lower() or "app",
        notes="".join(f"# {line}\n" for line in _notes(target)),
        python=options.python,
        install=install.format(extras=extras, version=installed_version()),
        needs="".join(f"{line}\n" for line in _needs()),
        probe=PROBE,
        user=USER,
    )


def _needs() -> Iterator[str]:
    """What the application itself needs, where its folder says so."""
    if Path("requirements.txt").exists():
        yield "COPY requirements.txt ."
        yield "RUN /venv/bin/pip install -r requirements.txt"
    elif Path("pyproject.toml").exists():
        yield "COPY . /src"
        yield "RUN /venv/bin/pip install /src"


def _extras(target: Target) -> Iterator[str]:
    if target.kind == "document":
        yield "openapi"
    for source in _sources(target):
        extra = EXTRAS[source.kind]
        if extra is not None:
            yield extra


def _notes(target: Target) -> Iterator[str]:
    """Programs that a configuration starts have to be in the image, too."""
    for source in _sources(target):
        command = source.entry.get("command")
        word = command[0] if isinstance(command, list) else str(command).split()[0] if command else None
        if word is not None and word not in ("python", "python3"):
            yield f'The source "{source.name}" starts {word}: install it in the second stage.'


def _sources(target: Target) -> tuple[SourceEntry, ...]:
    if target.kind != "configuration":
        return ()
    from enfold.config import read_config

    return read_config(target.text, _Placeholders()).sources


class _Placeholders(dict[str, str]):
    """An environment that has everything: what the variables hold is decided where the container runs."""

    def get(self, name: str, default: object = None) -> str:
        del default
        return name


def _write(path: Path, text: str, *, overwrites: bool) -> None:
    try:
        with path.open("w" if overwrites else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise CallError("VALIDATION_ERROR", f"{path} is there already: --force writes over it") from None
