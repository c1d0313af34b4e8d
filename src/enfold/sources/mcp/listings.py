"""The offers of a server as operations: tools, resources and templates, prompts, and completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Final, TypeAlias

import msgspec

from enfold.envelope import ResponseEnvelope, mcp_envelope
from enfold.mcp.headers import ANNOTATION, Mirror, mirror_header, mirrors_of
from enfold.mcp.json_rpc import fields_of
from enfold.mcp.messages import (
    CallTool,
    Complete,
    CompletionContext,
    GetPrompt,
    PartialArgument,
    ReadResource,
    Reference,
    read_loosely,
)
from enfold.mcp.offers import meta_of_result
from enfold.mcp.results import (
    AnyList,
    CompletionResult,
    Contents,
    PromptList,
    PromptMessages,
    ResourceList,
    TemplateList,
    ToolList,
)
from enfold.observability.log import Log
from enfold.operations import (
    Context,
    Operation,
    OperationSpec,
    OperationType,
    Origin,
)
from enfold.operations.call import Middleware
from enfold.operations.mcp_kind import expand_uri, kind_of, match_uri, names_of
from enfold.operations.spec import WantedName, distinct_names, with_hash
from enfold.schema.keywords import schema_fault
from enfold.schema.nodes.values import json_type
from enfold.sources.mcp.results import ResultShape, read_shape, to_envelope
from enfold.sources.mcp.settings import KINDS, Content, Kind
from enfold.sources.mcp.upstream import ServerRequest, Upstream
from enfold.sources.options import Rules, Selection, Shape
from enfold.sources.reports import Definition, DefinitionLedger, Problem, definition_of

Listed: TypeAlias = dict[str, Any]
Handler: TypeAlias = Callable[[dict[str, Any], Context], Awaitable[ResponseEnvelope[Any]]]

log: Final = Log("enfold.mcp")

PACE: Final = 200  # items after which other tasks have their turn
_SCHEMAS: Final = ("inputSchema", "outputSchema")  # which the spec has


class Options(msgspec.Struct, frozen=True):
    """The user's options for the operations of one server."""

    namespace: str
    content: Content
    selection: Selection
    shape: Shape
    rules: Rules
    definitions: DefinitionLedger
    middleware: tuple[Middleware, ...] = ()


class Imported(msgspec.Struct, frozen=True):
    """The operations made of a server's lists at one moment, and what could not be one."""

    operations: list[Operation] = []
    skipped: list[Problem] = []
    degraded: list[Problem] = []
    is_stateless: bool = False
    definitions: dict[str, Definition] = {}
    instructions: str = ""  # how the server wants to be used
    renewed: frozenset[str] = frozenset()  # the lists that the server itself said have changed

    @property
    def by_id(self) -> dict[str, Operation]:
        return {operation.spec.id: operation for operation in self.operations}

    def is_renewed(self, operation: Operation) -> bool:
        return f"{kind_of(operation.spec)}s" in self.renewed


async def import_operations(upstream: Upstream, options: Options) -> Imported:
    """List what the server has and make operations of it."""
    session = await upstream.pool.session()
    renewed = upstream.pop_changed()
    maker = _Maker(upstream, options, session.is_stateless)
    has = {kind: kind in options.content.kinds and f"{kind}s" in session.capabilities for kind in KINDS}
    if has["tool"]:
        await maker.add_tools(await maker.list_items("tools/list", ToolList))
    if has["prompt"]:
        await maker.add_prompts(await maker.list_items("prompts/list", PromptList))
    if has["resource"]:
        await maker.add_resources(await maker.list_items("resources/list", ResourceList, "uri"))
        await maker.add_templates(await maker.list_items("resources/templates/list", TemplateList, "uriTemplate"))
        if fields_of(session.capabilities["resources"]).get("subscribe") is True:
            maker.add_updates()
    if "completions" in session.capabilities:
        maker.add_completions()
    return maker.imported(session.instructions, renewed)


class _Maker(msgspec.Struct, eq=False):
    """Makes operations of lists; an entry that cannot be one is reported, and does not stop the others."""

    _upstream: Upstream
    _options: Options
    _is_stateless: bool
    _made: dict[str, Operation] = {}
    _completed: list[tuple[OperationSpec, Reference]] = []
    _skipped: list[Problem] = []
    _degraded: list[Problem] = []
    _definitions: dict[str, Definition] = {}

    def imported(self, instructions: str, renewed: frozenset[str]) -> Imported:
        return Imported(
            list(self._made.values()),
            self._skipped,
            self._degraded,
            self._is_stateless,
            self._definitions,
            instructions,
            renewed,
        )

    async def list_items(self, method: str, type: type[AnyList], key: str = "name") -> list[Listed]:
        """The items of a list that have a name and a key; others, and a list that was cut, are reported."""
        items, problem = await self._upstream.list_all(method, type)
        if problem is not None:
            self._skipped.append(problem)
            log.warning("%s: %s: %s", self._upstream.name, problem.where, problem.why)
        usable = []
        for place, item in enumerate(items):
            why = _why_unusable(item, key)
            if why is None:
                usable.append(item)
            else:
                self._skip(f"{method}[{place}]", why)
        return usable

    # --- tools

    async def add_tools(self, listed: Iterable[Listed]) -> None:
        async for tool, name, _ in self._named(listed, "tool"):
            self._report_schema(tool, "inputSchema")
            self._report_schema(tool, "outputSchema")
            mirrors = mirrors_of(tool.get("inputSchema")) if self._is_stateless else ()
            if mirrors is None:
                self._skip(tool["name"], f"its {ANNOTATION} marks are invalid")
            else:
                self._add_tool(tool, name, mirrors)

    def _report_schema(self, tool: Listed, field: str) -> None:
        """Report a value that is not a schema, and a schema with a keyword that cannot be applied."""
        schema = tool.get(field)
        why = (
            schema_fault(schema) if isinstance(schema, dict) else f"a schema must be an object, not {json_type(schema)}"
        )
        if schema is not None and why is not None:
            self._degraded.append(Problem(f"{tool['name']}.{field}", why))

    def _add_tool(self, tool: Listed, name: str, mirrors: tuple[Mirror, ...]) -> None:
        shape = read_shape(
            tool.get("outputSchema"),
            self._options.content.reads,
            null_is_data=self._is_stateless,
            meta=tool.get("_meta"),
        )
        spec = self._tool_spec(tool, name, shape)
        if spec is not None:
            needs_task = fields_of(tool.get("execution")).get("taskSupport") == "required" and not self._is_stateless
            called = _CalledTool(tool["name"], shape, mirrors, spec.idempotent, needs_task)
            self._add(spec, partial(_call_tool, self._upstream, called), tool)

    def _tool_spec(self, tool: Listed, name: str, shape: ResultShape) -> OperationSpec | None:
        hints, advertised = fields_of(tool.get("annotations")), tool.get("outputSchema")
        schema = tool.get("inputSchema")
        is_query = hints.get("readOnlyHint") is True
        if is_query and self._options.definitions.is_held(self._id("tool", name)):
            is_query, tool = False, {**tool, "annotations": {**hints, "readOnlyHint": False}}
        facts: Listed = {} if self._options.content.advertise_output else {"advertise_output": False}
        if (shape.is_wrapped or shape.schema != advertised) and isinstance(advertised, dict):
            facts["outputSchema"] = advertised
        return self._spec(
            tool,
            name,
            "tool",
            facts,
            type=OperationType.QUERY if is_query else OperationType.MUTATION,
            other_title=hints.get("title"),
            input_schema=schema if isinstance(schema, dict) else {"type": "object"},
            output_schema=shape.schema,
            idempotent=is_query or hints.get("idempotentHint") is True,
            destructive=not is_query and hints.get("destructiveHint") is not False,
        )

    # --- prompts

    async def add_prompts(self, listed: Iterable[Listed]) -> None:
        async for prompt, name, wanted in self._named(listed, "prompt"):
            arguments = [each for each in _objects(prompt.get("arguments")) if _text(each.get("name"))]
            facts = {} if wanted == name else {"listed_name": wanted}  # a tool may have the name, too
            spec = self._spec(prompt, name, "prompt", facts, input_schema=_text_arguments(arguments))
            self._add(spec, partial(_get_prompt, self._upstream, prompt["name"]), prompt)
            if spec is not None and arguments:
                self._completed.append((spec, Reference("ref/prompt", name=prompt["name"])))

    # --- resources

    async def add_resources(self, listed: Iterable[Listed]) -> None:
        async for resource, name, _ in self._named(listed, "resource", "uri"):
            facts = {"uri": resource["uri"], **_present(resource, "mimeType")}
            spec = self._spec(resource, name, "resource", facts, input_schema=_text_arguments([]))
            self._add(spec, partial(_read_resource, self._upstream, resource["uri"]), resource)

    async def add_templates(self, listed: Iterable[Listed]) -> None:
        async for template, name, _ in self._named(listed, "resource", "uriTemplate"):
            uri = template["uriTemplate"]
            try:
                match_uri(uri, "")
            except ValueError as error:
                self._skip(uri, str(error))
                continue
            facts = {"uri": uri, **_present(template, "mimeType")}
            schema = _text_arguments([{"name": each, "required": True} for each in names_of(uri)])
            spec = self._spec(template, name, "resource", facts, input_schema=schema)
            self._add(spec, partial(_read_resource, self._upstream, uri), template)
            if spec is not None:
                self._completed.append((spec, Reference("ref/resource", uri=uri)))

    def add_updates(self) -> None:
        """An operation beside the resources that tells when one of them changes."""
        resources = list(self._specs("resource"))
        if not resources:
            return
        taken = {spec.name for spec in resources}
        spec = OperationSpec(
            namespace=self._namespace("resource"),
            name="updates" if "updates" not in taken else with_hash("updates", "updates of resources"),
            type=OperationType.SUBSCRIPTION,
            description="Returns the URI of a resource immediately, and again whenever it changes.",
            input_schema=_UPDATES_INPUT,
            output_schema={"type": "object", "properties": {"uri": {"type": "string"}}, "required": ["uri"]},
            access_control=self._options.rules.access,
            meta={"mcp": {"kind": "updates"}},
        )
        self._made[spec.id] = self._operation(spec, partial(_updates, self._upstream))

    # --- completions

    def add_completions(self) -> None:
        """An operation beside each prompt and template that proposes values for its arguments."""
        for of, reference in self._completed:
            name = _shortened(f"complete_{of.name}", of.name)
            facts = {"kind": "completion", "of": of.name}
            spec = OperationSpec(
                namespace=of.namespace,
                name=name,
                type=OperationType.QUERY,
                description=f"Suggests values for an argument of {of.name}.",
                input_schema=_COMPLETION_INPUT,
                output_schema={"type": "array", "items": {"type": "string"}},
                access_control=of.access_control,
                timeout=self._options.rules.timeout,
                meta={"mcp": facts},
            )
            if of.id in self._made:
                self._add(spec, partial(_complete, self._upstream, reference))

    # --- names and specs

    async def _named(
        self, listed: Iterable[Listed], kind: Kind, key: str = "name"
    ) -> AsyncGenerator[tuple[Listed, str, str]]:
        """Each entry with the name of its operation, and the name it would have if no entry of another kind had it.

        Names of resources may repeat, so their URIs tell them apart.
        """
        entries = {each[key]: each for each in listed}
        words = {own: str(entry["name"]) for own, entry in entries.items()}
        unique = _distinct_names(words)
        taken = {spec.name for spec in self._specs(kind)}
        for count, (own, entry) in enumerate(entries.items(), 1):
            if count % PACE == 0:  # a server may list thousands
                await asyncio.sleep(0)
            name = self._options.selection.name(unique[own], words[own])
            yield entry, _shortened(f"{name}_{kind}", name) if name in taken else name, name

    def _specs(self, kind: Kind) -> Iterator[OperationSpec]:
        """What is there already in the namespace this kind goes to."""
        namespace = self._namespace(kind)
        return (made.spec for made in self._made.values() if made.spec.namespace == namespace)

    def _namespace(self, kind: Kind) -> str:
        """Resources have a namespace of their own: they are many, and named by their URI."""
        own = self._options.namespace
        return ".".join(part for part in (own, "resources") if part) if kind == "resource" else own

    def _id(self, kind: Kind, name: str) -> str:
        namespace = self._namespace(kind)
        return f"{namespace}.{name}" if namespace else name

    def _spec(
        self, listed: Listed, name: str, kind: Kind, facts: Listed, other_title: Any = None, **fields: Any
    ) -> OperationSpec | None:
        original = listed["name"]
        kept = {name: value for name, value in listed.items() if name not in _SCHEMAS}
        meta: Listed = {"mcp": {"kind": kind, "listed": kept, **facts}}
        if original != name:
            meta["original_name"] = original
        try:
            spec = OperationSpec(
                namespace=self._namespace(kind),
                name=name,
                title=_text(listed.get("title")) or _text(other_title),
                description=_text(listed.get("description")) or "",
                access_control=self._options.rules.access,
                timeout=self._options.rules.timeout,
                meta=meta,
                **fields,
            )
            return self._options.rules.with_durability(spec) if kind == "tool" else spec
        except ValueError as error:
            self._skip(original, str(error))
            return None

    def _add(self, spec: OperationSpec | None, handler: Handler, listed: Listed | None = None) -> None:
        if spec is None or not self._options.selection.takes(spec):
            return
        if spec.id in self._made:
            self._skip(spec.id, "another tool, resource or prompt has the same id: rename one of them")
            return
        self._made[spec.id] = self._options.shape.apply(self._operation(spec, handler), self._options.middleware)
        if listed is not None:
            self._definitions[spec.id] = _definition(listed)

    def _operation(self, spec: OperationSpec, handler: Callable[..., Any]) -> Operation:
        return Operation(spec, handler, policy=self._options.rules.policy, origin=Origin("mcp", self._upstream.name))

    def _skip(self, where: str, why: str) -> None:
        self._skipped.append(Problem(where, why))


# --- the handlers ---------------------------------------------------------------------------------------------------


class _CalledTool(msgspec.Struct, frozen=True):
    """A tool as its server knows it, and what its calls need."""

    name: str
    shape: ResultShape
    mirrors: tuple[Mirror, ...]  # which its HTTP headers repeat
    is_idempotent: bool
    needs_task: bool  # in the revision 2025-11-25


async def _call_tool(
    upstream: Upstream, tool: _CalledTool, input: dict[str, Any], context: Context
) -> ResponseEnvelope[Any]:
    headers = _mirrored(tool.mirrors, input) if tool.mirrors else None
    request = ServerRequest("tools/call", CallTool(tool.name, input), tool.is_idempotent, headers, tool.needs_task)
    return to_envelope(await upstream.call(request, context), tool.shape)


async def _get_prompt(upstream: Upstream, name: str, input: dict[str, Any], context: Context) -> ResponseEnvelope[Any]:
    request = ServerRequest("prompts/get", GetPrompt(name, input))
    result = read_loosely(await upstream.call(request, context), PromptMessages) or PromptMessages()
    content = [each.get("content") for each in _objects(result.messages)]
    meta = meta_of_result(result.meta, description=result.description)
    return mcp_envelope(result.messages, content=content, _meta=meta)


async def _read_resource(
    upstream: Upstream, uri: str, input: dict[str, Any], context: Context
) -> ResponseEnvelope[Any]:
    request = ServerRequest("resources/read", ReadResource(expand_uri(uri, input)))
    result = read_loosely(await upstream.call(request, context), Contents) or Contents()
    contents = _objects(result.contents)
    content = [{"type": "resource", "resource": each} for each in contents]
    return mcp_envelope(contents, content=content, _meta=meta_of_result(result.meta))


async def _updates(upstream: Upstream, input: dict[str, Any], context: Context) -> AsyncGenerator[dict[str, str]]:
    del context
    async with aclosing(upstream.follow(input["uri"])) as changes:
        async for uri in changes:
            yield {"uri": uri}


async def _complete(
    upstream: Upstream, reference: Reference, input: dict[str, Any], context: Context
) -> ResponseEnvelope[Any]:
    argument = PartialArgument(input.get("argument", ""), input.get("value", ""))
    others = CompletionContext(input["arguments"]) if input.get("arguments") else None
    request = ServerRequest("completion/complete", Complete(reference, argument, others))
    result = read_loosely(await upstream.call(request, context), CompletionResult) or CompletionResult()
    found = result.completion
    values = [each for each in found.values if isinstance(each, str)]
    return mcp_envelope(values, _meta=meta_of_result(result.meta, total=found.total, hasMore=found.has_more))


# --- schemas and names ----------------------------------------------------------------------------------------------

_UPDATES_INPUT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"uri": {"type": "string", "description": "The URI of the resource."}},
    "required": ["uri"],
    "additionalProperties": False,
}
_COMPLETION_INPUT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "argument": {"type": "string", "description": "The name of the argument."},
        "value": {"type": "string", "description": "The text typed so far.", "default": ""},
        "arguments": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "required": ["argument"],
}


def _definition(listed: Listed) -> Definition:
    """What is compared of an entry when the server's lists are read again."""
    hints = fields_of(listed.get("annotations"))
    named = ("name", "title", "description", "icons", "inputSchema", "arguments", "uriTemplate", "outputSchema")
    return definition_of(
        [listed.get(name) for name in ("name", "title", "description", "icons")],
        [listed.get(name) for name in ("inputSchema", "arguments", "uriTemplate")],
        listed.get("outputSchema"),
        {name: value for name, value in listed.items() if name not in named},
        is_mutation="inputSchema" in listed and hints.get("readOnlyHint") is not True,
    )


def _why_unusable(item: Any, key: str) -> str | None:
    """Why an entry of a list cannot be used, if it cannot."""
    if not isinstance(item, dict):
        return f"an entry must be an object, not {json_type(item)}"
    missing = [name for name in dict.fromkeys(("name", key)) if _text(item.get(name)) is None]
    return f"its {' and its '.join(missing)} must be non-empty text" if missing else None


def _distinct_names(words: Mapping[str, str]) -> dict[str, str]:
    """A legal name for each key, from its word; keys that share a word are distinguished by the key."""
    differ = len(set(words.values())) == len(words)
    wanted = [WantedName(word, word if differ else key, may_stay=differ) for key, word in words.items()]
    return dict(zip(words, distinct_names(wanted), strict=True))


def _shortened(name: str, original: str) -> str:
    return name if len(name) <= 64 else with_hash(name, original)


def _text_arguments(arguments: Iterable[Listed]) -> dict[str, Any]:
    """The schema of arguments that are all texts."""
    listed = list(arguments)
    required = [each["name"] for each in listed if each.get("required") is True]
    words = ("title", "description", "default")
    properties = {each["name"]: {"type": "string", **_present(each, *words)} for each in listed}
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": required} if required else schema


def _present(listed: Listed, *names: str) -> Listed:
    return {name: listed[name] for name in names if listed.get(name) is not None}


def _objects(found: Any) -> list[Listed]:
    """The objects of a list; anything else is skipped."""
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _mirrored(mirrors: tuple[Mirror, ...], input: Mapping[str, Any]) -> dict[str, str]:
    values = {mirror.header.decode(): mirror_header(mirror, input) for mirror in mirrors}
    return {name: value for name, value in values.items() if value is not None}
