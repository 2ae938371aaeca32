"""Alembic's environment: migrations run on the connection that the caller hands over."""

from alembic import context
from sqlmodel import SQLModel

from control_plane.store import tables

assert tables.Run.metadata is SQLModel.metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=SQLModel.metadata,
    render_as_batch=True,
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
