"""Worker processes: a folder per role, and `runtime`, which every role runs inside.

A role is started as `python -m workers.<role> --url URL --run RUN --rank N --incarnation HEX`. It
imports `shared`, `services` and `workers.runtime`, and never another role.
"""
