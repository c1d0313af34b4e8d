"""Reads a configuration file: `enfold.toml`, or the `mcpServers` JSON of an editor. Errors name the file and the line."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from enfold.app.keys import BY_KIND, COMMON, TABLES, Keys, Kind
from enfold.app.syntax import (
    Lines,
    Path,
    Variables,
    fill,
    json_lines,
    line_of,
    plain_json,
    split_syntax_error,
    toml_lines,
)
from enfold.errors import CallError, nearest
from enfold.operations import legal_names, read_access
from enfold.sources.mcp.settings import EDITORS_TABLES, URL_KEYS, is_enabled
from enfold.storage import FileVersion, file_version

if TYPE_CHECKING:
    from enfold.auth.issuers import Issuer
    from enfold.sources.mcp.oauth.settings import OpenURL

__all__ = ["Config", "Kind", "SourceEntry", "parse_config", "read_config"]

Entry: TypeAlias = dict[str, Any]


class SourceEntry(msgspec.Struct, frozen=True):
    """One source of the file, with checked values and expanded variables."""

    name: str
    kind: Kind
    namespace: str
    entry: Entry
    line: int
    secrets: dict[str, str] = {}  # values of the variables it refers to, by name


class Logins(msgspec.Struct, frozen=True):
    """How a login page is opened for a user, and the folder that stores tokens; None disables either."""

    open_url: OpenURL | None = None
    folder: str | None = None
    patience: float = 0.0  # seconds that the start waits for a user to log in


class Config(msgspec.Struct, frozen=True):
    """A whole configuration: its sources and the other tables."""

    path: str
    folder: str
    sources: tuple[SourceEntry, ...]
    policy: dict[str, Any] = {}
    app: dict[str, Any] = {}  # the title and the version of the application
    logins: Logins = Logins()
    limits: dict[str, Any] = {}  # of the server, by their names
    idempotency: dict[str, Any] = {}  # how long outcomes are kept by idempotency key
    nats: dict[str, Any] = {}  # replicas
    tasks: dict[str, Any] = {}  # store and limits of tasks
    issuers: tuple[Issuer, ...] = ()  # the issuers whose tokens the server accepts
    record: Literal["mutations", "all"] | None = None  # calls that are always recorded
    middleware: tuple[str, ...] = ()  # middleware around every call
    agents: dict[str, Any] = {}  # settings of the MCP server for models
    text: str = ""  # of the file
    version: FileVersion = None  # of the file, when it was read

    @property
    def exposed(self) -> dict[str, str]:
        """The mode of listing by namespace: that of the source, or else of the file."""
        by_source = {source.namespace: source.entry["expose"] for source in self.sources if "expose" in source.entry}
        return {"": self.agents.get("expose", "all"), **by_source}

    def with_only(self, operation: str) -> Config:
        """Keep only the sources that may have an operation; functions may have any namespace."""
        near = [source for source in self.sources if operation.startswith(f"{source.namespace}.")]
        if not near:
            return self
        kept = tuple(source for source in self.sources if source in near or source.kind == "functions")
        return msgspec.structs.replace(self, sources=kept)


def read_config(path: str | FilePath, environ: Mapping[str, str]) -> Config:
    """Read and check a file; raises a CallError with the line of a mistake."""
    version = file_version(path)  # before the text, so that a concurrent change is noticed
    try:
        text = FilePath(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise CallError("VALIDATION_ERROR", f"{path} cannot be read: {reason}", {"file": str(path)}) from None
    return parse_config(path, environ, text, version)


def parse_config(path: str | FilePath, environ: Mapping[str, str], text: str, version: FileVersion) -> Config:
    """Parse and check the text of a file."""
    file = FilePath(path)
    reader = _FileReader(str(path), _folder(file), environ)
    config = reader.read_toml(text) if file.suffix == ".toml" else reader.read_json(text)
    return msgspec.structs.replace(config, text=text, version=version)


def _folder(file: FilePath) -> str:
    """Return the folder that relative paths start from; for a file in `.vscode` and the like, its parent."""
    folder = file.resolve().parent
    return str(folder.parent if folder.name.startswith(".") else folder)


# --- names used by editors -----------------------------------------------------------------------------------------

# Names that editors use for our keys of a login.
_AUTH_WORDS: Final = {
    "clientid": "client_id",
    "clientsecret": "client_secret",
    "scope": "scopes",
    "callbackport": "redirect_port",
    "redirecturi": "redirect_uri",
}
# Keys of editors that resemble one of ours: `name` and `rename`.
_EDITORS: Final = frozenset({"name"})


# --- reading ------------------------------------------------------------------------------------------------------


class _FileReader:
    """Reads one file and knows the line of each key, for error messages."""

    def __init__(self, path: str, folder: str, environ: Mapping[str, str]) -> None:
        self._path = path
        self._folder = folder
        self._variables = Variables(environ, folder)
        self._lines: Lines = {}

    def read_toml(self, text: str) -> Config:
        try:
            document = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # a number of 5,000 digits is no TOMLDecodeError
            raise self._wrong_syntax(error, text) from None
        self._lines = toml_lines(text)
        sources = document.pop("sources", {})  # variables are expanded per enabled source
        tables = self._filled(document, ())
        self._check_table({"sources": sources, **tables}, TABLES, ())
        config = self._config(sources, "sources", is_strict=True)
        issuers = self._issuers(tables.pop("auth")) if "auth" in tables else ()
        middleware = self._middleware(tables.pop("middleware", []))
        return msgspec.structs.replace(config, **tables, issuers=issuers, middleware=middleware)

    def _middleware(self, tables: list[Entry]) -> tuple[str, ...]:
        if not all("use" in table for table in tables):
            raise self._wrong(("middleware",), '"middleware" needs "use", as in use = "module:name"')
        return tuple(table["use"] for table in tables)

    def _issuers(self, auth: Any) -> tuple[Issuer, ...]:
        """Read the issuers of `[auth]`; paths of key files are relative to the configuration."""
        from enfold.auth.issuers import read_issuers

        try:
            issuers = read_issuers(auth)
        except (ValueError, AttributeError, TypeError) as error:
            sentence = str(error) if isinstance(error, ValueError) else '"auth" must be a table, or a list of tables'
            raise self._wrong(("auth",), sentence) from None
        return tuple(
            msgspec.structs.replace(each, jwks=str(FilePath(self._folder, each.jwks)))
            if each.jwks and "://" not in each.jwks
            else each
            for each in issuers
        )

    def read_json(self, text: str) -> Config:
        try:
            document = msgspec.json.decode(plain_json(text))
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._wrong_syntax(error, text) from None
        self._lines = json_lines(text)
        known = document if isinstance(document, dict) else {}
        table = next((name for name in EDITORS_TABLES if isinstance(known.get(name), dict)), None)
        if table is None:
            raise self._no_table(known)
        return self._config(known[table], table, is_strict=False)

    def _no_table(self, document: Entry) -> CallError:
        near = next((key for key in document if nearest(key, EDITORS_TABLES, 0.7)), None)
        if near is not None:
            return self._wrong((near,), f'"{near}" is not known here: use "mcpServers", a table of servers')
        return self._wrong((), '"mcpServers" is missing')

    def _config(self, entries: Entry, table: str, *, is_strict: bool) -> Config:
        """Read the sources of a table; with `is_strict`, reject unknown keys, otherwise ignore them as an editor's."""
        names = legal_names(entries)
        sources = [
            self._source(name, names[name], entry, (table, name), is_strict=is_strict)
            for name, entry in entries.items()
            if is_enabled(entry)
        ]
        return Config(self._path, self._folder, tuple(sources))

    def _source(self, name: str, legal: str, raw: Any, path: Path, *, is_strict: bool) -> SourceEntry:
        if not isinstance(raw, dict):
            raise self._wrong(path, f'"{name}" must be a table')
        entry: Entry = self._filled(raw, path)
        if not is_strict:
            entry = _translate_entry(entry)
        kind = self._kind(entry, path, is_strict=is_strict)
        self._check_table(entry, {**COMMON, **BY_KIND[kind]}, path, is_strict=is_strict)
        try:
            read_access(entry.get("access"))
        except ValueError as error:
            raise self._wrong((*path, "access"), str(error)) from None
        self._check_select(entry, path)
        for other in ("command", "credentials"):
            if "auth" in entry and other in entry:
                raise self._wrong((*path, "auth"), f'"auth" cannot be combined with "{other}": remove one of them')
        secrets = dict(self._variables.secrets(raw))
        return SourceEntry(name, kind, entry.get("namespace", legal), entry, line_of(path, self._lines), secrets)

    def _kind(self, entry: Entry, path: Path, *, is_strict: bool) -> Kind:
        kinds: dict[str, Kind] = {"command": "mcp", "url": "mcp", "openapi": "openapi", "functions": "functions"}
        found = [key for key in kinds if key in entry]
        if len(found) == 1:
            return kinds[found[0]]
        words = ", ".join(kinds) if is_strict else '"command" or "url"'
        if found:
            raise self._wrong((*path, found[1]), f"a source can only have one of {' and '.join(found)}")
        near = next((key for key in entry if nearest(key, kinds, 0.7)), None)
        if near is not None:
            raise self._unknown((*path, near), tuple(kinds))
        raise self._wrong(path, f'"{path[-1]}" needs {words}')

    def _check_table(self, table: Entry, keys: Keys, path: Path, *, is_strict: bool = True) -> None:
        """Refuse unknown keys and wrong values, also in nested tables."""
        for name, value in table.items():
            place = (*path, name)
            if name not in keys:
                is_misspelt = name not in _EDITORS and nearest(name, keys, 0.8) is not None
                if is_strict or is_misspelt:  # editors have more keys, which are not checked
                    raise self._unknown(place, tuple(keys))
                continue
            if not keys[name].takes(value):
                raise self._wrong(place, f'"{name}" must be {keys[name].expected}')
            below = keys[name].keys
            if below is not None:
                # Editors have their own keys for a login; the other tables are ours.
                for below_it in value if keys[name].is_list else [value]:
                    self._check_table(below_it, below, place, is_strict=is_strict or name != "auth")

    def _check_select(self, entry: Entry, path: Path) -> None:
        """Check `select`, whose grammar a JSON Schema cannot express."""
        if "select" not in entry:
            return
        from enfold.search.fields import read_fields

        select = entry["select"]
        try:
            is_right = all(map(read_fields, [select] if isinstance(select, str) else select.values()))
        except CallError:
            is_right = False
        if not is_right:
            raise self._wrong((*path, "select"), f'"select" must be {COMMON["select"].expected}')

    def _filled(self, value: Any, path: Path) -> Any:
        return fill(value, self._variables, path, self._wrong)

    # --- what is wrong

    def _wrong(self, path: Path, sentence: str) -> CallError:
        return self._wrong_at(line_of(path, self._lines), sentence)

    def _wrong_at(self, line: int, sentence: str) -> CallError:
        details = {"file": self._path, "line": line}
        return CallError("VALIDATION_ERROR", f"{self._path}, line {line}: {sentence}", details)

    def _unknown(self, path: Path, known: tuple[str, ...]) -> CallError:
        near = nearest(str(path[-1]), known)
        advice = f'did you mean "{near}"?' if near else f"use {', '.join(known)}"
        return self._wrong(path, f'"{path[-1]}" is not known here: {advice}')

    def _wrong_syntax(self, error: Exception, text: str) -> CallError:
        return self._wrong_at(*split_syntax_error(error, text))


def _translate_entry(entry: Entry) -> Entry:
    """Translate the keys of an editor's entry to ours."""
    ours = {key: value for key, value in entry.items() if key not in ("serverUrl", "httpUrl", "type", "auth", "oauth")}
    url = next((entry[key] for key in URL_KEYS if key in entry), None)
    if url is not None:
        ours["url"] = url
    kind = entry.get("type", "http" if "httpUrl" in entry else None)
    if url is not None and isinstance(kind, str):
        ours.setdefault("transport", "sse" if kind == "sse" else "http")
    ours |= _translate_auth(entry)
    for theirs, own in (("disabledTools", "exclude"), ("excludeTools", "exclude"), ("includeTools", "include")):
        if entry.get(theirs):
            ours.setdefault(own, entry[theirs])
    if COMMON["timeout"].takes(ours.get("timeout")) and ours["timeout"] >= 1000:
        ours["timeout"] = ours["timeout"] / 1000  # some count in milliseconds
    return ours


def _translate_auth(entry: Entry) -> Entry:
    """Translate the login of an editor's entry: `auth` or `oauth`, a table or just `"oauth"`."""
    given = next((entry[key] for key in ("auth", "oauth") if key in entry), None)
    if given in ("oauth", True):
        return {"auth": {}}
    if not isinstance(given, dict):
        return {}
    names = {key: _AUTH_WORDS.get(key.replace("_", "").lower(), key) for key in given}
    return {"auth": {names[key]: value for key, value in given.items()}}
