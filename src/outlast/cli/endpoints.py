"""`host:port` as people type it."""

from __future__ import annotations

import re
from ipaddress import IPv6Address

from outlast.launch import Endpoint

C10D_PORT = 29400
LONGEST = 255  # characters of a host's name


def endpoint_of(flag: str, text: str, default_port: int = C10D_PORT) -> Endpoint:
    """The endpoint in a flag's `host:port`; raises ValueError, naming the flag."""
    text = text.strip()
    host, colon, port = (text, "", "") if text.endswith("]") else text.rpartition(":")
    if not colon:
        return Endpoint(host_of(flag, text), default_port)
    if not re.fullmatch(r"[0-9]{1,5}", port) or int(port) > 65535:
        raise ValueError(f"{flag} must be host:port with a port from 0 to 65535, not {text!r}")
    return Endpoint(host_of(flag, host), int(port))


def host_of(flag: str, text: str) -> str:
    """The host in a flag; raises ValueError, naming the flag."""
    host = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    if ":" in host:
        try:
            IPv6Address(host)
        except ValueError:
            raise ValueError(f"{flag}: {text!r} is not a host; write IPv6 as [::1]:29400") from None
    elif not re.fullmatch(r"[\w-]{1,63}(\.[\w-]{1,63})*\.?", host, re.ASCII) or len(host) > LONGEST:
        raise ValueError(f"{flag}: {text!r} is not a host; give a name or an IP address")
    return host
