"""The tables of version 0.1."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "idempotency_keys",
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("fingerprint", sa.String(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("headers", sa.JSON(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("key"),
    )
    op.create_table(
        "runs",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("stage", sa.String(), nullable=True),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=True),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("updated_at", sa.Float(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("config_sha256", sa.String(), nullable=False),
        sa.Column("progress", sa.JSON(), nullable=False),
        sa.Column("throughput", sa.JSON(), nullable=False),
        sa.Column("queues", sa.JSON(), nullable=False),
        sa.Column("loss", sa.Float(), nullable=True),
        sa.Column("accuracy", sa.Float(), nullable=True),
        sa.Column("acceptance_length", sa.Float(), nullable=True),
        sa.Column("bottleneck", sa.String(), nullable=True),
        sa.Column("eta_s", sa.Float(), nullable=True),
        sa.Column("overrides", sa.JSON(), nullable=False),
        sa.Column("gate_report", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("stop_mode", sa.String(), nullable=True),
        sa.Column("drain_started_at", sa.Float(), nullable=True),
        sa.Column("resume_on_start", sa.Boolean(), nullable=False),
        sa.Column("deleting", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_runs_created", "runs", ["created_at", "id"], unique=False)
    op.create_index("ix_runs_state", "runs", ["state"], unique=False)

    op.create_table(
        "checkpoints",
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("next_micro_batch_id", sa.Integer(), nullable=False),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("loss", sa.Float(), nullable=True),
        sa.Column("num_bytes", sa.Integer(), nullable=False),
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("removed_at", sa.Float(), nullable=True),
        sa.Column("acceptance_length", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "step"),
    )
    op.create_table(
        "evaluations",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("checkpoint_step", sa.Integer(), nullable=True),
        sa.Column("num_prompts", sa.Integer(), nullable=True),
        sa.Column("final", sa.Boolean(), nullable=False),
        sa.Column("result", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("problem", sa.String(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=True),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_evaluations_run", "evaluations", ["run_id", "created_at"], unique=False)

    op.create_table(
        "events",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_events_run", "events", ["run_id", "id"], unique=False)

    op.create_table(
        "exports",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("destination", sa.String(), nullable=False),
        sa.Column("checkpoints", sa.JSON(), nullable=False),
        sa.Column("include", sa.JSON(), nullable=False),
        sa.Column("verify_only", sa.Boolean(), nullable=False),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("files_total", sa.Integer(), nullable=False),
        sa.Column("files_done", sa.Integer(), nullable=False),
        sa.Column("bytes_total", sa.Integer(), nullable=False),
        sa.Column("bytes_done", sa.Integer(), nullable=False),
        sa.Column("manifest_sha256", sa.String(), nullable=True),
        sa.Column("conflicts", sa.JSON(), nullable=False),
        sa.Column("problems", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=True),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_exports_run", "exports", ["run_id", "created_at"], unique=False)

    op.create_table(
        "points",
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("t", sa.Float(), nullable=False),
        sa.Column("value", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "name", "step"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "segments",
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("index", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("num_samples", sa.Integer(), nullable=False),
        sa.Column("num_tokens", sa.Integer(), nullable=False),
        sa.Column("num_supervised_tokens", sa.Integer(), nullable=False),
        sa.Column("sha256", sa.String(), nullable=False),
        sa.Column("path", sa.String(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "index"),
    )
    op.create_table(
        "workers",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("run_id", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("incarnation", sa.String(), nullable=False),
        sa.Column("job_id", sa.String(), nullable=True),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=True),
        sa.Column("pid_birth", sa.String(), nullable=True),
        sa.Column("device", sa.String(), nullable=False),
        sa.Column("launched", sa.Boolean(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("desired", sa.String(), nullable=False),
        sa.Column("launched_at", sa.Float(), nullable=False),
        sa.Column("registered_at", sa.Float(), nullable=True),
        sa.Column("heartbeat_at", sa.Float(), nullable=True),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("end_reason", sa.String(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("restarts", sa.Integer(), nullable=False),
        sa.Column("heartbeat_seq", sa.Integer(), nullable=False),
        sa.Column("acked_events", sa.Integer(), nullable=False),
        sa.Column("endpoints", sa.JSON(), nullable=False),
        sa.Column("progress", sa.JSON(), nullable=False),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("queues", sa.JSON(), nullable=False),
        sa.Column("waits_for", sa.String(), nullable=True),
        sa.Column("last_error", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(["run_id"], ["runs.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_workers_launched", "workers", ["launched_at", "id"], unique=False)
    op.create_index(
        "ix_workers_slot", "workers", ["run_id", "role", "rank", "job_id"], unique=False
    )
    op.create_index(
        "ux_workers_incarnation", "workers", ["run_id", "role", "rank", "incarnation"], unique=True
    )


def downgrade() -> None:
    op.drop_index("ux_workers_incarnation", "workers")
    op.drop_index("ix_workers_slot", "workers")
    op.drop_index("ix_workers_launched", "workers")

    op.drop_table("workers")
    op.drop_table("segments")
    op.drop_table("points")
    op.drop_index("ix_exports_run", "exports")

    op.drop_table("exports")
    op.drop_index("ix_events_run", "events")

    op.drop_table("events")
    op.drop_index("ix_evaluations_run", "evaluations")

    op.drop_table("evaluations")
    op.drop_table("checkpoints")
    op.drop_index("ix_runs_state", "runs")
    op.drop_index("ix_runs_created", "runs")

    op.drop_table("runs")
    op.drop_table("idempotency_keys")
