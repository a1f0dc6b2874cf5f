"""One request on a fresh connection, by hand: for readiness checks that must not depend on the code under test."""

import json
import socket
import struct

GET_ROUTE, UPDATE_TOPIC, UPDATE_GROUP, GET_GROUP = 105, 17, 200, 352
JAVA_VERSION = 479


def ask(address: str, code: int, body: bytes = b"", **fields: str) -> tuple[int, bytes]:
    """The response code and the body."""
    host, _, port = address.rpartition(":")
    header = {"code": code, "language": "JAVA", "version": JAVA_VERSION, "opaque": 1, "flag": 0, "extFields": fields}
    encoded = json.dumps(header).encode()
    with socket.create_connection((host, int(port)), timeout=5) as connection, connection.makefile("rb") as answers:
        connection.sendall(struct.pack(">ii", 4 + len(encoded) + len(body), len(encoded)) + encoded + body)
        head = answers.read(8)
        if len(head) < 8:
            raise ConnectionError(f"{address} closed the connection instead of answering request {code}")
        total, mark = struct.unpack(">ii", head)
        answer = json.loads(answers.read(mark & 0xFFFFFF))
        return answer["code"], answers.read(total - 4 - (mark & 0xFFFFFF))


def routed(nameserver: str, topic: str, broker: str) -> bool:
    """Does the name server send clients of this topic to this broker?"""
    try:
        code, body = ask(nameserver, GET_ROUTE, topic=topic)
    except OSError:
        return False
    return code == 0 and broker.encode() in body
