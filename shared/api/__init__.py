"""The HTTP contract (v1) as pydantic models, shared by control plane, workers, command line.

`runs` and `exports` are what people see, `workers` is the registry protocol, `events` are the
facts that workers report, `plan` is the forecast, `problems` the error body (RFC 9457).
"""
