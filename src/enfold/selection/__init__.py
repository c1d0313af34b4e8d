"""Only what is asked for: a selection such as `items(id,user/login),total`, read, applied to results, and to their schemas.

`defaults` is what listings ask; `grammar`, `values`, `narrowing` and `selecting` are loaded with the first selection.
"""
