"""`${NAME}` in the values of a configuration: from the environment, with a default, or in an editor's own words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from enfold.config.key_lines import Path

_REFERENCE: Final = re.compile(r"\$(\$?)\{([^{}]+)\}")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class Variables:
    """What the references in a file may stand for."""

    def __init__(self, environ: Mapping[str, str], folder: str) -> None:
        self._environ = environ
        self._own = {
            "workspaceFolder": folder,
            "workspaceRoot": folder,
            "userHome": environ.get("HOME", environ.get("USERPROFILE", "")),
            "pathSeparator": "/",
            "/": "/",
        }

    def secrets(self, value: Any) -> Iterator[tuple[str, str]]:
        """The variables that the texts of a value refer to and whose names say that they are secret, with what they hold."""
        from enfold.sources.known_secrets import names_secret  # where a file has sources

        if isinstance(value, str):
            for _, reference in _REFERENCE.findall(value):
                name = reference.removeprefix("env:").partition(":-")[0]
                held = self.value(reference) if names_secret(name) else None
                if held:
                    yield name, held
        elif isinstance(value, dict | list):
            for each in value.values() if isinstance(value, dict) else value:
                yield from self.secrets(each)

    def value(self, reference: str) -> str | None:
        """What a reference stands for; None where it is none of ours and stays as it is, LookupError where it has no value."""
        if reference in self._own:
            return self._own[reference]
        name, has_default, default = reference.removeprefix("env:").partition(":-")
        if name.startswith("input:"):
            # An editor would ask its user; a server can only look where they may have put the answer.
            name = re.sub(r"[^A-Za-z0-9]", "_", name.removeprefix("input:")).upper()
        if not _NAME.match(name):
            return None
        found = self._environ.get(name)
        if found or (found is not None and not has_default):
            return found
        if has_default:
            return default
        raise LookupError(f"the environment has no {name}")


def fill(value: Any, variables: Variables, path: Path, failed: Callable[[Path, str], Exception]) -> Any:
    """The value with every reference in its texts replaced; `$${` is a plain `${`."""
    if isinstance(value, str):
        try:
            return _REFERENCE.sub(lambda found: _replaced(found, variables), value)
        except LookupError as error:
            raise failed(path, str(error)) from None
    if isinstance(value, dict):
        return {key: fill(item, variables, (*path, key), failed) for key, item in value.items()}
    if isinstance(value, list):
        return [fill(item, variables, (*path, index), failed) for index, item in enumerate(value)]
    return value


def _replaced(found: re.Match[str], variables: Variables) -> str:
    if found[1]:
        return f"${{{found[2]}}}"
    value = variables.value(found[2])
    return found[0] if value is None else value
