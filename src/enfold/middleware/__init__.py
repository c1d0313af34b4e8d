"""What stands around the handler of an operation: one middleware per file. `enfold.runtime.stack` has their order.

User middleware has the same shape. None of these knows a surface, a source or the registry.
"""
