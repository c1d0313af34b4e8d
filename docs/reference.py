"""Generates tables of the reference from the code: configuration keys, error codes, command options, examples."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Literal, get_args, get_origin

import msgspec
import options

from enfold.app import keys as config_keys
from enfold.app.keys import ConfigKey
from enfold.errors import CODES

SCHEMA = "enfold.schema.json"
EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def schema() -> str:
    """Return the published JSON Schema, which `enfold schema` also prints."""
    return msgspec.json.format(msgspec.json.encode(config_keys.schema()), indent=2).decode() + "\n"


def table(name: str) -> str:
    return TABLES[name]()


def _keys(keys: Mapping[str, ConfigKey]) -> str:
    rows = [(f"`{name}`", _value(key), key.about) for name, key in keys.items()]
    return _rows(("key", "value", "what it is for"), rows)


def _value(key: ConfigKey) -> str:
    if get_origin(key.type) is Literal:
        words = [f"`{word}`" for word in get_args(key.type)]
        text = f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else words[0]
    else:
        text = key.expected.partition(":")[0].partition(", such as")[0].partition(" such as {")[0]
    default = key.default
    return text if default is None else f"{text}; `{default if isinstance(default, str) else json.dumps(default)}`"


def _codes() -> str:
    rows = [
        (
            f"`{code.name}`",
            str(code.http_status),
            str(code.exit_code),
            _yes(code.retryable),
            code.category,
            _yes(code.recoverable),
        )
        for code in CODES.values()
    ]
    return _rows(("code", "HTTP", "exit", "retry is safe", "category", "recoverable"), rows)


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "no"


def _rows(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(re.sub(r'[|]', '&#124;', cell) for cell in line)} |" for line in lines)


def _options() -> str:
    """Return a section for each command that has options."""
    return "\n\n".join(
        f"## `enfold {command}`\n\n{about[:1].upper()}{about[1:]}.\n\n{_rows(('option', 'what it does'), rows)}"
        for command, about, rows in options.sections()
    )


def _examples() -> str:
    """List every program of `examples/`, with the first sentence of its docstring."""
    found = sorted([*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*/*.py")], key=lambda path: (len(path.parts), path))
    names = [each.relative_to(EXAMPLES).as_posix() for each in found]
    return "\n".join(f"- [{name}](examples/{name}): {_sentence(EXAMPLES / name)}" for name in names)


def _sentence(program: Path) -> str:
    return str(ast.get_docstring(ast.parse(program.read_text(encoding="utf-8")))).partition("\n")[0]


TABLES: dict[str, Callable[[], str]] = {
    "examples": _examples,
    "options": _options,
    "codes": _codes,
    "common": partial(_keys, config_keys.COMMON),
    **{kind: partial(_keys, keys) for kind, keys in config_keys.BY_KIND.items()},
    "access": partial(_keys, config_keys.COMMON["access"].keys or {}),
    "login": partial(_keys, config_keys.LOGIN),
    "mcp_limits": partial(_keys, config_keys.BY_KIND["mcp"]["limits"].keys or {}),
    "issuer": lambda: _keys(config_keys.issuer_keys()),
    "claims": lambda: _keys(config_keys.issuer_keys()["claims"].keys or {}),
    **{name: partial(_keys, table.keys) for name, table in config_keys.TABLES.items() if table.keys},
}
