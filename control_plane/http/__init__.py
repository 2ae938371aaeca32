"""What every HTTP call passes through, and what the routes share.

request -> envelope (request id, last resort for errors) -> access (host, origin, token)
        -> body (size, strict JSON) -> idempotency (POST) -> routes
any error on the way -> problems (application/problem+json)
"""
