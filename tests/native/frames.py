"""Frames for the kernels to disagree about: sends, batches and pulls in both wire forms, mostly right, often slightly wrong.

Everything is drawn from the `random.Random` that is handed in, so a seed is a whole history.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

LONG = dict(
    zip(
        "abcdefghijklmn",
        """producerGroup topic defaultTopic defaultTopicQueueNums queueId sysFlag bornTimestamp flag properties reconsumeTimes
        unitMode maxReconsumeTimes batch brokerName""".split(),
        strict=True,
    )
)
TOPICS = ["orders", "tea", "заказы", "t" * 127, "%RETRY%" + "g" * 140, "SCHEDULE_TOPIC_XXXX", "folded", "unknown", ""]
GROUPS = ["shop", "группа", "g😀", ""]
TAGS = ["TagA", "TagB", "чай", "t😀g", "x" * 70]
SPECIAL = """DELAY REAL_TOPIC REAL_QID TRAN_MSG RECONSUME_TIME MAX_RECONSUME_TIMES MSG_REGION TRACE_ON CLUSTER INNER_NUM INNER_BASE
POP_CK INNER_MULTI_DISPATCH INNER_MULTI_QUEUE_OFFSET TRAN_PREPARED_QUEUE_OFFSET TIMER_DELAY_SEC TIMER_DELAY_MS TIMER_DELIVER_MS
TIMER_OUT_MS TIMER_ENQUEUE_MS TIMER_DEQUEUE_MS TIMER_ROLL_TIMES TIMER_DEL_UNIQKEY TIMER_DELAY_LEVEL __CRC32# __BATCH# __HALF_MS#
__END#""".split()
ODD_NUMBERS = [
    *"""-1 -0 007 2147483647 2147483648 -2147483648 -2147483649 9999999999 10000000000 00000000001 +1 1.0 1e3 0x1 - --1
    999999999999999999 9999999999999999999 -999999999999999999 ١ 1_0 1793 4 8 16 32 64 256 257 1793 2048""".split(),
    "",
    " 1",
    "1 ",
    "1\x00",
    "1\n",
]
ODD_TEXT = [
    "",
    "\0",
    "a\0b",
    "\x7f",
    "é",
    "\u0800",
    "\uffff",
    "😀",
    '"',
    "\\",
    "/",
    "\b\f\n\r",
    "\t",
    "x" * 40,
    "\x01",
    "\x02",
    "a\x01b\x02",
]
LEXICAL = [
    "{",
    "}",
    '"',
    ":",
    ",",
    "\\",
    "\\u",
    "\\ud800",
    "\\udc00",
    "null",
    "true",
    "0",
    "[",
    "]",
    "\x00",
    "\x1f",
    "\x80",
    "\xff",
    "é",
    " ",
    "\n",
]


def properties(r: Random) -> str:
    pairs = []
    if r.random() < 0.95:
        key = f"7F000001{r.randrange(1 << 16):04X}18B4AAC2{r.randrange(1 << 48):012X}"
        pairs.append(
            ("UNIQ_KEY", key if r.random() < 0.95 else r.choice(["a b", 'q"', "\\", "é", "~ ", "k" * 300, "x\x01y"]))
        )
    if r.random() < 0.5:
        pairs.append(("TAGS", r.choice(TAGS)))
    if r.random() < 0.4:
        pairs.append(
            ("KEYS", " ".join(r.choice(["k1", "ключ", "k" * 33, "", "😀", "key-2"]) for _ in range(r.randrange(1, 5))))
        )
    if r.random() < 0.4:
        pairs.append(("WAIT", "true" if r.random() < 0.95 else r.choice(["false", "TRUE", ""])))
    if r.random() < 0.03:
        pairs.append((r.choice(SPECIAL), r.choice(["1", "3", "x"])))
    if r.random() < 0.05:
        pairs.append(
            (
                r.choice(
                    [
                        "a",
                        "é",
                        "user",
                        "UNIQ_KEY",
                        "TAGS",
                        "KEYS",
                        "WAIT",
                        "",
                        "x" * 50,
                        "DELAy",
                        "x__CRC32#",
                        "x__BATCH#",
                    ]
                ),
                r.choice(["v", "", "v\x01w", "\x01", "true", "0123456789", "__CRC32#\x010123456789"]),
            )
        )
    if r.random() < 0.003:
        pairs.append(("big", "x" * r.randrange(32000, 33500)))
    if r.random() < 0.01:
        pairs += [(f"n{number}", "v") for number in range(r.randrange(10, 20))]
    r.shuffle(pairs)
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs)
    if r.random() < 0.1:
        text = text[:-1]
    if r.random() < 0.02 and text:
        at = r.randrange(len(text))
        text = (
            text[:at]
            + r.choice(["\x01", "\x02", "\x01\x02", "\x02\x02", "\x02\x01", "é"])
            + text[at + r.randrange(2) :]
        )
    return text


def body(r: Random) -> bytes:
    kind = r.random()
    if kind < 0.03:
        return b""
    if kind < 0.9:
        return r.randbytes(r.randrange(1, 160))
    return r.randbytes(r.randrange(1, 5000))


def batch_body(r: Random) -> bytes:
    members = []
    for _ in range(r.choice([1, 1, 2, 3, 5, 9])):
        text = properties(r).encode()
        content = body(r) or b"x"
        members.append(
            struct.pack(">iiiii", 22 + len(content) + len(text), 0, 0, r.randrange(-5, 5), len(content))
            + content
            + struct.pack(">H", len(text) & 0xFFFF)
            + text
        )
    data = b"".join(members)
    if r.random() < 0.15:
        data = mutate(r, data)
    return data


def mutate(r: Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(r.choice([1, 1, 1, 2, 4])):
        if not changed:
            break
        at = r.randrange(len(changed))
        kind = r.randrange(5)
        if kind == 0:
            changed[at] = r.randrange(256)
        elif kind == 1:
            changed[at] ^= 1 << r.randrange(8)
        elif kind == 2:
            del changed[at : at + r.choice([1, 1, 2, 8])]
        elif kind == 3:
            changed[at:at] = (
                r.choice(LEXICAL).encode("latin-1", "replace") if r.random() < 0.7 else r.randbytes(r.randrange(1, 4))
            )
        else:
            changed[at:at] = changed[at : at + r.randrange(1, 12)]
    return bytes(changed)


# -- fields ------------------------------------------------------------------------------------------------------------


def send_fields(r: Random, code: int) -> list[tuple[str, str]]:
    fields = {
        "a": "producers", "b": r.choice(TOPICS[:5]) if r.random() < 0.9 else r.choice(TOPICS), "c": "TBW102", "d": "4",
        "e": str(r.choice([0, 0, 1, 2, 3, 7])), "f": r.choice(["0", "0", "0", "1", "1793", "769"]),
        "g": str(1_700_000_000_000 + r.randrange(10**6)), "h": str(r.choice([0, 0, 5, -7])), "i": properties(r),
    }  # fmt: skip
    for name, value in (
        ("j", "0"),
        ("k", "false"),
        ("l", "16"),
        ("m", "false"),
        ("n", "broker-a"),
        ("bname", "broker-a"),
        ("lo", "x"),
    ):
        if r.random() < 0.5:
            fields[name] = value
    if code == 320:
        fields["m"] = "true"
    if r.random() < 0.06:
        fields[r.choice("defghjl")] = r.choice(ODD_NUMBERS)
    if r.random() < 0.03:
        fields[r.choice("abcikmn")] = r.choice([*ODD_TEXT, "true", "false", "0", "1"])
    if r.random() < 0.02:
        del fields[r.choice(list(fields))]
    items = list(fields.items())
    if r.random() < 0.02:
        items.append(
            (
                r.choice(["a", "i", "e", "zz", "o", "ns", "nsd", "oway", "topic", "aa", ""]),
                r.choice(["1", "true", *ODD_TEXT]),
            )
        )
    if code == 10 and r.random() < 0.98:
        items = [(LONG.get(name, name), value) for name, value in items]
    return items


def pull_fields(r: Random, code: int) -> list[tuple[str, str]]:
    sys_flag = r.choice([0, 2, 3, 3, 6, 7]) | (16 if code == 361 else 0)
    fields = {
        "consumerGroup": r.choice(GROUPS[:2]) if r.random() < 0.9 else r.choice(GROUPS),
        "topic": r.choice(TOPICS[:5]) if r.random() < 0.9 else r.choice(TOPICS), "queueId": str(r.choice([0, 0, 1, 2, 3, 7])),
        "queueOffset": str(r.randrange(40) if r.random() < 0.9 else r.randrange(10**6)), "maxMsgNums": str(r.choice([1, 2, 32, 1000])),
        "sysFlag": str(sys_flag), "commitOffset": str(r.randrange(-1, 100)), "suspendTimeoutMillis": "15000",
        "subVersion": str(r.choice([0, 99, 100, 101])), "subscription": "*" if r.random() < 0.9 else "TagA",
    }  # fmt: skip
    for name, value in (
        ("expressionType", "TAG"),
        ("maxMsgBytes", "1000"),
        ("requestSource", "-1"),
        ("bname", "b"),
        ("ns", "n"),
    ):
        if r.random() < 0.4:
            fields[name] = value
    if r.random() < 0.06:
        name = r.choice(
            "queueId queueOffset maxMsgNums sysFlag commitOffset suspendTimeoutMillis subVersion maxMsgBytes requestSource".split()
        )
        fields[name] = r.choice(ODD_NUMBERS)
    if r.random() < 0.03:
        fields[r.choice("consumerGroup topic subscription expressionType".split())] = r.choice(
            [*ODD_TEXT, "SQL92", "*"]
        )
    if r.random() < 0.02:
        del fields[r.choice(list(fields))]
    items = list(fields.items())
    if r.random() < 0.02:
        names = ["topic", "zz", "b", "lo", "queueId", "Signature", "AccessKey", "OnsChannel", "SecurityToken"]
        items.append((r.choice(names), r.choice(["1", "true", *ODD_TEXT])))
    return items


WISHES = ["TRAN_MSG", "TRAN_MSG", "TRAN_MSG", "DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"]


def waiting_properties(r: Random, now_ms: int) -> str:
    """Of a message that waits for something, mostly as clients word it."""
    key = f"7F000001{r.randrange(1 << 16):04X}18B4AAC2{r.randrange(1 << 48):012X}"
    wish = r.choice(WISHES)
    values = {
        "TRAN_MSG": ["true"] * 30 + ["TRUE", "false", "1"],
        "DELAY": ["1", "2", "3", "18", "0", "01", "-1", "+1", "19", "1234567890123456"],
    }
    times = ["1", "3", "86400", "999999999999999", "0", "-5", "007", "x"]
    until = [str(now_ms + step) for step in (1, 999, 1000, 1001, 5000, 100_000, 10**9, 10**14)] + [str(now_ms), "1", ""]
    value = r.choice(values.get(wish, until if wish == "TIMER_DELIVER_MS" else times))
    pairs = [(wish, value), ("UNIQ_KEY", key), ("WAIT", "true")]
    if wish == "TRAN_MSG" and r.random() < 0.97:
        pairs.append(("PGROUP", r.choice(GROUPS)))
    if r.random() < 0.3:
        pairs += [("TAGS", r.choice(TAGS)), ("KEYS", "k1 k2")]
    odd = r.random()
    if odd < 0.03:
        pairs.append(r.choice(pairs))
    elif odd < 0.06:
        pairs.append((r.choice([*SPECIAL, *WISHES, "__transactionId__", "TRANSACTION_CHECK_TIMES"]), "1"))
    elif odd < 0.08:
        pairs.append(("CHECK_IMMUNITY_TIME_IN_SECONDS", "5"))
    elif odd < 0.1:
        pairs += [(f"n{number}", "v") for number in range(r.choice([28, 29, 30, 40]))]
    elif odd < 0.11:
        pairs.append(("big", "x" * r.randrange(7900, 8200)))
    elif odd < 0.13:
        del pairs[r.randrange(len(pairs))]
    r.shuffle(pairs)
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs)
    return text[: -r.choice([0, 1])] if r.random() < 0.2 else text


def waiting_frame(r: Random, now_ms: int) -> bytes:
    """A send that is not for consumers yet."""
    code = r.choice([310, 310, 310, 10, 320])
    names = dict(zip("abcdefghijklmn", "abcdefghijklmn", strict=True)) if code != 10 else LONG
    fields = {
        "a": "producers", "b": r.choice(TOPICS[:4]), "c": "TBW102", "d": "4", "e": str(r.choice([0, 1, 7])),
        "f": r.choice(["0", "4", "4", "5", "8", "12"]), "g": "1700000000123", "h": r.choice(["0", "-3"]),
        "i": waiting_properties(r, now_ms), "j": r.choice(["0", "0", "2"]), "m": "true" if code == 320 else "false",
    }  # fmt: skip
    items = [(names[name], value) for name, value in fields.items()]
    flag = 0 if r.random() < 0.9 else 2
    return framed(r, code, flag, r.randrange(1 << 31), items, lambda: body(r))


def end_frame(r: Random, known: tuple[int, int, str, str]) -> bytes:
    """The end of a transaction, mostly of one that is `known`: log offset, queue offset, group, unique key."""
    log_offset, queue_offset, group, key = known
    fields = {
        "producerGroup": group if r.random() < 0.97 else r.choice(GROUPS), "tranStateTableOffset": str(queue_offset),
        "commitLogOffset": str(log_offset), "commitOrRollback": r.choice(["8", "8", "8", "12", "12", "0", "4"]), "msgId": key,
    }  # fmt: skip
    for name, value in (
        ("topic", "tea"),
        ("fromTransactionCheck", r.choice(["true", "false", "0", "maybe"])),
        ("transactionId", key),
        ("bname", "broker-a"),
    ):
        if r.random() < 0.5:
            fields[name] = value
    odd = r.random()
    if odd < 0.05:
        fields[r.choice(["tranStateTableOffset", "commitLogOffset", "commitOrRollback"])] = r.choice(ODD_NUMBERS)
    elif odd < 0.08:
        fields["msgId"] = r.choice(["other", *ODD_TEXT])
    elif odd < 0.1:
        fields[r.choice(["zz", "b", "queueId", "a"])] = "1"
    elif odd < 0.12:
        del fields[r.choice(list(fields))]
    flag = 0 if r.random() < 0.6 else 2
    return framed(r, 37, flag, r.randrange(1 << 31), list(fields.items()), lambda: b"" if r.random() < 0.99 else b"x")


# -- wire forms --------------------------------------------------------------------------------------------------------


def quote(r: Random, text: str, wild: float) -> str:
    out = ['"']
    for char in text:
        if char in '"\\' or char < " " or (wild and r.random() < wild):
            short = {
                '"': '\\"',
                "\\": "\\\\",
                "\n": "\\n",
                "\r": "\\r",
                "\t": "\\t",
                "\b": "\\b",
                "\f": "\\f",
                "/": "\\/",
            }.get(char)
            if short is not None and r.random() < 0.5:
                out.append(short)
            else:
                units = char.encode("utf-16-be", "surrogatepass")
                form = "\\u%04x" if r.random() < 0.5 else "\\u%04X"
                out += [form % unit for (unit,) in struct.iter_unpack(">H", units)]
        else:
            out.append(char)
    return "".join(out) + '"'


def json_header(r: Random, code: int, flag: int, opaque: int, fields: list[tuple[str, str]]) -> bytes:
    wild = 0.0 if r.random() < 0.8 else r.choice([0.02, 0.3, 1.0])
    space = (lambda: "") if r.random() < 0.85 else (lambda: r.choice(["", "", " ", "\t", "\r\n", "  \n"]))

    def joined(items: list[tuple[str, str]]) -> str:
        pairs = [f"{space()}{quote(r, name, wild)}{space()}:{space()}{value}{space()}" for name, value in items]
        return "{" + (",".join(pairs) or space()) + "}"

    bare = 0.0 if r.random() < 0.8 else r.choice([0.05, 0.5, 1.0])  # as other languages write numbers
    ext = joined(
        [
            (name, value if value.lstrip("-").isdigit() and r.random() < bare else quote(r, value, wild))
            for name, value in fields
        ]
    )
    top = [
        ("code", str(code)), ("extFields", ext), ("flag", str(flag)), ("language", '"JAVA"'), ("opaque", str(opaque)),
        ("serializeTypeCurrentRPC", '"JSON"'), ("version", "479"),
    ]  # fmt: skip
    if r.random() < 0.05:
        top.append(("remark", r.choice(["null", '"why"', '"\\u00e9"', '"é"', "1", "nul", "[]"])))
    if r.random() < 0.05:
        at = r.randrange(len(top))
        numbers = [
            "1e2",
            "1.0",
            "-0",
            "00",
            "-",
            "true",
            "null",
            '"1"',
            "99999999999",
            "-2147483648",
            "2147483647",
            "123456789012345678901",
            "1" * 5000,
        ]
        top[at] = (top[at][0], r.choice([*numbers, "{}", "[]", ext]))
    if r.random() < 0.03:
        top.append(top[r.randrange(len(top))])
    if r.random() < 0.02:
        top.append(
            (
                r.choice(["zzz", "code", "extFields", "opaque", "flag", "version", "language"]),
                r.choice(["1", "0", "310", "{}", "null", '"x"', ext, "{" + '"b":"x"' + "}"]),
            )
        )
    if r.random() < 0.02:
        del top[r.randrange(len(top))]
    if r.random() < 0.15:
        r.shuffle(top)
    text = space() + joined(top) + space()
    return text.encode("utf-8", "surrogatepass")


def binary_header(r: Random, code: int, flag: int, opaque: int, fields: list[tuple[str, str]]) -> bytes:
    parts = []
    for name, value in fields:
        name_bytes, value_bytes = name.encode(), value.encode()
        parts.append(
            struct.pack(">h", len(name_bytes)) + name_bytes + struct.pack(">i", len(value_bytes)) + value_bytes
        )
    if r.random() < 0.2:
        r.shuffle(parts)
    if r.random() < 0.03 and parts:
        parts.append(r.choice(parts))
    ext = b"".join(parts)
    remark = b"" if r.random() < 0.98 else b"why"
    claimed = len(ext) if r.random() < 0.98 else len(ext) + r.choice([-1, 1, 1 << 30, -(1 << 31)])
    return (
        struct.pack(">hBhiii", code, r.randrange(14), 479, opaque, flag, len(remark))
        + remark
        + struct.pack(">i", max(claimed, -(1 << 31)))
        + ext
    )


def frame(r: Random) -> bytes:
    code = r.choice([310] * 12 + [10] * 3 + [320] * 4 + [11] * 5 + [361, 34])
    flag = 0 if r.random() < 0.9 else r.choice([2, 2, 2, 1, 3, 4, -1])
    opaque = r.randrange(1 << 31) if r.random() < 0.9 else r.choice([0, -1, -(1 << 31), (1 << 31) - 1])
    pulls = code in (11, 361)
    fields = pull_fields(r, code) if pulls else send_fields(r, code)

    def content() -> bytes:
        return b"" if pulls and r.random() < 0.98 else batch_body(r) if code == 320 else body(r)

    return framed(r, code, flag, opaque, fields, content)


def framed(
    r: Random, code: int, flag: int, opaque: int, fields: list[tuple[str, str]], make_content: Callable[[], bytes]
) -> bytes:
    if r.random() < 0.3:
        r.shuffle(fields)
    binary = r.random() < 0.3
    header = (binary_header if binary else json_header)(r, code, flag, opaque, fields)
    if r.random() < 0.06:
        header = mutate(r, header)
    content = make_content()
    total, mark = 4 + len(header) + len(content), len(header) | binary << 24
    if r.random() < 0.002:
        total = r.choice([0, 3, 4, -1, total - 1, total + 1, 1 << 20, (1 << 31) - 1])
    if r.random() < 0.002:
        mark = r.choice([0, mark ^ 1 << 24, mark | 2 << 24, mark + 1, 0xFFFFFF, mark | 0xFF << 24])
    return struct.pack(">iI", total, mark & 0xFFFFFFFF) + header + content
