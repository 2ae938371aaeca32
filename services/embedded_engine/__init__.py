"""The embedded generation engine: the target runs inside the generator's own process."""

from services.embedded_engine.engine import EmbeddedEngine

__all__ = ["EmbeddedEngine"]
