"""Servers that generate: one interface, two kinds, a pool of them, and starting SGLang's.

pool.generate -> least loaded server -> sglang.generate: POST /generate (ids in, ids out)
                                     -> openai.generate: POST /v1/completions, ids or text
fleet.run -> launch.ServerProcess -> keeper (dies with its parent) -> sglang.launch_server
"""

from services.servers.base import (
    CallRefused,
    Chat,
    GenerationServer,
    NotServed,
    PromptRefused,
    ServerFigures,
    ServersGone,
    ServerUnavailable,
)
from services.servers.fleet import ServerFleet
from services.servers.openai import OpenaiServer
from services.servers.pool import ServerPool
from services.servers.sglang import SglangServer

__all__ = [
    "CallRefused",
    "Chat",
    "GenerationServer",
    "NotServed",
    "OpenaiServer",
    "PromptRefused",
    "ServerFigures",
    "ServerFleet",
    "ServerPool",
    "ServerUnavailable",
    "ServersGone",
    "SglangServer",
]
