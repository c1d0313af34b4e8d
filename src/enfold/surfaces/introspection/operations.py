"""`enfold.operations.…`: an operation in full, and the registry as an agent sees it: search, description, selected fields."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Final

import msgspec

from enfold.errors import CODES
from enfold.mcp.offers import tool_names
from enfold.operations import Context, Operation, OperationSpec
from enfold.operations.mcp_kind import kind_of
from enfold.runtime.registry import Registry
from enfold.runtime.reserved import reserved_operation
from enfold.schema.advertised import Advertising
from enfold.search.fields import narrowed_schema
from enfold.search.finder import MAX_FOUND, Description, Finder, Found
from enfold.search.selection import selection_of
from enfold.search.signatures import estimate_tokens, outline

MAX_EXAMPLES: Final = 10  # of a description
MAX_DESCRIPTION: Final = 20_000  # characters in which they are looked for
PROMPTED: Final = r"^[ \t]*>>> (.*(?:\n[ \t]*\.\.\. .*)*)"
CONTINUED: Final = r"\n[ \t]*\.\.\. "


class DeclaredError(msgspec.Struct, frozen=True):
    """An error code that an operation declares."""

    code: str
    description: str
    http_status: int
    category: str
    recoverable: bool
    schema: dict[str, Any] = {}


class OperationDetails(msgspec.Struct, frozen=True):
    """What a person wants to know about an operation beside its document."""

    id: str
    output_schema: Any
    errors: list[DeclaredError]
    timeout: float | None  # seconds
    durable: str
    idempotent: bool
    select: str | None  # the default selection of its result
    scopes: list[str]  # all of them are needed
    any_scope: list[str]  # one of them is needed
    resource: str | None  # the resource and the action on it that a caller needs
    is_public: bool  # callers need no token
    examples: list[Any]  # of its input
    tool: dict[str, Any] | None  # as models see it in `tools/list`; None if it is not a tool
    tokens: int  # that a model reads for the tool, by estimate


class SearchResults(msgspec.Struct, frozen=True):
    """What an agent finds, and what it costs beside the whole list of tools."""

    found: list[Found]
    tokens: int  # of this answer
    tools: int  # in the whole list
    list_tokens: int


class AgentDescription(msgspec.Struct, frozen=True):
    """An operation as `describe_operation` describes it to an agent."""

    description: Description
    tokens: int


class SelectedFields(msgspec.Struct, frozen=True):
    """The schema of a result that is narrowed by a selection."""

    schema: Any
    outline: str
    tokens: int
    whole_tokens: int  # of the schema without the selection


def operations(registry: Registry) -> Iterable[Operation]:
    viewed = _Registry(registry)

    async def get(id: str, context: Context) -> OperationDetails:
        """Describe one operation: its output, errors, limits and scopes, examples, and the tool as a model sees it."""
        return viewed.details(registry.find(id, context.identity))

    async def search(
        query: str, context: Context, limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_FOUND)] = 5
    ) -> SearchResults:
        """Find operations as `search_operations` finds them for an agent, with the cost in tokens.

        Args:
            query: What an agent wants to do, in words. `source:github` or `kind:query` narrows it.
            limit: How many at most.
        """
        found = viewed.finder.find(query, context.identity, limit)
        costs = [viewed.cost(spec) for spec in registry.visible(context.identity) if kind_of(spec) == "tool"]
        return SearchResults(found, _tokens(found), len(costs), sum(costs))

    async def describe(id: str, context: Context) -> AgentDescription:
        """Describe an operation as `describe_operation` does for an agent, with the cost in tokens."""
        description = viewed.finder.describe(id, context.identity)
        return AgentDescription(description, _tokens(description))

    async def select(id: str, select: str, context: Context) -> SelectedFields:
        """Narrow the schema of a result by a selection, and tell the tokens that it saves.

        Args:
            id: The operation.
            select: The fields that are wanted: `items(id,user/login),total`.
        """
        spec = registry.find(id, context.identity)
        schema = narrowed_schema(spec.output_schema, selection_of(spec, select).fields)
        return SelectedFields(schema, outline(schema, 3), _tokens(schema), _tokens(spec.output_schema))

    for function in (get, search, describe, select):
        # Operations that the caller may not call are not found. Agents have tools of their own for these.
        yield reserved_operation(function, f"enfold.operations.{function.__name__}", meta={"tool": False})


class _Registry:
    """A registry as models see it; what is listed is made anew when the registry has changed."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._version = -1
        self._tool_names: dict[str, str] = {}
        self._costs: dict[str, int] = {}
        self._useful = Advertising()
        self.finder = Finder(registry, lambda spec: kind_of(spec) == "tool")

    def details(self, spec: OperationSpec) -> OperationDetails:
        access = spec.access_control
        resource = None if access.resource_type is None else f"{access.resource_type}:{access.resource_action or 'any'}"
        tool = self._listed(spec)
        return OperationDetails(
            spec.id,
            spec.output_schema,
            [_declared(spec, each.code, each.description, each.schema) for each in spec.error_schemas],
            spec.timeout,
            spec.durable,
            spec.idempotent,
            spec.meta.get("select"),
            list(access.required_scopes),
            list(access.required_scopes_any),
            resource,
            access.public,
            examples_of(spec),
            tool,
            0 if tool is None else self.cost(spec),
        )

    def cost(self, spec: OperationSpec) -> int:
        """The tokens of a tool as it is listed."""
        self._names()
        if spec.id not in self._costs:
            self._costs[spec.id] = _tokens(self._listed(spec) or {})
        return self._costs[spec.id]

    def _listed(self, spec: OperationSpec) -> dict[str, Any] | None:
        """The tool as the MCP surface lists it; where there is none, as it would by default without its output."""
        if kind_of(spec) != "tool":
            return None
        listed = self._registry.services.listed_tool
        text = None if listed is None else listed(spec.id)
        if text is not None:
            return msgspec.json.decode(text, type=dict[str, Any])
        words = {"title": spec.title, "description": spec.description}
        told = {name: text for name, text in words.items() if text}
        return {"name": self._names()[spec.id], **told, "inputSchema": self._useful.useful(spec.input_schema)}

    def _names(self) -> dict[str, str]:
        if self._version != self._registry.version:
            self._version, self._costs = self._registry.version, {}
            self._tool_names = dict(tool_names(self._registry))
        return self._tool_names


def _declared(spec: OperationSpec, code: str, description: str, schema: dict[str, Any]) -> DeclaredError:
    row = spec.declared_row(code) or CODES[code]
    return DeclaredError(code, description, row.http_status, row.category, row.recoverable, schema)


def examples_of(spec: OperationSpec) -> list[Any]:
    """Examples of a whole input: those of its schema, the calls in its docstring, or one made of the examples of its arguments."""
    schema = spec.input_schema
    given = schema.get("examples", [schema["example"]] if "example" in schema else [])
    whole = [each for each in given if isinstance(each, dict)] if isinstance(given, list) else []
    whole = whole or list(_calls_in(spec))
    if whole:
        return whole
    found: dict[str, Any] = {}
    for name, argument in schema.get("properties", {}).items():
        parts = argument.get("examples") if isinstance(argument, dict) else None
        if isinstance(parts, list) and parts:
            found[name] = parts[0]
        elif isinstance(argument, dict) and "example" in argument:
            found[name] = argument["example"]
    return [found] if found else []


def _calls_in(spec: OperationSpec) -> Iterator[dict[str, Any]]:
    """Inputs of the calls of an operation that its description shows as Python does: `>>> add(1, y=2)`."""
    names = list(spec.input_schema.get("properties", {}))
    for lines in re.findall(PROMPTED, spec.description[:MAX_DESCRIPTION], re.MULTILINE)[:MAX_EXAMPLES]:
        try:
            call = ast.parse(re.sub(CONTINUED, "\n", lines).strip().removeprefix("await "), mode="eval").body
            if not isinstance(call, ast.Call) or ast.unparse(call.func).rpartition(".")[2] != spec.name:
                continue
            values = {each.arg: ast.literal_eval(each.value) for each in call.keywords if each.arg is not None}
            values = {**dict(zip(names[: len(call.args)], map(ast.literal_eval, call.args), strict=True)), **values}
            msgspec.json.encode(values)
        except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
            continue  # it is no call with plain values
        yield values


def _tokens(value: Any) -> int:
    return estimate_tokens(msgspec.json.encode(value, enc_hook=str))
