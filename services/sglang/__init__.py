"""SGLang servers: the client of their native interface, a pool of them, and starting one.

pool.generate -> least loaded server -> client.generate -> POST /generate (ids in, ids out)
launch.SglangLauncher -> keeper (dies with its parent) -> python -m sglang.launch_server
"""

from services.sglang.client import CallRefused, PromptRefused, SglangClient
from services.sglang.launch import SglangLauncher
from services.sglang.pool import SglangPool

__all__ = ["CallRefused", "PromptRefused", "SglangClient", "SglangLauncher", "SglangPool"]
