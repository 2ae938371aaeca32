"""The data section: which files, which rows of them, and what their columns mean."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from shared.config.section import Fraction, PositiveInt, Section

ColumnName = Annotated[str, Field(min_length=1)] | None


class ColumnsSection(Section):
    """Names of columns where they differ from the usual ones; None is the field's own name.

    Naming one of prompt, messages, conversations and instruction makes rows of that shape.
    """

    prompt: ColumnName = None
    response: ColumnName = None
    messages: ColumnName = None
    conversations: ColumnName = None
    instruction: ColumnName = None
    input: ColumnName = None
    output: ColumnName = None
    system: ColumnName = None
    tools: ColumnName = None
    id: ColumnName = None
    kind: ColumnName = None


class DataSection(Section):
    """Where prompts, or finished samples, come from."""

    prompts: str | None = Field(
        None,
        description="File, folder or glob of prompts or conversations, local or s3://, or "
        "'builtin:tiny'",
    )
    format: Literal["auto", "jsonl", "json", "parquet", "arrow", "datasets"] = Field(
        "auto", description="auto: by content"
    )
    shape: Literal["auto", "prompt", "messages", "sharegpt", "alpaca"] = Field(
        "auto", description="auto: by the columns of each row"
    )
    columns: ColumnsSection = ColumnsSection()
    num_prompts: PositiveInt | None = Field(None, description="Use only the first N prompts")
    dataset: str | None = Field(None, description="Folder of Arrow shards of an earlier run")
    held_out_share: Fraction = 0.05
    max_held_out: int = Field(64, ge=0)
    bad_rows: Literal["stop", "quarantine"] = "stop"
