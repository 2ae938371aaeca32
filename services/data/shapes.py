"""What a row means: its shape, found from its columns, and its conversation.

    prompt        {"prompt": text, "response": text?}
    messages      {"messages": [{"role", "content", ...}]}
    sharegpt      {"conversations": [{"from", "value"}]}
    alpaca        {"instruction": text, "input": text?, "output": text?}

Each may have `system` and `tools` beside it. A row becomes what is to be answered, which ends with
a user turn or a tool's result, and `answers`: the assistant's turns behind that, which the row has
already. Everything raises DataError that names the field and, where it helps, the setting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from services.data.conversation import (
    Message,
    checked_message,
    checked_messages,
    checked_tools,
    encodable,
    kind_of,
    parsed_json,
    tool_call,
)
from shared.config.data import ColumnsSection
from shared.errors import DataError

Tree = Mapping[str, Any]
_SPEAKERS = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "model": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
    "function": "tool",
    "function_response": "tool",
    "observation": "tool",
}
_MAIN = {
    "prompt": "prompt",
    "messages": "messages",
    "sharegpt": "conversations",
    "alpaca": "instruction",
}
_SHOWN_COLUMNS = 12


@dataclass(frozen=True, slots=True)
class Conversation:
    """`messages` ends with a user turn or a tool's result; `answers` follows it in the row."""

    messages: list[Message]
    answers: list[Message]
    tools: list[dict[str, Any]] | None


class RowShapes:
    """How rows are understood: `shape` as in data.shape, `columns` as in data.columns."""

    def __init__(self, shape: str = "auto", columns: ColumnsSection | None = None) -> None:
        given = (columns or ColumnsSection()).model_dump()
        self._name = {field: name or field for field, name in given.items()}
        mapped = {shape: main for shape, main in _MAIN.items() if given[main] is not None}
        if shape != "auto":
            self._main = {shape: _MAIN[shape]}
        else:
            # Who names the column of a shape wants that shape, whatever else the rows have.
            self._main = mapped or _MAIN
        self._read: dict[str, Callable[[Tree], list[Message]]] = {
            "prompt": self._prompt,
            "messages": self._messages,
            "sharegpt": self._sharegpt,
            "alpaca": self._alpaca,
        }
        self.known = frozenset(self._name.values())

    def column(self, row: Tree, field: str) -> Any:
        """The row's value for a field of data.columns, None when it has none."""
        return row.get(self._name[field])

    def conversation(self, row: Tree) -> Conversation:
        """The row's conversation, checked."""
        messages = self._read[self._shape_of(row)](row)
        self._put_system(row, messages)
        end = len(messages)
        while end and messages[end - 1]["role"] == "assistant":
            end -= 1
        if not end or messages[end - 1]["role"] == "system":
            raise DataError("has no user turn that an answer could follow")
        tools = self.column(row, "tools")
        return Conversation(
            messages[:end],
            messages[end:],
            None if tools is None else checked_tools(tools, self._name["tools"]),
        )

    def _shape_of(self, row: Tree) -> str:
        found = [
            shape for shape, main in self._main.items() if row.get(self._name[main]) is not None
        ]
        if len(found) == 1:
            return found[0]
        if found:
            names = " and ".join(repr(self._name[self._main[shape]]) for shape in found)
            raise DataError(f"has both {names}; give one of them, or choose with data.shape")
        names = " nor ".join(repr(self._name[main]) for main in self._main.values())
        has = ", ".join(map(repr, list(row)[:_SHOWN_COLUMNS])) or "none"
        raise DataError(
            f"has {'neither ' if len(self._main) > 1 else 'no '}{names}; its columns are {has} "
            "(data.columns says which of them to read)"
        )

    def _prompt(self, row: Tree) -> list[Message]:
        return [
            self._user(self._required(row, "prompt"), "prompt"),
            *self._answer(row, "response"),
        ]

    def _alpaca(self, row: Tree) -> list[Message]:
        instruction = self._required(row, "instruction")
        extra = self._optional(row, "input")
        text = f"{instruction}\n\n{extra}" if extra.strip() else instruction
        return [self._user(text, "instruction"), *self._answer(row, "output")]

    def _messages(self, row: Tree) -> list[Message]:
        return checked_messages(self.column(row, "messages"), self._name["messages"])

    def _sharegpt(self, row: Tree) -> list[Message]:
        name = self._name["conversations"]
        turns = self.column(row, "conversations")
        if isinstance(turns, str) and turns.lstrip().startswith("["):
            turns = parsed_json(turns, f"'{name}'")
        if not isinstance(turns, list) or not turns:
            raise DataError(f"'{name}' must be a list with at least one turn")
        return [_sharegpt_turn(turn, f"{name}[{at}]") for at, turn in enumerate(turns)]

    def _put_system(self, row: Tree, messages: list[Message]) -> None:
        system = self._optional(row, "system")
        if not system.strip():
            return
        if messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": system})
        elif messages[0]["content"] != system:
            raise DataError(
                f"has a system turn and another text in '{self._name['system']}'; keep one of them"
            )

    def _user(self, text: str, field: str) -> Message:
        if not text or text.isspace():
            raise DataError(f"'{self._name[field]}' is empty")
        return {"role": "user", "content": text}

    def _answer(self, row: Tree, field: str) -> list[Message]:
        text = self._optional(row, field)
        return [{"role": "assistant", "content": text}] if text else []

    def _required(self, row: Tree, field: str) -> str:
        value, name = self.column(row, field), self._name[field]
        if not isinstance(value, str):
            raise DataError(f"'{name}' must be text, this one is {kind_of(value)}")
        return encodable(value, f"'{name}'")

    def _optional(self, row: Tree, field: str) -> str:
        return "" if self.column(row, field) is None else self._required(row, field)


def _sharegpt_turn(turn: Any, where: str) -> Message:
    if not isinstance(turn, dict):
        raise DataError(f"{where} must be an object with 'from' and 'value'")
    if "from" not in turn and "role" in turn:
        return checked_message(turn, where)
    speaker, value = turn.get("from"), turn.get("value")
    if speaker == "function_call":
        call = parsed_json(value, f"{where}.value") if isinstance(value, str) else value
        calls = call if isinstance(call, list) else [call]
        made = [tool_call(one, f"{where}.value") for one in calls]
        return {"role": "assistant", "content": "", "tool_calls": made}
    role = _SPEAKERS.get(speaker) if isinstance(speaker, str) else None
    if role is None:
        known = ", ".join([*_SPEAKERS, "function_call"])
        raise DataError(f"{where}.from is {speaker!r}; use one of {known}")
    if not isinstance(value, str):
        raise DataError(f"{where}.value must be text, this one is {kind_of(value)}")
    if role == "user" and (not value or value.isspace()):
        raise DataError(f"{where}.value is empty")
    return {"role": role, "content": encodable(value, f"{where}.value")}
