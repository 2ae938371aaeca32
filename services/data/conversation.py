"""The one checked form of a conversation, its parts, and its content hash.

    turns as a file has them -> checked_messages -> messages        tools -> checked_tools

A message has `role` and `content` (text, '' where there is none), and where the file says so
`reasoning_content`, `tool_calls` (arguments as an object, as chat templates want them),
`tool_call_id` and `name`; nothing else. Everything raises DataError that names the field.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from shared.errors import DataError

Message = dict[str, Any]
ROLES = ("system", "user", "assistant", "tool")
_SAME_ROLE = {"developer": "system", "function": "tool"}
_SPEAKING = ("user", "assistant")
_PLAIN = frozenset({"role", "content"})


def conversation_sha256(
    messages: Iterable[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
) -> str:
    """Hex digest of a conversation's content: turns and tools, nothing else of the row.

    The hash of turns that are only role and content is that of [[role, content], ...]; what else a
    turn has follows as a third entry, and tools make an object of the whole.
    """
    turns: list[list[Any]] = []
    for message in messages:
        turn = [message["role"], message["content"]]
        if message.keys() != _PLAIN:
            turn.append({key: message[key] for key in message if key not in _PLAIN})
        turns.append(turn)
    content = {"messages": turns, "tools": tools} if tools else turns
    return hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()


def checked_messages(turns: Any, field: str) -> list[Message]:
    """Turns with `role` and `content`, checked one by one."""
    if isinstance(turns, str) and turns.lstrip().startswith("["):
        turns = parsed_json(turns, f"'{field}'")
    if not isinstance(turns, list) or not turns:
        raise DataError(f"'{field}' must be a list with at least one message")
    return [checked_message(turn, f"{field}[{at}]") for at, turn in enumerate(turns)]


def checked_message(turn: Any, where: str) -> Message:
    """One turn as a message."""
    if not isinstance(turn, dict):
        raise DataError(f"{where} must be an object with 'role' and 'content'")
    given, said = turn.get("role"), turn.get("content")
    if len(turn) == 2 and given in _SPEAKING and isinstance(said, str) and _plain_text(said):
        return dict(turn)  # nearly all turns are like this one, and nothing is left to check
    role = _SAME_ROLE.get(given, given) if isinstance(given, str) else given
    if role not in ROLES:
        raise DataError(f"{where}.role is {given!r}; use one of {', '.join(ROLES)}")
    tool_calls = _tool_calls(turn, where) if role == "assistant" else []
    content = _text(turn.get("content"), f"{where}.content", may_be_absent=bool(tool_calls))
    if role == "user" and (not content or content.isspace()):
        raise DataError(f"{where}.content is empty")
    message: Message = {"role": role, "content": content}
    if len(turn) == 2:
        return message
    if role == "assistant":
        reasoning = turn.get("reasoning_content") or turn.get("reasoning")
        if reasoning:
            message["reasoning_content"] = _text(reasoning, f"{where}.reasoning_content")
        if tool_calls:
            message["tool_calls"] = tool_calls
    for key in ("tool_call_id", "name"):
        if turn.get(key) is not None:
            message[key] = _text(turn[key], f"{where}.{key}")
    return message


def checked_tools(tools: Any, field: str) -> list[dict[str, Any]] | None:
    """Tools as OpenAI describes them: {"type": "function", "function": {"name", ...}}."""
    if isinstance(tools, str):
        tools = parsed_json(tools, f"'{field}'") if tools.strip() else None
    if tools is None or tools == []:
        return None
    if not isinstance(tools, list):
        raise DataError(f"'{field}' must be a list of tools, this one is {kind_of(tools)}")
    return [_tool(tool, f"{field}[{at}]") for at, tool in enumerate(tools)]


def encodable(text: str, where: str) -> str:
    """`text`, unless it cannot be written as UTF-8."""
    if not text.isascii():
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise DataError(f"{where} holds half of a surrogate pair, which is not text") from None
    return text


def parsed_json(text: str, where: str) -> Any:
    """The value of a text that holds JSON, as tables often keep nested values."""
    try:
        return json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"{where} is text that is not JSON ({error})") from None


def kind_of(value: Any) -> str:
    """What to call a JSON value in a message to a person."""
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false"}
    names |= {int: "a number", float: "a number", type(None): "null"}
    return names.get(type(value), type(value).__name__)


def _plain_text(text: str) -> bool:
    return text.isascii() and bool(text) and not text.isspace()


def _text(value: Any, where: str, *, may_be_absent: bool = False) -> str:
    """Text, or the text parts of a list of content parts, one below the other."""
    if isinstance(value, str):
        return encodable(value, where)
    if value is None and may_be_absent:
        return ""
    if isinstance(value, list) and all(isinstance(part, dict) for part in value):
        texts: list[str] = []
        for at, part in enumerate(value):
            if part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise DataError(
                    f"{where}[{at}] is a part of type {part.get('type')!r}; only text can be read"
                )
            texts.append(encodable(part["text"], f"{where}[{at}].text"))
        return "\n".join(texts)
    raise DataError(f"{where} must be text, this one is {kind_of(value)}")


def _tool_calls(turn: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    calls = turn.get("tool_calls")
    if isinstance(calls, str):
        calls = parsed_json(calls, f"{where}.tool_calls") if calls.strip() else None
    if not calls and turn.get("function_call"):
        calls = [{"function": turn["function_call"]}]
    if not calls:
        return []
    if not isinstance(calls, list):
        raise DataError(f"{where}.tool_calls must be a list, this one is {kind_of(calls)}")
    return [tool_call(call, f"{where}.tool_calls[{at}]") for at, call in enumerate(calls)]


def tool_call(call: Any, where: str) -> dict[str, Any]:
    """One call, with or without the envelope {"type": "function", "function": ...}."""
    inner = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
        raise DataError(f"{where} must be an object with function.name and function.arguments")
    arguments = inner.get("arguments")
    if isinstance(arguments, str):
        arguments = parsed_json(arguments or "{}", f"{where}.function.arguments")
    arguments = {} if arguments is None else arguments
    if not isinstance(arguments, dict):
        raise DataError(
            f"{where}.function.arguments must be an object, these are {kind_of(arguments)}"
        )
    checked: dict[str, Any] = {} if call.get("id") is None else {"id": str(call["id"])}
    checked["type"] = "function"
    checked["function"] = {"name": inner["name"], "arguments": arguments}
    _ensure_json(checked, where)
    return checked


def _tool(tool: Any, where: str) -> dict[str, Any]:
    inner = tool.get("function", tool) if isinstance(tool, dict) else None
    if not isinstance(inner, dict) or not isinstance(inner.get("name"), str):
        raise DataError(f"{where} must be an object with function.name")
    _ensure_json(inner, where)
    return {"type": "function", "function": dict(inner)}


def _ensure_json(value: Any, where: str) -> None:
    """Hash and template need JSON, and tables may hold other values."""
    try:
        orjson.dumps(value)
    except TypeError as error:
        raise DataError(f"{where} holds what JSON cannot: {error}") from None
