"""Functions as a source: from a module, a file, a folder or an entry point. Finding them only imports modules."""

from __future__ import annotations

import os.path
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from enfold.operations import INHERIT, Operation, OperationType, Policy, function_name, operation_from_function
from enfold.runtime.registry import OperationRegistry, Registry

if TYPE_CHECKING:
    from pathlib import Path

    from enfold.sources.options import Filter
    from enfold.sources.reports import ImportReport

# Imports inside functions: a program with a registry is loaded without what finds functions, reports, and `pathlib`.

__all__ = ["FoundOperations", "TargetError", "from_functions", "load_target", "scan"]


class TargetError(LookupError):
    """A target that cannot be loaded or served; the message says why."""


def from_functions(
    *targets: Callable[..., Any] | ModuleType | str,
    namespace: str = "",
    type: OperationType | str | None = None,
    include: Filter | None = None,
    exclude: Filter | None = None,
    rename: Mapping[str, str] | None = None,
    policy: Policy = INHERIT,
    **fields: Any,
) -> FoundOperations:
    """Turn functions, the public functions of modules, or `package.module:name` into operations.

    Args:
        targets: Functions, modules, or import paths such as `package.module:name`.
        namespace: The namespace of the operations.
        type: `query`, `mutation` or `subscription`; by default guessed from each function.
        include: Patterns of names (`get_*`), or a function of the spec that says whether to keep it.
        exclude: The same, for operations to leave out.
        rename: New names by function name.
        policy: Policies of these operations.
        fields: Fields of every spec, such as `tags`.
    """
    from enfold.sources.options import Selection

    selection = Selection(include, exclude, rename or {})
    found: list[Operation] = []
    for target in targets:
        for own, function in _functions_of(target):
            name = selection.name(own)
            known_as = (own, name, f"{namespace}.{own}", f"{namespace}.{name}")
            # What the patterns leave out need not be fit to be an operation.
            if selection.may_take(known_as):
                made = operation_from_function(
                    function, namespace=namespace, name=name, type=type, policy=policy, **fields
                )
                found += [made] if selection.approves(made.spec) else []
    return FoundOperations(found)


class FoundOperations(list[Operation]):
    """A list of operations, and the report of how they were found."""

    def __init__(self, operations: Iterable[Operation] = (), registries: Iterable[Registry] = ()) -> None:
        """`registries` are those that the operations come from; they start and stop with the registry that takes them."""
        super().__init__(operations)
        self.registries = list(registries)

    @property
    def report(self) -> ImportReport:
        """The ids of the operations. A function that cannot be an operation raises when it is found."""
        from enfold.sources.reports import ImportReport

        return ImportReport(operation.spec.id for operation in self)


def scan(folder: str | Path, *, namespace: str = "", **options: Any) -> FoundOperations:
    """Find the operations of every Python file in a folder; each namespace is the file's name.

    Files and folders that begin with `_` or `.` are skipped; operations of a registry in a file are imported
    unchanged. `options` are those of `from_functions`.
    """
    from pathlib import Path

    root = Path(folder)
    if not root.is_dir():
        raise TargetError(f"{folder} is not a folder")
    shown = [path.relative_to(root) for path in sorted(root.rglob("*.py"))]
    files = [path for path in shown if not any(part.startswith(("_", ".")) for part in path.parts)]
    found = [_scan_file(root, path, namespace, options) for path in files]
    registries = [registry for each in found for registry in each.registries]
    return FoundOperations((operation for each in found for operation in each), registries)


def _scan_file(root: Path, path: Path, namespace: str, options: Mapping[str, Any]) -> FoundOperations:
    module = load_file(str(root / path))
    registries = [value for value in vars(module).values() if isinstance(value, Registry)]
    if registries:
        return FoundOperations((operation for registry in registries for operation in registry), registries)
    parts = [part for part in (namespace, *path.with_suffix("").parts) if part]
    return from_functions(module, namespace=".".join(parts), **options)


def load_target(target: str) -> Registry:
    """Load the registry of a target: `app.py`, `app.py:ops`, `package.module` or `package.module:ops`."""
    place, name = _split_target(target)
    module = _load(place)
    if name:
        return _as_registry(_attribute(module, name, target), target)
    registries = [value for value in vars(module).values() if isinstance(value, Registry)]
    if len(registries) == 1:
        return registries[0]
    if registries:
        names = ", ".join(key for key, value in vars(module).items() if isinstance(value, Registry))
        raise TargetError(
            f"{target} has several registries: name one of {names}, as in {target}:{names.split(', ')[0]}"
        )
    return _as_registry(module, target)


def load_object(target: str) -> Any:
    """Load the object of a target: `module:name` or `file.py:name`."""
    place, name = _split_target(target)
    if not name:
        raise TargetError(f"{target} must name an object of a program, as in app.py:name or module:name")
    return _attribute(_imported(place) or _load(place), name, target)


def _imported(place: str) -> ModuleType | None:
    """Return the module of a file that a program has imported under a name of its own."""
    path = os.path.realpath(place)
    own = {id(module) for _, module in _loaded.values()}
    modules = (each for each in list(sys.modules.values()) if getattr(each, "__file__", None) == path)
    return next((each for each in modules if id(each) not in own), None)


def _load(place: str) -> ModuleType:
    return load_file(place) if place.endswith(".py") else _import(place)


def load_file(path: str) -> ModuleType:
    """Import a file as a program would be: its folder comes first on the path, so that it finds its neighbours.

    A file that has not changed since is not run again: everything that names it gets the same module.
    """
    from importlib.util import module_from_spec, spec_from_file_location

    if not os.path.isfile(path):
        raise TargetError(f"There is no file {path}")
    place, found = os.path.realpath(path), os.stat(path)
    version = found.st_mtime_ns, found.st_size, found.st_ino
    before, module = _loaded.get(place, (None, None))
    if module is not None and before == version:
        return module
    folder = os.path.dirname(place)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    name = _new_name(path) if module is None else module.__name__
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"{path} is not a Python file")
    replaced, module = sys.modules.get(name), module_from_spec(spec)
    sys.modules[name] = module  # before it runs: type hints and dataclasses look their module up there
    try:
        if before is None:
            spec.loader.exec_module(module)
        else:
            _run_source(path, module)
    except BaseException:
        del sys.modules[name]
        if replaced is not None:
            sys.modules[name] = replaced
        raise
    _loaded[place] = version, module
    return module


def _run_source(path: str, module: ModuleType) -> None:
    """Run a file that has changed. Python takes its stored bytecode for current if size and second are the same."""
    from importlib.util import decode_source

    with open(path, "rb") as file:
        code = compile(decode_source(file.read()), path, "exec", dont_inherit=True)
    exec(code, vars(module))  # noqa: S102  # it is the program that we serve


_loaded: Final[dict[str, tuple[tuple[int, int, int], ModuleType]]] = {}  # what has been run, by the real path


def _new_name(path: str) -> str:
    stem = os.path.basename(path).removesuffix(".py")
    return stem if stem.isidentifier() and stem not in sys.modules else f"enfold_target_{stem}"


def _split_target(target: str) -> tuple[str, str]:
    place, colon, name = target.rpartition(":")
    if not colon or (not place.endswith(".py") and not place.replace(".", "").isidentifier()):
        return target, ""
    return place, name


def _import(name: str) -> ModuleType:
    from importlib import import_module

    if not all(part.isidentifier() for part in name.split(".")):
        raise TargetError(_not_a_module(name))
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise TargetError(_not_a_module(name)) from error
        raise


def _not_a_module(name: str) -> str:
    if not name:
        return "The target is empty: name a Python file, as in app.py"
    if os.path.isdir(name):
        return f"{name} is a folder: name a Python file in it, as in {os.path.normpath(os.path.join(name, 'app.py'))}"
    if os.path.isfile(name):
        return f"{name} is neither a Python file nor a configuration"
    if os.path.isfile(f"{name}.py"):
        return f"There is no module {name}: did you mean the file {name}.py?"
    return f"There is no module {name}: the target comes first, as in app.py or package.module"


def _attribute(module: ModuleType, name: str, target: str) -> Any:
    value: Any = module
    for part in name.split("."):
        value = getattr(value, part, None)
        if value is None:
            raise TargetError(f"{target}: there is no {name} in {module.__name__}")
    return value


def _as_registry(value: Any, target: str) -> Registry:
    if isinstance(value, Registry):
        return value
    if not isinstance(value, ModuleType) and not _is_function(value):
        raise TargetError(
            f"{target} has no operations: it is an object of the class {type(value).__name__}. "
            "Name an OperationRegistry or a function, as in app.py:ops"
        )
    operations = from_functions(value)
    if not operations:
        raise TargetError(f"{target} has no operations: it needs an OperationRegistry or functions")
    registry = OperationRegistry()
    registry.module = vars(value if isinstance(value, ModuleType) else sys.modules[value.__module__])
    registry.register_all(operations)
    return registry


def _is_function(value: Any) -> bool:
    try:
        return callable(value) and bool(function_name(value))
    except TypeError:  # it has no name, like an ASGI app
        return False


def _functions_of(target: Callable[..., Any] | ModuleType | str) -> Iterator[tuple[str, Callable[..., Any]]]:
    if isinstance(target, str):
        place, name = _split_target(target)
        module = _load(place)
        target = _attribute(module, name, target) if name else module
    if isinstance(target, ModuleType):
        yield from _public_functions(target)
    else:
        yield function_name(target), target


def _public_functions(module: ModuleType) -> Iterator[tuple[str, FunctionType]]:
    """Return the public functions that the module itself defines; `__all__` decides if there is one."""
    listed = getattr(module, "__all__", None)
    for name, value in vars(module).items():
        if not isinstance(value, FunctionType):
            continue
        if name in listed if listed is not None else value.__module__ == module.__name__ and not name.startswith("_"):
            yield name, value
