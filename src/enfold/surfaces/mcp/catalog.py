"""What a registry offers over MCP: its operations as tools, resources and prompts, as they are listed. No I/O."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property, partial
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, Union, get_args, get_origin

import msgspec

from enfold.envelope.content import ContentBlock
from enfold.formats import DEFAULT_FORMAT, Format, find_format
from enfold.mcp.json_rpc import FORMAT_KEY, SHAPE_KEY, encode, fields_of
from enfold.mcp.offers import tool_names
from enfold.mcp.revisions import LATEST, Revision
from enfold.operations import Identity, Operation, OperationSpec, OperationType, legal_names
from enfold.operations.access import may_list
from enfold.operations.mcp_kind import facts_of, is_template, kind_of
from enfold.runtime.prepared import PreparedOperation
from enfold.runtime.registry import Registry
from enfold.runtime.reserved import RESERVED
from enfold.schema.files import only_files
from enfold.schema.keywords import with_references
from enfold.surfaces.mcp.settings import DEFAULT_BUDGET, Mode, ToolNames
from enfold.surfaces.mcp.uris import Addresses

if TYPE_CHECKING:
    from enfold.mcp.headers import Mirror
    from enfold.schema.advertised import Packing


Lists: TypeAlias = dict[str, list[tuple[OperationSpec, Callable[..., Any] | None]]]
Listed: TypeAlias = dict[str, Any]

# Fields of a listing that older clients do not know; most ignore them, and some refuse them.
_SINCE_STRUCTURE: Final = ("title", "outputSchema", "_meta")
_BLOCKS: Final = get_args(ContentBlock)
_PAGE_KEYS: Final = ("ui/resourceUri", "openai/outputTemplate")  # where tools name the page that shows their results
MAX_CACHED: Final = 32_000  # bytes of a listed tool whose JSON is cached
MAX_DEFINITIONS: Final = 16_000  # bytes of the definitions that are shown of an upstream's answers


class Catalog:
    """The offers of a registry at one version; it is made anew when the registry has changed."""

    def __init__(self, registry: Registry, format: str, named_by: ToolNames) -> None:
        operations = list(registry)
        specs = [operation.spec for operation in operations]
        safe = legal_names(spec.id for spec in specs)
        names = {own: own for own in safe} if named_by == "id" else safe
        self.version = registry.version
        self._registry = registry
        self._names_ids = named_by == "id"
        self._operations = operations
        # An operation without a handler is not there for a caller.
        tools = [each for each in operations if kind_of(each.spec) == "tool" and each.handler is not None]
        shown = ListedSchemas()
        self._tool = partial(MCPTool, format=format, registry=registry, shown=shown)
        self.tools = [self._tool(operation, names[operation.spec.id]) for operation in tools]
        self.prompts = _prompts([spec for spec in specs if kind_of(spec) == "prompt"], named_by)
        found = [Resource(spec, names[spec.id]) for spec in specs if kind_of(spec) == "resource"]
        self.resources = [resource for resource in found if not resource.is_template]
        self.templates = [resource for resource in found if resource.is_template]
        self._completions = [spec for spec in specs if kind_of(spec) == "completion"]
        self._updates = {spec.namespace: spec.id for spec in specs if kind_of(spec) == "updates"}
        self._tools = _by_name_and_id(self.tools)
        self._prompts = _by_name_and_id(self.prompts)
        self.addresses = shown.addresses = Addresses(found)
        self.search_tools: list[MCPTool] = []  # which find and call the others

    def add_search_tools(self, tools: list[MCPTool]) -> None:
        """Add the tools that find and call others, also under the names they have where a user's tool has theirs."""
        self.search_tools = tools
        self._tools = {name: tool for tool in tools for name in (tool.name, f"{PREFIX}{tool.id}")} | self._tools

    def tool(self, name: str) -> MCPTool | None:
        """The tool of a name or an id; where a user's has the same name as one of ours, it is the user's."""
        return self._tools.get(name) or (self._reserved.get(name) if name.startswith(RESERVED) else None)

    def tools_in(self, namespace: str) -> list[MCPTool]:
        ids = {spec.id for spec in self._registry.list(namespace=namespace)}
        reserved = dict.fromkeys(self._reserved.values())
        return [tool for tool in (*self.tools, *reserved) if tool.id in ids]

    @cached_property
    def _reserved(self) -> dict[str, MCPTool]:
        """The operations of the namespace `enfold` by name and id, which are only listed on request."""
        names = tool_names(self._registry)
        ids = [spec.id for spec in self._registry.list(namespace=RESERVED) if spec.meta.get("tool", True)]
        tools = [self._tool(self._registry.get(each), each if self._names_ids else names[each]) for each in ids]
        return _by_name_and_id(tools)

    def prompt(self, name: str) -> Prompt | None:
        return self._prompts.get(name)

    def completion(self, spec: OperationSpec, argument: str) -> OperationSpec | None:
        """Return the operation that completes an argument of a prompt or resource."""
        for found in self._completions:
            facts = facts_of(found)
            is_its = found.namespace == spec.namespace and facts.get("of") == spec.name
            if is_its and facts.get("argument") in (None, argument):
                return found
        return None

    def updates(self, resource: Resource) -> str | None:
        """Return the id of the operation that reports changes of a resource, if its source has one."""
        return self._updates.get(resource.spec.namespace)

    def lists(self) -> Lists:
        """Return the contents of each list, to detect which of them a change affects.

        An operation that was made anew has another handler, whatever its spec.
        """
        lists: Lists = {"tools": [], "prompts": [], "resources": []}
        for operation in self._operations:
            own = lists.get(f"{kind_of(operation.spec)}s")
            if own is not None:
                own.append((operation.spec, operation.handler))
        return lists


def _by_name_and_id(offers: Iterable[Any]) -> dict[str, Any]:
    """Index offers by name and id; a listed name takes precedence over another operation's id."""
    offers = list(offers)
    return {offer.spec.id: offer for offer in offers} | {offer.name: offer for offer in offers}


# --- tools --------------------------------------------------------------------------------------------------------


class ListedSchemas:
    """The schemas of a catalog as they are listed; its tools share one, because they share definitions."""

    def __init__(self) -> None:
        self.addresses: Addresses | None = None  # of the pages that tools name

    def input(self, spec: OperationSpec) -> dict[str, Any]:
        """Return the input schema of an operation; that of another server's tool is unchanged."""
        if _is_imported(spec) and not is_short(spec):
            return spec.input_schema
        return self._packings["short" if is_short(spec) else "useful"].packed(spec.input_schema)

    def output(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the schema of a written result."""
        return self._packings["whole"].packed(schema)

    def loose_output(self, spec: OperationSpec) -> OperationSpec:
        """Return the spec with only what is promised of an upstream's responses."""
        packing = self._packings["loose in short" if is_short(spec) else "loose"]
        return spec.replace(output_schema=packing.packed(spec.output_schema, MAX_DEFINITIONS))

    @cached_property
    def _packings(self) -> dict[str, Packing]:
        from enfold.schema.advertised import (
            Advertising,  # with the first list: a start does without
            Packing,  # likewise
        )

        advertising = Advertising()
        portable, useful, loosened = advertising.portable, advertising.useful, advertising.loosened
        return {
            "whole": Packing(portable),
            "useful": Packing(lambda schema: portable(useful(schema))),
            "short": Packing(lambda schema: portable(useful(schema, short=True))),
            "loose": Packing(loosened),
            "loose in short": Packing(lambda schema: useful(loosened(schema), short=True)),
        }


class MCPTool:
    """An operation as a tool."""

    def __init__(self, operation: Operation, name: str, format: str, registry: Registry, shown: ListedSchemas) -> None:
        spec = operation.spec
        self._registry = registry
        self.spec = spec
        self.id = spec.id
        self.name = name
        self.format_name = format
        self.is_stream = spec.type is OperationType.SUBSCRIPTION
        # Of `call_operation`: finds the operation that its arguments name, for a caller.
        self.find_target: Callable[[str, Identity | None], OperationSpec] | None = None
        self._signature = operation.signature
        self._schemas = shown
        self._texts: dict[tuple[str, bool], bytes] = {}  # by the revision, and whether it is text alone

    @cached_property
    def format(self) -> Format:
        return find_format(self.format_name)

    @cached_property
    def prepared(self) -> PreparedOperation:
        """What runs it; some formats do not look into what they wrap."""
        return self.prepared_for(self.format)

    def prepared_for(self, format: Format) -> PreparedOperation:
        return self._registry.prepared(self.id, for_writing=format.takes_structs)

    @cached_property
    def has_structure(self) -> bool:
        """Whether results have structured content: a format whose result is content has none besides it."""
        return self.format.has_structure

    @cached_property
    def is_imported(self) -> bool:
        """Whether it is the tool of another MCP server, whose results and schemas go on as they are."""
        return _is_imported(self.spec)

    @cached_property
    def mirrors(self) -> tuple[Mirror, ...]:
        """The arguments that HTTP headers repeat."""
        from enfold.mcp.headers import mirrors_of  # over HTTP alone

        return mirrors_of(self.spec.input_schema) or ()

    @cached_property
    def output_schema(self) -> dict[str, Any] | None:
        """The schema of the structured content as clients are shown it, where one is advertised."""
        schema = self._whole_output_schema
        is_packed = _is_of_a_document(self.spec) or self.is_imported
        return schema if schema is None or is_packed else self._schemas.output(schema)

    @cached_property
    def fits_output_schema(self) -> Callable[[Any], bool]:
        """Whether structured content is valid under the schema that clients are shown."""
        from enfold.schema.compiled import compile_schema  # with the first result that is kept although wrong

        return compile_schema(msgspec.json.decode(encode(self.output_schema))).check  # its definitions are JSON text

    @property
    def _whole_output_schema(self) -> dict[str, Any] | None:
        is_advertised = facts_of(self.spec).get("advertise_output", self.spec.meta.get("advertise_output", True))
        if not is_advertised or not self.has_structure:
            return None
        from enfold.search.selection import narrowed  # with the first list

        spec = narrowed(self.spec)
        if self.is_imported:
            own = self.own_output_schema
            if own is not None and spec is not self.spec:  # what is left of it, as the other server wraps it
                from enfold.formats.wrapper_schemas import around  # with the first list

                return around("result", spec.output_schema)
            return own or spec.output_schema or None
        if self._gives_content:
            return None
        written = self.format.success_schema
        if written is None:
            return None
        if self.is_stream:
            spec = _collected(spec)
        return written(self._schemas.loose_output(spec) if _is_of_a_document(spec) else spec) or None

    @cached_property
    def _gives_content(self) -> bool:
        """Whether all it gives is content blocks, which have no structure besides them."""
        if self.is_stream:
            return False
        is_content = self._signature is not None and _is_content(self._signature.returns)
        return is_content or (self.gives_files and self.format.is_wrapper)

    @cached_property
    def gives_files(self) -> bool:
        """Whether all it gives is files of a declared media type, which are sent as blocks and not as JSON."""
        return not self.is_stream and not self.is_imported and only_files(self.spec.output_schema)

    @cached_property
    def own_output_schema(self) -> dict[str, Any] | None:
        """The schema that the other server advertises, where our data is what stands inside of its structure."""
        return facts_of(self.spec).get("outputSchema")

    def output_schema_for(self, revision: Revision) -> dict[str, Any] | None:
        """Return the output schema as far as the revision allows: until 2025-11-25 its root must be an object."""
        schema = self.output_schema
        if schema is None or not revision.has_structure or revision.is_text_alone:
            return None
        return schema if revision.has_any_structure or schema.get("type") == "object" else None

    def promised(self, revision: Revision) -> dict[str, Any] | None:
        """Return what the client knows of a result's data; for an upstream's response only the type of its root."""
        if self.output_schema_for(revision) is None:
            return None
        from enfold.search.selection import narrowed  # with the first list, or the first call that promises something

        spec = narrowed(self.spec)
        schema = (_collected(spec) if self.is_stream else spec).output_schema
        return {"type": schema["type"]} if _is_of_a_document(self.spec) and "type" in schema else schema

    def text(self, revision: Revision) -> bytes:
        """Return the listed JSON; one of usual size is cached."""
        key = revision.name, revision.is_text_alone
        known = self._texts.get(key)
        if known is None:
            known = encode(self.listed(revision))
            if len(known) <= MAX_CACHED:
                self._texts[key] = known
        return known

    def listed(self, revision: Revision) -> Listed:
        listed = dict(self._listed)
        schema = self.output_schema_for(revision)
        if schema is not None:
            listed["outputSchema"] = schema
        return _for_revision(listed, revision)

    @cached_property
    def _listed(self) -> Listed:
        from enfold.schema.advertised import first_sentence  # with the first list

        spec = self.spec
        listed = {**self._words, "name": self.name}
        if is_short(spec) and "description" in listed:
            listed["description"] = first_sentence(listed["description"])
        schema = self._schemas.input(spec)
        listed["inputSchema"] = schema if schema.get("type") == "object" else {**schema, "type": "object"}
        if "_meta" in listed and self._schemas.addresses is not None:
            listed["_meta"] = _with_listed_pages(listed["_meta"], spec.namespace, self._schemas.addresses)
        if not self.is_imported and self.format.is_wrapper and not self._gives_content:
            # By this another Enfold knows what our results are wrapped in.
            listed["_meta"] = {**listed.get("_meta", {}), FORMAT_KEY: self.format.name}
            if self.format.shape is not None and spec.values != 1 and not self.is_stream:
                listed["_meta"][SHAPE_KEY] = "result"
        return listed

    @property
    def _words(self) -> Listed:
        """What is said of the tool besides its name and its schemas; of another server's what that says."""
        spec, facts = self.spec, facts_of(self.spec)
        if "listed" in facts:
            return dict(facts["listed"])
        title = {"title": spec.title} if spec.title else {}
        hints = {**_hints(spec), **facts.get("annotations", {})}
        description = spec.description or spec.title or spec.id
        kept = _kept(facts, "icons", "_meta")
        return {"name": self.name, **title, "description": description, "annotations": hints, **kept}


def _with_listed_pages(meta: Any, namespace: str, addresses: Addresses) -> Any:
    """Return the `_meta` of another server's tool with its page's URI as we list it."""
    if not isinstance(meta, dict):
        return meta
    changed: Listed = {
        key: addresses.of_server(namespace, meta[key]) for key in _PAGE_KEYS if isinstance(meta.get(key), str)
    }
    page = meta.get("ui")
    if isinstance(page, dict) and isinstance(page.get("resourceUri"), str):
        changed["ui"] = {**page, "resourceUri": addresses.of_server(namespace, page["resourceUri"])}
    return {**meta, **changed}


def is_short(spec: OperationSpec) -> bool:
    """Whether its source wants it described in no more than a sentence."""
    return spec.meta.get("describe") == "short"


def _is_imported(spec: OperationSpec) -> bool:
    return facts_of(spec).get("kind") == "tool"


def _is_of_a_document(spec: OperationSpec) -> bool:
    """Whether an OpenAPI document describes it: servers differ from documents in details, so only the root is promised."""
    return "method" in spec.meta and "path" in spec.meta


def _is_content(annotation: Any) -> bool:
    """Whether a type stands for content blocks: one, one of several kinds, or a list of them."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return issubclass(annotation, _BLOCKS)
    parts = [part for part in get_args(annotation) if part is not Ellipsis]
    is_made_of_them = get_origin(annotation) in (list, tuple, Union, UnionType)
    return is_made_of_them and bool(parts) and all(_is_content(part) for part in parts)


def _hints(spec: OperationSpec) -> dict[str, Any]:
    if spec.type is OperationType.QUERY:
        return {"readOnlyHint": True}
    return {"readOnlyHint": False, "destructiveHint": spec.destructive, "idempotentHint": spec.idempotent}


def _collected(spec: OperationSpec) -> OperationSpec:
    """Return the spec of a stream that is returned as one list."""
    from enfold.formats.wrapper_schemas import moved_below  # with the first list

    items = with_references(spec.output_schema, partial(moved_below, "#/items"))
    definitions = items.pop("$defs", None) if isinstance(items, dict) else None
    array = {"type": "array", "items": items}
    return spec.replace(values=1, output_schema={**array, "$defs": definitions} if definitions else array)


# --- resources and prompts ----------------------------------------------------------------------------------------


class _Listing(ABC):
    """An operation that is listed under a name."""

    def __init__(self, spec: OperationSpec, name: str) -> None:
        self.spec = spec
        self.name = name

    def text(self, revision: Revision) -> bytes:
        return encode(_for_revision(self._listed(facts_of(self.spec)), revision))

    @abstractmethod
    def _listed(self, facts: Mapping[str, Any]) -> Listed:
        """Return the definition that clients get."""


class Resource(_Listing):
    """An operation as a resource, or as a template of resources."""

    def __init__(self, spec: OperationSpec, name: str) -> None:
        super().__init__(spec, name)
        self.own_uri: str = facts_of(spec)["uri"]  # what its source calls it
        self.uri = self.own_uri  # what it is listed as
        self.is_template = is_template(self.own_uri)

    def _listed(self, facts: Mapping[str, Any]) -> Listed:
        named = {"uriTemplate" if self.is_template else "uri": self.uri}
        if "listed" in facts:  # by another server
            return {**facts["listed"], **named}
        kept = ("mimeType", "annotations", "icons", "_meta", *(() if self.is_template else ("size",)))
        return {**named, "name": self.name, **_words(self.spec), **_kept(facts, *kept)}


class Prompt(_Listing):
    """An operation as a prompt."""

    def _listed(self, facts: Mapping[str, Any]) -> Listed:
        if "listed" in facts:  # by another server
            return {**facts["listed"], "name": self.name}
        words = _words(self.spec)
        return {"name": self.name, **words, "arguments": _arguments(self.spec), **_kept(facts, "icons", "_meta")}


def _prompts(specs: list[OperationSpec], named_by: ToolNames) -> list[Prompt]:
    """Return prompts under their own names, which may equal those of tools."""
    wanted = {spec.id: _prompt_id(spec) for spec in specs}
    counts = Counter(wanted.values())
    wanted = {own: new if counts[new] == 1 else own for own, new in wanted.items()}
    names = {each: each for each in wanted.values()} if named_by == "id" else legal_names(wanted.values())
    return [Prompt(spec, names[wanted[spec.id]]) for spec in specs]


def _prompt_id(spec: OperationSpec) -> str:
    """Return the id of a prompt as if no tool had it."""
    name = facts_of(spec).get("listed_name", spec.name)
    return f"{spec.namespace}.{name}" if spec.namespace else str(name)


def _arguments(spec: OperationSpec) -> list[Listed]:
    schema = spec.input_schema
    required = schema.get("required", [])
    return [
        {"name": name, **_kept(fields_of(part), "title", "description"), "required": name in required}
        for name, part in schema.get("properties", {}).items()
    ]


def _kept(fields: Mapping[str, Any], *names: str) -> Listed:
    return {name: fields[name] for name in names if name in fields}


def _words(spec: OperationSpec) -> Listed:
    words = {"title": spec.title, "description": spec.description or spec.title}
    return {name: text for name, text in words.items() if text}


def _for_revision(listed: Listed, revision: Revision) -> Listed:
    """Remove fields of later revisions from the listing."""
    unknown = [
        *(() if revision.has_icons else ("icons",)),
        *(() if revision.has_icons and not revision.is_stateless else ("execution",)),
        *(() if revision.has_structure else _SINCE_STRUCTURE),
        *(() if revision.has_annotations or "inputSchema" not in listed else ("annotations",)),
    ]
    return {name: value for name, value in listed.items() if name not in unknown} if unknown else listed


# --- costs --------------------------------------------------------------------------------------------------------


def tool_costs(registry: Registry, identity: Identity | None = None) -> dict[str, int]:
    """Estimate the tokens of each tool in `tools/list` that a caller sees, by operation id."""
    from enfold.search.signatures import estimate_tokens  # only when costs are counted

    tools = Catalog(registry.guarded(), DEFAULT_FORMAT, "safe").tools
    seen = (tool for tool in tools if may_list(tool.spec.access_control, identity))
    return {tool.id: estimate_tokens(tool.text(LATEST)) for tool in seen}


PREFIX: Final = "enfold_"  # of the tools that search, where a user's own tool has the name of one of them


class Exposure(msgspec.Struct, frozen=True):
    """What the operator chose for each namespace, and which operations are listed whatever they chose."""

    by_namespace: dict[str, Mode]  # that of "" is of all others
    pinned: tuple[str, ...]
    budget: int

    @property
    def is_all(self) -> bool:
        """Whether every tool is listed, so that no search is needed."""
        return set(self.by_namespace.values()) == {"all"}

    def shown(self, tools: list[MCPTool], cost: Callable[[MCPTool], int]) -> list[MCPTool]:
        """Choose the tools to list, given the cost of each; if some are missing, clients get a search."""
        modes = [self._mode(tool) for tool in tools]
        if "auto" in modes:
            fits = self._fits(cost(tool) for tool, mode in zip(tools, modes, strict=True) if mode != "search")
            modes = [("all" if fits else "search") if mode == "auto" else mode for mode in modes]
        return [tool for tool, mode in zip(tools, modes, strict=True) if mode == "all"]

    def _mode(self, tool: MCPTool) -> Mode:
        from fnmatch import fnmatchcase  # where not all are listed

        names = (tool.id, tool.spec.name, tool.name)
        if any(fnmatchcase(name, pattern) for pattern in self.pinned for name in names):
            return "all"
        namespace = tool.spec.namespace
        while namespace and namespace not in self.by_namespace:
            namespace = namespace.rpartition(".")[0]
        return self.by_namespace[namespace]

    def _fits(self, costs: Iterable[int]) -> bool:
        spent = 0
        return all((spent := spent + cost) <= self.budget for cost in costs)  # the rest need not be written to know it


def read_exposure(expose: Any, pinned: Iterable[str] = (), budget: int = DEFAULT_BUDGET) -> Exposure:
    """Parse the exposure setting: one word for the whole surface, or one for each namespace."""
    modes = {"": "all", **expose} if isinstance(expose, Mapping) else {"": expose}
    for namespace, mode in modes.items():
        if mode not in get_args(Mode):
            where = f" for {namespace}" if namespace else ""
            raise ValueError(f"Unknown exposure {mode!r}{where}: use all, search or auto")
    return Exposure(modes, (pinned,) if isinstance(pinned, str) else tuple(pinned), budget)
