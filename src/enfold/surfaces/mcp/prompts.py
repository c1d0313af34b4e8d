"""The methods about prompts, and about the completion of arguments, which resources have too."""

from __future__ import annotations

from typing import Any, Final

from enfold.access import may_list
from enfold.mcp.json_rpc import INVALID_PARAMS, ProtocolError
from enfold.mcp.offers import prompt_messages
from enfold.mcp.result_fields import fields_of_result
from enfold.operation import OperationSpec
from enfold.surfaces.mcp.catalog import Prompt
from enfold.surfaces.mcp.client_exchange import ClientExchange
from enfold.surfaces.mcp.mcp_service import Result, Service, arguments_of

MAX_COMPLETIONS: Final = 100


def list_prompts(service: Service, exchange: ClientExchange) -> Result:
    service.check_offered(exchange, "prompts")
    return service.listed(exchange, "prompts", service.catalog.prompts)


async def get_prompt(service: Service, exchange: ClientExchange) -> Result:
    service.check_offered(exchange, "prompts")
    prompt = _prompt(service, exchange, exchange.params.get("name"))
    envelope = await service.run(exchange, prompt.spec, arguments_of(exchange))
    described = {"description": prompt.spec.description} if prompt.spec.description else {}
    return {**described, **fields_of_result(envelope), "messages": prompt_messages(envelope.data)}


def _prompt(service: Service, exchange: ClientExchange, name: object) -> Prompt:
    prompt = service.catalog.prompt(name)
    if prompt is None or not may_list(prompt.spec.access_control, exchange.identity):
        raise service.unknown_name(exchange, "prompt", name, service.catalog.prompts)
    return prompt


# --- completion ---------------------------------------------------------------------------------------------------


async def complete(service: Service, exchange: ClientExchange) -> Result:
    """Values for an argument: those an operation proposes, or those its schema lists."""
    service.check_offered(exchange, "completions")
    reference, argument = exchange.params.get("ref"), exchange.params.get("argument")
    if not isinstance(reference, dict) or not isinstance(argument, dict):
        raise ProtocolError(INVALID_PARAMS, "completion/complete needs a ref and an argument")
    spec = _referenced_spec(service, exchange, reference)
    name, value = str(argument.get("name", "")), str(argument.get("value", ""))
    service.check_access(exchange, spec, {**_others(exchange), name: value})
    values, counts = await _proposed_values(service, exchange, spec, name, value)
    shown = values[:MAX_COMPLETIONS]
    return {"completion": {"total": len(values), "hasMore": len(values) > len(shown), **counts, "values": shown}}


def _referenced_spec(service: Service, exchange: ClientExchange, reference: dict[str, Any]) -> OperationSpec:
    if reference.get("type") == "ref/prompt":
        return _prompt(service, exchange, reference.get("name")).spec
    offer = service.offer(exchange, reference.get("uri"))
    if offer is None:
        raise ProtocolError(INVALID_PARAMS, f"Unknown resource: {reference.get('uri')!s:.200}")
    return offer.spec


async def _proposed_values(
    service: Service, exchange: ClientExchange, spec: OperationSpec, name: str, value: str
) -> tuple[list[str], Result]:
    """The values, and what another server said of their number."""
    found = service.catalog.completion(spec, name)
    if found is None:
        return _enum_values(spec, name, value), {}
    envelope = await service.run(exchange, found, _completion_input(exchange, found, name, value))
    values = [str(each) for each in envelope.data] if isinstance(envelope.data, list) else []
    return values, fields_of_result(envelope)


def _enum_values(spec: OperationSpec, argument: str, value: str) -> list[str]:
    """The values of an argument that has only a few, as far as they begin like what is typed."""
    part = spec.input_schema.get("properties", {}).get(argument)
    values = part.get("enum", []) if isinstance(part, dict) else []
    return [each for each in values if isinstance(each, str) and each.lower().startswith(value.lower())]


def _completion_input(exchange: ClientExchange, found: OperationSpec, argument: str, value: str) -> Result:
    """Of what is known, what the function asks for."""
    known = {"argument": argument, "value": value, "arguments": _others(exchange)}
    return {name: given for name, given in known.items() if name in found.input_schema.get("properties", {})}


def _others(exchange: ClientExchange) -> dict[str, Any]:
    context = exchange.params.get("context")
    others = context.get("arguments") if isinstance(context, dict) else None
    return others if isinstance(others, dict) else {}
