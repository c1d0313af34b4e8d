"""What a server offers, as operations: its tools, its resources and templates, its prompts, and their completions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import aclosing
from typing import Any, Final, Literal, TypeAlias, TypeVar

import msgspec

from enfold.envelope import ResponseEnvelope, mcp_envelope
from enfold.log import Log
from enfold.mcp.headers import ANNOTATION, Mirror, mirror_header, mirrors_of
from enfold.mcp.offers import kind_of
from enfold.mcp.uri_template import match_uri, names_of
from enfold.operation import (
    OPEN,
    AccessControl,
    Context,
    Operation,
    OperationSpec,
    OperationType,
    Origin,
    Policy,
    legal_name,
    legal_names,
    with_hash,
)
from enfold.operation.handing_over import task_question
from enfold.sources.choosing import Choice, choosing
from enfold.sources.durability import Durability, durability
from enfold.sources.mcp.result_envelopes import Reads, ResultShape, read_shape, to_envelope
from enfold.sources.mcp.tasks import needs_task, run_task
from enfold.sources.mcp.templates import expand_uri
from enfold.sources.mcp.upstream import ListedItems, Upstream
from enfold.sources.report import Problem
from enfold.sources.shaping import Shaping, shaping

__all__ = ["KINDS", "Imported", "Kind", "Options", "import_operations"]

Kind: TypeAlias = Literal["tool", "resource", "prompt"]
Listed: TypeAlias = dict[str, Any]
T = TypeVar("T")
Handler: TypeAlias = Callable[[dict[str, Any], Context], Awaitable[ResponseEnvelope[Any]]]

KINDS: Final[tuple[Kind, ...]] = ("tool", "resource", "prompt")

log: Final = Log("enfold.mcp")

_CAPABILITIES: Final = {"tool": "tools", "resource": "resources", "prompt": "prompts"}
PACE: Final = 200  # items that are read at a stretch
_KEPT: Final = ("annotations", "icons", "_meta")


class Options(msgspec.Struct, frozen=True):
    """What the user says of a source's operations."""

    namespace: str = ""
    kinds: tuple[Kind, ...] = KINDS
    choice: Choice = choosing(None, None)
    shape: Shaping = shaping()
    policy: Policy = Policy()
    timeout: float | Literal["default"] | None = "default"
    reads: Reads = None
    advertise_output: bool = True
    access: AccessControl = OPEN
    durability: Durability = durability(None)


class Imported(msgspec.Struct, frozen=True):
    """The operations made of a server's lists at one moment, and what could not be one."""

    operations: list[Operation] = []
    skipped: list[Problem] = []
    is_stateless: bool = False
    renewed: frozenset[str] = frozenset()  # the lists that the server itself said have changed

    def is_renewed(self, operation: Operation) -> bool:
        return _CAPABILITIES.get(kind_of(operation.spec)) in self.renewed


async def import_operations(upstream: Upstream, options: Options) -> Imported:
    """List what the server has and make operations of it."""
    session = await upstream.session()
    renewed = upstream.take_changed()
    maker = _Maker(upstream, options, is_stateless=session.revision.is_stateless)
    has = {kind: kind in options.kinds and _CAPABILITIES[kind] in session.capabilities for kind in KINDS}
    if has["tool"]:
        await maker.add_tools(maker.items(await upstream.pages("tools/list", "tools")))
    if has["prompt"]:
        await maker.add_prompts(maker.items(await upstream.pages("prompts/list", "prompts")))
    if has["resource"]:
        await maker.add_resources(maker.items(await upstream.pages("resources/list", "resources")))
        await maker.add_templates(maker.items(await upstream.pages("resources/templates/list", "resourceTemplates")))
        if _can_subscribe(session.capabilities):
            maker.add_updates()
    if "completions" in session.capabilities:
        maker.add_completions()
    return maker.imported(renewed)


class _Maker:
    """Makes operations of lists; an entry that cannot be one is reported, and does not stop the others."""

    def __init__(self, upstream: Upstream, options: Options, *, is_stateless: bool) -> None:
        self._upstream = upstream
        self._options = options
        self._is_stateless = is_stateless
        self._made: dict[str, Operation] = {}
        self._completed: list[tuple[OperationSpec, Listed]] = []
        self._skipped: list[Problem] = []

    def imported(self, renewed: frozenset[str]) -> Imported:
        return Imported(list(self._made.values()), self._skipped, self._is_stateless, renewed)

    def items(self, listing: ListedItems) -> list[Listed]:
        """The items of a list; a list that was cut is reported."""
        if listing.problem is not None:
            self._skipped.append(listing.problem)
            log.warning("%s: %s: %s", self._upstream.name, listing.problem.where, listing.problem.why)
        return listing.items

    # --- tools

    async def add_tools(self, listed: Iterable[Listed]) -> None:
        async for tool, name in _paced(self._named(listed, "tool")):
            schema = tool.get("inputSchema")
            mirrors = _mirrors(schema) if self._is_stateless else ()
            if mirrors is None:
                self._skip(tool["name"], f"its {ANNOTATION} marks are not legal")
            else:
                self._add_tool(tool, name, schema if isinstance(schema, dict) else {"type": "object"}, mirrors)

    def _add_tool(self, tool: Listed, name: str, schema: Listed, mirrors: tuple[Mirror, ...]) -> None:
        shape = read_shape(
            tool.get("outputSchema"), self._options.reads, null_is_data=self._is_stateless, meta=tool.get("_meta")
        )
        spec = self._tool_spec(tool, name, schema, shape)
        if spec is not None:
            self._add(spec, self._caller(tool, spec, shape, mirrors))

    def _tool_spec(self, tool: Listed, name: str, schema: Listed, shape: ResultShape) -> OperationSpec | None:
        given, advertised = tool.get("annotations"), tool.get("outputSchema")
        hints: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
        is_query = hints.get("readOnlyHint") is True
        facts: Listed = {} if self._options.advertise_output else {"advertise_output": False}
        if shape.is_wrapped and isinstance(advertised, dict):
            facts["outputSchema"] = advertised
        return self._spec(
            tool,
            name,
            "tool",
            facts,
            type=OperationType.QUERY if is_query else OperationType.MUTATION,
            title=_text(tool.get("title")) or _text(hints.get("title")),
            input_schema=schema,
            output_schema=shape.schema,
            idempotent=is_query or hints.get("idempotentHint") is True,
            destructive=not is_query and hints.get("destructiveHint") is not False,
        )

    def _caller(self, tool: Listed, spec: OperationSpec, shape: ResultShape, mirrors: tuple[Mirror, ...]) -> Handler:
        original, idempotent, upstream = tool["name"], spec.idempotent, self._upstream
        runs_as_task = not self._is_stateless and needs_task(tool)

        async def call(input: dict[str, Any], context: Context) -> ResponseEnvelope[Any]:
            question = task_question(context)
            if question is not None:
                return to_envelope(await upstream.inquire(question, context), shape)
            params = {"name": original, "arguments": input}
            if runs_as_task:
                return to_envelope(await run_task(upstream, params, context), shape)
            headers = _mirrored(mirrors, input) if mirrors else None
            result = await upstream.call("tools/call", params, context, idempotent=idempotent, headers=headers)
            return to_envelope(result, shape)

        return call

    # --- prompts

    async def add_prompts(self, listed: Iterable[Listed]) -> None:
        async for prompt, name in _paced(self._named(listed, "prompt")):
            arguments = [
                each for each in prompt.get("arguments") or () if isinstance(each, dict) and _text(each.get("name"))
            ]
            spec = self._spec(
                prompt, name, "prompt", {}, title=_text(prompt.get("title")), input_schema=_form(arguments)
            )
            self._add(spec, self._prompt_handler(prompt["name"]))
            if spec is not None and arguments:
                self._completed.append((spec, {"type": "ref/prompt", "name": prompt["name"]}))

    def _prompt_handler(self, original: str) -> Handler:
        upstream = self._upstream

        async def get(input: dict[str, Any], context: Context) -> ResponseEnvelope[Any]:
            result = await upstream.call("prompts/get", {"name": original, "arguments": input}, context)
            messages = result.get("messages")
            data = messages if isinstance(messages, list) else []
            return mcp_envelope(data, content=[each.get("content") for each in data if isinstance(each, dict)])

        return get

    # --- resources

    async def add_resources(self, listed: Iterable[Listed]) -> None:
        found = [each for each in listed if _text(each.get("uri"))]
        async for resource, name in _paced(self._named(found, "resource", "uri")):
            facts = {"uri": resource["uri"], **_facts(resource, "name", "mimeType", "size")}
            spec = self._spec(
                resource, name, "resource", facts, title=_text(resource.get("title")), input_schema=_form([])
            )
            self._add(spec, self._reader(resource["uri"]))

    async def add_templates(self, listed: Iterable[Listed]) -> None:
        found = [each for each in listed if _text(each.get("uriTemplate"))]
        async for template, name in _paced(self._named(found, "resource", "uriTemplate")):
            uri = template["uriTemplate"]
            try:
                match_uri(uri, "")
            except ValueError as error:
                self._skip(uri, str(error))
                continue
            facts = {"uri": uri, **_facts(template, "name", "mimeType")}
            schema = _form([{"name": each, "required": True} for each in names_of(uri)])
            spec = self._spec(
                template, name, "resource", facts, title=_text(template.get("title")), input_schema=schema
            )
            self._add(spec, self._reader(uri))
            if spec is not None:
                self._completed.append((spec, {"type": "ref/resource", "uri": uri}))

    def _reader(self, uri: str) -> Handler:
        upstream = self._upstream

        async def read(input: dict[str, Any], context: Context) -> ResponseEnvelope[Any]:
            result = await upstream.call("resources/read", {"uri": expand_uri(uri, input)}, context)
            found = result.get("contents")
            contents = [each for each in (found if isinstance(found, list) else ()) if isinstance(each, dict)]
            return mcp_envelope(contents, content=[{"type": "resource", "resource": each} for each in contents])

        return read

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
            description="Gives the URI of a resource at once, and again whenever it has changed.",
            input_schema=_UPDATES_INPUT,
            output_schema={"type": "object", "properties": {"uri": {"type": "string"}}, "required": ["uri"]},
            access_control=self._options.access,
            meta={"mcp": {"kind": "updates"}},
        )
        self._made[spec.id] = self._operation(spec, self._updater())

    def _updater(self) -> Callable[[dict[str, Any], Context], AsyncGenerator[dict[str, str]]]:
        upstream = self._upstream

        async def updates(input: dict[str, Any], context: Context) -> AsyncGenerator[dict[str, str]]:
            del context
            async with aclosing(upstream.follow(input["uri"])) as changes:
                async for uri in changes:
                    yield {"uri": uri}

        return updates

    # --- completions

    def add_completions(self) -> None:
        """An operation beside each prompt and template that proposes values for its arguments."""
        for of, reference in self._completed:
            name = _fitting(f"complete_{of.name}", of.name)
            facts = {"kind": "completion", "of": of.name}
            spec = OperationSpec(
                namespace=of.namespace,
                name=name,
                type=OperationType.QUERY,
                description=f"Proposes values for an argument of {of.name}.",
                input_schema=_COMPLETION_INPUT,
                output_schema={"type": "array", "items": {"type": "string"}},
                access_control=of.access_control,
                timeout=self._options.timeout,
                meta={"mcp": facts},
            )
            if of.id in self._made:
                self._add(spec, self._completer(reference))

    def _completer(self, reference: Listed) -> Handler:
        upstream = self._upstream

        async def complete(input: dict[str, Any], context: Context) -> ResponseEnvelope[Any]:
            argument = {"name": input.get("argument", ""), "value": input.get("value", "")}
            params: Listed = {"ref": reference, "argument": argument}
            if input.get("arguments"):
                params["context"] = {"arguments": input["arguments"]}
            result = await upstream.call("completion/complete", params, context)
            completion = result.get("completion")
            values = completion.get("values") if isinstance(completion, Mapping) else None
            return mcp_envelope([each for each in values or () if isinstance(each, str)])

        return complete

    # --- names and specs

    def _named(self, listed: Iterable[Listed], kind: Kind, key: str = "name") -> Iterator[tuple[Listed, str]]:
        """Each entry with its new name; names of resources may repeat, so their URIs tell them apart."""
        entries = {each[key]: each for each in listed if _text(each.get(key)) and _text(each.get("name"))}
        words = {own: str(entry["name"]) for own, entry in entries.items()}
        unique = _unique(words)
        taken = {spec.name for spec in self._specs(kind)}
        for own, entry in entries.items():
            name = self._options.choice.name(unique[own], words[own])
            yield entry, _fitting(f"{name}_{kind}", name) if name in taken else name

    def _specs(self, kind: Kind) -> Iterator[OperationSpec]:
        """What is there already in the namespace this kind goes to."""
        namespace = self._namespace(kind)
        return (made.spec for made in self._made.values() if made.spec.namespace == namespace)

    def _namespace(self, kind: Kind) -> str:
        """Resources have a namespace of their own: they are many, and named by their URI."""
        own = self._options.namespace
        return ".".join(part for part in (own, "resources") if part) if kind == "resource" else own

    def _spec(self, listed: Listed, name: str, kind: Kind, facts: Listed, **fields: Any) -> OperationSpec | None:
        original = listed["name"]
        meta: Listed = {"mcp": {"kind": kind, "name": original, **_facts(listed, *_KEPT), **facts}}
        if original != name:
            meta["original_name"] = original
        try:
            spec = OperationSpec(
                namespace=self._namespace(kind),
                name=name,
                description=_text(listed.get("description")) or "",
                access_control=self._options.access,
                timeout=self._options.timeout,
                meta=meta,
                **fields,
            )
            return self._options.durability.apply(spec) if kind == "tool" else spec
        except ValueError as error:
            self._skip(original, str(error))
            return None

    def _add(self, spec: OperationSpec | None, handler: Handler) -> None:
        if spec is None or not self._options.choice.takes(spec):
            return
        if spec.id in self._made:
            self._skip(spec.id, "another offer has the same id: rename one of them")
            return
        self._made[spec.id] = self._options.shape.of(self._operation(spec, handler))

    def _operation(self, spec: OperationSpec, handler: Callable[..., Any]) -> Operation:
        options = self._options
        return Operation(spec, handler, policy=options.policy, origin=Origin("mcp", options.namespace))

    def _skip(self, where: str, why: str) -> None:
        self._skipped.append(Problem(where, why))


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
        "value": {"type": "string", "description": "What is typed so far.", "default": ""},
        "arguments": {"type": "object", "additionalProperties": {"type": "string"}},
    },
    "required": ["argument"],
}


async def _paced(items: Iterable[T]) -> AsyncGenerator[T]:
    """The same items, with a moment for others after every few: a server may list thousands."""
    for count, item in enumerate(items, 1):
        if count % PACE == 0:
            await asyncio.sleep(0)
        yield item


def _can_subscribe(capabilities: Mapping[str, Any]) -> bool:
    resources = capabilities.get("resources")
    return isinstance(resources, Mapping) and resources.get("subscribe") is True


def _unique(words: Mapping[str, str]) -> dict[str, str]:
    """A legal name for each key, from its word; keys that share a word are told apart by the key."""
    if len(set(words.values())) == len(words):
        legal = legal_names(words.values())
        return {key: legal[word] for key, word in words.items()}
    counts: dict[str, int] = {}
    for word in words.values():
        counts[legal_name(word)] = counts.get(legal_name(word), 0) + 1
    return {
        key: legal_name(word) if counts[legal_name(word)] == 1 else with_hash(legal_name(word), key)
        for key, word in words.items()
    }


def _fitting(name: str, original: str) -> str:
    return name if len(name) <= 64 else with_hash(name, original)


def _form(arguments: Iterable[Listed]) -> dict[str, Any]:
    """The schema of arguments that are all texts."""
    listed = list(arguments)
    required = [each["name"] for each in listed if each.get("required") is True]
    properties = {each["name"]: {"type": "string", **_facts(each, "title", "description")} for each in listed}
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": required} if required else schema


def _facts(listed: Listed, *names: str) -> Listed:
    return {name: listed[name] for name in names if listed.get(name) is not None}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


# --- arguments that headers repeat --------------------------------------------------------------------------------


def _mirrors(schema: Any) -> tuple[Mirror, ...] | None:
    """The arguments to repeat in headers; None where a mark is wrong, and the tool must not be offered."""
    if not isinstance(schema, Mapping):
        return ()
    found = mirrors_of(schema)
    return None if not found and _is_marked(schema) else found


def _is_marked(schema: Any) -> bool:
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    parts = properties.values() if isinstance(properties, Mapping) else ()
    return any(isinstance(part, Mapping) and (ANNOTATION in part or _is_marked(part)) for part in parts)


def _mirrored(mirrors: tuple[Mirror, ...], input: Mapping[str, Any]) -> dict[str, str]:
    values = {mirror.header.decode(): mirror_header(mirror, input) for mirror in mirrors}
    return {name: value for name, value in values.items() if value is not None}
