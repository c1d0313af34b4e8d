"""The methods about resources: listing, reading, and following them."""

from __future__ import annotations

from enfold.envelope import MCPResponseMeta
from enfold.mcp.offers import resource_contents
from enfold.mcp.result_fields import fields_of_result
from enfold.surfaces.mcp.client_exchange import ClientExchange
from enfold.surfaces.mcp.clients import Session
from enfold.surfaces.mcp.mcp_service import Result, Service, cacheable, uri_of
from enfold.surfaces.mcp.resource_uris import with_prefix, without_prefix


def list_resources(service: Service, exchange: ClientExchange) -> Result:
    service.check_offered(exchange, "resources")
    return service.listed(exchange, "resources", service.catalog.resources)


def list_templates(service: Service, exchange: ClientExchange) -> Result:
    service.check_offered(exchange, "resources")
    return service.listed(exchange, "resourceTemplates", service.catalog.templates)


async def read_resource(service: Service, exchange: ClientExchange) -> Result:
    service.check_offered(exchange, "resources")
    uri = uri_of(exchange)
    match = service.resource(exchange, uri)
    spec = match.resource.spec
    envelope = await service.run(exchange, spec, dict(match.arguments))
    blocks = envelope.meta.content if isinstance(envelope.meta, MCPResponseMeta) else ()
    contents = resource_contents(spec, without_prefix(uri, match.prefix), envelope.data, blocks)
    result: Result = {**fields_of_result(envelope), "contents": [_named_as(each, match.prefix) for each in contents]}
    return cacheable(exchange, result, 0, is_private=True)


def _named_as(content: Result, prefix: str) -> Result:
    return {**content, "uri": with_prefix(content.get("uri", ""), prefix)} if prefix else content


async def subscribe(service: Service, exchange: ClientExchange) -> Result:
    service.check_offered(exchange, "resources")
    session, uri = exchange.caller, uri_of(exchange)
    match = service.resource(exchange, uri)
    if isinstance(session, Session) and uri not in session.followed:
        service.check_subscriptions([*session.followed, uri])
        release = await service.follow(match, uri)
        if session.is_over or uri in session.followed:  # meanwhile
            release()
        else:
            session.followed[uri] = release
    return {}


async def unsubscribe(service: Service, exchange: ClientExchange) -> Result:
    service.check_offered(exchange, "resources")
    session, uri = exchange.caller, uri_of(exchange)
    if isinstance(session, Session) and uri in session.followed:
        session.followed.pop(uri)()
    else:
        service.resource(exchange, uri)
    return {}
