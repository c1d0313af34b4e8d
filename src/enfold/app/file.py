"""A configuration file as values: `enfold.toml`, or the `mcpServers` JSON of any editor. What is wrong is one sentence."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import msgspec

from enfold.app.keys import BY_KIND, COMMON, TABLES, Keys, Kind
from enfold.app.syntax import Lines, Path, Variables, fill, json_lines, plain_json, split_syntax_error, toml_lines
from enfold.errors import CallError, nearest
from enfold.mcp.editor_entries import TABLES as EDITORS_TABLES
from enfold.mcp.editor_entries import URL_KEYS, is_enabled
from enfold.operations import legal_names, read_access
from enfold.storage import FileVersion, file_version

if TYPE_CHECKING:
    from enfold.sources.mcp.oauth.settings import OpenURL

__all__ = ["Config", "Kind", "SourceEntry", "parse_config", "read_config"]

Entry: TypeAlias = dict[str, Any]


class SourceEntry(msgspec.Struct, frozen=True):
    """One source as the file describes it, with its values checked and its variables filled in."""

    name: str
    kind: Kind
    namespace: str
    entry: Entry
    line: int
    secrets: dict[str, str] = {}  # by the names of variables that it refers to


class Logins(msgspec.Struct, frozen=True):
    """How a login page is opened for a user, and the folder that keeps tokens; without either, that is not done."""

    open_url: OpenURL | None = None
    folder: str | None = None
    patience: float = 0.0  # seconds that a start waits for a user, if any source has a login


class Config(msgspec.Struct, frozen=True):
    """A whole file: its sources, and the policies of the registry they come to."""

    path: str
    folder: str
    sources: tuple[SourceEntry, ...]
    policy: dict[str, Any] = {}
    app: dict[str, Any] = {}  # the title and the version of the application
    logins: Logins = Logins()
    limits: dict[str, Any] = {}  # of the server, by their names
    idempotency: dict[str, Any] = {}  # how long outcomes are kept under their keys
    nats: dict[str, Any] = {}  # how many nodes keep each entry
    tasks: dict[str, Any] = {}  # where tasks are kept, and on what terms
    issuers: tuple[dict[str, Any], ...] = ()  # whose tokens the server takes
    record: Literal["mutations", "all"] | None = None  # which calls it records without being asked
    middleware: tuple[str, ...] = ()  # what wraps every call
    agents: dict[str, Any] = {}  # what models are shown, by the names of an MCP server's settings
    text: str = ""  # of the file
    version: FileVersion = None  # of the file, when it was read

    @property
    def exposed(self) -> dict[str, str]:
        """What is listed of each namespace: as a source says, else as the file says."""
        by_source = {source.namespace: source.entry["expose"] for source in self.sources if "expose" in source.entry}
        return {"": self.agents.get("expose", "all"), **by_source}

    def with_only(self, operation: str) -> Config:
        """The file with the sources that may have an operation; a program's functions have namespaces of their own."""
        near = [source for source in self.sources if operation.startswith(f"{source.namespace}.")]
        if not near:
            return self
        kept = tuple(source for source in self.sources if source in near or source.kind == "functions")
        return msgspec.structs.replace(self, sources=kept)


def read_config(path: str | FilePath, environ: Mapping[str, str]) -> Config:
    """Read and check a file; whatever is wrong is a CallError with its place."""
    version = file_version(path)  # before the text: what changes in between is seen as a change
    try:
        text = FilePath(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise CallError("VALIDATION_ERROR", f"{path} cannot be read: {reason}", {"file": str(path)}) from None
    return parse_config(path, environ, text, version)


def parse_config(path: str | FilePath, environ: Mapping[str, str], text: str, version: FileVersion) -> Config:
    """Check the text that a file had in one version, as `read_config` does."""
    file = FilePath(path)
    reader = _FileReader(str(path), _folder(file), environ)
    config = reader.read_toml(text) if file.suffix == ".toml" else reader.read_json(text)
    return msgspec.structs.replace(config, text=text, version=version)


def _folder(file: FilePath) -> str:
    """The folder that relative paths start from: the project's, where an editor keeps the file in one of its own."""
    folder = file.resolve().parent
    return str(folder.parent if folder.name.startswith(".") else folder)


# --- the words of editors -----------------------------------------------------------------------------------------

# Our keys of a login in the words of editors.
_AUTH_WORDS: Final = {
    "clientid": "client_id",
    "clientsecret": "client_secret",
    "scope": "scopes",
    "callbackport": "redirect_port",
    "redirecturi": "redirect_uri",
}
# What editors write beside it for themselves, and what looks like a key of ours: `rename`.
_EDITORS: Final = frozenset({"name"})


# --- reading ------------------------------------------------------------------------------------------------------


class _FileReader:
    """Reads one file; it knows the line of each key, for the sentence that says what is wrong."""

    def __init__(self, path: str, folder: str, environ: Mapping[str, str]) -> None:
        self._path = path
        self._folder = folder
        self._variables = Variables(environ, folder)
        self._lines = Lines({})

    def read_toml(self, text: str) -> Config:
        try:
            document = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # a number of 5,000 digits is no TOMLDecodeError
            raise self._wrong_syntax(error, text) from None
        self._lines = toml_lines(text)
        sources = document.pop("sources", {})  # whose variables are filled in where a source is enabled
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

    def _issuers(self, auth: Any) -> tuple[Entry, ...]:
        """The tables of `[auth]`, each an issuer; a file of keys lies beside the configuration."""
        from enfold.auth.issuers import read_issuers

        tables = auth.get("issuers", [auth]) if isinstance(auth, dict) else auth
        try:
            read_issuers(tables)
        except (ValueError, AttributeError, TypeError) as error:
            sentence = str(error) if isinstance(error, ValueError) else '"auth" must be a table, or a list of tables'
            raise self._wrong(("auth",), sentence) from None
        return tuple(self._with_keys_beside(table) for table in tables)

    def _with_keys_beside(self, table: Entry) -> Entry:
        keys = table.get("jwks", "")
        return table if not keys or "://" in keys else {**table, "jwks": str(FilePath(self._folder, keys))}

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
        return self._wrong((), 'there is no "mcpServers" in it')

    def _config(self, entries: Entry, table: str, *, is_strict: bool) -> Config:
        """The sources of a table; with `is_strict`, keys that we do not know are refused, else they are an editor's own."""
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
        self._check_access(entry, path)
        self._check_select(entry, path)
        for other in ("command", "credentials"):
            if "auth" in entry and other in entry:
                raise self._wrong((*path, "auth"), f'"auth" does not go with "{other}"')
        secrets = dict(self._variables.secrets(raw))
        return SourceEntry(name, kind, entry.get("namespace", legal), entry, self._lines.of(path), secrets)

    def _kind(self, entry: Entry, path: Path, *, is_strict: bool) -> Kind:
        kinds: dict[str, Kind] = {"command": "mcp", "url": "mcp", "openapi": "openapi", "functions": "functions"}
        found = [key for key in kinds if key in entry]
        if len(found) == 1:
            return kinds[found[0]]
        words = ", ".join(kinds) if is_strict else '"command" or "url"'
        if found:
            raise self._wrong((*path, found[1]), f"a source has only one of {' and '.join(found)}")
        near = next((key for key in entry if nearest(key, kinds, 0.7)), None)
        if near is not None:
            raise self._unknown((*path, near), tuple(kinds))
        raise self._wrong(path, f'"{path[-1]}" needs {words}')

    def _check_table(self, table: Entry, keys: Keys, path: Path, *, is_strict: bool = True) -> None:
        """Refuse keys that are unknown and values that are wrong, in the tables below it too."""
        for name, value in table.items():
            place = (*path, name)
            if name not in keys:
                if is_strict or _is_misspelt(name, keys):
                    raise self._unknown(place, tuple(keys))
                continue
            if not keys[name].takes(value):
                raise self._wrong(place, f'"{name}" must be {keys[name].expected}')
            below = keys[name].keys
            if below is not None:
                # An editor has keys of its own for a login; the other tables are ours.
                for below_it in value if keys[name].is_list else [value]:
                    self._check_table(below_it, below, place, is_strict=is_strict or name != "auth")

    def _check_access(self, entry: Entry, path: Path) -> None:
        try:
            read_access(entry.get("access"))
        except ValueError as error:
            raise self._wrong((*path, "access"), str(error)) from None

    def _check_select(self, entry: Entry, path: Path) -> None:
        """A selection has a grammar of its own, which no schema can tell."""
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
        return self._wrong_at(self._lines.of(path), sentence)

    def _wrong_at(self, line: int, sentence: str) -> CallError:
        details = {"file": self._path, "line": line}
        return CallError("VALIDATION_ERROR", f"{self._path}, line {line}: {sentence}", details)

    def _unknown(self, path: Path, known: tuple[str, ...]) -> CallError:
        near = nearest(str(path[-1]), known)
        advice = f'did you mean "{near}"?' if near else f"use {', '.join(known)}"
        return self._wrong(path, f'"{path[-1]}" is not known here: {advice}')

    def _wrong_syntax(self, error: Exception, text: str) -> CallError:
        return self._wrong_at(*split_syntax_error(error, text))


def _is_misspelt(name: str, keys: Keys) -> bool:
    """Whether a key in an editor's entry is nearly one of ours; other keys are the editor's, and are not checked."""
    return name not in _EDITORS and nearest(name, keys, 0.8) is not None


def _translate_entry(entry: Entry) -> Entry:
    """An editor's entry under our names for the same things."""
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
    """The login of an editor's entry, which stands under one of two names, and may be no more than a word."""
    given = next((entry[key] for key in ("auth", "oauth") if key in entry), None)
    if given in ("oauth", True):
        return {"auth": {}}
    if not isinstance(given, dict):
        return {}
    names = {key: _AUTH_WORDS.get(key.replace("_", "").lower(), key) for key in given}
    return {"auth": {names[key]: value for key, value in given.items()}}
