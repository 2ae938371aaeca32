"""Cursor paging: `limit` and an opaque `cursor` -> `items`, `next_cursor`.

A cursor is the sort key of the last item seen, so a page never repeats or skips an item because
others came or went. It is opaque to callers; one that was not made here is refused.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
from typing import Annotated

from fastapi import Query

from shared.errors import FieldError, UserError

LimitParam = Annotated[int, Query(ge=1, le=500, description="Items of a page")]
CursorParam = Annotated[
    str | None, Query(max_length=500, description="`next_cursor` of the page before")
]


def make_cursor(created_at: float, item_id: str) -> str:
    text = json.dumps([created_at, item_id], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def read_cursor(cursor: str | None) -> tuple[float, str] | None:
    """(time, id) of the last item of the page before; UserError for a cursor that is none."""
    if cursor is None:
        return None
    try:
        data = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        created_at, item_id = json.loads(data)
        if not isinstance(item_id, str) or "\0" in item_id:
            raise ValueError
        number = float(created_at)
        if not math.isfinite(number):
            raise ValueError
        item_id.encode()
    except (ValueError, TypeError, OverflowError, RecursionError, binascii.Error):
        raise UserError(
            "the cursor was not made by this control plane; start again without one",
            errors=[FieldError("query.cursor", "not a cursor")],
        ) from None
    return number, item_id
