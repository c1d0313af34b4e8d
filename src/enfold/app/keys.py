"""Every key that a configuration may have: its type, its words in a message, and what it is for. No reading here.

These tables are the one truth: `config_file` checks by them, editors are given them as JSON Schema, the page of keys is made of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias, get_type_hints

import msgspec

from enfold.sources.limits import MCPLimits
from enfold.surfaces.limits import FRACTIONS, Limits

Kind: TypeAlias = Literal["mcp", "openapi", "functions"]
JSONSchema: TypeAlias = dict[str, Any]


class ConfigKey(msgspec.Struct, frozen=True):
    """One key: what its value may be, as a type and in words, and what it is for."""

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
        """What an editor is told of it."""
        whole = msgspec.json.schema(self.type) if self.keys is None else _closed(self.keys)
        if self.is_list:
            whole = {"type": "array", "items": whole}
        default = {} if self.default is None else {"default": self.default}
        return {"description": self.about, **whole, **default}


Keys: TypeAlias = Mapping[str, ConfigKey]


def schema() -> JSONSchema:
    """The JSON Schema of an `enfold.toml`, for editors."""
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
    """An issuer, or several."""
    issuer = {**_closed(ISSUER, "an issuer whose tokens are taken"), "required": ["issuer", "audiences"]}
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
    "required_scopes": ConfigKey(_Patterns, "scopes", "the caller has all of these scopes"),
    "required_scopes_any": ConfigKey(_Patterns, "scopes", "the caller has at least one of these scopes"),
    "resource_type": _text("the caller has a right to a resource of this kind, such as `project`"),
    "resource_action": _text("what the caller must be allowed to do with it, such as `read`"),
    "resource_id": _text("the argument that says which resource it is"),
    "public": _flag("open to everybody, also where a server takes nobody without a token; no other rule beside it"),
}
_ACCESS: Final = _table("a table such as {required_scopes = [...]}", "who may call what the source gives", ACCESS)

# --- a source -----------------------------------------------------------------------------------------------------

_KINDS: Final[dict[Kind, str]] = {
    "mcp": "an MCP server: a command, or an address",
    "openapi": "an OpenAPI service",
    "functions": "a Python program",
}
_FIX: Final = _table(
    "a table of arguments, such as {token = ...}", "arguments that are filled in here and hidden from callers"
)

COMMON: Final[Keys] = {
    "namespace": ConfigKey(
        _Namespace,
        "a legal namespace: parts of A-Z a-z 0-9 _ - with dots between",
        "what its ids begin with; by default the name of the source",
    ),
    "include": _patterns("only operations whose name fits one of these, such as `read_*`"),
    "exclude": _patterns("operations that are left out"),
    "rename": ConfigKey(
        dict[str, _Name],
        "a table of legal names: 1 to 64 of A-Z a-z 0-9 _ -",
        "from the source's own name to ours",
    ),
    "normalize": _one_of("repair", "typebox", "off", about="what is done with results that do not fit their schema"),
    "strict_output": _flag("a result that still does not fit is a failure"),
    "coerce": _flag("text that stands for a number or a truth value is converted in arguments", default=True),
    "extras": _one_of("strip", "keep", about="what becomes of properties that a schema does not name"),
    "detect": _one_of("all", "instances", about="whether a mapping that looks like an envelope counts as one"),
    "timeout": _number("seconds", "how long a call may take; 60 unless it is said"),
    "durable": ConfigKey(
        _Durable,
        "true, a pattern, a list of patterns, or a table of patterns and never, optional or required",
        "which operations may run as tasks",
    ),
    "on_crash": _one_of(
        "retry", "fail", about="what happens to a task, or a call with an idempotency key, whose process died"
    ),
    "access": _ACCESS,
    "expose": _one_of("all", "search", "auto", about="whether its tools are listed, or found by a search"),
    "describe": _one_of("short", "full", about="how much of the descriptions models are shown"),
    "select": ConfigKey(
        str | dict[str, str],
        "fields such as id,name, or a table of such texts by operation",
        "which fields of its results are given where a caller does not say",
    ),
    "middleware": _texts("what wraps its calls: `module:name` or `file.py:name`, the first one outermost"),
    "required": _flag("the server is not ready without it; true for functions unless it is said", default=None),
    "disabled": _flag("not opened at all"),
    "enabled": _flag("opened; `false` is the same as `disabled = true`", default=True),
}
POLICIES: Final = ("normalize", "strict_output", "coerce", "extras", "detect")


def _limits_of(limits: type[msgspec.Struct]) -> Keys:
    """The keys for the fields of a value, with their units and descriptions."""
    fields = {name: kind.__metadata__[0] for name, kind in get_type_hints(limits, include_extras=True).items()}
    return {name: _number(meta.extra["unit"], meta.description) for name, meta in fields.items()}


LIMITS: Final[Keys] = _limits_of(MCPLimits)

_GRANTS: Final = ("authorization_code", "client_credentials", "jwt_bearer")
LOGIN: Final[Keys] = {
    "grant": _one_of(*_GRANTS, about="who logs in: a user in the browser, or a program as itself", default=_GRANTS[0]),
    "client_id": _text("the client, if you have registered one"),
    "client_secret": _text("its secret; give `issuer` with it"),
    "client_metadata_url": _text(
        "the https address of a document about your program, which some servers take for an id"
    ),
    "private_key_file": _text("a key (PEM) that signs in the place of a secret"),
    "key_id": _text("the `kid` of that key"),
    "algorithm": _text("what that key signs with"),
    "assertion_file": _text("a file with the statement (JWT) of the platform, for `jwt_bearer`"),
    "scopes": _texts("asked for from the start, beside what the server names"),
    "issuer": _text("the authorization server that knows this client; others are refused"),
    "redirect_port": ConfigKey(
        Annotated[int, msgspec.Meta(ge=1, le=65535)],
        "a port from 1 to 65535",
        "where the browser comes back to, on this machine; any free port unless you say one",
    ),
    "redirect_uri": _text("the same as a whole address"),
}

BY_KIND: Final[dict[Kind, Keys]] = {
    "mcp": {
        "command": ConfigKey(
            _Command,
            "a command: a text or a list of texts",
            "the program that is started, on its standard streams",
        ),
        "args": ConfigKey(list[Any], "a list of texts", "its arguments, where `command` is a text"),
        "env": _text_table("variables that it gets beside `PATH`, `HOME` and the like"),
        "inherit_env": _flag("it gets all of our variables but `ENFOLD_*`"),
        "cwd": _text("the folder it starts in; by default that of the file"),
        "url": _text("the address of a running server, in the place of `command`"),
        "transport": _one_of("auto", "http", "sse", about="how the server at `url` is spoken to", default="auto"),
        "headers": _text_table("sent to this server only"),
        "credentials": ConfigKey(
            _Credentials, "a token, or a list of user and password", "a bearer token, or user and password"
        ),
        "auth": _table(
            "a table such as {client_id = ...}, which may be empty",
            "a login by OAuth, for servers that ask for one",
            LOGIN,
        ),
        "kinds": ConfigKey(
            list[Literal["tool", "resource", "prompt"]],
            "a list of tool, resource and prompt",
            "what is taken from it; all three unless it is said",
        ),
        "reads": _one_of("result", about='the server wraps results as `{"result": …}` without saying so'),
        "advertise_output": _flag("the output schema is shown where the tool is served again", default=True),
        "instructions": ConfigKey(
            bool | str,
            "true, false or a text",
            "what MCP clients are told of it: its own instructions, none, or yours; true unless it is said",
        ),
        "per": _one_of(
            "source",
            "session",
            about="one connection (and process) for all callers, or one for each session of an MCP client",
            default="source",
        ),
        "protocol": _text("one revision, such as `2025-11-25`, in the place of `auto`"),
        "log_level": _text("which log messages are asked for where a client has not said; `info`"),
        "connect_timeout": _number("seconds", "the same as `connect` in `limits`"),
        "max_bytes": _number("bytes", "the same as `message_bytes` in `limits`"),
        "limits": _table(
            "a table of numbers, such as {list_items = 10000}: see the page on MCP servers",
            "what the server may cost us",
            LIMITS,
        ),
        "fix": _FIX,
    },
    "openapi": {
        "openapi": _text("the document: a path or an address"),
        "base_url": _text("the server; by default the first that the document names"),
        "server_variables": _text_table("values for `{variables}` in the document's servers"),
        "credentials": ConfigKey(
            dict[str, _Credentials],
            "a table of security schemes: to each a token, a list of user and password, or a table",
            "by security scheme; what is missing is looked for in `ENFOLD_<NAMESPACE>_<SCHEME>`",
        ),
        "headers": _text_table("sent with every request to this service"),
        "private_headers": _patterns("headers of answers that stay in the process"),
        "allow_hosts": _patterns("other hosts that may be contacted"),
        "allow_files": _patterns("folders, besides the document's own, whose files references may name"),
        "max_bytes": _number("bytes", "of an answer"),
        "fix": _FIX,
    },
    "functions": {"functions": _text("the program: `app.py`, `app.py:ops`, `package.module:ops`")},
}

# --- other tables -------------------------------------------------------------------------------------------------

_APP: Final[Keys] = {"title": _text("the name of the application"), "version": _text("its version")}
_IDEMPOTENCY: Final[Keys] = {
    "keep": _number("seconds", "how long the outcome of a call is kept under its key; 3600 unless it is said")
}
_NATS: Final[Keys] = {
    "replicas": ConfigKey(_Count, "a whole number above 0", "nodes that keep each entry; 1, or 3 in a cluster of three")
}
_TASKS: Final[Keys] = {
    "store": _text("a file beside the configuration, or `nats://…`; by default `.enfold/tasks.db`"),
    "secret": _text("signs the handles of other servers' tasks; by default made once, beside the store"),
    "fsync": _one_of(
        "full", "normal", about="how surely a task is on the disk before its id is given out", default="full"
    ),
    "keep": _number("seconds", "how long a task is kept after its deadline; 86400 unless it is said"),
    "deadline": _number("seconds", "for all attempts and all waiting; 86400 unless it is said"),
    "limit": _count("unfinished tasks of one identity", 100),
    "kept_bytes_per_identity": _count("bytes that are kept of the finished tasks of one identity", 4_000_000_000),
    "kept_bytes": _count("the same of all together; beyond it each identity has a tenth of theirs", 16_000_000_000),
    "attempts": _count("how many workers may die of a task that is retried", 3),
    "at_once": ConfigKey(_WholeNumber, "a whole number", "tasks that run here at a time; 0 only orders them", 64),
}
_AGENTS: Final[Keys] = {
    "expose": _one_of("all", "search", "auto", about="whether tools are listed, or found by a search", default="all"),
    "pinned": _patterns("tools that are listed in any case"),
    "budget": _number("tokens", "that a list may cost before `auto` turns to a search; 10,000 unless it is said"),
    "max_instructions": ConfigKey(
        Annotated[int, msgspec.Meta(ge=0)],
        "a number of characters",
        "that the instructions of all sources may have together; 8000 unless it is said, 0 for none",
    ),
    "max_result_tokens": _number("tokens", "that a result may cost; longer ones are cut. No limit unless it is said"),
    "clients": ConfigKey(
        dict[str, Literal["text", "both"]],
        "a table of clients, to each text or both",
        "in which form a client gets results, by the name in its `clientInfo`",
    ),
}
CLAIMS: Final[Keys] = {
    "id": _text("the claim that names the caller; `sub`"),
    "scopes": _texts("the claims that hold scopes; `scope`, `scp`, `roles`"),
    "resources": _text("the claim that holds rights to resources"),
}
ISSUER: Final[Keys] = {
    "issuer": _text("its URL, exactly as `iss` has it; https, or http on this machine"),
    "audiences": _texts("whom its tokens must be meant for (`aud`): one of these"),
    "jwks": _text("its keys: a file or a URL; found by discovery unless it is said"),
    "algorithms": _texts("what its tokens may be signed with; asymmetric ones alone"),
    "claims": _table("a table", "where a token says who its bearer is", CLAIMS),
    "leeway": ConfigKey(Annotated[float, msgspec.Meta(ge=0, le=300)], "seconds", "by which clocks may differ; 30"),
    "prefix": _text(
        "what the ids of its callers begin with, as in `partner:`; needed beside another source of identities"
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
    "sources": _table("a table", "where operations come from; the name of each is its namespace"),
    "policy": _table(
        "a table", "of the registry; a source may say otherwise", {name: COMMON[name] for name in POLICIES}
    ),
    "app": _table("a table", "what clients see of the application", _APP),
    "agents": _table("a table", "what models are shown", _AGENTS),
    "tasks": _table("a table", "where durable calls are kept", _TASKS),
    "idempotency": _table("a table", "of calls that may come twice", _IDEMPOTENCY),
    "nats": _table("a table", "how NATS servers keep tasks and idempotency keys", _NATS),
    "middleware": ConfigKey(
        list[dict[str, Any]],
        "a list of tables, each with `use`",
        "what wraps every call, the first one outermost",
        keys={"use": _text("a function or object of a program: `module:name` or `file.py:name`")},
        is_list=True,
    ),
    "auth": ConfigKey(Any, "a table, or a list of tables", "whose tokens the server takes"),
    "limits": _table("a table", "limits on the resources of the server that callers may use: docs/limits.md", _LIMITS),
    "record": _one_of("mutations", "all", about="which calls are recorded without being asked"),
}
