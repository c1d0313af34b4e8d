"""The middleware around the handler of an operation, one per file. `enfold.runtime.prepared` has their order.

User middleware has the same interface. None of these depends on a surface, a source or the registry.
"""
