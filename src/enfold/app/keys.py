"""All keys of a configuration: type, error message and description.

The tables are the single source of truth: `app.file` checks a file against them, and the JSON Schema for editors and the page
of keys are generated from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias, get_type_hints

import msgspec

from enfold.sources.limits import MCPLimits
from enfold.surfaces.limits import FRACTIONS, Limits
from enfold.tasks.store import TaskLimits

Kind: TypeAlias = Literal["mcp", "openapi", "functions"]
JSONSchema: TypeAlias = dict[str, Any]


class ConfigKey(msgspec.Struct, frozen=True):
    """One key: the type of its value, the same in words for messages, and a description."""

    type: Any
    expected: str
    about: str
    default: Any = None
    keys: Mapping[str, ConfigKey] | None = (
        None  # of a table, or of each table of a list, whose keys are checked one by one
    )
    is_list: bool = False

    def takes(self, value: Any) -> bool:
        try:
            msgspec.convert(value, self.type)
        except msgspec.ValidationError:
            return False
        return True

    def published(self) -> JSONSchema:
        """Return the JSON Schema of the key, for editors."""
        whole = msgspec.json.schema(self.type) if self.keys is None else _closed(self.keys)
        if self.is_list:
            whole = {"type": "array", "items": whole}
        default = {} if self.default is None else {"default": self.default}
        return {"description": self.about, **whole, **default}


Keys: TypeAlias = Mapping[str, ConfigKey]


def schema() -> JSONSchema:
    """Return the JSON Schema of an `enfold.toml`, for editors."""
    tables = {name: key.published() for name, key in TABLES.items()}
    tables["sources"]["additionalProperties"] = {"anyOf": [_source(kind) for kind in BY_KIND]}
    tables["auth"]["anyOf"] = _auth()
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "enfold.toml"}
    return {**head, "type": "object", "properties": tables, "additionalProperties": False}


def _source(kind: Kind) -> JSONSchema:
    source = _closed({**BY_KIND[kind], **COMMON}, _KINDS[kind])
    if kind == "mcp":
        return {**source, "oneOf": [{"required": ["command"]}, {"required": ["url"]}]}
    return {**source, "required": [kind]}


def _closed(keys: Keys, about: str | None = None) -> JSONSchema:
    properties = {name: key.published() for name, key in keys.items()}
    closed: JSONSchema = {"type": "object", "properties": properties, "additionalProperties": False}
    return closed if about is None else {"description": about, **closed}


def _auth() -> list[JSONSchema]:
    """Return the schema of one issuer or several."""
    issuer = {**_closed(ISSUER, "an issuer whose tokens the server accepts"), "required": ["issuer", "audiences"]}
    several = {"type": "array", "items": issuer, "minItems": 1}
    return [issuer, several, {"type": "object", "properties": {"issuers": several}, "required": ["issuers"]}]


# --- values -------------------------------------------------------------------------------------------------------

_Patterns: TypeAlias = str | list[str]
_Number: TypeAlias = Annotated[float, msgspec.Meta(gt=0)]
_Count: TypeAlias = Annotated[int, msgspec.Meta(gt=0)]
_WholeNumber: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
_TextTable: TypeAlias = dict[str, str | float | bool]
_Credentials: TypeAlias = str | Annotated[list[str], msgspec.Meta(min_length=2, max_length=2)] | _TextTable
_PART: Final = "[A-Za-z0-9_-]{1,64}"
# Python's `$` would allow a line to end there.
_Name: TypeAlias = Annotated[str, msgspec.Meta(pattern=rf"^{_PART}$(?!\n)")]
_Namespace: TypeAlias = Annotated[str, msgspec.Meta(pattern=rf"^({_PART}(\.{_PART}){{0,4}})?$(?!\n)", max_length=198)]
_Durable: TypeAlias = bool | str | list[str] | dict[str, Literal["never", "optional", "required"]]
_Command: TypeAlias = (
    Annotated[str, msgspec.Meta(min_length=1)] | Annotated[list[str], msgspec.Meta(min_length=1)] | dict[str, Any]
)


def _text(about: str) -> ConfigKey:
    return ConfigKey(str, "a text", about)


def _flag(about: str, *, default: bool | None = False) -> ConfigKey:
    return ConfigKey(bool, "true or false", about, default)


def _number(of: str, about: str) -> ConfigKey:
    return ConfigKey(_Number, f"a number of {of}", about)


def _count(about: str, default: int) -> ConfigKey:
    return ConfigKey(_Count, "a whole number above 0", about, default)


def _patterns(about: str) -> ConfigKey:
    return ConfigKey(_Patterns, "a pattern or a list of patterns", about)


def _texts(about: str) -> ConfigKey:
    return ConfigKey(_Patterns, "a text or a list of texts", about)


def _text_table(about: str) -> ConfigKey:
    return ConfigKey(_TextTable, "a table of texts", about)


def _table(expected: str, about: str, keys: Keys | None = None) -> ConfigKey:
    return ConfigKey(dict[str, Any], expected, about, None, keys)


def _one_of(*words: str, about: str, default: str | None = None) -> ConfigKey:
    expected = f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else f'"{words[0]}"'
    return ConfigKey(Literal[words], expected, about, default)


# --- rules of access ----------------------------------------------------------------------------------------------

ACCESS: Final[Keys] = {
    "required_scopes": ConfigKey(_Patterns, "scopes", "the caller needs all of these scopes"),
    "required_scopes_any": ConfigKey(_Patterns, "scopes", "the caller needs at least one of these scopes"),
    "resource_type": _text("the type of the resource that the caller needs a grant for, such as `project`"),
    "resource_action": _text("the action that the caller must be granted, such as `read`"),
    "resource_id": _text("the argument that holds the id of the resource"),
    "public": _flag("callable without a token, even if the server requires one; cannot be combined with other rules"),
}
_ACCESS: Final = _table(
    "a table such as {required_scopes = [...]}", "who may call the operations of the source", ACCESS
)

# --- a source -----------------------------------------------------------------------------------------------------

_KINDS: Final[dict[Kind, str]] = {
    "mcp": "an MCP server: a command, or an address",
    "openapi": "an OpenAPI service",
    "functions": "a Python program",
}
_FIX: Final = _table("a table of arguments, such as {token = ...}", "arguments with fixed values, hidden from callers")

COMMON: Final[Keys] = {
    "namespace": ConfigKey(
        _Namespace,
        "a namespace: parts of A-Z a-z 0-9 _ - separated by dots",
        "prefix of its ids; by default the name of the source",
    ),
    "include": _patterns("import only operations that match one of these patterns, such as `read_*`"),
    "exclude": _patterns("operations that are not imported"),
    "rename": ConfigKey(
        dict[str, _Name],
        "a table of names: 1 to 64 of A-Z a-z 0-9 _ -",
        "from the name in the source to the new name",
    ),
    "normalize": _one_of("repair", "typebox", "off", about="what happens to results that do not match their schema"),
    "strict_output": _flag("a result that still does not match its schema is an error"),
    "coerce": _flag("convert text arguments to numbers and booleans where the schema asks for them", default=True),
    "extras": _one_of("strip", "keep", about="whether properties that a schema does not name are removed"),
    "detect": _one_of("all", "instances", about="whether a mapping that looks like an envelope is treated as one"),
    "timeout": _number("seconds", "time limit of a call; 60 by default"),
    "durable": ConfigKey(
        _Durable,
        "true, a pattern, a list of patterns, or a table of patterns and never, optional or required",
        "which operations may run as tasks",
    ),
    "on_crash": _one_of(
        "retry", "fail", about="what happens to a task, or a call with an idempotency key, after its process crashed"
    ),
    "access": _ACCESS,
    "expose": _one_of("all", "search", "auto", about="whether its tools are listed, or found by search"),
    "describe": _one_of("short", "full", about="how much of each description is shown to models"),
    "select": ConfigKey(
        str | dict[str, str],
        "fields such as id,name, or a table of such texts by operation",
        "the fields of results that are returned by default",
    ),
    "middleware": _texts("middleware around its calls: `module:name` or `file.py:name`, the first one outermost"),
    "required": _flag("the server is not ready without it; true for functions by default", default=None),
    "disabled": _flag("do not open this source"),
    "enabled": _flag("open this source; `false` is the same as `disabled = true`", default=True),
}
POLICIES: Final = ("normalize", "strict_output", "coerce", "extras", "detect")


def _keys_of(limits: type[msgspec.Struct]) -> Keys:
    """Return the keys for the described fields of a value: a number with its unit, or a count with its default."""
    keys, defaults = {}, msgspec.structs.asdict(limits())
    for name, kind in get_type_hints(limits, include_extras=True).items():
        for meta in getattr(kind, "__metadata__", ()):
            unit, about = meta.extra["unit"], meta.description
            keys[name] = _number(unit, about) if unit else _count(about, defaults[name])
    return keys


LIMITS: Final[Keys] = _keys_of(MCPLimits)

_GRANTS: Final = ("authorization_code", "client_credentials", "jwt_bearer")
LOGIN: Final[Keys] = {
    "grant": _one_of(*_GRANTS, about="who logs in: a user in the browser, or the program itself", default=_GRANTS[0]),
    "client_id": _text("the client, if you have registered one"),
    "client_secret": _text("its secret; give `issuer` with it"),
    "client_metadata_url": _text(
        "the https URL of your client metadata document, which some servers accept as a client id"
    ),
    "private_key_file": _text("a private key (PEM) that signs instead of a secret"),
    "key_id": _text("the `kid` of that key"),
    "algorithm": _text("the signature algorithm of that key"),
    "assertion_file": _text("a file with the assertion (JWT) of the platform, for `jwt_bearer`"),
    "scopes": _texts("requested at the first login, in addition to those the server names"),
    "issuer": _text("the authorization server of this client; others are refused"),
    "redirect_port": ConfigKey(
        Annotated[int, msgspec.Meta(ge=1, le=65535)],
        "a port from 1 to 65535",
        "the local port of the redirect; any free port by default",
    ),
    "redirect_uri": _text("the same as a whole URL"),
}

BY_KIND: Final[dict[Kind, Keys]] = {
    "mcp": {
        "command": ConfigKey(
            _Command,
            "a command: a text or a list of texts",
            "the program to start; it speaks MCP over stdio",
        ),
        "args": ConfigKey(list[Any], "a list of texts", "its arguments, where `command` is a text"),
        "env": _text_table("environment variables in addition to `PATH`, `HOME` and the like"),
        "inherit_env": _flag("pass on all environment variables except `ENFOLD_*`"),
        "cwd": _text("the working directory; by default the folder of the file"),
        "url": _text("the URL of a running server, instead of `command`"),
        "transport": _one_of("auto", "http", "sse", about="the transport of the server at `url`", default="auto"),
        "headers": _text_table("sent to this server only"),
        "credentials": ConfigKey(
            _Credentials, "a token, or a list of user and password", "a bearer token, or user and password"
        ),
        "auth": _table(
            "a table such as {client_id = ...}, which may be empty",
            "an OAuth login, for servers that require one",
            LOGIN,
        ),
        "kinds": ConfigKey(
            list[Literal["tool", "resource", "prompt"]],
            "a list of tool, resource and prompt",
            "what is imported; all three by default",
        ),
        "reads": _one_of("result", about='the server wraps results as `{"result": …}` without declaring it'),
        "advertise_output": _flag("advertise the output schema to clients", default=True),
        "instructions": ConfigKey(
            bool | str,
            "true, false or a text",
            "the instructions that MCP clients see: those of the server (true, the default), none, or your own",
        ),
        "per": _one_of(
            "source",
            "session",
            about="one connection (and process) for all callers, or one for each session of an MCP client",
            default="source",
        ),
        "protocol": _text("one revision, such as `2025-11-25`, instead of `auto`"),
        "log_level": _text("the log level requested of the server if a client sets none; `info` by default"),
        "connect_timeout": _number("seconds", "the same as `connect` in `limits`"),
        "max_bytes": _number("bytes", "the same as `message_bytes` in `limits`"),
        "limits": _table(
            "a table of numbers, such as {list_items = 10000}: see the page on MCP servers",
            "limits on the resources that the server may use",
            LIMITS,
        ),
        "fix": _FIX,
    },
    "openapi": {
        "openapi": _text("the document: a path or a URL"),
        "base_url": _text("the URL of the service; by default the first server of the document"),
        "server_variables": _text_table("values for `{variables}` in the document's servers"),
        "credentials": ConfigKey(
            dict[str, _Credentials],
            "a table of security schemes: to each a token, a list of user and password, or a table",
            "by security scheme; others are read from `ENFOLD_<NAMESPACE>_<SCHEME>`",
        ),
        "headers": _text_table("sent with every request to this service"),
        "private_headers": _patterns("response headers that callers never see"),
        "allow_hosts": _patterns("other hosts that may be contacted"),
        "allow_files": _patterns("folders, besides the document's own, whose files references may name"),
        "max_bytes": _number("bytes", "of a response"),
        "fix": _FIX,
    },
    "functions": {"functions": _text("the program: `app.py`, `app.py:ops`, `package.module:ops`")},
}

# --- other tables -------------------------------------------------------------------------------------------------

_APP: Final[Keys] = {"title": _text("the name of the application"), "version": _text("its version")}
_IDEMPOTENCY: Final[Keys] = {
    "keep": _number("seconds", "how long outcomes are kept by idempotency key; 3600 by default")
}
_NATS: Final[Keys] = {
    "replicas": ConfigKey(
        _Count, "a whole number above 0", "replicas of each entry; 1 by default, 3 in a cluster of three"
    )
}
_TASKS: Final[Keys] = {
    "store": _text("a file beside the configuration, or `nats://…`; by default `.enfold/tasks.db`"),
    "secret": _text("signs the handles of upstream tasks; by default generated once, next to the store"),
    "fsync": _one_of(
        "full", "normal", about="whether a task is flushed to disk before its id is returned", default="full"
    ),
    **_keys_of(TaskLimits),
    "at_once": ConfigKey(_WholeNumber, "a whole number", "tasks that run here concurrently; 0 only submits them", 64),
}
_AGENTS: Final[Keys] = {
    "expose": _one_of("all", "search", "auto", about="whether tools are listed, or found by search", default="all"),
    "pinned": _patterns("tools that are always listed"),
    "budget": _number("tokens", "that a list may cost before `auto` switches to search; 10,000 by default"),
    "max_instructions": ConfigKey(
        Annotated[int, msgspec.Meta(ge=0)],
        "a number of characters",
        "for the instructions of all sources together; 8000 by default, 0 for none",
    ),
    "max_result_tokens": _number("tokens", "that a result may cost; longer ones are truncated. No limit by default"),
    "clients": ConfigKey(
        dict[str, Literal["text", "both"]],
        "a table of clients, to each text or both",
        "the form of results for a client, by the name in its `clientInfo`",
    ),
}
CLAIMS: Final[Keys] = {
    "id": _text("the claim with the caller's id; `sub` by default"),
    "scopes": _texts("the claims with scopes; `scope`, `scp` and `roles` by default"),
    "resources": _text("the claim with grants for resources"),
}
ISSUER: Final[Keys] = {
    "issuer": _text("its URL, exactly as `iss` has it; https, or http on this machine"),
    "audiences": _texts("accepted audiences (`aud`)"),
    "jwks": _text("its keys: a file or a URL; found by discovery by default"),
    "algorithms": _texts("accepted signature algorithms; only asymmetric ones"),
    "claims": _table("a table", "which claims identify the caller", CLAIMS),
    "leeway": ConfigKey(
        Annotated[float, msgspec.Meta(ge=0, le=300)], "seconds", "tolerated clock difference; 30 by default"
    ),
    "prefix": _text(
        "prefix of its callers' ids, such as `partner:`; required if there is another source of identities"
    ),
}

_LIMITS: Final[Keys] = {
    name: ConfigKey(_Number, "a number above 0", "see docs/limits.md", default)
    if name in FRACTIONS
    else _count("see docs/limits.md", default)
    for name, default in msgspec.structs.asdict(Limits()).items()
}

# What stands at the top of a file. The keys of sources and of issuers depend on what they are.
TABLES: Final[Keys] = {
    "sources": _table("a table", "the sources of operations; the name of each is its namespace"),
    "policy": _table(
        "a table", "policies of the registry, which a source may override", {name: COMMON[name] for name in POLICIES}
    ),
    "app": _table("a table", "the name and version that clients see", _APP),
    "agents": _table("a table", "what models see", _AGENTS),
    "tasks": _table("a table", "the store and limits of durable calls", _TASKS),
    "idempotency": _table("a table", "idempotency keys", _IDEMPOTENCY),
    "nats": _table("a table", "storage of tasks and idempotency keys on NATS", _NATS),
    "middleware": ConfigKey(
        list[dict[str, Any]],
        "a list of tables, each with `use`",
        "middleware around every call, the first one outermost",
        keys={"use": _text("a function or object of a program: `module:name` or `file.py:name`")},
        is_list=True,
    ),
    "auth": ConfigKey(Any, "a table, or a list of tables", "the issuers whose tokens the server accepts"),
    "limits": _table("a table", "limits on the resources of the server that callers may use: docs/limits.md", _LIMITS),
    "record": _one_of("mutations", "all", about="calls that are always recorded"),
}
