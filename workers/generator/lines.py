"""A line of the completions log: a completion as JSON that ends in a checksum of itself.

    {"seq": 7, ..., "problem_kind": null, "crc32": "9a3f00c1"}

The checksum is CRC-32 over the line's bytes before it, so a changed token is found although the
line is still valid JSON. Whoever only reads the log may ignore the field.
"""

from __future__ import annotations

import zlib

import msgspec

from shared.errors import IntegrityError
from shared.messages import Completion

_MARK = b',"crc32":"'
_TAIL_BYTES = len(_MARK) + len('00000000"}')
_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Completion)


def encode_line(completion: Completion) -> bytes:
    """The line without its newline."""
    payload = _encoder.encode(completion)[:-1]
    return b'%s%s%08x"}' % (payload, _MARK, zlib.crc32(payload))


def decode_line(line: bytes) -> Completion:
    """The reverse. IntegrityError says what is wrong with the line, not where it is."""
    payload, tail = line[:-_TAIL_BYTES], line[-_TAIL_BYTES:]
    if not tail.startswith(_MARK):
        raise IntegrityError("it does not end in a checksum")
    if tail != b'%s%08x"}' % (_MARK, zlib.crc32(payload)):
        raise IntegrityError("its checksum is another one")
    try:
        return _decoder.decode(payload + b"}")
    except msgspec.MsgspecError as error:
        raise IntegrityError(str(error)) from error
