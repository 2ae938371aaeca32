"""The control plane's HTTP interface, seen from workers."""

from services.control_plane.client import ControlPlaneClient
from services.control_plane.problems import error_from_response

__all__ = ["ControlPlaneClient", "error_from_response"]
