"""Raw rows from files: formats, packings, places; local or in an object store."""

from __future__ import annotations

from services.data.raw.locations import open_location
from services.data.raw.places import Place, RawRow, Unreadable
from services.data.raw.reader import iter_raw_rows

__all__ = ["Place", "RawRow", "Unreadable", "iter_raw_rows", "open_location"]
