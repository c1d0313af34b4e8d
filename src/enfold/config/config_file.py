"""A configuration file as values: `enfold.toml`, or the `mcpServers` JSON of any editor. What is wrong is one sentence."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path as FilePath
from typing import Any, Final, Literal, TypeAlias

import msgspec

from enfold.config.environment import Variables, fill
from enfold.config.lines import Lines, Path, json_lines, plain_json, split_syntax_error, toml_lines
from enfold.config.logins import Logins
from enfold.errors import CallError
from enfold.nearest import nearest
from enfold.operation import AccessControl, Policy, legal_names, operation_id, read_access

__all__ = ["Config", "Kind", "SourceEntry", "is_config", "read_config"]

Kind: TypeAlias = Literal["mcp", "openapi", "functions"]
Entry: TypeAlias = dict[str, Any]

TABLES: Final = ("mcpServers", "servers", "context_servers", "mcp_servers")


class SourceEntry(msgspec.Struct, frozen=True):
    """One source as the file describes it, with its values checked and its variables filled in."""

    name: str
    kind: Kind
    namespace: str
    entry: Entry
    line: int


class Config(msgspec.Struct, frozen=True):
    """A whole file: its sources, and the policies of the registry they come to."""

    path: str
    folder: str
    sources: tuple[SourceEntry, ...]
    policy: dict[str, Any] = {}
    app: dict[str, Any] = {}  # the title and the version of the application
    logins: Logins = Logins()
    bounds: dict[str, Any] = {}  # of the server, by their names
    idempotency: dict[str, Any] = {}  # how long first results are kept
    tasks: dict[str, Any] = {}  # where tasks are kept, and on what terms
    issuers: tuple[dict[str, Any], ...] = ()  # whose tokens the server takes
    record: Literal["mutations", "all"] | None = None  # which calls it records without being asked
    agents: dict[str, Any] = {}  # what models are shown, by the names of an MCP server's settings

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


def is_config(target: str) -> bool:
    """Whether a target of the command is a configuration file and not a program."""
    return target.endswith((".json", ".jsonc", ".toml"))


def read_config(path: str | FilePath, environ: Mapping[str, str]) -> Config:
    """Read and check a file; whatever is wrong is a CallError with its place."""
    file = FilePath(path)
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise CallError("VALIDATION_ERROR", f"{path} cannot be read: {reason}", {"file": str(path)}) from None
    reader = _Reader(str(path), _folder(file), environ)
    return reader.read_toml(text) if file.suffix == ".toml" else reader.read_json(text)


def _folder(file: FilePath) -> str:
    """The folder that relative paths start from: the project's, where an editor keeps the file in one of its own."""
    folder = file.resolve().parent
    return str(folder.parent if folder.name.startswith(".") else folder)


# --- what a source may say ----------------------------------------------------------------------------------------


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_limits(value: Any) -> bool:
    """Whether a table has only limits of an MCP source."""
    from enfold.sources.mcp.mcp_limits import MCPLimits

    is_table = isinstance(value, dict)
    return is_table and all(name in MCPLimits.__struct_fields__ and _is_number(each) for name, each in value.items())


def _is_selection(value: Any) -> bool:
    from enfold.errors import CallError
    from enfold.selection.grammar import read_fields

    texts = list(value.values()) if isinstance(value, dict) else [value]
    try:
        return all(isinstance(text, str) and bool(read_fields(text)) for text in texts)
    except CallError:
        return False


def _is_forms(value: Any) -> bool:
    return isinstance(value, dict) and all(form in ("text", "both") for form in value.values())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and _is_number(value)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _is_pattern(value: Any) -> bool:
    return _is_text(value) or _is_texts(value)


def _is_durable(value: Any) -> bool:
    is_table = isinstance(value, dict) and all(each in ("never", "optional", "required") for each in value.values())
    return is_table or _is_flag(value) or _is_pattern(value)


def _is_text_table(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str | int | float) for item in value.values())


def _is_port(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 65536


def _is_credentials(value: Any) -> bool:
    return _is_text(value) or (_is_texts(value) and len(value) == 2) or _is_text_table(value)


def _is_credentials_by_scheme(value: Any) -> bool:
    return isinstance(value, dict) and all(map(_is_credentials, value.values()))


def _is_one_of(*words: str) -> Callable[[Any], bool]:
    return lambda value: value in words


def _is_command(value: Any) -> bool:
    return (_is_pattern(value) and bool(value)) or isinstance(value, dict)


def _is_namespace(value: Any) -> bool:
    return _is_text(value) and _is_id(value, "x")


def _is_renaming(value: Any) -> bool:
    return isinstance(value, dict) and all(_is_text(name) and _is_id("", name) for name in value.values())


def _is_id(namespace: str, name: str) -> bool:
    try:
        operation_id(namespace, name)
    except ValueError:
        return False
    return True


Rule: TypeAlias = tuple[Callable[[Any], bool], str]

_TEXT: Final[Rule] = (_is_text, "a text")
_FLAG: Final[Rule] = (_is_flag, "true or false")
_SECONDS: Final[Rule] = (_is_number, "a number of seconds")
_PATTERNS: Final[Rule] = (_is_pattern, "a pattern or a list of patterns")
_TEXT_TABLE: Final[Rule] = (_is_text_table, "a table of texts")

_FIXED: Final[Rule] = (lambda value: isinstance(value, dict), "a table of arguments, such as {token = ...}")

_COMMON: Final[dict[str, Rule]] = {
    "namespace": (_is_namespace, "a legal namespace: parts of A-Z a-z 0-9 _ - with dots between"),
    "include": _PATTERNS,
    "exclude": _PATTERNS,
    "rename": (_is_renaming, "a table of legal names: 1 to 64 of A-Z a-z 0-9 _ -"),
    "normalize": (_is_one_of("repair", "typebox", "off"), "repair, typebox or off"),
    "strict_output": _FLAG,
    "coerce": _FLAG,
    "extras": (_is_one_of("strip", "keep"), "strip or keep"),
    "detect": (_is_one_of("all", "instances"), "all or instances"),
    "timeout": _SECONDS,
    "durable": (
        _is_durable,
        "true, a pattern, a list of patterns, or a table of patterns and never, optional or required",
    ),
    "on_crash": (_is_one_of("retry", "fail"), "retry or fail"),
    "access": (lambda value: isinstance(value, dict), "a table such as {required_scopes = [...]}"),
    "expose": (_is_one_of("all", "search", "auto"), "all, search or auto"),
    "describe": (_is_one_of("short", "full"), "short or full"),
    "select": (_is_selection, "fields such as id,name, or a table of such texts by operation"),
    "required": _FLAG,
    "disabled": _FLAG,
    "enabled": _FLAG,
}
_BY_KIND: Final[dict[Kind, dict[str, Rule]]] = {
    "mcp": {
        "command": (_is_command, "a command: a text or a list of texts"),
        "args": (lambda value: isinstance(value, list), "a list of texts"),
        "env": _TEXT_TABLE,
        "cwd": _TEXT,
        "url": _TEXT,
        "transport": (_is_one_of("auto", "http", "sse"), "auto, http or sse"),
        "headers": _TEXT_TABLE,
        "credentials": (_is_credentials, "a token, or a list of user and password"),
        "auth": (lambda value: isinstance(value, dict), "a table such as {client_id = ...}, which may be empty"),
        "kinds": (_is_texts, "a list of tool, resource and prompt"),
        "reads": (_is_one_of("result"), '"result"'),
        "advertise_output": _FLAG,
        "protocol": _TEXT,
        "log_level": _TEXT,
        "connect_timeout": _SECONDS,
        "max_bytes": (_is_number, "a number of bytes"),
        "inherit_env": _FLAG,
        "fix": _FIXED,
        "limits": (_is_limits, "a table of numbers, such as {list_items = 10000}: see the page on MCP servers"),
    },
    "openapi": {
        "openapi": _TEXT,
        "fix": _FIXED,
        "base_url": _TEXT,
        "credentials": (
            _is_credentials_by_scheme,
            "a table of security schemes: to each a token, a list of user and password, or a table",
        ),
        "headers": _TEXT_TABLE,
        "allow_hosts": _PATTERNS,
        "allow_files": _PATTERNS,
        "server_variables": _TEXT_TABLE,
        "private_headers": _PATTERNS,
        "max_bytes": (_is_number, "a number of bytes"),
    },
    "functions": {"functions": _TEXT},
}
_GRANTS: Final = ("authorization_code", "client_credentials", "jwt_bearer")
_AUTH: Final[dict[str, Rule]] = {
    "grant": (_is_one_of(*_GRANTS), f"{', '.join(_GRANTS[:-1])} or {_GRANTS[-1]}"),
    "client_id": _TEXT,
    "client_secret": _TEXT,
    "client_metadata_url": _TEXT,
    "private_key_file": _TEXT,
    "key_id": _TEXT,
    "algorithm": _TEXT,
    "assertion_file": _TEXT,
    "scopes": (_is_pattern, "a text or a list of texts"),
    "issuer": _TEXT,
    "redirect_port": (_is_port, "a port from 1 to 65535"),
    "redirect_uri": _TEXT,
}
# The same in the words of editors.
_AUTH_WORDS: Final = {
    "clientid": "client_id",
    "clientsecret": "client_secret",
    "scope": "scopes",
    "callbackport": "redirect_port",
    "redirecturi": "redirect_uri",
}
# What editors write beside it for themselves, under their own names.
_EDITORS: Final = frozenset(
    [
        "type",
        "serverUrl",
        "httpUrl",
        "alwaysAllow",
        "autoApprove",
        "disabledTools",
        "excludeTools",
        "includeTools",
        "enabledTools",
        "trust",
        "envFile",
        "gallery",
        "version",
        "description",
        "name",
        "oauth",
        "auth",
        "dev",
        "sandbox",
        "sandboxEnabled",
        "settings",
        "source",
        "tools",
        "startup_timeout_ms",
        "startup_timeout_sec",
        "tool_timeout_sec",
        "bearer_token_env_var",
        "initTimeout",
        "requestTimeout",
        "note",
        "comment",
        "$schema",
    ]
)
_TASKS: Final[dict[str, Rule]] = {
    "store": _TEXT,
    "secret": _TEXT,
    "fsync": (lambda value: value in ("full", "normal"), "full or normal"),
    **dict.fromkeys(("keep", "deadline"), (_is_number, "a number of seconds")),
    **dict.fromkeys(("limit", "attempts", "at_once"), (_is_count, "a whole number above 0")),
}
_AGENTS: Final[dict[str, Rule]] = {
    "expose": _COMMON["expose"],
    "pinned": _PATTERNS,
    "budget": (_is_number, "a number of tokens"),
    "max_result_tokens": (_is_number, "a number of tokens"),
    "clients": (_is_forms, "a table of clients, to each text or both"),
}
_TABLES: Final = ("app", "sources", "policy", "bounds", "auth", "record", "tasks", "idempotency", "agents")
_APP: Final[dict[str, Rule]] = {"title": _TEXT, "version": _TEXT}
_POLICIES: Final = ("normalize", "strict_output", "coerce", "extras", "detect")


# --- reading ------------------------------------------------------------------------------------------------------


class _Reader:
    """Reads one file; it knows the line of each key, for the sentence that says what is wrong."""

    def __init__(self, path: str, folder: str, environ: Mapping[str, str]) -> None:
        self._path = path
        self._folder = folder
        self._variables = Variables(environ, folder)
        self._lines = Lines({})

    def read_toml(self, text: str) -> Config:
        try:
            document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise self._wrong_syntax(error, text) from None
        self._lines = toml_lines(text)
        for key in document:
            if key not in _TABLES:
                raise self._unknown((key,), _TABLES)
        policy = self._filled(self._table(document, "policy"), ("policy",))
        for key in policy:
            self._check_key(policy, key, {name: _COMMON[name] for name in _POLICIES}, ("policy", key))
        config = self._config(self._table(document, "sources"), "sources", policy, is_strict=True)
        return msgspec.structs.replace(
            config,
            app=self._app(document),
            agents=self._agents(document),
            bounds=self._bounds(document),
            tasks=self._tasks(document),
            idempotency=self._idempotency(document),
            issuers=self._issuers(document),
            record=self._record(document),
        )

    def _app(self, document: Entry) -> Entry:
        app: Entry = self._filled(self._table(document, "app"), ("app",))
        for key in app:
            self._check_key(app, key, _APP, ("app", key))
        return app

    def _agents(self, document: Entry) -> Entry:
        agents: Entry = self._filled(self._table(document, "agents"), ("agents",))
        for key in agents:
            self._check_key(agents, key, _AGENTS, ("agents", key))
        return agents

    def _issuers(self, document: Entry) -> tuple[Entry, ...]:
        """The tables of `[auth]`, each an issuer; a file of keys lies beside the configuration."""
        if "auth" not in document:
            return ()
        from enfold.issuers import read_issuers

        auth = self._filled(document["auth"], ("auth",))
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

    def _record(self, document: Entry) -> Any:
        record = document.get("record")
        if record not in (None, "mutations", "all"):
            raise self._wrong(("record",), '"record" must be mutations or all')
        return record

    def _idempotency(self, document: Entry) -> Entry:
        table: Entry = self._filled(self._table(document, "idempotency"), ("idempotency",))
        for key in table:
            self._check_key(table, key, {"keep": _SECONDS}, ("idempotency", key))
        return table

    def _tasks(self, document: Entry) -> Entry:
        tasks: Entry = self._filled(self._table(document, "tasks"), ("tasks",))
        for key in tasks:
            self._check_key(tasks, key, _TASKS, ("tasks", key))
        return tasks

    def _bounds(self, document: Entry) -> Entry:
        from enfold.surfaces.bounds import read_bounds

        bounds: Entry = self._filled(self._table(document, "bounds"), ("bounds",))
        for name, number in bounds.items():
            try:
                read_bounds({name: number})
            except CallError as error:
                raise self._wrong(("bounds", name), error.message) from None
        return bounds

    def read_json(self, text: str) -> Config:
        try:
            document = msgspec.json.decode(plain_json(text))
        except msgspec.DecodeError as error:
            raise self._wrong_syntax(error, text) from None
        self._lines = json_lines(text)
        tables = [name for name in TABLES if isinstance(document, dict) and isinstance(document.get(name), dict)]
        if not tables:
            raise self._no_table(document)
        return self._config(document[tables[0]], tables[0], {}, is_strict=False)

    def _no_table(self, document: Any) -> CallError:
        keys = [str(key) for key in document] if isinstance(document, dict) else []
        near = [key for key in keys if nearest(key, TABLES, 0.7)]
        if near:
            return self._wrong((near[0],), f'"{near[0]}" is not known here: use "mcpServers", a table of servers')
        return self._wrong((), 'there is no "mcpServers" in it')

    def _table(self, document: Entry, *path: str) -> Entry:
        """The table at the end of a path, of which the document holds the last part."""
        table = document.get(path[-1], {})
        if not isinstance(table, dict):
            raise self._wrong(path, f'"{path[-1]}" must be a table')
        return table

    def _config(self, entries: Entry, table: str, policy: Entry, *, is_strict: bool) -> Config:
        names = legal_names(entries)
        sources = [
            self._source(name, names[name], self._table(entries, table, name), (table, name), is_strict=is_strict)
            for name in entries
            if _is_enabled(entries[name])
        ]
        return Config(self._path, self._folder, tuple(sources), policy)

    def _source(self, name: str, legal: str, raw: Entry, path: Path, *, is_strict: bool) -> SourceEntry:
        entry: Entry = self._filled(raw, path)
        if not is_strict:
            entry = _in_our_words(entry)
        kind = self._kind(entry, path, is_strict=is_strict)
        rules = _COMMON | _BY_KIND[kind]
        for key in entry:
            if key in rules or is_strict or self._is_misspelt(key, rules):
                self._check_key(entry, key, rules, (*path, key))
        self._check_access(entry, path)
        self._check_auth(entry, path, is_strict=is_strict)
        return SourceEntry(name, kind, entry.get("namespace", legal), entry, self._lines.of(path))

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

    def _check_key(self, entry: Entry, key: str, rules: Mapping[str, Rule], path: Path) -> None:
        if key not in rules:
            raise self._unknown(path, tuple(rules))
        is_right, expected = rules[key]
        if not is_right(entry[key]):
            raise self._wrong(path, f'"{key}" must be {expected}')

    def _check_access(self, entry: Entry, path: Path) -> None:
        try:
            read_access(entry.get("access"))
        except ValueError as error:
            raise self._wrong((*path, "access"), str(error)) from None

    def _check_auth(self, entry: Entry, path: Path, *, is_strict: bool) -> None:
        auth = entry.get("auth")
        if not isinstance(auth, dict):
            return
        for other in ("command", "credentials"):
            if other in entry:
                raise self._wrong((*path, "auth"), f'"auth" does not go with "{other}"')
        for key in auth:
            if key in _AUTH or is_strict or self._is_misspelt(key, _AUTH):
                self._check_key(auth, key, _AUTH, (*path, "auth", key))

    def _is_misspelt(self, key: str, rules: Mapping[str, Rule]) -> bool:
        """Whether a key is nearly one of ours; other keys are the editor's, and are not checked."""
        return key not in _EDITORS and nearest(key, rules, 0.8) is not None

    def _filled(self, value: Any, path: Path) -> Any:
        return fill(value, self._variables, path, self._wrong)

    # --- what is wrong

    def _wrong(self, path: Path, sentence: str) -> CallError:
        line = self._lines.of(path)
        details = {"file": self._path, "line": line}
        return CallError("VALIDATION_ERROR", f"{self._path}, line {line}: {sentence}", details)

    def _unknown(self, path: Path, known: tuple[str, ...]) -> CallError:
        near = nearest(str(path[-1]), known)
        advice = f'did you mean "{near}"?' if near else f"use {', '.join(known)}"
        return self._wrong(path, f'"{path[-1]}" is not known here: {advice}')

    def _wrong_syntax(self, error: Exception, text: str) -> CallError:
        line, sentence = split_syntax_error(error, text)
        details = {"file": self._path, "line": line}
        return CallError("VALIDATION_ERROR", f"{self._path}, line {line}: {sentence}", details)


def _is_enabled(entry: Any) -> bool:
    return not isinstance(entry, dict) or (entry.get("disabled") is not True and entry.get("enabled") is not False)


def _in_our_words(entry: Entry) -> Entry:
    """An editor's entry under our names for the same things."""
    ours = {key: value for key, value in entry.items() if key not in ("serverUrl", "httpUrl", "type", "auth", "oauth")}
    url = next((entry[key] for key in ("url", "serverUrl", "httpUrl") if key in entry), None)
    if url is not None:
        ours["url"] = url
    kind = entry.get("type", "http" if "httpUrl" in entry else None)
    if url is not None and isinstance(kind, str):
        ours.setdefault("transport", "sse" if kind == "sse" else "http")
    ours |= _auth_in_our_words(entry)
    for theirs, own in (("disabledTools", "exclude"), ("excludeTools", "exclude"), ("includeTools", "include")):
        if entry.get(theirs):
            ours.setdefault(own, entry[theirs])
    if _is_number(ours.get("timeout")) and ours["timeout"] >= 1000:
        ours["timeout"] = ours["timeout"] / 1000  # some count in milliseconds
    return ours


def _auth_in_our_words(entry: Entry) -> Entry:
    """The login of an editor's entry, which stands under one of two names, and may be no more than a word."""
    given = next((entry[key] for key in ("auth", "oauth") if key in entry), None)
    if given in ("oauth", True):
        return {"auth": {}}
    if not isinstance(given, dict):
        return {}
    names = {key: _AUTH_WORDS.get(key.replace("_", "").lower(), key) for key in given}
    return {"auth": {names[key]: value for key, value in given.items()}}


def access_of(entry: Entry) -> AccessControl:
    return read_access(entry.get("access"))


def policy_of(entry: Entry) -> Policy:
    return Policy(**{name: entry[name] for name in _POLICIES if name in entry})


def patterns(value: Any) -> Iterator[str]:
    """The patterns a file gives, one or several."""
    return iter([value] if isinstance(value, str) else value or ())
