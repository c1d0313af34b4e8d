"""The stack of one operation: the middleware around its funnel, in order."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from enfold.middleware.access import CheckAccess
from enfold.middleware.idempotency import Idempotency
from enfold.middleware.limits import LimitCalls
from enfold.middleware.payload_log import LogPayloads
from enfold.middleware.recording import RecordRun
from enfold.middleware.selection import Select
from enfold.middleware.tasks import RunAsTask
from enfold.middleware.user import UserMiddleware
from enfold.operations import OperationType, Policy
from enfold.operations.call import Middleware, Next, NextStream, compose, compose_stream
from enfold.runtime.funnel import Funnel
from enfold.runtime.services import Services


class Step(NamedTuple):
    """One middleware, and whether every call passes it, or only one that asks for a key, a record or a selection."""

    middleware: Middleware
    is_for_all: bool


class Stack(msgspec.Struct, frozen=True):
    """The composed middleware of one operation, for calls that ask for nothing and for those that do."""

    run: Next | None  # None where nothing stands around the funnel
    run_asked: Next
    follow: NextStream
    follow_asked: NextStream


def build_stack(
    funnel: Funnel, policy: Policy, services: Services, user: tuple[Middleware, ...], *, is_guarded: bool
) -> Stack:
    """Compose the middleware that an operation needs, once for all its calls."""
    steps = list(_steps(funnel, policy, services, user, is_guarded=is_guarded))
    whole = [step.middleware for step in steps]
    for_all = [step.middleware for step in steps if step.is_for_all]
    return Stack(
        compose(for_all, funnel) if for_all else None,
        compose(whole, funnel),
        compose_stream(for_all, funnel.stream),
        compose_stream(whole, funnel.stream),
    )


def _steps(
    funnel: Funnel, policy: Policy, services: Services, user: tuple[Middleware, ...], *, is_guarded: bool
) -> Iterator[Step]:
    """Return the middleware of one operation, outermost first: this is the order of every call."""
    spec, select = funnel.spec, Select(funnel.spec)
    if is_guarded and not spec.access_control.is_open:
        yield Step(CheckAccess(), True)
    if is_guarded and policy.limits is not None:
        yield Step(LimitCalls(policy.limits), True)
    if spec.durable != "never":
        is_required = is_guarded and spec.durable == "required"
        yield Step(RunAsTask(services, funnel.failures, is_required=is_required), is_required)
    if spec.type is OperationType.MUTATION:
        yield Step(Idempotency(services, funnel, select), False)
    for index, middleware in enumerate(user):
        yield Step(UserMiddleware(middleware, funnel, is_outermost=index == 0), True)
    yield Step(RecordRun(), False)
    if policy.payloads is not None:
        yield Step(LogPayloads(policy.payloads), True)
    yield Step(select, "select" in spec.meta)
