"""Certificates for tests, made with openssl: a server's, a client's, and who signed them.

Python 3.13 is strict: an authority must say that it signs, and what it signed must name its key (RFC 5280)."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1")


@dataclass(frozen=True)
class Certificate:
    cert: Path
    key: Path


@dataclass(frozen=True)
class Certificates:
    authority: Path
    server: Certificate
    client: Certificate
    stranger: Certificate  # good, but signed by nobody we know
    locked: Certificate  # its key needs a password: "open"


def make(folder: Path) -> Certificates:
    authority = _self_signed(folder, "authority", ca=True)
    return Certificates(
        authority=authority.cert,
        server=_signed(folder, "server", authority),
        client=_signed(folder, "client", authority),
        stranger=_self_signed(folder, "stranger"),
        locked=_self_signed(folder, "locked", password="open"),
    )


def _paths(folder: Path, name: str) -> Certificate:
    return Certificate(folder / f"{name}.pem", folder / f"{name}.key")


def _self_signed(folder: Path, name: str, ca: bool = False, password: str = "") -> Certificate:
    made = _paths(folder, name)
    secret = ("-passout", f"pass:{password}") if password else ("-nodes",)
    says = ["basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign"] if ca else []
    extra = [word for extension in says for word in ("-addext", extension)]
    _openssl(
        "req", "-x509", *CURVE, *secret, "-days", "2", "-subj", f"/CN={name}", *extra, "-keyout", made.key, "-out", made.cert
    )  # fmt: skip
    return made


def _signed(folder: Path, name: str, by: Certificate) -> Certificate:
    made, request, names = _paths(folder, name), folder / f"{name}.csr", folder / f"{name}.ext"
    names.write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\nauthorityKeyIdentifier=keyid\n")
    _openssl("req", "-new", *CURVE, "-nodes", "-subj", f"/CN={name}", "-keyout", made.key, "-out", request)
    _openssl(
        "x509", "-req", "-in", request, "-CA", by.cert, "-CAkey", by.key, "-CAcreateserial", "-days", "2", "-extfile", names,
        "-out", made.cert,
    )  # fmt: skip
    return made


def _openssl(*arguments: object) -> None:
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, done.stderr
