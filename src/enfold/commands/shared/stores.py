"""The stores of a command for tasks, idempotency keys and provenance: from options, the configuration, or `.enfold`."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from enfold.calls.protocol.connection import address_name
from enfold.commands.shared.targets import TOKEN, Target, config_of
from enfold.errors import CallError
from enfold.middleware.idempotency_store import KEEP, MemoryIdempotencyStore
from enfold.operations.spec import sha256

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from enfold.app.signals import Grace
    from enfold.calls.protocol.transport import KeepingTransport
    from enfold.calls.transports.nats_streams import NATSUser
    from enfold.calls.worker.nats_idempotency_store import NATSIdempotencyStore
    from enfold.operations.idempotency import IdempotencyStore
    from enfold.provenance import Recorder
    from enfold.runtime.registry import Registry
    from enfold.tasks import Tasks, TaskStore
    from enfold.tasks.nats import NATSTasks


DEFAULT_STORE: Final = Path(".enfold") / "tasks.db"
MEMORY: Final = "memory"  # what a configuration calls a store that ends with the program
SHORTEST_SECRET: Final = 16  # characters
_KEEPING: Final = ("nats://", "tls://")  # addresses of peers whose servers keep tasks


class OrderKeys(msgspec.Struct, frozen=True):
    """A private key to sign with, and users, whose public keys verify. Without keys orders are not signed."""

    private: Path | None = None
    users: tuple[NATSUser, ...] = ()

    def checks(self, name: str) -> dict[str, Any]:
        """Return the arguments of `NATSTasks` for signing tasks as user `name` and verifying those of others."""
        from enfold.calls.protocol.transport import peer_name  # only tasks on NATS need these
        from enfold.calls.transports.nats_streams import accepts_for_all, serves
        from enfold.tasks.nats_streams import order_signer, order_verifier

        users = {peer_name(user.identity.id): user for user in self.users if user.key is not None}
        checks: dict[str, Any] = {}
        if self.private is not None:
            checks["sign"] = order_signer(_key(self.private, "Ed25519PrivateKey"), name)
        if users:
            keys = {issuer: _key(Path(user.key or ""), "Ed25519PublicKey") for issuer, user in users.items()}
            checks["verify"] = order_verifier(
                keys, lambda issuer, operation: accepts_for_all(users[issuer]) or serves(users[issuer], operation)
            )
        return checks


class TaskSettings(msgspec.Struct, frozen=True):
    """The terms of tasks, and where they are kept; `folder` is that of the target."""

    folder: Path
    store: str | None = None  # None by default
    terms: dict[str, Any] = {}
    keep_results: float = KEEP  # seconds that outcomes are kept for idempotency keys
    replicas: int | None = None  # how many nodes of NATS keep each entry
    has_servers: bool = False  # whether there are MCP servers behind us, which may begin tasks of their own
    may_be_durable: bool = False  # whether sources that come later have durable operations
    of_peers: bool = False  # whether the store is the one that the peers behind us work for
    insecure: bool = False  # allow a remote server without credentials
    orders: OrderKeys = OrderKeys()
    target: str = ""  # identifies the program among others in its folder; "" if it has no operations of its own

    @property
    def is_remote(self) -> bool:
        """Whether servers keep the tasks, and no file."""
        return self.store is not None and "://" in self.store

    @property
    def path(self) -> Path:
        """The file of the store, where that is a file."""
        named = None if self.is_remote else self.store
        return self.folder / (named or DEFAULT_STORE)


def task_settings(target: Target | None, store: str | None = None, peers: str | None = None) -> TaskSettings:
    """Combine command line and configuration of tasks; a file of the command line is relative to the working directory.

    `peers` is the address of peers that are served, too. Without `--tasks`, it is theirs: an order is one task,
    under one id, wherever it is asked for.
    """
    if store is not None and "://" not in store:
        store = str(Path(store).resolve())
    found = _named_settings(target, store)
    if target is not None and target.kind == "peers":
        peers = target.text
    if peers is None or not peers.startswith(_KEEPING):
        return found
    if found.store is None:
        return msgspec.structs.replace(found, store=peers, of_peers=True)
    return msgspec.structs.replace(found, of_peers=address_name(found.store) == address_name(peers))


def _named_settings(target: Target | None, store: str | None) -> TaskSettings:
    config = config_of(target)
    if config is None:
        has_servers = target is not None and target.kind == "server"
        return TaskSettings(_folder(target), store, has_servers=has_servers, target=_name_of(target))
    terms = dict(config.tasks)
    named = terms.pop("store", None)
    return TaskSettings(
        Path(config.folder),
        store or named,
        terms,
        config.idempotency.get("keep", KEEP),
        config.nats.get("replicas"),
        has_servers=any(source.kind == "mcp" for source in config.sources),
        may_be_durable=any("durable" in source.entry for source in config.sources),
        target=str(Path(config.path).resolve()),
    )


def _folder(target: Target | None) -> Path:
    if target is None or target.kind != "program":
        return Path.cwd()
    file = _program(target)
    return file.resolve().parent if file.suffix == ".py" else Path.cwd()


def _program(target: Target) -> Path:
    return Path(sys.argv[0] if target.registry is not None else target.text.partition(":")[0])


def _name_of(target: Target | None) -> str:
    if target is None or target.kind == "peers":
        return ""
    if target.kind == "program":
        return str(_program(target).resolve())
    return " ".join((target.text, *target.command))


def open_tasks(registry: Registry, settings: TaskSettings, **how: Any) -> Tasks | None:
    """Open the tasks of a registry; None if nothing can be a task and no store is configured.

    `how` they are run is said as for `Tasks`. Where only other servers' tasks can come, nothing is kept here.
    """
    is_durable = settings.may_be_durable or any(spec.durable != "never" for spec in registry.list())
    if not is_durable and settings.store is None and not settings.has_servers:
        return None
    if not is_durable and settings.store is None:
        from enfold.tasks.memory import MemoryTasks

        return _tasks(registry, MemoryTasks(), settings, {**how, "at_once": 0})
    store = open_store(settings)
    if hasattr(store, "path"):  # a file: idempotency keys are kept beside it
        registry.services.idempotency_store = idempotency_store(settings)
    return _tasks(registry, store, settings, how)


def _tasks(registry: Registry, store: TaskStore, settings: TaskSettings, how: Mapping[str, Any]) -> Tasks:
    from enfold.tasks import Tasks

    return Tasks(registry, store, **{**_terms(settings), **how})


@asynccontextmanager
async def opened_tasks(
    registry: Registry, settings: TaskSettings, grace: Grace | None = None, **how: Any
) -> AsyncIterator[Tasks | None]:
    """Run `open_tasks` on any store, for as long as a command runs; earlier tasks are resumed at once."""
    async with AsyncExitStack() as stack:
        if settings.is_remote:
            tasks: Tasks | None = await _tasks_at_address(stack, registry, settings, how)
        else:
            tasks = open_tasks(registry, settings, **how)
        if tasks is None:
            yield None
            return
        if how.get("at_once") != 0 and hasattr(tasks.store, "path") and settings.path.exists():
            await _check_file(tasks.store, settings.path)
        tasks.begin()
        try:
            yield tasks
        finally:
            await tasks.close(0.0 if grace is None else grace.left)


async def _check_file(store: TaskStore, path: Path) -> None:
    """Refuse a file that is no store of tasks, before anything is served; one that cannot be opened now may come back."""
    from sqlite3 import OperationalError  # the store has loaded it

    try:
        await store.get("", "")
    except CallError as error:
        if not isinstance(error.__cause__, OperationalError):
            raise CallError("VALIDATION_ERROR", f"Cannot store tasks in {path}: {error.__cause__}") from None


async def _tasks_at_address(
    stack: AsyncExitStack, registry: Registry, settings: TaskSettings, how: Mapping[str, Any]
) -> Tasks:
    """Open the tasks of the NATS server that the settings name, until the stack is closed."""
    from enfold.calls.protocol.transport import keeps_state
    from enfold.calls.transports.addresses import open_transport, reached

    address = str(settings.store)
    options: dict[str, Any] = {"token": os.environ.get(TOKEN), "insecure": settings.insecure}
    if settings.of_peers:  # a server that is unreachable, or has no JetStream, still has peers who answer
        transport = open_transport(address, **options)
        stack.push_async_callback(transport.close)
    else:
        transport = await stack.enter_async_context(reached(address, **options))
    if not keeps_state(transport):
        raise CallError("VALIDATION_ERROR", f"Cannot store tasks at {address}: use a file or nats://…")
    if settings.of_peers:
        return _tasks(registry, _store_on(transport, settings), settings, how)
    return await tasks_on_servers(registry, transport, settings, **how)


async def tasks_on_servers(
    registry: Registry, transport: KeepingTransport, settings: TaskSettings, **how: Any
) -> Tasks:
    """Open the tasks on the servers of a transport, which also keep outcomes for idempotency keys.

    UNAVAILABLE where the streams for them are missing, or are not what they should be.
    """
    store, idempotency = _store_on(transport, settings), shared_results(transport, settings)
    await store.check()
    await idempotency.check()
    registry.services.idempotency_store = idempotency
    return _tasks(registry, store, settings, how)


def _store_on(transport: KeepingTransport, settings: TaskSettings) -> NATSTasks:
    from enfold.tasks.nats import NATSTasks

    return NATSTasks(transport, replicas=settings.replicas, **settings.orders.checks(transport.name))


def shared_results(transport: KeepingTransport, settings: TaskSettings) -> NATSIdempotencyStore:
    """Return the idempotency store that all workers of a NATS server share."""
    from enfold.calls.worker.nats_idempotency_store import NATSIdempotencyStore  # only NATS needs it

    return NATSIdempotencyStore(transport, replicas=settings.replicas, keep=settings.keep_results)


def idempotency_store(settings: TaskSettings, *, shared: str | None = None) -> IdempotencyStore | None:
    """Return the idempotency store of one machine: the target's file, created with the first key, else memory.

    None where a NATS server keeps both, and not only the tasks of peers. `shared` is the folder of several processes that
    serve side by side: what one has done, none does again.
    """
    if settings.is_remote and not settings.of_peers:
        return None
    file = _results_file(settings)
    if file is None and shared is not None:
        file = Path(shared, "idempotency.db")
    if file is None:
        return MemoryIdempotencyStore(keep=settings.keep_results)
    from enfold.middleware.sqlite_store import SQLiteIdempotencyStore

    return SQLiteIdempotencyStore(file, keep=settings.keep_results)


def _results_file(settings: TaskSettings) -> Path | None:
    """Beside a store that was named, else below the folder of the target: programs that share a folder share no keys."""
    path, named = settings.path, None if settings.is_remote else settings.store
    if named == MEMORY or (named is None and not settings.target):
        return None
    if named is not None:
        _make_folder(path.parent, named)
        return path.with_name(f"{path.stem}-idempotency.db")
    made = next(folder for folder in (path.parent, *path.parent.parents) if folder.exists())
    if not os.access(made, os.W_OK):
        return None
    return path.with_name(f"idempotency-{sha256(settings.target.encode())[:8]}.db")


def _terms(settings: TaskSettings) -> dict[str, Any]:
    """Return the settings of tasks that do not depend on the store."""
    from enfold.tasks.store import TaskLimits

    terms, given = settings.terms, settings.terms.get("secret")
    if given is not None and len(given) < SHORTEST_SECRET:
        raise CallError("VALIDATION_ERROR", f"tasks.secret must have at least {SHORTEST_SECRET} characters")
    # One that is kept is made when the first handle is signed.
    secret = given.encode() if given is not None else partial(_kept_secret, settings.path)
    at_once = {"at_once": terms["at_once"]} if "at_once" in terms else {}
    return {**at_once, "limits": msgspec.convert(terms, TaskLimits), "secret": secret}


def _kept_secret(store: Path) -> bytes:
    """Read the secret in the file next to a store, created on first use; if it cannot be written, a temporary one."""
    from tempfile import NamedTemporaryFile  # once for each store

    path = store.with_name(f"{store.stem}.secret")
    try:
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Whole from the first moment on, and readable by us alone: several processes may begin at once.
            with NamedTemporaryFile(dir=path.parent, prefix=".secret-") as made:
                made.write(os.urandom(32).hex().encode())
                made.flush()
                with suppress(FileExistsError):
                    os.link(made.name, path)
        return path.read_bytes()
    except OSError as error:
        told = f"Cannot write {path} ({error.strerror}): handles of upstream tasks are lost when this program exits"
        print(f"{told}. Set [tasks] secret", file=sys.stderr)
        return os.urandom(32)


def open_store(settings: TaskSettings) -> TaskStore:
    """Open the configured store, or the default one; if that cannot be written, memory, with a warning."""
    from enfold.tasks.memory import MemoryTasks
    from enfold.tasks.sqlite import SQLiteTasks

    path = settings.path
    if settings.store == MEMORY:
        return MemoryTasks()
    if settings.store is not None:
        _make_folder(path.parent, settings.store)
        if path.is_dir():
            raise CallError("VALIDATION_ERROR", f"Cannot store tasks in {path}, a folder: use {path / 'tasks.db'}")
    elif (fault := _write_fault(path.parent)) is not None:
        print(
            f"Cannot write {path} ({fault}): tasks are kept in memory and lost when this program exits", file=sys.stderr
        )
        return MemoryTasks()
    return SQLiteTasks(path, fsync=settings.terms.get("fsync", "full"))


def _write_fault(folder: Path) -> str | None:
    """Why nothing can be written in a folder, which is made where it is missing; None where all is well."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        return error.strerror
    return None if os.access(folder, os.W_OK) else "Permission denied"


def _make_folder(folder: Path, named: str) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CallError("VALIDATION_ERROR", f"Cannot store tasks in {named}: {error.strerror}") from None


def add_order_options(parser: ArgumentParser) -> None:
    told = "NATS: users and permissions, as for `enfold nats permissions`; if users have keys, only run tasks signed by them"
    parser.add_argument("--users", type=Path, metavar="FILE", help=told)
    told = "NATS: sign accepted tasks with this private key (PEM, from `enfold prov keygen`)"
    parser.add_argument("--order-key", type=Path, metavar="FILE", help=told)


def _key(path: Path, kind: Literal["Ed25519PrivateKey", "Ed25519PublicKey"]) -> Any:
    from enfold.provenance.integrity import read_key

    try:
        return read_key(path, kind)
    except RuntimeError as error:  # cryptography is not installed
        raise CallError("UNAVAILABLE", str(error)) from None
    except (OSError, ValueError, TypeError) as error:
        raise CallError("VALIDATION_ERROR", f"Cannot sign or verify task orders: {path}: {error}") from None


def add_recording_options(parser: ArgumentParser) -> None:
    parser.add_argument("--provenance", action="store_true", help="record provenance for callers that request it")
    parser.add_argument("--record", choices=["mutations", "all"], help="always record these calls")
    parser.add_argument("--store", metavar="FILE", help="store provenance records in this SQLite file")
    parser.add_argument("--key", metavar="FILE", help="sign provenance records with this private key (PEM)")


def recorder_of(options: Namespace) -> Recorder | None:
    """Return the recorder of a server from options and configuration; None if nothing is recorded."""
    config = config_of(options.target)
    record = options.record or (None if config is None else config.record)
    if not options.provenance and record is None:
        return None
    named = {"--store": options.store, "--key": options.key}
    recorder = make_recorder({name: value for name, value in named.items() if value is not None})
    if record is not None:
        recorder.record = record
    if not options.provenance:
        recorder.modes = frozenset()
    return recorder


def make_recorder(options: Mapping[str, str]) -> Recorder:
    """Create the recorder that `--store` and `--key` describe."""
    from enfold.provenance import Recorder, RecordStore, load_key

    try:
        store = RecordStore(Path(options["--store"])) if "--store" in options else None
        key = load_key(Path(options["--key"])) if "--key" in options else None
    except (OSError, ValueError) as error:
        raise CallError("VALIDATION_ERROR", f"Provenance cannot be recorded: {error}") from None
    return Recorder(store=store, key=key)
