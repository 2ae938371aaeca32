"""Where exports may go: under the allowed roots, and never over the control plane's own files."""

from __future__ import annotations

from control_plane.settings import Settings
from control_plane.store.tables import Run
from services.object_stores import FileUrl, check_credentials, ensure_allowed, parse_store_url
from shared.errors import EnvironmentFault, FieldError, ForbiddenPathError, UserError


def export_destination(settings: Settings, run: Run, given: str | None) -> str:
    """The resolved address of an export: the one given, the run's archive, or a folder of its
    own under DATA/exports. Raises UserError or ForbiddenPathError."""
    configured = run.config.get("archive", {}).get("destination")
    return checked_destination(
        settings, given or configured or str(FileUrl(settings.data / "exports" / run.id))
    )


def writable_destination(settings: Settings, url: str) -> str:
    """`checked_destination`, and the credentials that it needs are here. Blocks.

    Raises UserError when an object store is named and there are none.
    """
    checked = checked_destination(settings, url)
    try:
        check_credentials(checked)
    except EnvironmentFault as error:
        raise UserError(
            error.detail, errors=[FieldError("destination", "credentials or endpoint missing")]
        ) from error
    return checked


def checked_destination(settings: Settings, url: str) -> str:
    """`url` in its canonical form, with symbolic links resolved, if files may be written there."""
    parsed = parse_store_url(url)
    if not isinstance(parsed, FileUrl):
        return str(parsed)
    ensure_allowed(url, settings.allowed_roots)
    path = parsed.path.resolve()
    data = settings.data.resolve()
    own = (data / "runs", data / "backups")
    if path == data or any(path.is_relative_to(folder) for folder in own):
        raise ForbiddenPathError(
            f"{path} is where the control plane keeps its own files; choose a folder such as "
            f"{data / 'exports'}",
            errors=[FieldError("destination", "inside the control plane's own folders")],
        )
    if path.exists() and not path.is_dir():
        raise UserError(
            f"{path} is a file; give a folder",
            errors=[FieldError("destination", "a file, not a folder")],
        )
    return str(FileUrl(path))
