"""Sign-in of the status page: the token once, a cookie from then on."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request, Response, status

from control_plane.http.documentation import problems
from control_plane.http.sessions import (
    COOKIE,
    LIFETIME_S,
    is_token,
    is_valid_session,
    make_session,
)
from control_plane.http.state import Mesh
from control_plane.routes.models import SessionRequest, SessionView
from shared.errors import AuthenticationError

router = APIRouter(prefix="/v1/session", tags=["session"])


@router.get("", summary="Whether a token is needed, and whether this browser is signed in")
async def get_session(request: Request, mesh: Mesh) -> SessionView:
    token = mesh.settings.token
    if token is None:
        return SessionView(required=False, signed_in=True)
    given = request.cookies.get(COOKIE, "")
    return SessionView(required=True, signed_in=is_valid_session(given, token, time.time()))


@router.post("", summary="Sign in with the token", openapi_extra=problems(401, 422))
async def sign_in(
    credentials: SessionRequest, request: Request, response: Response, mesh: Mesh
) -> SessionView:
    token = mesh.settings.token
    if token is None:
        return SessionView(required=False, signed_in=True)
    if not is_token(credentials.token, token):
        raise AuthenticationError("this is not the control plane's token")
    response.set_cookie(
        COOKIE,
        make_session(token, time.time()),
        max_age=LIFETIME_S,
        path="/",
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
    return SessionView(required=True, signed_in=True)


@router.delete("", status_code=status.HTTP_204_NO_CONTENT, summary="Sign out")
async def sign_out(response: Response) -> None:
    response.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
