"""Operations over HTTP as an ASGI app: calls, streams, the OpenAPI document, and mounted apps."""

from enfold.surfaces.http.app import HTTPApp, HTTPSettings, to_http

__all__ = ["HTTPApp", "HTTPSettings", "to_http"]
